"""Ledger: the commands and the revocations that one process knows.

    history ── News ──► learn ──┬─► revocations     what no token may do
                                ├─► recent          what requests on their way must ask
                                └─► due             what the streams here wait for

Belongs here: what is known.  Does not belong here: where it comes from (`hub.history`),
and what is done with streams (`hub.node.control`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from hub.control.commands import APPLICATION, Target

if TYPE_CHECKING:
    from hub.control.commands import Command, Identity, News, Numbered

MAX_COMMANDS: Final = 10_000
"""Commands that a history keeps in its list."""
MAX_RECENT: Final = 1_000
"""Commands that a ledger keeps for requests on their way."""
MAX_AGE: Final = 3_600
"""Seconds that a history keeps a command in its list; the newest one stays."""
ANSWERS_AGE: Final = 60
"""Seconds that a history keeps the answers to a command."""


class Ledger:
    """What one process knows of the list of commands.  For one event loop."""

    def __init__(self, *, is_current: bool = False) -> None:
        self.number = 0
        """The number of the newest command that is known; 0 before any was."""
        self.is_current = is_current
        """Whether the list was read, and could be read the last time."""
        self.heard = 0
        """How many commands were learned: a mark for `ended_since`."""
        self.due: deque[Numbered] = deque()
        """The commands that are not carried out here yet, in their order."""
        self.is_settled = True
        """Whether all commands that are known are carried out; set by who does that."""
        self.revoked: dict[Target, Command] = {}
        """The revocations in force."""
        self.others: list[str] = []
        """The names of the other processes that were alive when the history was last
        asked."""
        self.was_lost = False
        """Whether the list could not be read since this was last set to false."""
        self.lost_others: list[str] = []
        """The other processes that were alive before that."""
        self.has_missed = False
        """Whether commands are unknown, so that any stream here might have to end."""
        self._has_heard = is_current  # whether anything was ever learned
        self._recent: deque[Command] = deque(maxlen=MAX_RECENT)  # the newest that were learned

    @property
    def is_due(self) -> bool:
        """Whether something must be carried out."""
        return bool(self.due) or self.has_missed

    def has_room(self, command: Command, most: int) -> bool:
        """Return whether a command leaves no more than `most` revocations (R86)."""
        self._drop_ended(command.before)
        return command.action != "revoke" or len(self.revoked) < most or command.target in self.revoked

    def lose(self) -> None:
        """Note that the list cannot be read."""
        if not self.was_lost:
            self.lost_others = self.others
        self.is_current, self.was_lost, self.is_settled = False, True, False

    def learn(self, news: News) -> None:
        """Take what the history has told.  Older news change nothing."""
        is_first, self._has_heard, self.is_current = not self._has_heard, True, True
        if news.number <= self.number:
            return
        if not is_first and (news.revocations is not None or not news.is_whole):
            self.miss()
            self.heard += MAX_RECENT + 1  # whoever is on the way might be meant, too
        if news.revocations is not None:
            self.revoked = {command.target: command for command in news.revocations if command.target is not None}
        for numbered in news.commands:
            if numbered.number > self.number:
                self._note(numbered.command)
                if not is_first:  # before it has heard, a process has no stream
                    self.add(numbered)
        if news.commands:
            self._drop_ended(max(numbered.command.before for numbered in news.commands))
        self.number = news.number

    def miss(self) -> None:
        """Note that a stream here may have to end, of which nobody knows."""
        self.has_missed, self.is_settled = True, False

    def add(self, numbered: Numbered) -> None:
        """Take a command that must be carried out."""
        self.due.append(numbered)
        self.is_settled = False

    def note(self, command: Command) -> None:
        """Take a command that the history does not have yet."""
        self._note(command)
        self._drop_ended(command.before)

    def _note(self, command: Command) -> None:
        self.heard += 1
        self._recent.append(command)
        if command.target is None or command.action not in ("revoke", "lift"):
            return
        self.revoked.pop(command.target, None)
        if command.action == "revoke":
            self.revoked[command.target] = command

    def _drop_ended(self, before: float) -> None:
        """Forget the revocations that have ended; `before` is that of a new command."""
        # `before` is a little later than now; `until` has room for that.
        for one in list(self.revoked.values()):
            if one.target is not None and one.until is not None and one.until < before:
                del self.revoked[one.target]

    def revoking(self, identity: Identity) -> Command | None:
        """Return the revocation that refuses a token (R84), or None."""
        if identity.issuer == APPLICATION:  # it alone can refuse its grants
            return None
        subject, token_id = identity.subject or "", identity.token_id or ""  # no target is empty
        for issuer in (None, identity.issuer):
            for target in (Target("subject", subject, issuer), Target("token_id", token_id, issuer)):
                command = self.revoked.get(target)
                if command is not None and command.revokes(identity):
                    return command
        return None

    def ended_since(self, heard: int, subscriber: str, identity: Identity) -> bool:
        """Return whether a command that was learned after the mark `heard` ends a
        stream, or if that is not known.
        """
        if (count := self.heard - heard) == 0:
            return False
        if count > len(self._recent):
            return True
        newest = reversed(self._recent)
        return any(next(newest).ends(subscriber, identity) for _ in range(count))
