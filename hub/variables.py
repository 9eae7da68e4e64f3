"""The names of HUB_… environment variables: settings, names that are nearly settings, and others.

A limit whose name is misspelt is a limit that the operator believes in and that is not there.  So a name that is nearly
that of a setting stops the start.  Any other unknown name may belong to another program.

    HUB_MAX_CONNECTIONS                  a setting
    HUB_MAX_CONECTIONS                   nearly: one letter in eight differs
    HUB_MAX_CLIENT_CONNECTIONS           nearly: one word is added or missing, in any order, singular or plural
    HUB_PORT_3000_TCP_ADDR               Kubernetes sets it for a service that is called hub
    HUB_NAME                             unknown
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from hub.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

PREFIX: Final = "HUB_"
OF_COMMANDS: Final = frozenset({"HUB_TOKEN", "HUB_TOKEN_KEY"})
"""Variables that commands read, and that are no settings."""
RENAMED: Final = {"HUB_TRANSPORT_URL": "HUB_HISTORY_URL"}
"""Earlier names of variables, which are still read, and the present ones."""

_LETTERS: Final = 8
"""Letters of a setting's name for each one that may differ."""
_OF_A_SERVICE: Final = re.compile(r"HUB_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")


def unknown_variables(environment: Mapping[str, str], settings: Collection[str]) -> list[str]:
    """The sorted names of HUB_… variables that are neither of `settings` nor of a command.

    Variables that Kubernetes sets for a service called `hub`, or `hub-…`, are left out.  Raises ConfigurationError if
    a name is nearly that of a setting.  Case does not matter.
    """
    known = {PREFIX + name.upper() for name in settings}
    unknown = [
        name
        for name in sorted(environment)
        if (upper := name.upper()).startswith(PREFIX) and upper not in known | OF_COMMANDS | RENAMED.keys()
        if not _is_of_a_service(upper, environment[name])
    ]
    nearly = [(name, meant) for name in unknown if (meant := _nearest(name.upper(), known | RENAMED.keys()))]
    if nearly:
        raise ConfigurationError(
            "; ".join(f"{name} is no setting: did you mean {RENAMED.get(meant, meant)}?" for name, meant in nearly)
        )
    return unknown


def renamed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The values of variables with an earlier name, by the present one; those that have both names are left out."""
    given = {name.upper(): value for name, value in environment.items()}
    return {new: given[old] for old, new in RENAMED.items() if old in given and new not in given}


def _is_of_a_service(name: str, value: str) -> bool:
    return bool(_OF_A_SERVICE.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is nearly; None if there is none.  One that has all of its words comes first."""
    near = [
        (bool(_words(name) - _words(other)), distance, other)
        for other in known
        if (distance := _edits(name, other)) <= max(1, (len(other) - len(PREFIX)) // _LETTERS)
        or _differ_in_one_word(name, other)
    ]
    return min(near)[2] if near else None


def _differ_in_one_word(one: str, other: str) -> bool:
    """Whether their words are the same but for one that only one of them has.  A lone word is never enough."""
    words, others = _words(one), _words(other)
    added, missing = (words - others).total(), (others - words).total()
    return added + missing <= 1 and words.total() > missing


def _words(name: str) -> Counter[str]:
    """The words of a name, without the endings of a plural."""
    return Counter(word.removesuffix("S").removesuffix("E") for word in name.removeprefix(PREFIX).split("_"))


def _edits(one: str, other: str) -> int:
    """How many letters to add, leave out, replace, or swap with the next make `other` of `one` (Damerau, 1964)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]
