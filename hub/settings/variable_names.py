"""The names of settings: misspelt ones, and variables that are no settings.

If the name of a limit is misspelt, the operator believes in a limit that does not
exist.  So a name that is almost the name of a setting stops the start.  Any other
unknown name may belong to another program, and only causes a warning.

    HUB_MAX_CONNECTIONS           a setting
    HUB_MAX_CONECTIONS            almost: up to one letter in eight differs
    HUB_MAX_CLIENT_CONNECTIONS    almost: one word is added or missing, in any order,
                                  singular or plural
    HUB_PUBLISHER_KEY_FILE        the path of a file with a secret setting
    HUB_PORT_3000_TCP_ADDR        Kubernetes sets it for a service that is called hub
    HUB_NAME                      unknown
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from hub.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

PREFIX: Final = "HUB_"
OF_COMMANDS: Final = frozenset({"HUB_TOKEN", "HUB_TOKEN_FILE", "HUB_TOKEN_KEY", "HUB_URL"})
"""Variables that commands read and that are not settings."""
RENAMED: Final = {"HUB_TRANSPORT_URL": "HUB_HISTORY_URL"}
"""Old names of variables, which are still read, and the present names."""

_LETTERS_PER_TYPO: Final = 8
"""Letters of a setting's name for each edit that a name may differ by; one is allowed.
"""
_OF_A_SERVICE: Final = re.compile(r"HUB_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")


def variable(setting: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + setting.upper()


def file_variable(secret: str) -> str:
    """Return the environment variable with the path of the file of a secret setting."""
    return f"{variable(secret)}_FILE"


def unknown_variables(
    environment: Mapping[str, str], settings: Collection[str], secrets: Collection[str] = (), where: str = ""
) -> list[str]:
    """Return the sorted names of the HUB_… variables that are unknown.

    Known are the names in `settings`, their old names, those of the files with one of
    `secrets`, and the variables that commands read.  Variables that Kubernetes sets for
    a service called `hub` or `hub-…` are left out.  Case does not matter.

    Raises ConfigurationError if a name is almost the name of a setting; the message has
    `where` after the name.
    """
    known = {*map(variable, settings), *map(file_variable, secrets)}
    unknown = [
        name
        for name in sorted(environment)
        if (upper := name.upper()).startswith(PREFIX) and upper not in known | OF_COMMANDS | RENAMED.keys()
        if not _is_of_a_service(upper, environment[name])
    ]
    nearly = [(name, meant) for name in unknown if (meant := _nearest(name.upper(), known | RENAMED.keys()))]
    if nearly:
        raise ConfigurationError(
            "; ".join(
                f"{name}{where} is not a setting: did you mean {RENAMED.get(meant, meant)}?" for name, meant in nearly
            )
        )
    return unknown


def nearest(name: str, settings: Iterable[str]) -> str | None:
    """Return the setting whose name `name` almost is, or None."""
    found = _nearest(variable(name), map(variable, settings))
    return found and found.removeprefix(PREFIX).lower()


def _is_of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes sets this variable for a service."""
    return bool(_OF_A_SERVICE.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` almost is, or None.

    If there are several, a known name with all words of `name` takes precedence.
    Then the name with the fewest edits does.
    """
    near = [
        (bool(_words(name) - _words(other)), distance, other)
        for other in known
        if (distance := _edits(name, other)) <= max(1, (len(other) - len(PREFIX)) // _LETTERS_PER_TYPO)
        or _differ_in_one_word(name, other)
    ]
    return min(near)[2] if near else None


def _differ_in_one_word(one: str, other: str) -> bool:
    """Whether the words are the same, except for one that only one of the names has.

    If `one` is a single word, it must not lack a word of `other`.
    """
    words, others = _words(one), _words(other)
    added, missing = (words - others).total(), (others - words).total()
    return added + missing <= 1 and words.total() > missing


def _words(name: str) -> Counter[str]:
    """Return the words of a name, without plural endings."""
    return Counter(word.removesuffix("S").removesuffix("E") for word in name.removeprefix(PREFIX).split("_"))


def _edits(one: str, other: str) -> int:
    """Return how many edits turn `one` into `other` (Damerau, 1964).

    An edit adds, removes or replaces a letter, or swaps two neighbours.
    """
    # Row i of the table has the distances from the first i letters of `one` to each
    # prefix of `other`.  Only the last two rows are kept.
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
