"""Fates: what became of an update at the connections of one node.

    history   … start ──── update ──── position …        of a connection that wants it
              late if it began later                     and may read it
                      received if it has been sent so far
                      waiting if not, and left if it has ended

An update that is not published yet has no position: then a fate says what would be.
Connections that have ended are known as far as they are remembered (`remembered`).

Belongs here: the answer of this node.  Does not belong here: how the answers of all
nodes come together, and their words (`hub.explaining`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroaring import BitMap64

from hub import turns
from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.findings import findings, near_misses
from hub.delivery.reading import last_sent
from hub.delivery.stream import Stream
from hub.delivery.subscriber import Subscriber
from hub.errors import PositionExpired
from hub.history.base import EARLIEST
from hub.node.connections import moment, open_streams
from hub.protocol.topics import topic_matcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from hub.control.commands import Target
    from hub.delivery.seat import Seat
    from hub.history.base import Entry, History
    from hub.node.connections import Connections
    from hub.node.remembered import Departed, Remembered
    from hub.protocol.topics import TopicMatcher
    from hub.turns import TimeSlices
    from skipfilter import Selector

MAX_SHOWN: Final = 20
"""Connections with the same fate that an answer shows, at most."""
MAX_DENIED: Final = 3
"""Connections that may not read the update, and are explained, if the question names
none."""
MAX_NEAR: Final = 3
"""Streams that an answer names because they nearly want an update that none wants."""
MAX_NAMED: Final = 10
"""Connections that a question names, and that are explained, at most."""
MAX_COMPILED: Final = 1_000
"""Patterns of ended connections that are compiled for one question, at most."""
MAX_SIMILAR: Final = 3
"""Other subjects that an answer names if no connection has the one that was named."""


class Fate(StrEnum):
    """What became of an update at one connection."""

    RECEIVES = "receives"
    """It wants the update, and may read it; the update is not published yet."""
    RECEIVED = "received"
    """The update was handed to its socket."""
    WAITING = "waiting"
    """It gets the update when its client has read what comes before."""
    UNKNOWN = "unknown"
    """It wanted the update and has ended, and it is not known how far it came."""
    LEFT = "left"
    """It wanted the update, and ended before."""
    LATE = "late"
    """It began after the update."""
    DENIED = "denied"
    """It wants the update, and may not read it."""
    UNWANTED = "unwanted"
    """None of its matchers matches the update."""


class Asked(NamedTuple):
    """The question: an update in the history by its id, or one that might be
    published.
    """

    id: str | None
    topics: Sequence[str]
    private: bool

    @classmethod
    def read(cls, text: str) -> Asked:
        """Return the question that `to_json` wrote."""
        return cls(*json.loads(text))

    def to_json(self) -> str:
        """Return the question as a JSON array."""
        return json.dumps(self, ensure_ascii=False)


async def find_entry(history: History, id: str) -> Entry | None:
    """Return the earliest entry with an id, or None if the history does not have it.

    Raises `HistoryUnavailable`.
    """
    position = await history.find(id)
    if position is None:
        return None
    try:
        page = await history.read(position - 1)
    except PositionExpired:
        return None
    return page[0] if page and page[0].position == position else None


def fate_of(receives: bool, wants: bool, start: int, sent: float, position: int | None) -> Fate:
    """Return the fate of an update at a `position`, or of one that has none yet.

    The connection receives entries after `start`, and was `sent` all up to there.
    """
    if not wants:
        return Fate.UNWANTED
    if not receives:
        return Fate.DENIED
    if position is None:
        return Fate.RECEIVES
    if position <= start:
        return Fate.LATE
    return Fate.RECEIVED if position <= sent else Fate.WAITING


class Fates:
    """The fates of updates on one node; `base_url` is the URL of the hub."""

    def __init__(
        self,
        history: History,
        audience: Audience,
        connections: Connections,
        remembered: Remembered,
        slices: TimeSlices,
        *,
        base_url: str,
    ) -> None:
        self._history = history
        self._audience = audience
        self._connections = connections
        self._remembered = remembered
        self._slices = slices
        self._base_url = base_url

    async def answer(self, target: Target | None, question: str) -> dict[str, Any]:
        """Return what became of an update here, as an object for JSON.

        It has `connected`, the number of streams; `fates`, how many have which, of
        those that the target names; `rows` about some of them, each with its `fate`;
        and `similar` subjects.  Raises `HistoryUnavailable`.
        """
        asked = Asked.read(question)
        entry = None if asked.id is None else await find_entry(self._history, asked.id)
        if asked.id is not None and entry is None:
            return {"connected": 0, "fates": {}, "rows": [], "similar": []}
        if entry is not None:
            asked = Asked(asked.id, entry.update.topics, entry.update.private)
        position = None if entry is None else entry.position
        streams, ids = await open_streams(self._audience)
        answer: dict[str, Any] = {"connected": len(streams), "similar": []}
        if target is None:
            return answer | await self._all(streams, ids, asked, position)
        return answer | await self._named(streams, target, asked, position)

    async def _named(
        self, streams: Sequence[Seat], target: Target, asked: Asked, position: int | None
    ) -> dict[str, Any]:
        """Return the fates at the connections that a target names, with the reasons."""
        named = [one for one in streams if target.is_met(one.subscriber.id, one.subscriber.grant.identity)]
        ended = [one for one in self._remembered if target.is_met(one.id, one.identity)]
        fates = Counter[Fate]()
        rows: list[dict[str, Any]] = []
        wanting, receiving = await self.rule(self._audience, BitMap64(seat.id for seat in named), asked)
        for seat in sorted(named, key=lambda seat: seat.subscriber.id):
            if not isinstance(seat.holder, Stream):  # it has ended meanwhile
                continue
            wants, receives, start = seat.id in wanting, seat.id in receiving, seat.subscriber.start
            fates[fate := fate_of(receives, wants, start, seat.holder.position, position)] += 1
            if len(rows) < MAX_NAMED:
                rows.append({**await self._row(seat, asked), "fate": fate})
        if position is not None:
            async for fate, one, subscriber in self._ended(reversed(ended), asked, position):
                fates[fate] += 1
                if len(rows) < MAX_NAMED:
                    why = {} if subscriber is None else await self.reasons(subscriber, asked)
                    rows.append({**_ended_row(one), **why, "fate": fate})
        similar = [] if named or ended or target.by != "subject" else _similar(target.value, streams)
        return {"fates": fates, "rows": rows, "similar": similar}

    async def _all(self, streams: Sequence[Seat], ids: BitMap64, asked: Asked, position: int | None) -> dict[str, Any]:
        """Return the fates at all connections, with some of each fate."""
        fates = Counter[Fate]()
        rows: list[dict[str, Any]] = []
        wanting, receiving = await self.rule(self._audience, ids, asked)
        fates[Fate.UNWANTED] = len(ids) - len(wanting)
        async for seats in turns.in_turns(self._audience.seats(wanting), turns.ASKED_STREAMS):
            for seat in seats:
                if not isinstance(seat.holder, Stream):  # it has ended meanwhile
                    continue
                fate = fate_of(seat.id in receiving, True, seat.subscriber.start, seat.holder.position, position)
                fates[fate] += 1
                if fate is Fate.DENIED and fates[fate] <= MAX_DENIED:
                    rows.append({**await self._row(seat, asked), "fate": fate})
                elif fates[fate] <= MAX_SHOWN:
                    rows.append({**self._connections.row(seat), "fate": fate})
        if position is not None:
            there = [one for one in self._remembered if one.start < position and (position <= one.until or one.more)]
            async for fate, one, _ in self._ended(there, asked, position):
                if fate in (Fate.RECEIVED, Fate.DENIED, Fate.UNKNOWN):
                    fates[fate] += 1
                    if fates[fate] <= MAX_SHOWN:
                        rows.append({**_ended_row(one), "fate": fate})
        if fates.total() == fates[Fate.UNWANTED]:
            rows += await self._nearly(streams, asked)
        return {"fates": +fates, "rows": rows}

    async def _nearly(self, streams: Iterable[Seat], asked: Asked) -> list[dict[str, Any]]:
        """Return some of the streams that would want an update, which none wants, with
        a small change.
        """
        wanted: dict[tuple[str, str], tuple[TopicMatcher, Seat]] = {}
        async with self._slices:
            for seat in streams:
                for matcher in seat.subscriber.subscribed:
                    wanted.setdefault((matcher.type, matcher.pattern), (matcher, seat))
                if self._slices.is_over():
                    await self._slices.pause()
            matchers = [matcher for matcher, _ in wanted.values()]
            near = await near_misses(matchers, asked.topics, self._slices, base_url=self._base_url, most=MAX_NEAR)
        seats = dict.fromkeys(wanted[matcher.type, matcher.pattern][1] for matcher in near)
        present = [seat for seat in seats if isinstance(seat.holder, Stream)]
        return [{**await self._row(seat, asked), "fate": Fate.UNWANTED} for seat in present]

    async def rule(self, audience: Audience, ids: BitMap64, asked: Asked) -> tuple[BitMap64, BitMap64]:
        """Return the ids among `ids` that want an update, and those that receive it."""
        async with self._slices:
            wanting = await audience.of(asked.topics, False, ids, self._slices)
            return wanting, await audience.of(asked.topics, asked.private, wanting, self._slices)

    async def _row(self, seat: Seat, asked: Asked) -> dict[str, Any]:
        """Return what is known of a connection: also after which position it began, up
        to where it was sent all that it wants, and the findings.
        """
        start, holder = seat.subscriber.start, seat.holder
        places = {
            "after": None if start == EARLIEST else start,
            "position": holder.position if isinstance(holder, Stream) else None,
        }
        return {**self._connections.row(seat), **places, **await self.reasons(seat.subscriber, asked)}

    async def reasons(self, subscriber: Subscriber, asked: Asked) -> dict[str, Any]:
        """Return the findings about a subscriber: `wants` and, for a private update,
        `may_read`; and the `hints` about its token.
        """
        grant, of = subscriber.grant, partial(findings, pace=self._slices, base_url=self._base_url)
        async with self._slices:
            wants = await of(subscriber.subscribed, asked.topics)
            may_read = await of(grant.subscribe, asked.topics) if asked.private else []
        return {
            "wants": [finding._asdict() for finding in wants],
            "may_read": [finding._asdict() for finding in may_read],
            "hints": list(grant.hints),
        }

    async def _ended(
        self, ended: Iterable[Departed], asked: Asked, position: int
    ) -> AsyncIterator[tuple[Fate, Departed, Subscriber | None]]:
        """Yield the fate of a published update at each connection that has ended.

        Without a subscriber, its patterns are more than may be compiled.
        """
        compiled: dict[Selector, TopicMatcher] = {}
        audience = Audience(self._base_url, max_alike=sys.maxsize)
        async for some in turns.in_turns(ended, turns.COMPILED_PATTERNS):
            for one in some:
                subscriber = await self._subscriber(one, compiled)
                if subscriber is None:
                    yield Fate.UNKNOWN, one, None
                    continue
                seat = audience.seat(subscriber)
                sent: int | None = one.until
                if position > one.until and one.more:
                    sent = await last_sent(self._history.read, audience, seat, one.until, one.more, self._slices)
                wanting, receiving = await self.rule(audience, BitMap64([seat.id]), asked)
                audience.remove(seat)
                fate = fate_of(bool(receiving), bool(wanting), one.start, one.until if sent is None else sent, position)
                if fate is Fate.WAITING:
                    fate = Fate.UNKNOWN if sent is None else Fate.LEFT
                yield fate, one, subscriber

    async def _subscriber(self, one: Departed, compiled: dict[Selector, TopicMatcher]) -> Subscriber | None:
        """Return a subscriber with the patterns of a connection that has ended.

        Returns None if they are more than may be compiled for one question; `compiled`
        has those that were.
        """
        async with self._slices:
            for type, pattern in one.matchers + one.grants:
                if (type, pattern) not in compiled:
                    if len(compiled) == MAX_COMPILED:
                        return None
                    compiled[type, pattern] = topic_matcher(type, pattern, base_url=self._base_url)
                    if self._slices.is_over():
                        await self._slices.pause()
        subscribed, granted = ([compiled[selector] for selector in some] for some in (one.matchers, one.grants))
        return Subscriber(subscribed, CompiledGrant(subscribe=tuple(granted)), one.start)


def _ended_row(ended: Departed) -> dict[str, Any]:
    identity = ended.identity
    return {
        "subscriber": ended.id,
        "issuer": identity.issuer,
        "subject": identity.subject,
        "token_id": identity.token_id,
        "address": ended.address,
        "ended": moment(ended.time),
        "ended_because": ended.reason,
    }


def _similar(subject: str, streams: Iterable[Seat]) -> list[str]:
    """Return subjects of connections that contain a subject, or are part of it."""
    low, found = subject.lower(), dict[str, None]()
    for seat in streams:
        other = seat.subscriber.grant.identity.subject
        if other and (low in other.lower() or other.lower() in low):
            found[other] = None
            if len(found) == MAX_SIMILAR:
                break
    return list(found)
