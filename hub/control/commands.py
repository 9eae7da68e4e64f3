"""Command: what all processes of a hub shall do, and to whose streams.

Belongs here: the text of a command, and the rule whom it means.  Does not belong here:
how it comes to a process, and what it does there.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from hub.errors import InvalidRequest
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

Inquiry: TypeAlias = Literal["list", "explain", "top"]
"""Commands that end nothing, and that each process answers."""
Action: TypeAlias = Literal["kick", "revoke", "lift", "call", Inquiry]
"""What a command does."""
By: TypeAlias = Literal["subject", "subscriber", "token_id", "key_id"]

MAX_TEXT: Final = 1_024
"""Characters of each text in a command, at most."""
MAX_QUESTION: Final = 8_192
"""Characters of the text of a question, at most."""

CLASSIC: Final = "classic"
"""Stands for the issuer of a classic token, which has none."""
APPLICATION: Final = "application"
"""Stands for the issuer of a grant of the application."""
ANONYMOUS: Final = "anonymous"
"""Stands for the issuer of a client without a token."""
RESERVED: Final = frozenset([CLASSIC, APPLICATION, ANONYMOUS])
"""The names that no issuer may have."""

_TOKEN: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")
_ASKS: Final = "?"
"""What the action of an inquiry begins with, in the text of a command."""
_REVOCABLE: Final[frozenset[By]] = frozenset(["subject", "token_id"])


class Identity(NamedTuple):
    """Whom a grant is for, as far as commands can tell."""

    issuer: str
    """The issuer of a current token, or one of RESERVED."""
    subject: str | None = None
    """The `sub` of the token, or the subject that the application gave."""
    token_id: str | None = None
    """The `jti` of the token."""
    key_id: str | None = None
    """The `kid` in the header of the token."""
    issued: float | None = None
    """The `iat` of the token, in seconds since the epoch."""


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of a client without a token."""


class Target(NamedTuple):
    """Those whom a command means."""

    by: By
    value: str
    issuer: str | None = None
    """The only issuer that counts; None for all."""

    def is_met(self, subscriber: str, identity: Identity) -> bool:
        """Return whether it is the target; `subscriber` is the id of a stream."""
        if self.issuer is not None and self.issuer != identity.issuer:
            return False
        found = subscriber if self.by == "subscriber" else getattr(identity, self.by)
        return bool(found == self.value)


class Named(TypedDict, total=False):
    """What names the streams that a command means, as callers give it."""

    subject: str | None
    subscriber: str | None
    token_id: str | None
    key_id: str | None
    issuer: str | None


class Revocable(TypedDict, total=False):
    """The same, for what can be revoked."""

    subject: str | None
    token_id: str | None
    issuer: str | None


def target_of(**named: Unpack[Named]) -> Target:
    """Return the target of a command.

    Raises `InvalidRequest` unless one thing beside the issuer is given, and TypeError
    for what is no text, or another name.
    """
    for name, value in named.items():
        if name not in Named.__annotations__:
            raise TypeError(f"{name!r} names no stream; {', '.join(Named.__annotations__)} do")
        if not isinstance(value, str | None):
            raise TypeError(f"{name} {value!r:.80} is no text")
    kinds: tuple[By, ...] = get_args(By)
    found = [(by, value) for by in kinds if (value := named.get(by)) is not None]
    if len(found) != 1:
        raise InvalidRequest(f"give exactly one of {', '.join(kinds)}")
    by, value = found[0]
    return Target(by, value, named.get("issuer"))


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Raises `InvalidRequest` if a text is empty or too long, or if what it names cannot
    be revoked, and TypeError.
    """

    action: Action
    target: Target | None
    """None for a `call`, and for an inquiry about all."""
    before: float = 0.0
    """A subject's tokens are revoked if they were issued by then, in seconds since the
    epoch."""
    until: float | None = None
    """When a revocation ends, in seconds since the epoch; None if it must be lifted."""
    question: str = ""
    """What a question asks, in the terms of those who answer it."""

    def __post_init__(self) -> None:
        by, value, issuer = self.target or Target("subscriber", " ")
        if not (
            isinstance(value, str)
            and isinstance(issuer, str | None)
            and isinstance(self.before, int | float)
            and isinstance(self.until, int | float | None)
            and isinstance(self.question, str)
        ):
            raise TypeError(f"{self!r:.200} has a value of a wrong type")
        if self.action not in get_args(Action) or by not in get_args(By):
            raise InvalidRequest(f"{shown(self.action)} by {shown(by)} is no command")
        if self.target is None and self.action not in ("call", *get_args(Inquiry)):
            raise InvalidRequest(f"a {self.action} needs a target")
        if len(self.question) > MAX_QUESTION:
            raise InvalidRequest(f"a question has {len(self.question)} characters; the limit is {MAX_QUESTION}")
        for name, text in ((by, value), ("issuer", issuer)):
            if text is not None and not 0 < len(text) <= MAX_TEXT:
                raise InvalidRequest(f"{name} {shown(text)} has {len(text)} characters; it must have 1 to {MAX_TEXT}")
        if by == "token_id" and _TOKEN.fullmatch(value):
            raise InvalidRequest("this is a token, which is a secret: give its id, which is its `jti`")
        try:
            self.to_json().encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequest(f"{by} {shown(value)} has a lone surrogate, which no token has") from None
        if self.action in ("revoke", "lift") and by not in _REVOCABLE:
            raise InvalidRequest(f"a {by} cannot be revoked, only a subject's tokens, or a token_id")

    @classmethod
    def from_json(cls, text: str | bytes) -> Command:
        """Return the command that `to_json` wrote.

        Raises UnknownInquiry for an inquiry of a later version, and ValueError for any
        other text.
        """
        try:
            action, target, before, until, question = json.loads(text)
            if isinstance(action, str) and action.startswith(_ASKS):
                action = action[len(_ASKS) :]
                if action not in get_args(Inquiry):
                    raise UnknownInquiry(f"the inquiry {shown(action)} is not known")
            return cls(action, None if target is None else Target(*target), before, until, question)
        except (TypeError, InvalidRequest) as error:
            raise ValueError(f"this is no command: {error}") from None

    def to_json(self) -> str:
        """Return the command as a JSON array.

        It shows that an inquiry is one, also to versions that do not know it.
        """
        action = f"{_ASKS}{self.action}" if self.action in get_args(Inquiry) else self.action
        return json.dumps([action, self.target, self.before, self.until, self.question], ensure_ascii=False)

    def ends(self, subscriber: str, identity: Identity) -> bool:
        """Return whether the command ends a stream with this id and identity.

        A subject's grants of the application end too, although they cannot be revoked.
        """
        if self.action not in ("kick", "revoke") or not (self.target and self.target.is_met(subscriber, identity)):
            return False
        return self.action == "kick" or identity.issuer == APPLICATION or self.revokes(identity)

    def revokes(self, identity: Identity) -> bool:
        """Return whether it refuses a token that its target is met by."""
        is_token = self.target is not None and self.target.by == "token_id"
        return is_token or identity.issued is None or identity.issued <= self.before


class UnknownInquiry(ValueError):
    """The text is an inquiry of a later version, which ends nothing."""


class Numbered(NamedTuple):
    """A command in the list."""

    number: int
    """Greater than that of each earlier command."""
    command: Command


class News(NamedTuple):
    """What a history tells a process of its list of commands."""

    number: int
    """The number of the newest command."""
    commands: list[Numbered]
    """Those that the process does not know, in their order."""
    revocations: list[Command] | None = None
    """All that are in force, if the list does not have all that the process has missed;
    otherwise None."""
    is_whole: bool = True
    """Whether each command could be read: one of a later version cannot."""

    @classmethod
    def read(
        cls, number: int, commands: Iterable[tuple[int, str | bytes]], revocations: Iterable[str | bytes] | None = None
    ) -> News:
        """Return the news in the texts of commands.

        An empty text is the beginning of the list, and no command.  An inquiry of a
        later version is left out: no stream would have ended.
        """
        found: list[Numbered] = []
        is_whole = True
        for one, text in commands:
            try:
                found.append(Numbered(one, Command.from_json(text)))
            except UnknownInquiry:
                pass
            except ValueError:
                is_whole = is_whole and not text
        in_force = None if revocations is None else [one for one in map(_readable, revocations) if one]
        return cls(number, found, in_force, is_whole)


def _readable(text: str | bytes) -> Command | None:
    with suppress(ValueError):
        return Command.from_json(text)
    return None


class Taken(NamedTuple):
    """A command that the history has taken."""

    number: int
    place: int
    """The end of the log, as a position of this node: later entries come after it."""
    others: list[str]
    """The names of the other processes that are alive."""
