"""A hub whose clock the test moves, and clients that it blocks and disconnects."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hub import Settings
from hub.auth.grant import CompiledGrant
from hub.delivery.delivery import Delivery
from hub.delivery.stream import State, Stream
from hub.delivery.subscriber import Subscriber
from hub.errors import Busy, LimitExceeded, RequestError
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.hub import Hub
from hub.node.admission import Ticket
from hub.node.matchers import MatcherCompiler
from hub.protocol.updates import Update
from hub.server.asgi import AsgiConnection
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from hub.delivery.seat import Ending, Seat
    from hub.delivery.stream import Connection as StreamConnection
    from hub.delivery.stream import Head, Work
    from hub.history.base import Entry
    from hub.protocol.topics import TopicMatcher

    Note: TypeAlias = Callable[[Literal["asks", "begins", "over"], "Client"], None]

COMPILER = MatcherCompiler("http://mercure.invalid/.well-known/mercure")
EVERYTHING = CompiledGrant(publish=(COMPILER.compile("exact", "*"),))
Pattern: TypeAlias = "str | tuple[str, str]"
"""A classic pattern, or a type and a pattern."""


def plain(**chosen: Any) -> Settings:
    """Return settings under which only published updates and heartbeats are sent."""
    return Settings(**{"dev": True, "max_lifetime": 0, "retry": 0, "subscriptions": False, "drain": 0} | chosen)


SETTINGS = plain(heartbeat=10)


class Wire:
    """What a test does to the connection of a client, and sees of it.

    It has room unless the test blocks it.  Each kind of wire makes a `connection`,
    which a stream writes to.
    """

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.begun = False
        self.ended = False
        self.cut = False
        self.before_head: Callable[[], Awaitable[None]] | None = None
        self.fails: Exception | None = None
        """The error that a write raises."""
        self.full_after: bytes | None = None
        """The connection is blocked after a write that contains this."""
        self.over = asyncio.Event()
        """Set when nothing is left to do for the response."""
        self._gone = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def connection(self) -> StreamConnection:
        """The server's end, which a stream writes to."""
        raise NotImplementedError

    async def head(self) -> None:
        """Send the head of the response."""
        if await self._is_open():
            if self.before_head is not None:
                await self.before_head()
            self.begun = True

    async def _is_open(self) -> bool:
        """Wait for room, and return whether the connection is open then.

        Raises the error that the test has planted.
        """
        if not self._room.is_set():
            await self._room.wait()
        if not self.is_closing() and self.fails is not None:
            raise self.fails
        return not self.is_closing()

    def block(self) -> None:
        self._room.clear()

    def unblock(self) -> None:
        self._room.set()

    def go(self) -> None:
        """Close the connection, as the client does."""
        self._gone.set()
        self._room.set()

    def abort(self, *, reset: bool = False) -> None:
        """Cut the connection off, as the hub does."""
        self.cut = True
        self._room.set()

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    def is_closing(self) -> bool:
        return self.gone or self.cut

    def _take(self, body: bytes) -> None:
        """Take what was written, as a socket does that has room."""
        self.writes.append(body)
        if self.full_after is not None and self.full_after in body:
            self.block()


class FakeConnection(Wire):
    """A wire that is its own connection: see `hub.delivery.stream.Connection`.

    If it `detaches`, the response outlives the task of its request.
    """

    def __init__(self, *, detaches: bool) -> None:
        super().__init__()
        self._detaches = detaches
        self._stream: Any = None
        self._buffer: list[bytes] = []
        self._unsent = 0
        self._work: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    @property
    def connection(self) -> FakeConnection:
        return self

    # -- for the stream

    async def begin(self, head: Head, stream: Any, *, wait: bool) -> bool:
        self._stream = stream
        if not wait and not self._room.is_set():
            self.abort()
        await head()
        return not self.is_closing()

    def write_first(self, body: bytes) -> bool:
        return self.write(body)

    def write(self, body: bytes, shared: bool = True) -> bool:
        if self.fails is not None:
            raise self.fails
        if self.is_closing():
            self._unsent = 2**62
        elif self._room.is_set():
            self._take(body)
        else:
            self._buffer.append(body)
            self._unsent = self.buffered()
        return self._room.is_set() and not self.is_closing()

    async def drain(self) -> bool:
        await self._room.wait()
        return not self.is_closing()

    def is_flushed(self) -> bool:
        return not self.buffered()

    def unsent(self) -> int:
        return self._unsent

    def buffered(self) -> int:
        return sum(map(len, self._buffer))

    def start(self, work: Work) -> None:
        self._work = asyncio.ensure_future(work())
        self._woken.set()

    def finish(self) -> bool:
        if not self._room.is_set() or self.is_closing():
            return False
        self.ended = True
        return True

    def stop(self) -> None:
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
        self.over.set()
        self._woken.set()

    async def serve(self) -> bool:
        """Return at once if it detaches.

        Otherwise wait for the end, and notice that the client has gone only while no
        work runs, as a task does that either works or receives.
        """
        while not self._detaches and not self.over.is_set():
            self._woken.clear()
            if self._work is not None and not self._work.done():
                await asyncio.wait([self._work])
            elif self.is_closing():
                break
            else:
                await self._woken.wait()
        return not self._detaches

    # -- for the test

    def unblock(self) -> None:
        super().unblock()
        for body in self._buffer:
            self._take(body)
        self._buffer.clear()
        self._unsent = 0

    def go(self) -> None:
        super().go()
        self._lose()

    def abort(self, *, reset: bool = False) -> None:
        if self._stream is not None:  # before `begin`, it does nothing
            super().abort()
            self._lose()

    def _lose(self) -> None:
        self._buffer.clear()
        self._woken.set()
        if self._detaches and self.begun:
            asyncio.get_running_loop().call_soon(self._stream.lost, ConnectionResetError())


class Client:
    """A client that subscribes, and the stream that it gets."""

    def __init__(
        self, world: World, subscriber: Subscriber, name: object = None, refusal: RequestError | None = None
    ) -> None:
        self.name = name
        self.refusal = refusal
        self.wire = world.wire()
        self.stream: Any = None
        self.since = self.connected = world.now
        """When it subscribed, and when its response began."""
        self.subscriber = subscriber
        self.start = max(subscriber.start, 0)
        self.block, self.unblock, self.go = self.wire.block, self.wire.unblock, self.wire.go
        self._world = world
        self._note = world.note
        self.task = asyncio.ensure_future(self._run())
        self.has_run = False
        self.task.add_done_callback(self._has_ended)

    def _has_ended(self, _: object) -> None:
        if not self.has_run:  # it was cancelled before it ran
            self.subscriber.leave()
            self._note("over", self)

    async def _run(self) -> None:
        self.has_run = True
        if self.refusal is not None:
            raise self.refusal
        self.connected = self._world.now
        self._note("begins", self)
        hub = self._world.hub
        try:
            self.stream = Stream(hub.delivery, self.wire.connection)
            await self.stream.open(self.subscriber)
            await self.stream.run(self.wire.head)
            await self.wire.over.wait()
        except BaseException:
            if not self._world.has(self.subscriber):
                self._note("over", self)
            self.wire.abort()
            raise

    @property
    def reason(self) -> str | None:
        """Why its stream was closed."""
        return None if self.stream is None else self.stream.reason

    @property
    def begun(self) -> bool:
        return self.wire.begun

    @property
    def ended(self) -> bool:
        return self.wire.ended

    @property
    def writes(self) -> list[bytes]:
        return self.wire.writes

    @property
    def ids(self) -> list[str]:
        lines = b"".join(self.writes).decode().split("\n")
        return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


class World:
    """A hub, and every connection that was ever made to it."""

    wire: Callable[[], Wire] = staticmethod(partial(FakeConnection, detaches=True))
    """Makes the wire of each client."""

    def __init__(self, settings: Settings = SETTINGS, log: MemoryHistory | None = None) -> None:
        self.now = self.ticked = 1_000.0
        self.count = 0
        self.connections: list[Client] = []
        self.note: Note = lambda what, connection: None
        self.log = log or MemoryHistory(Retention(settings.history_updates, settings.history_bytes))
        self.hub = Hub(
            settings, self.log, clock=lambda: self.now, wall_clock=lambda: self.now + 1e9, random=Random(self.now)
        )
        self.hub.delivery.vacate = self._vacate  # type: ignore[method-assign]

    async def publish(self, *topics: str, private: bool = False) -> str:
        """Publish an update and return its id, which is its number."""
        self.count += 1
        id = str(self.count)
        await self.hub.publish(Update(topics, private=private, id=id), grant=EVERYTHING)
        return id

    async def publish_and_see(self, first: Client) -> None:
        """Publish to `a` and wait until `first` has the update.

        With slices of one connection, no other connection has it yet.
        """
        await self.publish("a")
        while not first.ids:
            await asyncio.sleep(0)

    async def connect(
        self,
        *patterns: Pattern,
        granted: Sequence[Pattern] = (),
        after: str | None = None,
        seconds: float | None = None,
        address: str = "",
        subject: str | None = None,
    ) -> Client:
        """Subscribe with a token that is valid for `seconds`.

        The task of the response has not run yet.
        """
        expires = None if seconds is None else self.now + 1e9 + seconds
        grant = CompiledGrant(subscribe=tuple(compiled(granted)), expires=expires, subject=subject)
        refusal = None
        try:
            subscriber, _ = await self.hub.subscribing.admit(selectors(patterns), grant, after, address=address)
        except (LimitExceeded, Busy) as error:
            refusal, subscriber = error, Subscriber((), grant, 0)
        connection = Client(self, subscriber, (address, subject), refusal)
        self.connections.append(connection)
        self.note("asks", connection)
        return connection

    def _vacate(self, seat: Seat, position: int, more: int, reason: Ending) -> None:
        Delivery.vacate(self.hub.delivery, seat, position, more, reason)
        for connection in self.connections:
            if connection.subscriber is seat.subscriber:
                self.note("over", connection)

    def has(self, subscriber: Subscriber) -> bool:
        """Return whether a subscriber has a seat."""
        return any(seat.subscriber is subscriber for seat in self.hub.delivery.audience)

    @property
    def entries(self) -> list[Entry]:
        """The entries of the history."""
        return list(self.log._entries.values())

    @property
    def announced(self) -> list[tuple[str, bool]]:
        """The presence updates of the history: subscriber id, and whether it came."""
        found = []
        for entry in self.entries:
            *_, id = entry.update.topics[0].split("/")
            if "/subscriptions/" in entry.update.topics[0]:
                found.append((id.replace("%3A", ":"), '"active":true' in entry.update.data))
        return found

    def expected(self, connection: Client) -> list[str]:
        """Return the ids that it should receive, by a naive filter of the history."""
        updates = [entry.update for entry in self.entries[connection.start :]]
        return [update.id for update in updates if wants(connection.subscriber, update)]

    async def tick(self, seconds: float = 1.0) -> None:
        """Let `seconds` pass in one step."""
        self.now = self.ticked = self.now + seconds
        await self.hub.delivery._heartbeats.tick()

    async def pass_by(self, seconds: int) -> None:
        """Let `seconds` pass, one second at a time."""
        for _ in range(seconds):
            await self.tick()
            await self.settle(5)

    async def settle(self, rounds: int = 60) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def caught_up(self) -> None:
        """Wait until all is announced and written, and open connections are live."""
        await self.settle(10)  # lets new streams connect first
        async with asyncio.timeout(HANG):
            while not self._is_quiet():
                await asyncio.sleep(0)

    def _is_quiet(self) -> bool:
        delivery = self.hub.delivery
        all_live = delivery.live_count == delivery.connection_count
        at_rest = all_live and delivery.position == self.log._end and not delivery._live.turn.locked()
        return at_rest and not self.hub.presence._queue._unfinished_tasks  # type: ignore[attr-defined]


def wants(subscriber: Subscriber, update: Update) -> bool:
    """Return whether `subscriber` should receive `update`, by asking each matcher.

    One matcher of the subscriber must match.  If the update is private, one matcher of
    the grant must match too, perhaps another topic of the update (N21, N81, V50).
    """
    return _any_match(subscriber.subscribed, update) and (
        not update.private or _any_match(subscriber.grant.subscribe, update)
    )


def _any_match(matchers: tuple[TopicMatcher, ...], update: Update) -> bool:
    return any(matcher.match(topic) for topic in update.topics for matcher in matchers)


def payer_of(subscriber: Subscriber) -> str:
    """Return the name under which the subscriber was admitted and is counted."""
    assert isinstance(subscriber._ticket, Ticket)
    return subscriber._ticket.payer.name


def check(hub: Hub) -> None:
    """Assert the invariants of connected and live subscribers."""
    seats, filter = list(hub.delivery.audience), hub.delivery.audience._filter
    filter._check()
    assert [seat.id for seat in seats] == list(filter._values.alive)
    assert [seat.id for seat in seats if seat.outlet is not None] == list(hub.delivery._live._ids)
    for seat in seats:
        holder: Any = seat.holder
        is_live = getattr(holder, "state", None) is State.LIVE
        assert seat.outlet is (holder if is_live else None)
        if is_live:
            assert not is_working(holder._connection)
    clients = [payer_of(seat.subscriber) for seat in seats]
    shares = hub.shares
    admitted = shares.connections.clients  # also connections that have not begun
    assert all(admitted[client] >= clients.count(client) for client in clients)
    for held in (shares.connections, shares.readers, shares.requests, shares.announcements):
        assert held.used == sum(held.clients.values())
        assert all(amount > 0 for amount in held.clients.values())
    assert shares.matchers.used == sum(one.size for one in hub.compiler._existing.values())
    assert shares.url_patterns.used == sum(one.cost for one in hub.compiler._existing.values())


def is_working(connection: Any) -> bool:
    """Return whether a connection runs work of its stream, or has a suspended write."""
    if isinstance(connection, FakeConnection):
        return connection._work is not None and not connection._work.done()
    return (connection._pending if isinstance(connection, AsgiConnection) else connection._task) is not None


def check_empty(hub: Hub) -> None:
    """Assert that nothing is left of any connection."""
    check(hub)
    delivery = hub.delivery
    for index in (delivery.audience._index._subscribed, delivery.audience._index._granted):
        index._check()
        assert index.distinct == 0
    shares = hub.shares
    for held in (shares.connections, shares.readers, shares.url_patterns, shares.matchers):
        assert held.clients == {}
    assert (delivery.connection_count, delivery.live_count, len(delivery._heartbeats._wheel)) == (0, 0, 0)


def compiled(patterns: Iterable[Pattern]) -> list[TopicMatcher]:
    return [COMPILER.compile(*selector) for selector in selectors(patterns)]


def selectors(patterns: Iterable[Pattern]) -> list[tuple[str, str]]:
    return [("topic", one) if isinstance(one, str) else one for one in patterns]


@asynccontextmanager
async def world(settings: Settings = SETTINGS, log: MemoryHistory | None = None) -> AsyncIterator[World]:
    """Run a hub.  At the end, stop it and check that no connection left anything."""
    here = World(settings, log)
    async with here.hub.running():
        await here.settle(3)
        yield here
    for connection in here.connections:
        await asyncio.wait([connection.task], timeout=HANG)
        assert connection.task.done()
        pending = getattr(connection.wire.connection, "_pending", None)
        assert not pending or inspect.getcoroutinestate(pending[0]) == "CORO_CLOSED"
        if connection.task.cancelled() or isinstance(connection.task.exception(), RequestError):
            continue
        connection.task.result()
        assert connection.ended or connection.wire.is_closing()
    check_empty(here.hub)
