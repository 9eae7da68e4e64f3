"""The contract of a history: an ordered log of updates that nodes append to and follow.

    position    1      2      3      4      5
    entry       a      b      c      d      e          find(c.id) returns 3
                              ^ a subscriber at position 3 reads d and e next

Live subscribers and subscribers that reconnect get the same entries in the same order.
Presence goes through the history too: so all nodes know all subscribers, and a
subscriber arrives together with the update that announces it.

    position   1  2  3  4  5  6  7  8  9      P was published, s is about presence
    entry      .  .  P  .  .  s  P  s  P      . was forgotten
                  │        └ presence updates up to here are forgotten: a gap if wanted
                  └ published updates up to here are forgotten: PositionExpired before

There are two kinds of entries in one order: published updates and presence updates.
Each kind has its own bounds, so presence never displaces published updates.

What a history promises:

- one order: all nodes see the same entries in the same order, each of them once;
- durability: what `append` has returned survives what the implementation names.  If
  `append` did not return, its updates are in the history all together, or not at all;
- lookup: `find` uses an index, whatever the length of the history;
- no gap: a reader misses no published update and sees none twice, or gets
  PositionExpired.  `follow` misses no presence update either; a page of `read` says
  which are forgotten;
- epochs: a history that loses entries (a damaged file, a server without its last
  second) begins a new epoch.  Positions of an earlier epoch get PositionExpired, and
  `find` returns None for an entry before a loss, so that its client gets all there is
  and not a part;
- presence ends with its node: if a node is silent for `node_timeout` seconds, another
  node announces its subscribers as gone;
- recovery: while it is unavailable it raises HistoryUnavailable and leaves nothing half
  done; it recovers without a restart.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hub.errors import PositionExpired
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from hub.protocol.subscriptions import Present
    from hub.protocol.updates import Update

PAGE_ENTRIES: Final = 128
PAGE_BYTES: Final = 2**20
RETRY: Final = 0.2, 1.0
"""Seconds before an unavailable history is tried again; at random between the two."""
EARLIEST: Final = -1
"""The position before all entries that the history still has; entries start at 1."""
EPOCH: Final = 2**40
"""The distance of the positions of two epochs, as one node counts them."""


@dataclass(frozen=True)
class Entry:
    """An update at its position in the history, and the time of its append, in ms since
    1970.
    """

    position: int
    update: Update
    time: int = 0

    @cached_property
    def frame(self) -> bytes:
        """The update as an event, encoded once for all readers."""
        return events.frame(self.update)

    @cached_property
    def size(self) -> int:
        """Its approximate size in memory, in bytes."""
        return self.update.size


@dataclass(frozen=True)
class Retention:
    """What a history keeps: updates, ids of updates, and subscribers of a silent node.

    The newest update of each kind is kept whatever the bounds are.  Presence updates
    that are older than all published ones may be forgotten earlier.
    """

    max_updates: int
    """The number of published updates, and the number of remembered ids."""
    max_bytes: int
    """The bytes of published updates."""
    max_age: float = math.inf
    """Seconds, for updates of both kinds."""
    presence_updates: int = 10_000
    presence_bytes: int = 8 * 2**20
    idempotency_window: float = 0.0
    """Seconds in which a publisher may use an id once; a repetition is left out.  0 for
    off."""
    node_timeout: float = 10.0
    """Seconds without a beat before the subscribers of a node are announced as gone."""


class Page(list[Entry]):
    """Consecutive entries; only forgotten presence updates are missing between them.

    `forgotten` is the position of the newest forgotten presence update when the page
    was read, and `full` is whether the page can gain no more entries.
    """

    def __init__(self, entries: Iterable[Entry] = (), *, forgotten: int = 0, full: bool = False) -> None:
        super().__init__(entries)
        self.forgotten = forgotten
        self.full = full

    def require_presence(self, after: float) -> None:
        """Raise PositionExpired if presence updates after a position are forgotten."""
        if self.forgotten > after:
            raise PositionExpired(f"presence updates between the positions {after} and {self.forgotten} are forgotten")


class Change(NamedTuple):
    """A subscriber that came to this node or left any node, and the updates
    about it.
    """

    subscriber: Present
    active: bool
    updates: Sequence[Update]


class Beat(NamedTuple):
    """The answer to a node's report that it is alive."""

    present: int
    """The number of this node's subscribers in the list of those present."""
    orphans: list[Present]
    """Some of the subscribers of nodes that are silent."""


class Stats(NamedTuple):
    """The size and age of a history, as `hub history stats` shows them."""

    updates: int
    """The number of published updates."""
    oldest: Entry | None
    """The oldest entry of either kind."""
    newest: Entry | None
    """The newest entry of either kind."""
    bytes: int
    """The bytes of published updates, as their bound counts them."""
    presence_updates: int
    presence_bytes: int
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

    Every method raises HistoryUnavailable while the history cannot be reached or
    written.  All of them may be called concurrently, from one event loop.  If a call is
    cancelled, its updates may or may not be in the history.
    """

    async def append(self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False) -> list[Entry]:
        """Append `updates` for all nodes: all of them in order, or with an error none.

        Returns the entries; they are durable.  `presence` says that the updates are
        about presence, and not published.  If the history remembers ids for a time, and
        the same `publisher` has used the id of a published update in that time, the
        update is left out.  An id may be remembered for longer than its update, but
        there are never more ids than updates that the history keeps.  If an update is
        lost, so is its id.
        """
        ...

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """Return the position of the earliest entry with this id (N115), or None.

        Never scans the history.  With `presence`, for a reader that may want presence
        updates, also None if a later presence update is forgotten.
        """
        ...

    async def newest(self) -> Entry | None:
        """Return the newest entry, or None if the history is empty."""
        ...

    async def end(self) -> int:
        """Return the position of the newest entry; if it is empty, of the last one it
        had.
        """
        ...

    async def read(self, after: int) -> Page:
        """Return the next page of entries after a position, or after EARLIEST the first
        one.

        The page is empty at the end, and has a bounded size.  If entries are small, it
        ends at a multiple of PAGE_ENTRIES, so that many readers read the same pages.
        Raises PositionExpired if published updates after the position are forgotten;
        the page says which presence updates are.
        """
        ...

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Yield pages of entries after a position, and wait for new ones, without end.

        Raises PositionExpired if entries of either kind after the position are
        forgotten.
        """
        ...

    # -- presence

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Change the list of those present, and append the updates about it, together.

        All changes, or with an error none.  The departure of a subscriber that is not
        in the list is left out with its updates, because another node has announced it.
        """
        ...

    async def present(self, *, own: bool = False) -> list[Present]:
        """Return the subscribers of all nodes, or of this one.

        The list is at least as new as every entry that was there at the call.
        """
        ...

    async def beat(self) -> Beat:
        """Report that this node is alive; call it a few times in `node_timeout`
        seconds.
        """
        ...

    # -- operation

    async def check(self) -> None:
        """Write something.  Raises HistoryUnavailable if that fails."""
        ...

    async def stats(self) -> Stats:
        """Return the size and age of the history."""
        ...

    def would_create(self) -> str | None:
        """Return the path of the file that the first use would create, or None."""
        ...

    async def backup(self, target: str) -> None:
        """Write the present content into a new file, which can be opened as a history.

        The history stays in use meanwhile.  Raises ConfigurationError if it has no
        backup, and FileExistsError if the file exists.
        """
        ...

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget the oldest published updates until they are within these bounds.

        Keeps the newest one.  Also forgets older presence updates, and those above
        `max_age`.  Forgets some thousands in a call, so that others get their turn, and
        returns how many; 0 if nothing is left to forget.
        """
        ...

    async def load(self, entries: Sequence[Entry]) -> None:
        """Append entries of another history, with their times, as published ones.

        Their ids are neither looked up nor remembered.
        """
        ...

    async def aclose(self) -> None:
        """Close the history; nothing works any more.  A second call does nothing."""
        ...


def seen_as(publisher: str, id: str) -> bytes:
    """Return the hash that a history remembers of an id and its publisher;
    collision-free.
    """
    return blake2b(f"{len(publisher)} {publisher}{id}".encode(), digest_size=16).digest()


def position_expired(after: int, forgotten: int) -> PositionExpired:
    """Return the error for a position before the newest forgotten published update."""
    return PositionExpired(f"position {after} is before {forgotten}, up to which published updates are forgotten")


def pruned_to(max_updates: int, max_bytes: int, max_age: float) -> Retention:
    """Return bounds for `History.prune`: none on the number and size of presence
    updates.
    """
    return Retention(max_updates, max_bytes, max_age, sys.maxsize, sys.maxsize)


def page_end(after: int) -> int:
    """Return the last position of the page after a position."""
    return after - after % PAGE_ENTRIES + PAGE_ENTRIES


async def current_epoch(history: History) -> tuple[int, str]:
    """Return the present epoch of a history: its positions divided by EPOCH, and its
    name.
    """
    while True:
        leap = await history.end() // EPOCH
        name = (await history.stats()).epoch
        if await history.end() // EPOCH == leap:
            return leap, name
