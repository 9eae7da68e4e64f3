"""Subscribing: from a request, or a call of the program, to a subscriber.

    grant ─► body ─► parse ─► admit ─► compile ─► start ─► Subscriber
     401     408      400     429       400, 429    N107

    grant     what the client may read; no body is read for a client without one
    admit     whether the client may connect now, before anything costly is done for it
    compile   its patterns, which count toward the limits
    start     where in the history it begins (`hub.history.cursor`)

A stream is then opened on a connection (`hub.delivery.stream`).  Whose question it is,
the grant and the body come from the caller, who may wait for them as it likes.

Belongs here: the order of these steps, and what a client gets if the hub cannot serve
it.  Does not belong here: HTTP, and anything that one step can do alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import structlog

from hub.auth.grant import CompiledGrant
from hub.delivery.local_reader import LocalReader
from hub.delivery.signals import UNAVAILABLE, as_id, goodbye
from hub.delivery.subscriber import Subscriber, payer_at, payer_for
from hub.errors import NotAsked, NotRunning, RequestError
from hub.history.cursor import find_start
from hub.node.presence import may_want_presence
from hub.protocol import events
from hub.protocol.hints import subscribe_hints
from hub.protocol.requests import parse_subscribe
from hub.protocol.topics import WILDCARD

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from hub.delivery.delivery import Delivery
    from hub.delivery.observer import Observer
    from hub.history.base import History
    from hub.history.cursor import Start
    from hub.node.admission import Admission
    from hub.node.control import Control
    from hub.node.matchers import MatcherCompiler
    from hub.node.publish_window import PublishWindow
    from hub.node.shutdown import Shutdown
    from hub.protocol.requests import Headers, SubscribeRequest
    from hub.protocol.topics import TopicMatcher
    from hub.protocol.updates import Update
    from hub.settings import Settings
    from skipfilter import Selector

log = structlog.stdlib.get_logger("hub")


class Question(NamedTuple):
    """A subscribe request, as far as it asks for something."""

    query: bytes
    headers: Headers
    body: Callable[[], Awaitable[bytes]] | None = None
    """Reads the body, which has parameters as the query; None if it has none."""


class Admitted(NamedTuple):
    """A client that may have a stream, or may read the history."""

    subscriber: Subscriber
    preceding: str | None
    """The id of the event before its first one, as far as that is known."""


class Imagined(NamedTuple):
    """A client that might come."""

    subscriber: Subscriber
    start: Start


class Ended(NamedTuple):
    """A stream that ends at once, because of a fault of the hub; see `node.outage`."""

    first: bytes
    """All of its bytes."""
    cursor: str | None
    """The cursor of the client, if that is known and may be an id."""


class Subscribing:
    """The subscribing of clients, and of the program, on one node."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        admission: Admission,
        compiler: MatcherCompiler,
        control: Control,
        delivery: Delivery,
        window: PublishWindow,
        shutdown: Shutdown,
        observer: Observer,
    ) -> None:
        self._settings = settings
        self._history = history
        self._admission = admission
        self._compiler = compiler
        self._control = control
        self._delivery = delivery
        self._window = window
        self._shutdown = shutdown
        self._observer = observer

    async def subscribe_request(
        self, address: str, grant: Awaitable[CompiledGrant], question: Question, *, waits: bool, is_rated: bool = False
    ) -> Admitted | Ended:
        """Return what a client gets: a subscriber or, if it `waits` for new updates,
        perhaps a stream that ends at once.

        `address` is where the request comes from; `is_rated` is whether its rate is
        used already.  Raises the errors of `grant`, of the body and of `admit`, and
        `InvalidRequest` if the question breaks a rule.
        """
        wanted, heard = None, self._control.heard
        try:
            granted = await grant
            body = b""
            if question.body is not None:
                with self._admission.request(payer_for(granted, address)):
                    body = await question.body()
            wanted = self._parse(question, body)
            return await self.admit(
                wanted.selectors,
                granted,
                wanted.last_event_id,
                signals=wanted.signals,
                address=address,
                waits=waits,
                is_rated=is_rated,
                heard=heard,
            )
        except RequestError as error:
            if not waits or error.status != 503:
                raise
            # Not 503: clients reconnect after the end of a stream, with the same
            # cursor, but most of them never after a 503.
            self._admission.outage.report(error)
            self._observer.refused(error.kind())
            return self._ended(wanted, self._admission.hint(ends=not isinstance(error, NotAsked)))

    @staticmethod
    def _ended(wanted: SubscribeRequest | None, seconds: float | None) -> Ended:
        """Return a stream that ends at once, for a client that should wait so long."""
        first = events.first_bytes(seconds)
        if wanted is None:  # its request was not read
            return Ended(first, None)
        cursor = wanted.last_event_id
        id = as_id(cursor or "")
        if wanted.signals:
            first += goodbye(id, UNAVAILABLE, seconds)
        return Ended(first, cursor if cursor == id else None)

    async def admit(
        self,
        selectors: Sequence[Selector],
        grant: CompiledGrant,
        cursor: str | None = None,
        *,
        signals: bool = False,
        address: str = "",
        waits: bool = True,
        is_rated: bool = False,
        heard: int | None = None,
    ) -> Admitted:
        """Return a new subscriber, which counts toward the limits until its connection
        ends, or until `Subscriber.leave` is called.

        With `signals`, it gets those of R91.  `address` names the client that the
        connection counts for if the token has no subject (N23).  If it `waits` for new
        updates, it is a stream, and otherwise a reader.  A command that comes after the
        mark `heard` may end it, even before it has a seat.

        While the hub is shutting down, a client may still subscribe, and its stream
        ends at once: EventSource reconnects after the end of a stream, but never after
        a 503.

        Raises `LimitExceeded` or `Busy` if a limit is reached, `InvalidRequest` if a
        pattern is invalid for its type, and `HistoryUnavailable`.  Then it does not
        count.
        """
        # Admission comes first, so that a refused client causes no expensive work.
        rated = payer_at(address, True) if is_rated else None
        ticket = self._admission.admit(payer_for(grant, address), rated)
        deadline, expires = self._admission.deadline(grant)
        try:
            if not waits:
                ticket.begin_reading()
            matchers = await self._compiler.of_request(selectors, ticket)
            presence = may_want_presence(selectors, grant, self._settings.path)
            start = await self._find_start(cursor, presence=presence)
        except BaseException:
            ticket.give_back()
            raise
        subscriber = Subscriber(
            matchers,
            grant,
            start.position,
            ticket=ticket,
            deadline=deadline,
            expires=expires,
            presence_after=start.position if presence else math.inf,
            address=address,
            heard=heard,
            signals=start if signals else None,
        )
        return Admitted(subscriber, start.preceding)

    async def preview(self, grant: CompiledGrant, question: Question) -> Admitted:
        """Return what `subscribe_request` would, without a subscription: it counts
        toward no limit, and its patterns are not compiled.

        Raises `InvalidRequest` and `HistoryUnavailable`.
        """
        _, start = await self._asked(grant, question)
        return Admitted(Subscriber((), grant, start.position), start.preceding)

    async def imagine(self, grant: CompiledGrant, question: Question) -> Imagined:
        """Return the subscriber that `subscribe_request` would make, and its cursor.

        It counts toward no limit, and gets no seat.

        Raises `InvalidRequest` and `HistoryUnavailable`.
        """
        wanted, start = await self._asked(grant, question)
        matchers = self._compiler.of_program(wanted.selectors)
        return Imagined(Subscriber(matchers, grant, start.position), start)

    async def _asked(self, grant: CompiledGrant, question: Question) -> tuple[SubscribeRequest, Start]:
        """Return what a question asks for, and where its subscriber would begin."""
        wanted = self._parse(question)
        presence = may_want_presence(wanted.selectors, grant, self._settings.path)
        return wanted, await self._find_start(wanted.last_event_id, presence=presence)

    def _parse(self, question: Question, body: bytes = b"") -> SubscribeRequest:
        """Return what a question asks for; in development, log what may be wrong."""
        if self._settings.dev:
            for hint in subscribe_hints(question.query, body, self._settings):
                log.warning(hint)
        return parse_subscribe(question.query, body, question.headers, self._settings)

    async def _find_start(self, cursor: str | None, *, presence: bool) -> Start:
        """Return the start that belongs to a cursor; see `hub.history.cursor`.

        Raises `HistoryUnavailable`, also if the end of the history is not known yet.
        """
        self._delivery.require_ready()
        return await find_start(
            self._history,
            cursor,
            presence=presence,
            replay_unknown=self._settings.replay_unknown,
            live=lambda: self._delivery.position,
        )

    # -- the program's own subscriptions

    def read(
        self, selectors: Sequence[Selector], last_event_id: str | None = None, *, waits: bool = True
    ) -> AsyncGenerator[Update, None]:
        """Return an iterator over the updates that match, also private ones.

        It begins after the update with the id `last_event_id`, as a stream does, or,
        without an id, with the first update that is published after this call.  If it
        `waits`, it ends when the hub shuts down, and otherwise when it has read all
        that the history has.  It counts toward no limit and is not announced.

        Raises `InvalidRequest` if a pattern is invalid for its type, `NotRunning`, and
        `HistoryUnavailable`.  The iteration raises that too, and the errors of
        `LocalReader.updates`.
        """
        if not self._shutdown.is_running:
            raise NotRunning
        self._delivery.require_ready()
        matchers = self._compiler.of_program(selectors)
        grant = CompiledGrant(subscribe=(self._compiler.compile("exact", WILDCARD),))
        return self._read(selectors, matchers, grant, last_event_id, self._window.newest, waits=waits)

    async def _read(
        self,
        selectors: Sequence[Selector],
        matchers: Sequence[TopicMatcher],
        grant: CompiledGrant,
        last_event_id: str | None,
        newest: int,
        *,
        waits: bool,
    ) -> AsyncGenerator[Update, None]:
        presence = may_want_presence(selectors, grant, self._settings.path)
        start = newest if last_event_id is None else (await self._find_start(last_event_id, presence=presence)).position
        end = None if waits else await self._history.end()
        subscriber = Subscriber(matchers, grant, start, presence_after=start if presence else math.inf)
        async for update in LocalReader(self._delivery, subscriber).updates(end):
            yield update
