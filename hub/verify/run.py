"""A run: publishers and clients on the nodes of a hub, and the check of what they
received.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import secrets
import time
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlencode
from zlib import crc32

from hub.errors import EventTooLarge
from hub.protocol.events import STREAM, WITH_SIGNALS, Blocks, parse_block, signal_in
from hub.protocol.updates import EARLIEST_ID
from hub.verify.checker import Corrupted, Published, Seen, Stretch, check
from hub.verify.client import ANSWER_TIMEOUT, SLOW_BUFFER, Connection, Node
from hub.verify.report import Plan, Progress, Report

if TYPE_CHECKING:
    from collections.abc import Callable

_TOPIC: Final = "https://verify.example/"
_BLOCKS: Final = 10_000
"""Events that are cached with their parsed form, because all clients get the same
bytes."""
_PADDING: Final = "x\n\u2028é:"  # a line feed, and characters that resemble one


async def verify(plan: Plan, watch: Callable[[Progress], object]) -> Report:
    """Run a plan and return its report; `watch` is called several times a second.

    Raises ValueError if a URL is invalid, and OSError if a node cannot be reached or
    refuses the first requests.
    """
    return await _Run(plan).run(watch)


class _Run:
    """The state that publishers and clients of a run share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)  # noqa: S311
        self.name = secrets.token_hex(8)  # part of the topics, so that runs do not mix
        self.nodes = [Node(url) for url in plan.urls]
        self.headers = {} if plan.token is None else {"Authorization": f"Bearer {plan.token}"}
        self.stream_headers = self.headers | {name.decode(): value.decode() for name, value in STREAM}
        self.query = ""
        self.updates: list[Published] = []
        self.opening = self.closing = 0
        """The serials of the last update before the run, and of the one that
        ends it."""
        self.is_closing = False
        self.arrived = asyncio.Event()
        """Set when a client receives an update that may be the last one."""
        self.received = self.reconnections = 0
        self.latencies: Counter[int] = Counter()
        """Latencies of live updates to clients that read at once, in tenths of a ms."""
        self._blocks: dict[bytes, tuple[str | None, int | None, str]] = {}
        self._began = time.monotonic()

    async def run(self, watch: Callable[[Progress], object]) -> Report:
        """Publish and follow for the time of the plan; then wait for all clients, and
        check.
        """
        plan = self.plan
        for node in self.nodes:
            await self._begin(node)
        clients = [_Client(self, number) for number in range(plan.clients)]
        last = _Client(self, None)
        publishers = [
            _Publisher(self, node, number)
            for number, node in enumerate((node for node in self.nodes for _ in range(plan.publishers)), 1)
        ]
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.follow()) for client in clients]
            tasks.append(group.create_task(self._tell(watch)))
            await asyncio.gather(*(publisher.run(self._began + plan.seconds) for publisher in publishers))
            for node in self.nodes:
                node.count_service(time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plan.patience):
                    await self._close()
                    tasks.append(group.create_task(last.follow()))
                    while not all(self.closing in client.ends for client in [*clients, last]):
                        self.arrived.clear()
                        await self.arrived.wait()
            for task in tasks:
                task.cancel()
        watch(self.progress())
        findings = check(self.updates, [client.history for client in clients], last.history, self.closing)
        return Report(plan, self.name, self.nodes, self.progress(), self.latencies, findings)

    async def _begin(self, node: Node) -> None:
        """Check that updates can be published here, and followed in one of the
        dialects.
        """
        with contextlib.closing(_Publisher(self, node, 0)) as publisher:
            if await publisher.publish(len(self.updates) + 1) != "acknowledged":
                raise ConnectionError(
                    f"{node.url} accepts no update: {', '.join(node.refused) or 'it does not answer'}"
                )
        self.opening = len(self.updates) - 1
        template = f"{_TOPIC}{self.name}/{{publisher}}"
        for selector in ("match_uritemplate", "topic"):
            self.query = urlencode({selector: template})
            connection = await Connection.open(node)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    status = await connection.ask("GET", self.query, self.stream_headers)
            finally:
                connection.abort()
            if status == 200:
                node.acknowledged = 0
                node.count_service(time.monotonic(), begins=True)
                return
        raise ConnectionError(f"{node.url} refuses subscribers: {status}")

    async def _close(self) -> None:
        """Publish one last update, by any node that accepts it, for all clients to
        reach.
        """
        self.is_closing = True
        for number, node in enumerate(itertools.cycle(self.nodes), len(self.nodes) + 1):
            self.closing = len(self.updates)
            with contextlib.closing(_Publisher(self, node, 0)) as publisher:
                if await publisher.publish(number) == "acknowledged":
                    return
            await asyncio.sleep(0.1)

    def progress(self) -> Progress:
        """Return the counts so far."""
        published = sum(node.acknowledged for node in self.nodes)
        refused = sum(node.refused.total() for node in self.nodes)
        return Progress(time.monotonic() - self._began, published, refused, self.received, self.reconnections)

    async def _tell(self, watch: Callable[[Progress], object]) -> None:
        """Report the progress, without end."""
        while True:
            watch(self.progress())
            await asyncio.sleep(0.2)

    def read(self, block: bytes, now: float) -> tuple[str | None, int | None, str]:
        """Return the id of an event, the serial of its update, and its fault, if
        any.
        """
        if (known := self._blocks.get(block)) is None:
            if len(self._blocks) == _BLOCKS:
                self._blocks.clear()
            known = self._blocks[block] = self._read(block, now)
        return known

    def _read(self, block: bytes, now: float) -> tuple[str | None, int | None, str]:
        """Parse an event, and compare it with the update that was sent."""
        event = parse_block(block)
        id, _, data, *_ = event
        if data is None or signal_in(event) is not None:
            return id, None, ""
        try:
            serial, padding = int(data.split(" ", 2)[1]), data.split(" ", 5)[5]
            update = self.updates[serial]
            if data != self.data(serial, padding):
                raise ValueError
        except (IndexError, ValueError):
            return id, None, f"{id or 'no id'} has {data[:60]!r}"
        if update.seen == math.inf:
            update.seen, update.id = now, id or ""
        wrong = "" if update.id == (id or "") else f"{update} came with the id {id or ''} too"
        return id, serial, wrong

    def data(self, serial: int, padding: str) -> str:
        """Return the data of an update: its serial, its publisher, a checksum, and
        padding.
        """
        update = self.updates[serial]
        head = f"{self.name} {serial} {update.publisher} {update.number}"
        return f"{head} {crc32((head + padding).encode()):08x} {padding}"


class _Publisher:
    """Sends numbers to one node, each after the previous one was answered or
    given up.
    """

    def __init__(self, run: _Run, node: Node, name: int) -> None:
        self._run, self._node, self._name = run, node, name
        self._connection: Connection | None = None

    async def run(self, until: float) -> None:
        """Publish at the rate of the plan, until a time."""
        run = self._run
        interval = run.plan.publishers * len(run.nodes) / run.plan.rate
        due, number = time.monotonic() + run.random.uniform(0, interval), 1
        while due < until:
            await asyncio.sleep(due - time.monotonic())
            refused = await self.publish(number) == "refused"
            number += not refused
            pause = run.random.uniform(0.05, 0.2) if refused else 0
            due = max(due + interval, time.monotonic() + pause)
        self.close()

    async def publish(self, number: int) -> Literal["acknowledged", "refused", "uncertain"]:
        """Publish a number once, and record the outcome."""
        run, node = self._run, self._node
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                connection = await self._connected()
        except OSError as error:
            node.refused[error.strerror or "no connection"] += 1
            return "refused"
        serial = len(run.updates)
        run.updates.append(update := Published(self._name, number, time.monotonic()))
        padding = "".join(run.random.choices(_PADDING, k=run.random.randrange(100)))
        form = {"topic": f"{_TOPIC}{run.name}/{self._name}", "data": run.data(serial, padding)}
        if run.random.random() < run.plan.private:
            form["private"] = "on"
        headers = run.headers | {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                status = await connection.ask("POST", "", headers, urlencode(form))
                answer = b"".join([part async for part in connection.body()]).decode("utf-8", "replace")
        except OSError:
            node.uncertain += 1
            self.close()
            return "uncertain"
        if status != 200:
            node.refused[str(status)] += 1
            return "refused"
        update.acknowledged, update.told = time.monotonic(), answer.strip()
        node.acknowledged += 1
        node.count_service(update.acknowledged)
        return "acknowledged"

    async def _connected(self) -> Connection:
        """Return a connection that can take a request."""
        if self._connection is None or not self._connection.usable:
            self.close()
            self._connection = await Connection.open(self._node)
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class _Client:
    """Follows on one node after another, and continues from its cursor.

    Of ten clients, four start live, four replay from the start of the run, and two join
    late: one with the whole history and one in the middle.  One in seven is slow.  Four
    of ten ask for signals, whose cursors they use as those of updates.
    `number=None` is the final read.
    """

    def __init__(self, run: _Run, number: int | None) -> None:
        self._run = run
        self._is_last = number is None
        self.history = Seen("the final read" if number is None else f"client {number}")
        self.ends: set[int] = set()
        """The serials of received updates that may be the last one."""
        self._kind = 8 if number is None else number % 10
        self._slow = number is not None and number % 7 == 3
        self._cursor: str | None = None
        self._after: int | None = None
        self._blocks = Blocks()
        self._connected = math.inf
        self._position = 0
        self._signals = "" if self._kind % 4 < 2 else "&" + urlencode([WITH_SIGNALS])
        self._longer = 1
        """The factor by which its connections last longer than usual."""

    async def follow(self) -> None:
        """Connect, and connect again, until the task is cancelled."""
        run = self._run
        # The client's number decides where it starts.
        if self._kind >= 8 and not self._is_last:
            await asyncio.sleep(run.random.uniform(0.2, 0.6) * run.plan.seconds)
        if self._kind == 8:
            self._cursor = EARLIEST_ID
        elif self._kind == 9:
            acknowledged = [n for n, update in enumerate(run.updates) if update.acknowledged < math.inf]
            self._goes_on_from(run.random.choice(acknowledged))
        elif self._kind % 2:
            self._goes_on_from(run.opening)
        while True:
            await self._connect(run.random.choice(run.nodes))
            # It received nothing; it must still reach the last update.
            if self._cursor is None:
                self._goes_on_from(run.opening)
            pause = run.random.choice((0, 0, run.random.expovariate(3 / run.plan.churn)))
            await asyncio.sleep(min(pause, 0.1) if run.is_closing else pause)

    async def _connect(self, node: Node) -> None:
        """Follow until it is time to leave, or the connection ends."""
        run, connection = self._run, None
        cursor = {} if self._cursor is None else {"Last-Event-ID": self._cursor}
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                connection = await Connection.open(node, SLOW_BUFFER if self._slow else 2**16)
                status = await connection.ask("GET", run.query + self._signals, run.stream_headers | cursor)
            if status != 200:
                raise ConnectionError(f"refused: {status}")
            self._begin(connection.headers)
            stays = None if self._is_last else self._longer * run.random.expovariate(1 / run.plan.churn)
            async with asyncio.timeout(stays):
                async for part in connection.body():
                    self._receive(part)
                    if self._slow and not run.is_closing:
                        await asyncio.sleep(run.random.expovariate(5))
            raise ConnectionError("ended by the hub")
        except TimeoutError:
            if run.is_closing:  # replaying everything may take longer than a usual connection
                self._longer *= 2
        except OSError:  # the connection failed or ended: do not retry in a tight loop
            await asyncio.sleep(run.random.uniform(0.05, 0.3))
        finally:
            if connection is not None:
                connection.abort()

    def _goes_on_from(self, serial: int) -> None:
        """Set the cursor to an update."""
        self._after, self._cursor = serial, self._run.updates[serial].told

    def _begin(self, headers: dict[bytes, bytes]) -> None:
        """Begin a new stretch if a gap is announced, or if nothing was received yet."""
        run, now, stretches = self._run, time.monotonic(), self.history.stretches
        if self._cursor is None and run.is_closing:
            raise ConnectionError("it may be too late for the last update")
        told = headers.get(b"mercure-last-event-id", b"").decode("utf-8", "replace")
        run.reconnections += bool(stretches)
        self._connected, self._blocks = now, Blocks()
        if told not in ("", self._cursor or ""):
            stretches.append(Stretch(now, announced=True))
        elif not self._position:
            since = now if self._after is None else run.updates[self._after].acknowledged
            stretches[:] = [Stretch(since, self._after)]

    def _receive(self, part: bytes) -> None:
        """Record the events in a part of the stream."""
        run, now, serials = self._run, time.monotonic(), self.history.stretches[-1].serials
        try:
            blocks = [*self._blocks.feed(part)]
        except EventTooLarge as error:  # it is none of this run
            raise ConnectionError(str(error)) from None
        for block in blocks:
            id, serial, wrong = run.read(block, now)
            self._cursor = id or self._cursor
            if wrong:
                self.history.corrupted.append(Corrupted(self._position, wrong))
            if serial is None:
                continue
            self._position += 1
            run.received += 1
            serials.append(serial)
            began = run.updates[serial].began
            if began > self._connected and not self._slow:
                run.latencies[int((now - began) * 10_000)] += 1
            if run.is_closing and serial >= run.closing:
                self.ends.add(serial)
                run.arrived.set()
