"""Watch: how busy one process is while an operator looks (`skipfilter top`).

    first question   ─► it begins to count: one observer more
    each question    ─► the last whole seconds, and the streams that are open now
    none for a while ─► it stops, and costs nothing

Counts are kept by the second.  The audience says who gets a topic now, so a delivery
costs nothing here.  All is bounded: the seconds, the topics of each, the receivers that
are walked for an answer, and its rows.  All who ask in one second get one answer.

Belongs here: what one process sees.  Does not belong here: the answers of all processes
together (`top`), and numbers for a monitoring system (`hub.metrics`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pyroaring import BitMap64, FrozenBitMap64

from hub import turns
from hub.delivery.observer import Observer
from hub.delivery.stream import State, Stream
from hub.node.connections import open_streams
from hub.node.top import DIGITS, deliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hub.control.commands import Target
    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.observer import Observers, Sent
    from hub.delivery.seat import Seat
    from hub.history.base import Entry

SECONDS: Final = 10
"""Whole seconds that an answer is about, at most."""
KEPT_SECONDS: Final = 15.0
"""Seconds without a question after which nothing is counted any more."""
MAX_KINDS: Final = 1_000
"""Sets of topics whose counts are kept for each second."""
MAX_VISITS: Final = 1_000_000
"""Receivers that are walked for the bytes of clients, the topics with most bytes
first."""
ROWS: Final = 100
"""Rows of each kind in an answer, at most."""
LONGEST: Final = 200
"""Characters of a text in an answer, at most; see `_cut`."""

_Kind: TypeAlias = "tuple[tuple[str, ...], bool]"
"""The topics of updates, and whether they are private."""
_Client: TypeAlias = "tuple[str, str | None, str]"
"""The issuer and subject of a token or, without a subject, an address."""


@dataclass(slots=True)
class _Second:
    """What has happened in one second."""

    at: int
    """The second, by the hub's monotonic clock."""
    updates: int = 0
    deliveries: int = 0
    size: int = 0
    """The bytes of these."""
    delay: float = 0.0
    """The sum of the delays of all updates, in seconds."""
    worst_delay: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    kinds: dict[_Kind, list[int]] = field(default_factory=dict)
    """The number of updates of a kind, and the bytes of their frames."""

    def note(self, kind: _Kind, size: int) -> None:
        """Count an update of a kind.

        If too many kinds are counted, each loses one update, and so the frequent ones
        stay.  A count is then too low by up to a thousandth of all updates of the
        second.  Source: Misra and Gries, Finding repeated elements, 1982.
        """
        kinds = self.kinds
        if (noted := kinds.get(kind)) is not None:
            noted[0] += 1
            noted[1] += size
        elif len(kinds) < MAX_KINDS:
            kinds[kind] = [1, size]
        else:
            self.kinds = {kind: [count - 1, size - size // count] for kind, (count, size) in kinds.items() if count > 1}


class _Reached(NamedTuple):
    """The updates of a kind, and who receives them now."""

    topic: str
    """The canonical one."""
    updates: int
    size: int
    """The bytes of their frames."""
    receivers: BitMap64

    @property
    def sent(self) -> int:
        """The bytes of all deliveries."""
        return self.size * len(self.receivers)


class Watch(Observer):
    """The watch of one node, whose name is `node`.

    `clock` returns monotonic seconds, and `wall_clock` seconds since the epoch.
    """

    def __init__(
        self,
        observers: Observers,
        audience: Audience,
        live: Live,
        node: str,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._observers = observers
        self._audience = audience
        self._live = live
        self._node = node
        self._clock = clock
        self._wall_clock = wall_clock
        self._seconds: deque[_Second] = deque(maxlen=SECONDS + 1)  # the last one is not over
        self._first = 0  # the first whole second
        self._end: asyncio.TimerHandle | None = None  # None unless it counts
        self._answer: tuple[int, asyncio.Task[dict[str, Any]]] | None = None  # the last one, and its second
        self._is_closed = False

    # -- counts

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Count a page, and note its topics."""
        second, now = self._now(), self._wall_clock()
        second.updates += len(entries)
        second.deliveries += sent.updates
        second.size += sent.size
        second.delay += max(0.0, now * len(entries) - sum(entry.time for entry in entries) / 1_000)
        second.worst_delay = max(second.worst_delay, now - entries[0].time / 1_000)
        for entry in entries:
            second.note((entry.update.topics, entry.update.private), len(entry.frame))

    def sent(self, updates: int, size: int) -> None:
        """Count deliveries from the history."""
        second = self._now()
        second.deliveries += updates
        second.size += size

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self._now().refusals[reason] += 1

    def _now(self) -> _Second:
        """Return the present second."""
        now = int(self._clock())
        if not self._seconds or self._seconds[-1].at < now:
            self._seconds.append(_Second(now))
        return self._seconds[-1]

    # -- begin and end

    def _look(self) -> None:
        """Count from now on, until no question has come for KEPT_SECONDS."""
        if self._is_closed:
            return
        if self._end is None:
            self._observers.add(self)
            self._first = int(self._clock()) + 1
        else:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._stop)

    def _stop(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
            self._observers.remove(self)
        self._seconds.clear()
        if self._answer is not None:
            self._answer[1].cancel()
            self._answer = None

    async def aclose(self) -> None:
        """Stop counting, for good."""
        self._is_closed = True
        self._stop()

    # -- answers

    async def answer(self, target: Target | None, question: str) -> dict[str, Any]:
        """Return what happens here, as an object for JSON; see `hub.node.top.Top`.

        All questions in one second, or before the answer is ready, get the same one.
        """
        self._look()
        now = int(self._clock())
        if self._answer is None or (self._answer[0] != now and self._answer[1].done()):
            self._answer = now, asyncio.create_task(self._found(now))
        return await asyncio.shield(self._answer[1])

    async def _found(self, now: int) -> dict[str, Any]:
        over = [one for one in self._seconds if now - SECONDS <= one.at < now and one.at >= self._first]
        length = min(SECONDS, max(0, now - self._first))
        updates = sum(one.updates for one in over)
        refusals = sum((one.refusals for one in over), Counter[str]())
        seats, ids = await open_streams(self._audience)
        topics, sizes = await self._topics(over, ids, length)
        clients, slowest = await self._streams(seats, sizes, length)
        return {
            "seconds": length,
            "streams": len(seats),
            "live": len(self._live),
            "updates": _mean(updates, length),
            "deliveries": _mean(sum(one.deliveries for one in over), length),
            "bytes": _mean(sum(one.size for one in over), length),
            "delay": round(sum(one.delay for one in over) / updates, 6) if updates else 0.0,
            "worst_delay": round(max((one.worst_delay for one in over), default=0.0), 6),
            "refusals": {reason: _mean(count, length) for reason, count in refusals.items()},
            "topics": topics,
            "clients": clients,
            "slowest": slowest,
        }

    async def _topics(
        self, over: Iterable[_Second], ids: BitMap64, length: int
    ) -> tuple[list[dict[str, Any]], dict[int, int]]:
        """Return the topics with most deliveries, and the bytes of each seat by id."""
        # 1. How often each kind has come, and who receives it now.
        kinds: dict[_Kind, list[int]] = {}
        for second in over:
            for kind, (count, size) in second.kinds.items():
                noted = kinds.setdefault(kind, [0, 0])
                noted[0] += count
                noted[1] += size
            await turns.other_tasks()
        pace = turns.Portion(turns.FOUND_TOPICS)
        most = nlargest(MAX_KINDS, kinds.items(), key=lambda item: item[1][0])
        reached = [
            _Reached(kind[0][0], count, size, await self._audience.of(*kind, ids, pace)) for kind, (count, size) in most
        ]
        # 2. A row for each canonical topic.
        rows: dict[str, dict[str, Any]] = {}
        for one in reached:
            new = {"topic": _cut(one.topic), "updates": 0, "streams": 0, "deliveries": 0, "bytes": 0}
            row = rows.setdefault(one.topic, new)
            row["updates"] += one.updates
            row["streams"] = max(row["streams"], len(one.receivers))
            row["deliveries"] += one.updates * len(one.receivers)
            row["bytes"] += one.sent
        largest = nlargest(ROWS, rows.values(), key=deliveries)
        return [_per_second(row, length, "updates", "deliveries", "bytes") for row in largest], await _sizes(reached)

    async def _streams(
        self, seats: Sequence[Seat], sizes: Mapping[int, int], length: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the clients with most streams and bytes, and the slowest streams."""
        # 1. A count for each client, and the slowest streams.
        clients: dict[_Client, list[int]] = {}
        slow: list[tuple[int, Seat]] = []
        async for some in turns.in_turns(seats, turns.WATCHED_STREAMS):
            for seat in some:
                stream, subscriber = seat.holder, seat.subscriber
                if not isinstance(stream, Stream):  # it has ended meanwhile
                    continue
                identity = subscriber.grant.identity
                client = identity.issuer, identity.subject, "" if identity.subject else subscriber.address
                counts = clients.setdefault(client, [0, 0, 0])
                counts[0] += 1
                counts[1] += sizes.get(seat.id, 0)
                if stream.state is not State.LIVE:
                    behind = self._live.position - max(0, stream.position)
                    counts[2] = max(counts[2], behind)
                    slow.append((behind, seat))
            slow = nlargest(ROWS, slow, key=itemgetter(0))
        # 2. The largest clients.
        by_streams: list[tuple[_Client, list[int]]] = []
        by_bytes: list[tuple[_Client, list[int]]] = []
        async for each in turns.in_turns(clients.items(), turns.WATCHED_STREAMS):
            by_streams = nlargest(ROWS, chain(by_streams, each), key=lambda item: item[1])
            by_bytes = nlargest(ROWS, chain(by_bytes, each), key=lambda item: item[1][1])
        names = "issuer", "subject", "address", "streams", "bytes", "behind"
        rows = [
            dict(zip(names, (_cut(client[0]), client[1] and _cut(client[1]), client[2], *counts), strict=True))
            for client, counts in dict(chain(by_streams, by_bytes)).items()
        ]
        return [_per_second(row, length, "bytes") for row in rows], [self._slow(*one) for one in slow]

    def _slow(self, behind: int, seat: Seat) -> dict[str, Any]:
        """Return the row of a slow stream."""
        stream, subscriber = seat.holder, seat.subscriber
        identity = subscriber.grant.identity
        return {
            "subscriber": subscriber.id,
            "process": self._node,
            "issuer": _cut(identity.issuer),
            "subject": identity.subject and _cut(identity.subject),
            "address": subscriber.address,
            "state": str(stream.state) if isinstance(stream, Stream) else "closed",
            "behind": behind,
        }


async def _sizes(reached: Iterable[_Reached]) -> dict[int, int]:
    """Return how many bytes are for each seat, by its id."""
    # Topics with the same receivers are walked once.
    together: dict[FrozenBitMap64, int] = {}
    async for some in turns.in_turns(reached, turns.COMPARED_IDS):
        for one in some:
            same = FrozenBitMap64(one.receivers)
            together[same] = together.get(same, 0) + one.size
    sizes: dict[int, int] = {}
    left = MAX_VISITS
    for receivers, size in sorted(together.items(), key=lambda item: item[1] * len(item[0]), reverse=True):
        if len(receivers) > left and sizes:
            continue
        left -= len(receivers)
        async for ids in turns.in_turns(receivers, turns.GROUPED_IDS):
            for id in ids:
                sizes[id] = sizes.get(id, 0) + size
    return sizes


def _per_second(row: dict[str, Any], seconds: int, *names: str) -> dict[str, Any]:
    return row | {name: _mean(row[name], seconds) for name in names}


def _mean(count: float, seconds: int) -> float:
    return round(count / seconds, DIGITS) if seconds else 0.0


def _cut(text: str) -> str:
    """Return a text, or its beginning with a digest if it is long, so that it stays
    different from others.
    """
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
