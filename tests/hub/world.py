"""A hub whose clock the test moves, and fake connections that it blocks and closes."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from uvicorn.protocols.http.flow_control import FlowControl

from hub import Settings
from hub.auth.grant import Grant
from hub.delivery.delivery import Delivery
from hub.delivery.stream import State, Stream
from hub.delivery.subscriber import Subscriber
from hub.errors import Busy, LimitExceeded, RequestError
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.http.asgi_connection import AsgiConnection
from hub.http.response import connection_of
from hub.http.uvicorn_protocol import HttpProtocol
from hub.hub import Hub
from hub.node.admission import Ticket
from hub.node.matchers import MatcherCompiler
from hub.protocol.updates import Update
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from starlette.types import Message

    from hub.delivery.seat import Seat
    from hub.history.base import Entry
    from hub.protocol.topics import TopicMatcher

    Note: TypeAlias = Callable[[Literal["asks", "begins", "over"], "Connection"], None]

COMPILER = MatcherCompiler("http://mercure.invalid/.well-known/mercure")
EVERYTHING = Grant(publish=(COMPILER.compile("exact", "*"),))
Pattern: TypeAlias = "str | tuple[str, str]"
"""A classic pattern, or a type and a pattern."""


def plain(**chosen: Any) -> Settings:
    """Return settings under which only published updates and heartbeats are sent."""
    return Settings(**{"dev": True, "max_lifetime": 0, "retry": 0, "subscriptions": False, "drain": 0} | chosen)


SETTINGS = plain(heartbeat=10)


class Connection:
    """The server's end of a connection, which has room unless the test blocks it.

    With a server that parks streams, it has a `protocol`.  Otherwise its `send`
    suspends while there is no room.
    """

    def __init__(
        self, world: World, subscriber: Subscriber, client: object = None, refusal: RequestError | None = None
    ) -> None:
        self.client = client
        self.refusal = refusal
        self.stream: Any = None
        self.since = world.now
        self.subscriber = subscriber
        self.start = max(subscriber.start, 0)
        self.writes: list[bytes] = []
        self.begun = False
        self.ended = False
        self.cut = False
        self.before_head: Callable[[], Awaitable[None]] | None = None
        self.fails: Exception | None = None
        """The error that a write raises."""
        self.full_after: bytes | None = None
        """The connection is blocked after a write that contains this."""
        self.connected = world.now
        """The time at which its response began."""
        self._world = world
        self._note = world.note
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        self._room.set()
        self.protocol = _Protocol(self) if world.parks else None
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
        try:
            hub = self._world.hub
            self.stream = Stream(
                hub.delivery, connection_of({"http_version": "1.1"}, self.receive, self.send, hub.settings)
            )
            await self.stream.open(self.subscriber)
            await self.stream.run(lambda: self.send({"type": "http.response.start"}), hub.admission.first_bytes())
            if self.protocol is not None:
                await self.protocol.over.wait()
        except BaseException:
            if not self._world.has(self.subscriber):
                self._note("over", self)
            if self.protocol is not None:
                self.abort()
            raise

    @property
    def reason(self) -> str | None:
        """Why its stream was closed."""
        return None if self.stream is None else self.stream.reason

    def block(self) -> None:
        self._room.clear()

    def unblock(self) -> None:
        self._room.set()
        if self.protocol is not None:
            self.protocol.flush()

    def go(self) -> None:
        self._gone.set()
        self._room.set()
        if self.protocol is not None:
            self.protocol.lose()

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    async def send(self, message: Message) -> None:
        if not self._room.is_set():
            await self._room.wait()
        if self.is_closing():
            return
        if self.fails is not None:
            raise self.fails
        assert not self.ended
        if message["type"] == "http.response.start":
            if self.before_head is not None:
                await self.before_head()
            self.begun = True
        else:
            self.ended = not message["more_body"]
            if message["body"]:
                self.writes.append(message["body"])
                self._fill(message["body"])

    def _fill(self, body: bytes) -> None:
        if self.full_after is not None and self.full_after in body:
            self.block()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    # -- uvicorn's side of the connection, for what ASGI does not offer to a stream

    more_body = False
    keep_alive = True
    response_complete = False
    disconnected = False

    @property
    def transport(self) -> Connection:
        return self

    def get_extra_info(self, name: str) -> None:
        return None

    def get_protocol(self) -> _Protocol | None:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.gone or self.cut

    def get_write_buffer_size(self) -> int:
        return 0 if self.protocol is None else sum(map(len, self.protocol.waiting))

    def write(self, chunk: bytes) -> None:
        assert self.protocol is not None
        if self.fails is not None:
            raise self.fails
        if self.is_closing():
            return
        if not self._room.is_set():
            self.protocol.flow.pause_writing()
            self.protocol.waiting.append(chunk)
        else:
            self.take(chunk)
            self._fill(chunk)

    def take(self, chunk: bytes) -> None:
        """Take a chunk, as the socket does."""
        assert not self.ended
        size, _, body = chunk.partition(b"\r\n")
        assert len(body) == int(size, 16) + 2
        if body == b"\r\n":
            self.ended = True
        else:
            self.writes.append(body[:-2])

    def abort(self) -> None:
        self.cut = True
        self._room.set()
        if self.protocol is not None:
            self.protocol.lose()

    @property
    def ids(self) -> list[str]:
        lines = b"".join(self.writes).decode().split("\n")
        return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


class _Protocol(HttpProtocol):
    """A uvicorn protocol that has parsed one request."""

    def __init__(self, connection: Connection) -> None:
        self.transport = connection  # type: ignore[assignment]
        self.flow = FlowControl(self.transport)
        self.cycle = connection  # type: ignore[assignment]
        self._head_timer, self._half_closed, self._detached = None, False, None
        self.waiting: list[bytes] = []
        self.over = asyncio.Event()
        self._connection = connection

    def flush(self) -> None:
        """Write the waiting chunks, because the socket has room again."""
        for chunk in self.waiting:
            self._connection.take(chunk)
        self.waiting.clear()
        self.resume_writing()

    def lose(self) -> None:
        """Lose the connection; the event loop reports the loss in its next turn."""
        self.waiting.clear()
        asyncio.get_running_loop().call_soon(self._report_loss)

    def _report_loss(self) -> None:
        detached, self._detached = self._detached, None
        self._connection.disconnected = True
        self.flow.resume_writing()
        if detached is not None:
            detached.lost(ConnectionResetError())
        self.over.set()

    def on_response_complete(self) -> None:
        self.over.set()


class World:
    """A hub, and every connection that was ever made to it."""

    parks = False
    """Whether the streams of the connections are parked."""

    def __init__(self, settings: Settings = SETTINGS, log: MemoryHistory | None = None) -> None:
        self.now = self.ticked = 1_000.0
        self.count = 0
        self.connections: list[Connection] = []
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

    async def publish_and_see(self, first: Connection) -> None:
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
    ) -> Connection:
        """Subscribe with a token that is valid for `seconds`.

        The task of the response has not run yet.
        """
        expires = None if seconds is None else self.now + 1e9 + seconds
        grant = Grant(subscribe=tuple(compiled(granted)), expires=expires, subject=subject)
        refusal = None
        try:
            subscriber, _ = await self.hub.subscribe(selectors(patterns), grant, after, address=address)
        except (LimitExceeded, Busy) as error:
            refusal, subscriber = error, Subscriber((), grant, 0)
        connection = Connection(self, subscriber, (address, subject), refusal)
        self.connections.append(connection)
        self.note("asks", connection)
        return connection

    def _vacate(self, seat: Seat, position: int, more: int) -> None:
        Delivery.vacate(self.hub.delivery, seat, position, more)
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

    def expected(self, connection: Connection) -> list[str]:
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


def client_of(subscriber: Subscriber) -> str:
    """Return the name under which the subscriber was admitted and is counted."""
    assert isinstance(subscriber._ticket, Ticket)
    return subscriber._ticket.client


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
            connection = holder._connection
            assert connection._pending is None if isinstance(connection, AsgiConnection) else connection._task is None
    clients = [client_of(seat.subscriber) for seat in seats]
    admitted = hub.admission._clients  # also connections that have not begun
    assert all(admitted[client] >= clients.count(client) for client in clients)
    assert hub.admission._connections == sum(admitted.values())


def check_empty(hub: Hub) -> None:
    """Assert that nothing is left of any connection."""
    check(hub)
    delivery = hub.delivery
    for index in (delivery.audience._index._subscribed, delivery.audience._index._granted):
        index._check()
        assert index.distinct == 0
    assert hub.admission._clients == {}
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
        pending = getattr(connection.stream, "_pending", None)
        assert not pending or inspect.getcoroutinestate(pending[0]) == "CORO_CLOSED"
        if connection.task.cancelled() or isinstance(connection.task.exception(), RequestError):
            continue
        connection.task.result()
        assert connection.ended or connection.gone or connection.cut
    check_empty(here.hub)
