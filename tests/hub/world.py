"""A hub with a clock that the test moves, and connections with a server's end that the test opens and shuts."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hub import Settings
from hub.authorization import Grant
from hub.errors import RequestError
from hub.hub import Hub
from hub.stream import Stream
from hub.topics import MatcherCompiler
from hub.transports.memory import MemoryTransport
from hub.updates import Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from starlette.types import Message

    from hub.subscriber import Subscriber
    from hub.topics import TopicMatcher
    from hub.transports.base import Entry

    Note: TypeAlias = Callable[[Literal["begins", "over"], "Connection"], None]

HANG = 10.0
COMPILER = MatcherCompiler("http://mercure.invalid/.well-known/mercure")
EVERYTHING = Grant(publish=(COMPILER.compile("exact", "*"),))
Pattern: TypeAlias = "str | tuple[str, str]"
"""Of the classic type, or a type and a pattern."""


def plain(**chosen: Any) -> Settings:
    """Settings under which nothing is sent but what is published, and heartbeats."""
    return Settings(**{"dev": True, "max_lifetime": 0, "retry": 0, "subscriptions": False} | chosen)


SETTINGS = plain(heartbeat=10)


class Connection:
    """A server's end of one connection, which suspends `send` where there is no room, as uvicorn's does."""

    def __init__(self, stream: Stream, note: Note = lambda what, connection: None, *, since: float = 0.0) -> None:
        self.stream = stream
        self.since = since
        self.subscriber = stream.subscriber
        self.start = max(stream.subscriber.position, 0)
        self.writes: list[bytes] = []
        self.begun = False
        self.ended = False
        self.cut = False
        self.disconnected = False
        self._note = note
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        self._room.set()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        self._note("begins", self)
        try:
            await self.stream({"type": "http", "method": "GET"}, self.receive, self.send)
        finally:
            self._note("over", self)

    def block(self) -> None:
        self._room.clear()

    def unblock(self) -> None:
        self._room.set()

    def go(self) -> None:
        self._gone.set()
        self._room.set()

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    async def send(self, message: Message) -> None:
        if not self._room.is_set():
            await self._room.wait()
        if self._gone.is_set():
            return
        assert not self.ended
        if message["type"] == "http.response.start":
            self.begun = True
        else:
            self.ended = not message["more_body"]
            if message["body"]:
                self.writes.append(message["body"])

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    # -- uvicorn's transport, of which a stream asks what ASGI has no word for

    @property
    def transport(self) -> Connection:
        return self

    def is_closing(self) -> bool:
        return self.gone or self.cut

    def abort(self) -> None:
        self.cut = True

    @property
    def ids(self) -> list[str]:
        lines = b"".join(self.writes).decode().split("\n")
        return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


class World:
    """A hub, and all connections there ever were."""

    def __init__(self, settings: Settings = SETTINGS, log: MemoryTransport | None = None) -> None:
        self.now = 1_000.0
        self.count = 0
        self.connections: list[Connection] = []
        self.note: Note = lambda what, connection: None
        self.log = log or MemoryTransport(max_updates=settings.history_updates, max_bytes=settings.history_bytes)
        self.hub = Hub(
            settings, self.log, clock=lambda: self.now, wall_clock=lambda: self.now + 1e9, random=Random(self.now)
        )

    async def publish(self, *topics: str, private: bool = False) -> str:
        """The id, which is the number of the update."""
        self.count += 1
        id = str(self.count)
        await self.hub.publish(Update(topics, private=private, id=id), grant=EVERYTHING)
        return id

    async def publish_and_see(self, first: Connection) -> None:
        """Publish to `a`, and wait until that connection has it: with slices of one, the others have not."""
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
        """Subscribe with a token that is good for `seconds`; the task of the response has yet to run."""
        expires = None if seconds is None else self.now + 1e9 + seconds
        grant = Grant(subscribe=tuple(compiled(granted)), expires=expires, subject=subject)
        subscriber, _ = await self.hub.subscribe(compiled(patterns), grant, after, address=address)
        connection = Connection(Stream(self.hub, subscriber, []), self.note, since=self.now)
        self.connections.append(connection)
        return connection

    @property
    def entries(self) -> list[Entry]:
        """What the log holds."""
        return list(self.log._entries.values())

    @property
    def announced(self) -> list[tuple[str, bool]]:
        """Whose arrival or departure is announced in the log, and which of both."""
        found = []
        for entry in self.entries:
            *_, id = entry.update.topics[0].split("/")
            if "/subscriptions/" in entry.update.topics[0]:
                found.append((id.replace("%3A", ":"), '"active":true' in entry.update.data))
        return found

    def expected(self, connection: Connection) -> list[str]:
        """What it should have got; naively, where the log still has everything."""
        updates = [entry.update for entry in self.entries[connection.start :]]
        return [update.id for update in updates if wants(connection.subscriber, update)]

    async def tick(self, seconds: float = 1.0) -> None:
        """Let so much time pass in one step."""
        self.now += seconds
        await self.hub.broadcaster.tick()

    async def pass_by(self, seconds: int) -> None:
        """Let so much time pass, second by second."""
        for _ in range(seconds):
            await self.tick()
            await self.settle(5)

    async def settle(self, rounds: int = 60) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def caught_up(self) -> None:
        """Wait until all was announced, dispatched and written, and every connection that is still there is live."""
        await self.settle(10)  # whoever was just begun is a connection then
        async with asyncio.timeout(HANG):
            while not self._is_quiet():
                await asyncio.sleep(0)

    def _is_quiet(self) -> bool:
        hub = self.hub.broadcaster
        at_rest = hub.live == hub.connected and hub.position == self.log._end and not hub._turn.locked()
        return at_rest and not self.hub._announcements._unfinished_tasks  # type: ignore[attr-defined]


def wants(subscriber: Subscriber, update: Update) -> bool:
    """Whether it receives `update`, by asking each matcher: one of its own, and for a private one one of its grant.

    They may match different topics of the update (N21, N81, V50).
    """
    return _any_match(subscriber.subscribed, update) and (
        not update.private or _any_match(subscriber.grant.subscribe, update)
    )


def _any_match(matchers: tuple[TopicMatcher, ...], update: Update) -> bool:
    return any(matcher.match(topic) for topic in update.topics for matcher in matchers)


def check(hub: Hub) -> None:
    """Assert the invariants of who is connected and who is live."""
    broadcaster = hub.broadcaster
    receivers: dict[str, Any] = broadcaster._connected
    broadcaster._filter._check()
    assert all(one.subscriber.id == id for id, one in receivers.items())
    assert [one.number for one in receivers.values()] == list(broadcaster._filter._alive)
    assert broadcaster._live <= broadcaster._filter._alive
    assert all(one._pending is None for one in receivers.values() if one.number in broadcaster._live)
    clients = [one.subscriber.client for one in receivers.values()]
    assert hub._clients == {client: clients.count(client) for client in clients}


def check_empty(hub: Hub) -> None:
    """Assert that nothing is left of any connection."""
    check(hub)
    broadcaster = hub.broadcaster
    interest: Any = broadcaster._filter._source
    for index in (interest._subscribed, interest._granted):
        index._check()
        assert index.distinct == 0
    assert (broadcaster.connected, broadcaster.live, len(broadcaster._wheel)) == (0, 0, 0)


def compiled(patterns: Iterable[Pattern]) -> list[TopicMatcher]:
    return [COMPILER.compile(*(("topic", one) if isinstance(one, str) else one)) for one in patterns]


@asynccontextmanager
async def world(settings: Settings = SETTINGS, log: MemoryTransport | None = None) -> AsyncIterator[World]:
    """A running hub, which ends all that is open at the end, and of which nothing is left then."""
    here = World(settings, log)
    async with here.hub.running():
        await here.settle(3)
        yield here
    for connection in here.connections:
        await asyncio.wait([connection.task], timeout=HANG)
        assert connection.task.done()
        pending = connection.stream._pending
        assert pending is None or inspect.getcoroutinestate(pending[0]) == "CORO_CLOSED"
        if connection.task.cancelled() or isinstance(connection.task.exception(), RequestError):
            continue
        connection.task.result()
        assert connection.ended or connection.gone or connection.cut
    check_empty(here.hub)
