"""The contract of a history: an ordered log of updates that nodes append to and follow.

    position    1      2      3      4      5
    entry       a      b      c      d      e          find(c.id) returns 3
                              ^ a subscriber at position 3 reads d and e next

Live subscribers and subscribers that reconnect get the same entries in the same order.
Presence goes through the history too, so that every node knows the subscribers of all
nodes, and a subscriber is listed in the same step as the update that announces it.

    position   1  2  3  4  5  6  7  8  9      P is a published update
    entry      .  .  P  .  .  s  P  s  P      s is a presence update, . is forgotten
                  │        └ the newest forgotten presence update
                  └ the newest forgotten published update: reading from before it
                    raises PositionExpired

There are two kinds of entries in one order: published updates and presence updates.
Each kind has its own bounds, so presence never displaces published updates.

What a history promises:

- one order: all nodes see the same entries in the same order, each entry once;
- durability: entries that `append` has returned survive the failures that the
  implementation names.  If `append` did not return, the history has all of its updates
  or none;
- lookup: `find` uses an index, whatever the length of the history;
- no gap: a reader misses no published update and sees none twice, or gets
  PositionExpired.  `follow` misses no presence update either; a page of `read` reports
  up to which position they are forgotten;
- epochs: a history that loses entries (a damaged file, a server without its last
  second) begins a new epoch.  Positions of an earlier epoch raise PositionExpired, and
  `find` returns None for an entry before a loss, so that its client gets the whole
  history instead of a part with a gap;
- presence ends with its node: if a node is silent for `node_timeout` seconds, another
  node announces its subscribers as gone;
- commands have a place: a node learns of no entry without the commands that the history
  took before it (`hub.control`);
- recovery: an unavailable history raises HistoryUnavailable, leaves nothing half done,
  and recovers without a restart.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hub.errors import PositionExpired
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container, Iterable, Sequence

    from hub.control.commands import Command, Taken
    from hub.control.ledger import Ledger
    from hub.history.opaque import Loss
    from hub.protocol.subscriptions import Present
    from hub.protocol.updates import Update

PAGE_ENTRIES: Final = 128
"""Entries of a page, at most."""
PAGE_BYTES: Final = 2**20
"""Bytes of a page, at most, unless its first entry alone is larger."""
RETRY: Final = 0.2, 1.0
"""Seconds before an unavailable history is tried again: a random time between these."""
EARLIEST: Final = -1
"""The position before all entries that the history still has; entries start at 1."""
EPOCH: Final = 2**40
"""The number that a node adds to its positions at each new epoch."""


@dataclass(slots=True, unsafe_hash=True)
class Entry:
    """An update at its position in the history.

    No attribute is ever set again.  The class is not frozen, because to make an entry
    would then take several times as long.
    """

    position: int
    update: Update
    time: int = 0
    """The time of the append, in ms since 1970."""

    _frame: bytes | None = field(default=None, init=False, repr=False, compare=False)  # None until it is needed

    @property
    def frame(self) -> bytes:
        """The update as an event, encoded once for all readers."""
        frame = self._frame
        if frame is None:
            frame = events.frame(self.update)
            self._frame = frame
        return frame

    @property
    def size(self) -> int:
        """Its approximate size in memory, in bytes."""
        return self.update.size


@dataclass(frozen=True)
class Retention:
    """What a history keeps: updates, ids of updates, and subscribers of a silent node.

    The newest update of each kind is kept, whatever the bounds are.  Presence updates
    that are older than all published ones may be forgotten earlier.
    """

    max_updates: int
    """The maximum number of published updates, and of remembered ids."""
    max_bytes: int
    """The maximum bytes of all published updates."""
    max_age: float = math.inf
    """The maximum age in seconds of updates of both kinds."""
    presence_updates: int = 10_000
    """The maximum number of presence updates."""
    presence_bytes: int = 8 * 2**20
    """The maximum bytes of all presence updates."""
    idempotency_window: float = 0.0
    """Seconds in which an update is left out if its publisher has already used its id;
    0 turns this off."""
    node_timeout: float = 10.0
    """Seconds without a beat before the subscribers of a node are announced as gone."""
    revocations: int = 10_000
    """The maximum number of revocations in force."""


class Page(list[Entry]):
    """Consecutive entries; only forgotten presence updates are missing between them.

    `presence` has the positions of those entries that are presence updates.
    `forgotten` is the position of the newest presence update that was forgotten when
    the page was read.  `full` is whether the page ends at a multiple of PAGE_ENTRIES,
    so that all readers who read it later get the same entries.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        presence: frozenset[int] = frozenset(),
        forgotten: int = 0,
        full: bool = False,
    ) -> None:
        super().__init__(entries)
        self.presence = presence
        self.forgotten = forgotten
        self.full = full

    def require_presence(self, after: float) -> None:
        """Raise PositionExpired if presence updates after a position are forgotten."""
        if self.forgotten > after:
            raise PositionExpired(f"presence updates between the positions {after} and {self.forgotten} are forgotten")


class Change(NamedTuple):
    """An arrival on this node, or a departure from any, and the updates about it."""

    subscriber: Present
    active: bool
    """True for an arrival, False for a departure."""
    updates: Sequence[Update]


class Beat(NamedTuple):
    """The answer to a node's report that it is alive."""

    present: int
    """The number of this node's subscribers in the list of those present."""
    orphans: list[Present]
    """Some of the subscribers of nodes that are silent."""


class Stats(NamedTuple):
    """The size and age of a history, as `skipfilter history stats` shows them."""

    updates: int
    """The number of published updates."""
    oldest: Entry | None
    """The oldest entry of either kind."""
    newest: Entry | None
    """The newest entry of either kind."""
    bytes: int
    """The bytes of published updates, as their bound counts them."""
    presence_updates: int
    """The number of presence updates."""
    presence_bytes: int
    """The bytes of presence updates, as their bound counts them."""
    size: int
    """Bytes on disk, or of Redis's memory, or of the updates in memory."""
    epoch: str
    """The name of this epoch."""
    present: int
    """The number of subscribers that are present."""


class History(Protocol):
    """An ordered log of updates that every node of a hub appends to and follows.

    Positions are integers that grow by 1, and by more at a new epoch.  They are a
    node's own: another node may count the same entries differently.  A history may
    forget the oldest entries of each kind, but keeps at least the newest.

    Errors: an async method raises HistoryUnavailable if the history cannot be reached
    or written.  If a server answered too late, a change may have happened
    nevertheless.  A change happens as a whole or not at all.

    Concurrency: all methods may be called concurrently, from one event loop.  Changes
    of concurrent calls happen one after the other, in no promised order.

    Cancellation: a cancelled read has no effect.  A cancelled change happens as a whole
    or not at all, and the caller cannot know which.
    """

    has_time_limits: bool
    """Whether a call may end because it takes too long, as it does if the history is in
    another process."""
    node: str
    """The name of this node."""
    ledger: Ledger
    """The commands that this node knows.  `hear`, `follow`, `append` and `command` tell
    it what is new, before they return or yield."""

    async def append(
        self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False, known: int | None = None
    ) -> list[Entry]:
        """Append `updates` in order, as published or as presence updates.

        All of them are appended in one step.  Returns the new entries, which are
        durable.

        If the history has an idempotency window, a published update is left out if the
        same `publisher` has used its id within the window.  So a second call with the
        same published updates appends nothing and returns an empty list.  An id may be
        remembered for longer than its update, but at most `Retention.max_updates` ids
        are remembered.  If the history loses an update, it forgets its id too.

        With `known`, the number of a command, appends nothing and raises `Outdated` if
        the list has a later command; the ledger then knows it.

        Raises UnicodeEncodeError, and appends nothing, if the data of an update
        contains a lone surrogate.
        """
        ...

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """Return the position of the earliest entry with this id (N115), or None.

        Uses an index, and never scans the history.  Pass `presence` for a reader that
        may want presence updates: then also None if a later presence update is
        forgotten.
        """
        ...

    def cursor(self, position: int, id: str = "") -> str:
        """Return a new opaque cursor for a position that this node has read.

        It is valid on all nodes, and shows nothing of the history.  `id` is that of the
        entry at the position, if it is known: then the cursor is refused if the history
        loses the entry without noticing.
        """
        ...

    def digest(self, text: str) -> str:
        """Return a digest of a text, 32 digits, with a key that all nodes have.

        It stays as it is if a node starts again.
        """
        ...

    async def locate(self, cursor: str, *, presence: bool = False) -> int | Loss:
        """Return the position of an opaque cursor, or why updates after it are lost.

        Pass `presence` for a reader that may want presence updates.
        """
        ...

    async def newest(self) -> Entry | None:
        """Return the newest entry, or None if the history is empty."""
        ...

    async def end(self) -> int:
        """Return the position of the newest entry.

        If the history is empty, return the position before its next entry.
        """
        ...

    async def read(self, after: int) -> Page:
        """Return the next page of entries after a position; the first after EARLIEST.

        The page is empty if the history has no later entry.  Its size is bounded by
        PAGE_ENTRIES and PAGE_BYTES.  If entries are small, it ends at a multiple of
        PAGE_ENTRIES, so that many readers read the same pages.

        Raises PositionExpired if published updates after the position are forgotten,
        or if it is of an earlier epoch.  If only presence updates are forgotten, it
        raises nothing, and the page reports them as `Page.forgotten`.
        """
        ...

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Yield pages of entries after a position, and wait for new ones, without end.

        Any number of iterators may run at once, and each yields all entries.
        Cancelling one affects no other.  A page is empty if the ledger has learned
        commands, and there are no new entries.

        Raises PositionExpired if entries of either kind after the position are
        forgotten.  If the history becomes unavailable, the iterator either raises
        HistoryUnavailable or waits until the history is available again.
        """
        ...

    # -- presence

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Change the list of present subscribers, and append the updates about it.

        Both happen in one step, for all changes.  Returns the new entries.

        If a departing subscriber is not in the list, its updates are left out, because
        a node has already announced them.  So a second announcement of a departure does
        nothing.  An arriving subscriber replaces one with the same id, and its updates
        are appended.

        Raises UnicodeEncodeError as `append` does.
        """
        ...

    async def present(self, *, own: bool = False) -> list[Present]:
        """Return the subscribers of all nodes, or only those of this node.

        The list contains the changes of all entries that the history had at the call,
        and perhaps later ones.
        """
        ...

    async def beat(self) -> Beat:
        """Report that this node is alive, and return some subscribers of silent nodes.

        The node should call it a few times in `node_timeout` seconds.  The subscribers
        stay in the list, and several nodes may get the same ones, until one node
        announces their departure.

        Also forgets entries beyond the bounds, so that they expire even if no update is
        published.
        """
        ...

    # -- commands

    async def hear(self) -> None:
        """Let the ledger learn the commands that it does not know.

        Also reports that this node is alive, so that those who ask wait for its
        answers.
        """
        ...

    async def command(self, command: Command) -> Taken:
        """Append a command to the list, and make or lift its revocation, in one step.

        The ledger then knows it.  All nodes learn it within a moment, and before any
        entry that is appended later.  Raises `ListFull`, and changes nothing, if there
        are `Retention.revocations` others in force.
        """
        ...

    async def answer(self, number: int, text: str) -> None:
        """Write this node's answer to a command, for the node that asked."""
        ...

    async def answers(self, number: int) -> dict[str, str]:
        """Return the answers to a command so far, by the names of their nodes."""
        ...

    # -- operation

    async def check(self) -> None:
        """Write something, or raise HistoryUnavailable if that fails."""
        ...

    async def stats(self) -> Stats:
        """Return the size and age of the history."""
        ...

    def would_create(self) -> str | None:
        """Return the path of the file that the first use would create, or None."""
        ...

    async def backup(self, target: str) -> None:
        """Write the present content into a new file, which can be opened as a history.

        The history can be used meanwhile.  If the call is cancelled, the file may still
        be written.  Raises ConfigurationError if this kind of history has no backup,
        and FileExistsError if the file exists.
        """
        ...

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget the oldest published updates until they are within these bounds.

        Keeps the newest one.  Also forgets presence updates that are older than
        `max_age`, and with published updates the presence updates before them.

        A call may forget only some thousands, so that other callers get their turn.
        Returns how many: repeat the call until it returns 0.
        """
        ...

    async def load(self, entries: Sequence[Entry], presence: Container[int] = ()) -> None:
        """Append entries of another history, in order and with their times.

        Those whose positions are in `presence` are appended as presence updates.  Ids
        are neither looked up nor remembered, so a second call appends the same entries
        again.
        """
        ...

    async def aclose(self) -> None:
        """Close the history; other nodes announce this node's subscribers as gone.

        Afterwards the other async methods raise HistoryUnavailable, except those of a
        history in memory, which goes on working.  Cancel the iterators of `follow`
        first: they may wait indefinitely.  A second call does nothing.
        """
        ...


def seen_as(publisher: str, id: str) -> bytes:
    """Return the hash that a history remembers of an id and its publisher.

    It is so long that no publisher can find two ids with the same hash.
    """
    return blake2b(f"{len(publisher)} {publisher}{id}".encode(), digest_size=16).digest()


def position_expired(after: int, forgotten: int) -> PositionExpired:
    """Return the error for a position before the newest forgotten published update."""
    return PositionExpired(f"position {after} is before {forgotten}, up to which published updates are forgotten")


def pruned_to(max_updates: int, max_bytes: int, max_age: float) -> Retention:
    """Return the bounds of `History.prune`; only age limits presence updates."""
    return Retention(max_updates, max_bytes, max_age, sys.maxsize, sys.maxsize)


def page_end(after: int) -> int:
    """Return the last position of the page after a position."""
    return after - after % PAGE_ENTRIES + PAGE_ENTRIES


async def newest_place(history: History) -> tuple[int, str]:
    """Return the position of the newest entry, and its id.

    If the history is empty, return the position before its next entry, and "".
    """
    newest = await history.newest()
    return (await history.end(), "") if newest is None else (newest.position, newest.update.id)


async def current_epoch(history: History) -> tuple[int, str]:
    """Return the present epoch of a history: its number on this node, and its name.

    The number is any position of the epoch divided by EPOCH, rounded down.
    """
    # If an epoch begins between the two calls, the numbers differ: try again.
    while True:
        leap = await history.end() // EPOCH
        name = (await history.stats()).epoch
        if await history.end() // EPOCH == leap:
            return leap, name
