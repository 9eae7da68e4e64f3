"""Watch: how busy one process is while an operator looks (`skipfilter top`).

    first question   ─► it begins to count: one observer more
    each question    ─► the last whole seconds, and the streams that are open now
    none for a while ─► it stops, and costs nothing

Counts are kept by the second.  The audience says who gets a topic now, so a delivery
costs nothing here.  All is bounded: the seconds, the topics of each, the receivers that
are walked for an answer, and its rows.

Belongs here: what one process sees.  Does not belong here: numbers for a monitoring
system (`hub.metrics`), and how an answer is shown.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroaring import BitMap64

from hub import turns
from hub.delivery.observer import Observer
from hub.delivery.stream import State, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hub.control.commands import Target
    from hub.delivery.audience import Audience
    from hub.delivery.live import Live
    from hub.delivery.observer import Observers, Sent
    from hub.delivery.seat import Seat
    from hub.history.base import Entry
    from hub.node.connections import Connections

SECONDS: Final = 10
"""Whole seconds that an answer is about, at most."""
KEPT_SECONDS: Final = 15.0
"""Seconds without a question after which nothing is counted any more."""
MAX_KINDS: Final = 1_000
"""Sets of topics that are noted of each second: the first ones."""
MAX_VISITS: Final = 200_000
"""Receivers that are walked for the bytes of clients, those with most bytes first."""
TOPICS, CLIENTS, SLOWEST = 50, 50, 20
"""Rows of an answer, at most; clients twice: by their streams, and by their bytes."""
DIGITS: Final = 3
"""Decimal places of a rate."""
LONGEST: Final = 200
"""Characters of a topic in an answer, at most."""

_Kind = tuple[tuple[str, ...], bool]  # the topics of updates, and whether they are private
_Client = tuple[str, "str | None", str]  # the issuer and subject of a token or, without a subject, an address


@dataclass(slots=True)
class _Second:
    """What has happened in one second."""

    at: int
    """The second, by the hub's monotonic clock."""
    updates: int = 0
    deliveries: int = 0
    size: int = 0
    """The bytes of these."""
    pages: int = 0
    delay: float = 0.0
    """The sum of the delays of all pages, in seconds."""
    worst_delay: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    kinds: dict[_Kind, list[int]] = field(default_factory=dict)
    """The number of updates of a kind, and the bytes of their frames."""


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


class Top(NamedTuple):
    """How busy a hub is: all numbers of events are those of a second."""

    seconds: int
    """How many seconds they are the mean of; 0 if nobody has looked before."""
    processes: int
    streams: int
    live: int
    """The streams that have been sent all that they want."""
    updates: float
    deliveries: float
    bytes: float
    delay: float
    """The time until an update was written to all live streams: the mean in seconds, of
    the process where it is longest."""
    worst_delay: float
    refusals: Mapping[str, float]
    topics: Sequence[Mapping[str, Any]]
    """Those with most deliveries: `topic`, `updates`, the `streams` that get it now,
    `deliveries` and `bytes`."""
    clients: Sequence[Mapping[str, Any]]
    """Those with most streams, and with most bytes: `issuer`, `subject`, `address`,
    `streams`, `bytes`, and how many entries of the history one is `behind` at most.  A
    client is a subject or, without one, an address."""
    slowest: Sequence[Mapping[str, Any]]
    """The streams that are furthest behind, as `skipfilter connections` shows them."""
    silent: Sequence[str]
    """The names of the processes that have not answered."""


class Watch(Observer):
    """The watch of one node.

    `clock` returns monotonic seconds, and `wall_clock` seconds since the epoch.
    """

    def __init__(
        self,
        observers: Observers,
        audience: Audience,
        live: Live,
        connections: Connections,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._observers = observers
        self._audience = audience
        self._live = live
        self._connections = connections
        self._clock = clock
        self._wall_clock = wall_clock
        self._seconds: deque[_Second] = deque(maxlen=SECONDS + 1)  # the last one is not over
        self._first = 0  # the first whole second
        self._end: asyncio.TimerHandle | None = None  # None while nobody looks

    # -- counts

    async def dispatched(self, entries: list[Entry], sent: Sent) -> None:
        """Count a page, and note its topics."""
        second = self._now()
        second.updates += len(entries)
        second.deliveries += sent.updates
        second.size += sent.size
        delay = max(0.0, self._wall_clock() - entries[0].time / 1_000)
        second.pages += 1
        second.delay += delay
        second.worst_delay = max(second.worst_delay, delay)
        kinds = second.kinds
        for entry in entries:
            kind = entry.update.topics, entry.update.private
            if (noted := kinds.get(kind)) is None:
                if len(kinds) == MAX_KINDS:
                    continue
                noted = kinds[kind] = [0, 0]
            noted[0] += 1
            noted[1] += len(entry.frame)

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
        """Count from now on, until nobody has asked for a while."""
        if self._end is None:
            self._observers.add(self)
            self._first = int(self._clock()) + 1
        else:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._stop)

    def _stop(self) -> None:
        self._end = None
        self._observers.remove(self)
        self._seconds.clear()

    async def aclose(self) -> None:
        """Stop counting."""
        if self._end is not None:
            self._end.cancel()
            self._stop()

    # -- answers

    async def answer(self, target: Target | None, question: str) -> dict[str, Any]:
        """Return what happens here, as an object for JSON; `merge` says what it has."""
        self._look()
        now = int(self._clock())
        over = [one for one in self._seconds if now - SECONDS <= one.at < now and one.at >= self._first]
        length = min(SECONDS, max(0, now - self._first))
        refusals = sum((one.refusals for one in over), Counter[str]())
        pages = sum(one.pages for one in over)
        seats = [
            seat
            async for some in turns.in_turns(self._audience, turns.ASKED_STREAMS)
            for seat in some
            if isinstance(seat.holder, Stream)
        ]
        topics, sizes = await self._topics(over, BitMap64(seat.id for seat in seats), length)
        clients, slowest = await self._streams(seats, sizes, length)
        return {
            "seconds": length,
            "streams": len(seats),
            "live": len(self._live),
            "updates": _mean(sum(one.updates for one in over), length),
            "deliveries": _mean(sum(one.deliveries for one in over), length),
            "bytes": _mean(sum(one.size for one in over), length),
            "delay": round(sum(one.delay for one in over) / pages, 6) if pages else 0.0,
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
        pace = turns.Portion(turns.FOUND_TOPICS)
        most = nlargest(MAX_KINDS, kinds.items(), key=lambda item: item[1][0])
        reached = [
            _Reached(kind[0][0], count, size, await self._audience.of(*kind, ids, pace)) for kind, (count, size) in most
        ]
        # 2. A row for each canonical topic.
        rows: dict[str, dict[str, Any]] = {}
        for one in reached:
            new = {"topic": one.topic[:LONGEST], "updates": 0, "streams": 0, "deliveries": 0, "bytes": 0}
            row = rows.setdefault(one.topic, new)
            row["updates"] += one.updates
            row["streams"] = max(row["streams"], len(one.receivers))
            row["deliveries"] += one.updates * len(one.receivers)
            row["bytes"] += one.sent
        # 3. The bytes of each receiver.
        sizes: dict[int, int] = {}
        left = MAX_VISITS
        for one in sorted(reached, key=lambda one: one.sent, reverse=True):
            if len(one.receivers) > left:
                continue
            left -= len(one.receivers)
            async for some in turns.in_turns(one.receivers, turns.GROUPED_IDS):
                for id in some:
                    sizes[id] = sizes.get(id, 0) + one.size
        most_delivered = nlargest(TOPICS, rows.values(), key=_deliveries)
        return [_per_second(row, length, "updates", "deliveries", "bytes") for row in most_delivered], sizes

    async def _streams(
        self, seats: Sequence[Seat], sizes: Mapping[int, int], length: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the clients with most streams and bytes, and the slowest streams."""
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
        names = "issuer", "subject", "address", "streams", "bytes", "behind"
        rows = [dict(zip(names, (*client, *counts), strict=True)) for client, counts in clients.items()]
        slowest = nlargest(SLOWEST, slow, key=lambda one: one[0])
        largest = [_per_second(row, length, "bytes") for row in _largest(rows)]
        return largest, [self._connections.row(seat) for _, seat in slowest if seat.holder is not None]


def merge(answers: Sequence[Mapping[str, Any]], silent: Sequence[str]) -> Top:
    """Return the answers of all processes as one.

    Streams and deliveries add up.  An update is dispatched by each process, so the
    largest number counts.
    """

    def total(name: str) -> Any:
        return round(sum(answer[name] for answer in answers), DIGITS)

    def largest(name: str) -> Any:
        return max((answer[name] for answer in answers), default=0)

    refusals: dict[str, float] = {}
    for answer in answers:
        for reason, rate in answer["refusals"].items():
            refusals[reason] = round(refusals.get(reason, 0.0) + rate, DIGITS)
    return Top(
        seconds=min((answer["seconds"] for answer in answers), default=0),
        processes=len(answers),
        streams=total("streams"),
        live=total("live"),
        updates=largest("updates"),
        deliveries=total("deliveries"),
        bytes=total("bytes"),
        delay=largest("delay"),
        worst_delay=largest("worst_delay"),
        refusals=dict(sorted(refusals.items(), key=lambda item: item[1], reverse=True)),
        topics=nlargest(TOPICS, _united(answers, "topics", ["topic"], ["updates"]), key=_deliveries),
        clients=_largest(_united(answers, "clients", ["issuer", "subject", "address"], ["behind"])),
        slowest=nlargest(
            SLOWEST, (row for answer in answers for row in answer["slowest"]), key=lambda row: row["behind"] or 0
        ),
        silent=silent,
    )


def _united(
    answers: Iterable[Mapping[str, Any]], name: str, keys: Sequence[str], largest: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the rows of all answers, with one for each key.

    Numbers add up, but for those of which the largest counts.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for answer in answers:
        for row in answer[name]:
            key = tuple(row[name] for name in keys)
            if (known := rows.get(key)) is None:
                rows[key] = dict(row)
                continue
            for column in row.keys() - set(keys):
                one, other = known[column], row[column]
                known[column] = max(one, other) if column in largest else round(one + other, DIGITS)
    return list(rows.values())


def _largest(clients: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the clients with most streams, and then those with most bytes."""
    found: dict[int, dict[str, Any]] = {}
    for name in ("streams", "bytes"):
        found |= {id(row): row for row in nlargest(CLIENTS, clients, key=lambda row: (row[name], row["streams"]))}
    return list(found.values())


def _deliveries(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["deliveries"], row["updates"]


def _per_second(row: dict[str, Any], seconds: int, *names: str) -> dict[str, Any]:
    return row | {name: _mean(row[name], seconds) for name in names}


def _mean(count: float, seconds: int) -> float:
    return round(count / seconds, DIGITS) if seconds else 0.0
