"""A history in this process's memory: for one node, and gone when the process ends."""

from __future__ import annotations

import asyncio
import math
import uuid
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict, deque
from dataclasses import replace
from functools import cache
from itertools import groupby, islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sortedcontainers import SortedDict

from hub.clocks import Dates
from hub.control.commands import News, Numbered, Taken
from hub.control.ledger import Ledger
from hub.errors import ConfigurationError, ListFull, Outdated
from hub.history import base
from hub.history.base import EARLIEST, Beat, Entry, Page, Stats
from hub.history.node import new_node
from hub.history.opaque import Loss, Seal, new_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
    from typing import Self

    from hub.control.commands import Command
    from hub.history.base import Change, Retention
    from hub.protocol.subscriptions import Present
    from hub.protocol.updates import Update


class _Kept:
    """The entries of one kind."""

    def __init__(self) -> None:
        self.positions: deque[int] = deque()  # oldest first
        self.bytes = 0  # the sum of their sizes
        self.forgotten = 0  # the newest forgotten position, or 0


@cache
def _of_machine() -> Seal:
    """Return a seal whose key is the address of this machine, as nothing is stored.

    Pages do not know it, but could guess it.
    """
    return Seal(uuid.getnode().to_bytes(16))


class MemoryHistory:
    """The newest updates in memory, within the bounds of a `base.Retention`.

    Nothing survives the end of the process.  `clock` returns seconds since 1970.
    """

    has_time_limits = False

    def __init__(self, retention: Retention, *, clock: Callable[[], float] | None = None) -> None:
        self.node = new_node()
        self.ledger = Ledger(is_current=True)
        self._retention = retention
        self._window = retention.idempotency_window * 1_000  # ms
        self._dates = Dates(clock)
        self._entries: dict[int, Entry] = {}  # by position, oldest first
        # Gaps of presence updates that are forgotten while older published ones are
        # kept: the first position of a gap -> the position after its last.
        self._gaps: SortedDict[int, int] = SortedDict()
        # id -> the position of the earliest entry with this id, and those of the later
        # ones, ascending.  Few ids are repeated.
        self._earliest: dict[str, int] = {}
        self._later: defaultdict[str, deque[int]] = defaultdict(deque)
        self._published = _Kept()
        self._presence = _Kept()
        self._end = 0  # the position of the newest entry
        # Remembered ids, as `base.seen_as` hashes them -> their times, oldest first.
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._present: dict[str, Present] = {}  # by id
        self._epoch = uuid.uuid4().hex
        self._seal = Seal(new_key())
        self._grown: asyncio.Event | None = None  # set by the next append, if a follower waits for it

    @classmethod
    def from_url(cls, url: str, retention: Retention) -> Self:
        """Return an empty history.

        Raises ConfigurationError if the URL has anything after `memory://`.
        """
        if urlsplit(url)._replace(scheme="").geturl() not in ("", "//"):
            raise ConfigurationError("history_url memory:// must have nothing after it")
        return cls(retention)

    async def append(
        self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False, known: int | None = None
    ) -> list[Entry]:
        """Append `updates`, and forget entries beyond the bounds."""
        if known is not None and self.ledger.number > known:
            raise Outdated
        # 1. Leave out the updates whose ids the publisher has used in the window, and
        #    repetitions in this call.
        time = self._dates.now()
        new: dict[bytes, Update] = {}
        if self._window and not presence:
            before = self._dates.past(self._window)
            for update in updates:
                seen = base.seen_as(publisher, update.id)
                if self._seen.get(seen, -math.inf) <= before:
                    new.setdefault(seen, update)
            updates = list(new.values())
        # 2. Append the others.  Only then remember their ids: an append that fails
        #    leaves no ids behind.
        entries = [Entry(position, update, time) for position, update in enumerate(updates, self._end + 1)]
        self._put(entries, self._presence if presence else self._published)
        if new or self._seen:
            self._remember(new, time)
        return entries

    def _remember(self, new: Iterable[bytes], now: int) -> None:
        """Remember ids, and forget those that are too old or too many."""
        for seen in new:
            self._seen[seen] = now
            self._seen.move_to_end(seen)
        before = self._dates.past(self._window)
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= self._retention.max_updates and self._seen[oldest] > before:
                break
            del self._seen[oldest]

    def _put(self, entries: list[Entry], kept: _Kept) -> None:
        """Append entries of one kind, forget others, and wake the followers."""
        # First the sizes: a lone surrogate raises UnicodeEncodeError before anything
        # has changed.
        size = sum([entry.update.size for entry in entries])
        for entry in entries:
            position, id = entry.position, entry.update.id
            self._entries[position] = entry
            kept.positions.append(position)
            if self._earliest.setdefault(id, position) != position:
                self._later[id].append(position)
        self._end += len(entries)
        kept.bytes += size
        self._trim(self._retention)
        self._wake()

    def _wake(self) -> None:
        """Wake the followers."""
        if self._grown is not None:
            self._grown.set()
            self._grown = None

    def _trim(self, bounds: Retention) -> int:
        """Forget the oldest entries until they are within bounds; return how many."""
        published, presence = self._published, self._presence
        if (  # a shortcut while nothing is forgotten
            bounds.max_age == math.inf
            and len(published.positions) <= bounds.max_updates
            and published.bytes <= bounds.max_bytes
            and len(presence.positions) <= bounds.presence_updates
            and presence.bytes <= bounds.presence_bytes
        ):
            return 0
        # An entry is too old if its time, in ms, is before `oldest`.
        before, oldest = len(self._entries), self._dates.past(bounds.max_age * 1_000)
        # 1. Each kind by its own bounds, but keep its newest entry.
        for kept, most, most_bytes in (
            (published, bounds.max_updates, bounds.max_bytes),
            (presence, bounds.presence_updates, bounds.presence_bytes),
        ):
            while len(kept.positions) > 1 and (
                len(kept.positions) > most or kept.bytes > most_bytes or self._entries[kept.positions[0]].time < oldest
            ):
                self._forget_oldest(kept)
        # 2. Presence updates and gaps that are older than every published update.
        if self._published.forgotten:
            while self._presence.positions and self._presence.positions[0] < self._published.positions[0]:
                self._forget_oldest(self._presence)
            while self._gaps and self._gaps.peekitem(0)[1] <= self._published.forgotten:
                self._gaps.popitem(0)
        return before - len(self._entries)

    def _forget_oldest(self, kept: _Kept) -> None:
        """Forget the oldest entry of one kind."""
        kept.forgotten = kept.positions.popleft()
        entry = self._entries.pop(kept.forgotten)
        kept.bytes -= entry.size
        id, later = entry.update.id, self._later.get(entry.update.id)
        if self._earliest[id] != entry.position:  # the two kinds are forgotten separately
            self._later[id].remove(entry.position)
        elif later:
            self._earliest[id] = later.popleft()
        else:
            del self._earliest[id]
        if later is not None and not later:
            del self._later[id]
        # Positions of forgotten presence updates ascend: either this one extends the
        # newest gap, or it begins a new one.
        if kept is self._presence:
            start, end = self._gaps.peekitem() if self._gaps else (0, 0)
            self._gaps[start if end == entry.position else entry.position] = entry.position + 1

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """Return the position of the earliest entry with this id, or None; in O(1)."""
        position = self._earliest.get(id)
        return None if position is None or (presence and position < self._presence.forgotten) else position

    def cursor(self, position: int, id: str = "") -> str:
        """Return a new opaque cursor for a position."""
        return self._seal.cursor(self._epoch, position, id)

    def digest(self, text: str) -> str:
        """Return a digest of a text, with a key that survives a restart."""
        return _of_machine().digest(text)

    async def locate(self, cursor: str, *, presence: bool = False) -> int | Loss:
        """Return the position of an opaque cursor, or why updates are lost; in O(1)."""
        place = self._seal.place(cursor)
        if place is None:
            return Loss.UNKNOWN
        there = self._entries.get(place.number)
        loss = place.loss(
            self._epoch,
            last=self._end,
            there=None if there is None else there.update.id,
            published=self._published.forgotten,
            presence=self._presence.forgotten if presence else None,
        )
        return loss or place.number

    async def newest(self) -> Entry | None:
        """Return the newest entry, or None."""
        return self._entries.get(self._end)

    async def end(self) -> int:
        """Return the position of the newest entry."""
        return self._end

    async def read(self, after: int) -> Page:
        """Return the next page after a position."""
        if after != EARLIEST and after < self._published.forgotten:
            raise base.position_expired(after, self._published.forgotten)
        page = Page(forgotten=self._presence.forgotten)
        first = self._next(max(after, 0))
        if first is None:
            return page
        # 1. The page begins after any gap, and ends at a multiple of PAGE_ENTRIES or
        #    when it would exceed PAGE_BYTES.
        end = base.page_end(first - 1)
        size = 0
        position: int | None = first
        while position is not None and position <= end:
            entry = self._entries[position]
            size += entry.size
            if page and size > base.PAGE_BYTES:
                break
            page.append(entry)
            position = self._next(position)
        else:
            page.full = end <= self._end  # later entries come after `end`
        # 2. Which of them are presence updates.
        positions = self._presence.positions
        if positions:
            edges = bisect_left(positions, first), bisect_right(positions, page[-1].position)
            page.presence = frozenset(islice(positions, *edges))
        return page

    def _next(self, after: int) -> int | None:
        """Return the position of the next entry after a position, or None."""
        if after >= self._end:
            return None
        first = max(after, self._published.forgotten) + 1
        if first in self._entries:
            return first
        # The position is in a gap: the next entry comes right after the gap.
        _, end = self._gaps.peekitem(self._gaps.bisect_right(first) - 1)
        return int(end)

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Yield pages after a position, and wait for new entries."""
        heard = self.ledger.heard
        while True:
            if after >= self._end and self.ledger.heard == heard:
                if self._grown is None:
                    self._grown = asyncio.Event()
                await self._grown.wait()
            page = await self.read(after)
            page.require_presence(after)
            if page or self.ledger.heard != heard:
                heard = self.ledger.heard
                yield page
            if page:
                after = page[-1].position

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Change the list of those present, and append the updates about it."""
        updates: list[Update] = []
        before: list[tuple[str, Present | None]] = []  # what the list had, for an undo
        for subscriber, active, about in changes:
            known = self._present.get(subscriber.id)
            if active or known is not None:
                before.append((subscriber.id, known))
                self._put_present(subscriber.id, subscriber if active else None)
                updates += about
        try:
            return await self.append(updates, presence=True)
        except BaseException:
            # Undo the changes of the list, the last one first.
            for id, known in reversed(before):
                self._put_present(id, known)
            raise

    def _put_present(self, id: str, subscriber: Present | None) -> None:
        """Set or remove (None) the entry of a subscriber in the list."""
        if subscriber is not None:
            self._present[id] = subscriber
        else:
            self._present.pop(id, None)

    async def present(self, *, own: bool = False) -> list[Present]:
        """Return the subscribers; all of them are on this node."""
        return list(self._present.values())

    async def beat(self) -> Beat:
        """Forget entries that have become too old.  There are no other nodes."""
        self._trim(self._retention)
        return Beat(len(self._present), [])

    async def hear(self) -> None:
        """Tell the ledger that it knows each command."""
        self.ledger.learn(News(self.ledger.number, []))

    async def command(self, command: Command) -> Taken:
        """Let the ledger learn a command.  There are no other nodes."""
        if not self.ledger.has_room(command, self._retention.revocations):
            raise ListFull(self._retention.revocations)
        number = max(self.ledger.number + 1, self._dates.now())
        self.ledger.learn(News(number, [Numbered(number, command)]))
        self._wake()
        return Taken(number, self._end, [])

    async def answer(self, number: int, text: str) -> None:
        """Do nothing: nobody waits for it."""

    async def answers(self, number: int) -> dict[str, str]:
        """Return none: there are no other nodes."""
        return {}

    async def check(self) -> None:
        """Do nothing: memory is always available."""

    async def stats(self) -> Stats:
        """Return the number and size of the updates."""
        published, presence = ((len(kept.positions), kept.bytes) for kept in (self._published, self._presence))
        oldest = next(iter(self._entries.values()), None)
        return Stats(
            updates=published[0],
            oldest=oldest,
            newest=await self.newest(),
            bytes=published[1],
            presence_updates=presence[0],
            presence_bytes=presence[1],
            size=published[1] + presence[1],
            epoch=self._epoch,
            present=len(self._present),
        )

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget the oldest updates, all in one call."""
        return self._trim(base.pruned_to(max_updates, max_bytes, max_age))

    async def load(self, entries: Sequence[Entry], presence: Container[int] = ()) -> None:
        """Append entries of another history, with their times."""
        for is_presence, some in groupby(entries, key=lambda entry: entry.position in presence):
            moved = [replace(entry, position=position) for position, entry in enumerate(some, self._end + 1)]
            self._put(moved, self._presence if is_presence else self._published)

    def would_create(self) -> str | None:
        """Return None: it has no file."""
        return None

    async def backup(self, target: str) -> None:
        """Raise ConfigurationError: there is nothing to copy."""
        raise ConfigurationError(
            "backup is for a history in SQLite; a history in memory ends with its process, so use export"
        )

    async def aclose(self) -> None:
        """Do nothing: the history has no resources to release."""

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        # The entries are those of the two kinds, each within its bounds.
        bounds, published, presence = self._retention, self._published, self._presence
        assert list(self._entries) == sorted([*published.positions, *presence.positions])
        for kept, most, most_bytes in (
            (published, bounds.max_updates, bounds.max_bytes),
            (presence, bounds.presence_updates, bounds.presence_bytes),
        ):
            assert kept.bytes == sum(self._entries[position].size for position in kept.positions)
            assert len(kept.positions) <= max(1, most)
            assert kept.bytes <= most_bytes or len(kept.positions) == 1
            assert all(position > kept.forgotten for position in kept.positions)
        assert all(position > published.forgotten for position in self._entries)
        assert not self._end or self._end in self._entries
        # Each position without an entry, after the newest forgotten published update,
        # is in exactly one gap.
        gaps = {position for start, end in self._gaps.items() for position in range(start, end)}
        assert gaps.isdisjoint(self._entries)
        assert gaps.issuperset(set(range(published.forgotten + 1, self._end)).difference(self._entries))
        assert sum(end - start for start, end in self._gaps.items()) == len(gaps)
        # The index of ids agrees with the entries.
        by_id: dict[str, list[int]] = {}
        for position, entry in self._entries.items():
            by_id.setdefault(entry.update.id, []).append(position)
        assert by_id == {id: [first, *self._later.get(id, ())] for id, first in self._earliest.items()}
        assert all(self._later.values())
