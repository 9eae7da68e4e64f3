"""The plug point of the hub's log: an ordered log of updates that nodes append to and follow.

    position    1      2      3      4      5
    entry       a      b      c      d      e          c is what find(c.id) says: 3
                              ^ a subscriber's position: it reads d and e next

History and bus are one thing: what a node sends to a live subscriber and what a subscriber that comes back reads are
the same entries in the same order.  Who is present goes through it too, so that its nodes know of each other's
subscribers, and an arrival and the update about it are one.

    position   1  2  3  4  5  6  7  8  9      P was published, s is about presence; . was forgotten
    entry      .  .  P  .  .  s  P  s  P
                  │        └ the presence updates up to here are forgotten: a gap, if they are not wanted
                  └ the published updates up to here are forgotten: positions before it are PositionExpired

There are two kinds of entries in this one order: updates that were published, and presence updates.  Each kind has
bounds of its own, so subscribers that come and go never push out what was published.

What a history promises:

- one order.  All nodes see the same entries in the same order, and each of them once.
- durability.  What `append` has returned is kept, through whatever the history promises to survive; each says what.
  What it has not returned is in the log wholly or not at all.
- lookup.  `find` goes by an index, in a log of any length.
- no gap.  A reader misses no published update and sees nothing twice, or gets PositionExpired.  `follow` does not miss
  a presence update either; a page that `read` returns says which ones the log has forgotten.
- epochs.  A log may lose what it had taken: a file is damaged or replaced, a server comes back without its last second.
  That begins a new epoch.  Positions of an earlier one get PositionExpired, and `find` knows no entry after which
  something was lost: a client with such an id gets all that there is, rather than a part that looks whole.
- presence ends with its node.  Who was present on a node that says nothing for `node_timeout` seconds is handed to
  another one, to be announced as gone.
- recovery.  While it cannot be reached or written it raises HistoryUnavailable, nothing is half-done, and it is as
  before as soon as it can; nobody has to restart anything.
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
"""Seconds, at random between, after which an unavailable history is tried again."""
EARLIEST: Final = -1
"""The position before all that the log still holds; the positions of its entries start at 1."""
EPOCH: Final = 2**40
"""How far apart the positions of two epochs are, as one node counts them."""


@dataclass(frozen=True)
class Entry:
    """An update at its position in the log, and when it came there, in ms since 1970."""

    position: int
    update: Update
    time: int = 0

    @cached_property
    def frame(self) -> bytes:
        """The update as an event; encoded once, however many read it."""
        return events.frame(self.update)

    @cached_property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return self.update.size


@dataclass(frozen=True)
class Retention:
    """What a log keeps, and for how long: updates, the ids of updates, and the subscribers of a silent node.

    The newest update of each kind is kept whatever the bounds are.  Presence updates that are older than every
    published one may be forgotten earlier.
    """

    max_updates: int
    """How many published updates, and how many ids."""
    max_bytes: int
    """Of the published updates."""
    max_age: float = math.inf
    """Seconds, of updates of both kinds."""
    presence_updates: int = 10_000
    presence_bytes: int = 8 * 2**20
    idempotency_window: float = 0.0
    """Seconds in which a publisher's update is left out if the same publisher has used its id; 0 for never."""
    node_timeout: float = 10.0
    """Seconds without a beat, after which the subscribers of a node are for another node to announce as gone."""


class Page(list[Entry]):
    """Entries of a log in their order.  Between their positions only presence updates that were forgotten are missing.

    `forgotten` is the position of the newest presence update that the log had forgotten when the page was read; and
    `full` says that no entry can come into the page any more.
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
    """A subscriber that has come to this node, or has gone from any, and the updates that say so."""

    subscriber: Present
    active: bool
    updates: Sequence[Update]


class Beat(NamedTuple):
    """What a node is told when it says that it is alive."""

    present: int
    """How many subscribers of this node the log knows."""
    orphans: list[Present]
    """Some of the subscribers of nodes that say nothing any more."""


class Stats(NamedTuple):
    """What `hub history stats` shows."""

    updates: int
    """How many published ones there are."""
    oldest: Entry | None
    """Of either kind; so is the newest."""
    newest: Entry | None
    bytes: int
    """Of the published updates, as the bound on bytes counts them."""
    presence_updates: int
    presence_bytes: int
    size: int
    """Bytes that the log takes: on disk, or of Redis's memory; for the log in memory, those of its updates."""
    epoch: str
    """Names this epoch of the log."""
    present: int
    """How many subscribers are present."""


class History(Protocol):
    """An ordered log of updates that every node of a hub appends to and follows.

    Positions are integers that grow by 1, and in a new epoch by a leap.  They are a node's own: another one may count
    the same entries from elsewhere.  A log may forget the oldest entries of each kind, but keeps at least the newest.

    All of it raises HistoryUnavailable while the log cannot be reached, or written.
    """

    async def append(self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False) -> list[Entry]:
        """Put `updates` at the end, one after the other, for all nodes: all, or with an error none.

        Durable when it returns.  They are published updates, unless they are about `presence`.  If the log remembers
        ids for a time, a published update with an id that the same `publisher` has used in that time is left out; the
        entries are the new ones.  An id is remembered also after the log has forgotten its update, but never more ids
        than the log keeps updates.  If the log loses an update, it does not remember its id.
        """
        ...

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """The position of the earliest entry with this id (N115), or None.  Never by a scan.

        For a reader that may want `presence` updates it is None also if any that came after the entry is forgotten.
        """
        ...

    async def newest(self) -> Entry | None:
        """The newest entry; None where there is none."""
        ...

    async def end(self) -> int:
        """The position of the newest entry, and in an empty log of the last one that it had."""
        ...

    async def read(self, after: int) -> Page:
        """The next page of entries after a position; after EARLIEST, the first that there are.

        Empty at the end.  A page has a bounded size; if entries are small, it ends where the position is a multiple
        of PAGE_ENTRIES, so that pages of many readers are the same ones.  Raises PositionExpired if published updates
        after the position are forgotten.  The page says up to where presence updates are.
        """
        ...

    def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Pages of entries after a position, waiting for new ones, for ever.

        Raises PositionExpired if entries of either kind after the position are forgotten.
        """
        ...

    # -- presence

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Say who has come and who has gone, and append the updates about it, at once: all, or with an error none.

        The going of one who is not present is left out, with its updates: another node has announced it.
        """
        ...

    async def present(self, *, own: bool = False) -> list[Present]:
        """Who is present, on all nodes or on this one; as it is after every entry that was there when it was asked."""
        ...

    async def beat(self) -> Beat:
        """Say that this node is alive, which is to be done a few times in `node_timeout` seconds."""
        ...

    # -- operation

    async def check(self) -> None:
        """Write something.  Raises HistoryUnavailable where that does not work."""
        ...

    async def stats(self) -> Stats: ...

    def would_create(self) -> str | None:
        """Return the path of the file that the first use of this history creates; None if it creates none."""
        ...

    async def backup(self, target: str) -> None:
        """Write what the history holds now into a new file, while it is used; a history can be opened on the file.

        Raises ConfigurationError if it cannot do that, and FileExistsError if there is such a file.
        """
        ...

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget the oldest published updates, but not the newest one, until they are within these bounds, and with
        them the presence updates that are older; and presence updates above that age.  At most some thousands in a
        call, so that others get their turn.  How many were forgotten; 0 when it is done."""
        ...

    async def load(self, entries: Sequence[Entry]) -> None:
        """Append entries of another log, with their times, as published ones; their ids are neither looked for nor
        remembered."""
        ...

    async def aclose(self) -> None:
        """Leave the log, after which nothing works any more."""
        ...


def seen_as(publisher: str, id: str) -> bytes:
    """What a log remembers of an id and its publisher: so long a hash that nobody finds another id with the same."""
    return blake2b(f"{len(publisher)} {publisher}{id}".encode(), digest_size=16).digest()


def position_expired(after: int, forgotten: int) -> PositionExpired:
    """What to raise for a position before the newest published update that is forgotten."""
    return PositionExpired(f"position {after} is before {forgotten}, up to which published updates are forgotten")


def pruned_to(max_updates: int, max_bytes: int, max_age: float) -> Retention:
    """Return bounds without any on the number and size of presence updates, for `History.prune`."""
    return Retention(max_updates, max_bytes, max_age, sys.maxsize, sys.maxsize)


def page_end(after: int) -> int:
    """The last position of the page after a position."""
    return after - after % PAGE_ENTRIES + PAGE_ENTRIES


async def current_epoch(history: History) -> tuple[int, str]:
    """Return the epoch of a log now: its positions, divided by EPOCH, and its name."""
    while True:
        leap = await history.end() // EPOCH
        name = (await history.stats()).epoch
        if await history.end() // EPOCH == leap:
            return leap, name
