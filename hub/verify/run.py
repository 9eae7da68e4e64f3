"""Whether a hub keeps its promises: publish through its nodes, follow with clients that come and go, compare.

    publisher ──► node ──┐         ┌──► node ──► client     every one of them notes what it knew, and when
    publisher ──► node ──┴── log ──┴──► node ──► client

What is compared is times and sequences; nothing is asked of the log but one last reading, from `earliest`.

    began ──────── known ───────────► time        known: acknowledged, or had by a client, whichever was first
      may be in the log │ is in the log           so of two updates, one known before the other began is before it

    first id ── a ── b ─╫─ c ── d ─── cut off ─── e ── f ───► end      what a client had: two stretches
                        ╫  the hub answered a cursor with another one, `earliest`: an announced gap

A publisher's update is *acknowledged* (200 and an id), *refused* (another answer, or no connection: the number is sent
again, as another update), or *uncertain* (sent, and no answer: it may be in the log or not, and is not sent again).

A *stretch* is what a client had without a gap announced to it; it goes on over all connections that go on from its
cursor, the id of the last event that it has processed.  Within one these are violations:

    loss            an acknowledged update is missing.  To have are all that began after the stretch had begun, and all
                    that come in the last reading after the first one that the client had, or named as its cursor; and,
                    where a stretch was broken off, before the last one that it had
    disagreement    the same of one that was not acknowledged, and that somebody had
    duplicate       an update comes twice
    reordering      an update comes after one that is behind it in the last reading or, where both are gone from there,
                    in the stretch that had the most of those; or after one that began when it was already known, and
                    so is behind it by any order.  Numbers of one publisher grow by this
    corruption      data that is not what was sent, or an id that is not the one that the publisher was told

and over all

    lost            an acknowledged update that nobody had; or one that is not in the last reading, which has earlier
                    ones.  No violation for a log that may lose (`may_lose`), as long as a gap was announced
    unfinished      a client did not come to the last update in time, for whatever reason

What a client never had and no stretch had to have was missed by an announced gap; it is counted.

All times are of one clock, in one process, so no clock has to agree with another.  A client keeps 4 bytes for an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import secrets
import ssl
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlencode, urlsplit
from zlib import crc32

import httptools

from hub.protocol.events import Blocks, parse_block

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from typing import Self

Kind: TypeAlias = Literal["loss", "disagreement", "duplicate", "reordering", "corruption", "lost", "unfinished"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

EXAMPLES: Final = 5
"""Violations of a kind that are told in full."""
_ANSWER: Final = 10.0
"""Seconds after which an answer does not come any more."""
_SLOW: Final = 2**12
"""Bytes that a slow client reads ahead."""
_TOPIC: Final = "https://verify.example/"
_BLOCKS: Final = 10_000
"""Events that are remembered as they came: the same bytes come to all clients."""
_PADDING: Final = "x\n\u2028é:"  # line feeds, and what only looks like one


# -- what was seen


@dataclass(slots=True)
class Update:
    """A number as it was sent once.  Its serial is its index among all updates, which are in order of `began`."""

    publisher: int
    number: int
    began: float
    acknowledged: float = math.inf
    seen: float = math.inf
    """When the first client had it."""
    told: str = ""
    """The id that the publisher was told."""
    id: str = ""
    """The id that the first client had it with."""

    @property
    def known(self) -> float:
        return min(self.acknowledged, self.seen)

    def __str__(self) -> str:
        return f"publisher {self.publisher} number {self.number} ({self.told or self.id or 'no id'})"


@dataclass(slots=True)
class Stretch:
    """What a client had without an announced gap: serials, in the order in which they came."""

    since: float
    """What began later is to come."""
    after: int | None = None
    """The serial of its cursor when it began, if it named one that the hub went on from."""
    announced: bool = False
    """Whether it began with an announced gap."""
    serials: array[int] = field(default_factory=lambda: array("I"))


class Corrupted(NamedTuple):
    position: int
    what: str


@dataclass(slots=True)
class History:
    """All that one client had.  A position in it counts the events of its stretches, from 0."""

    client: str
    stretches: list[Stretch] = field(default_factory=list)
    corrupted: list[Corrupted] = field(default_factory=list)


# -- what is wrong with it


class Violation(NamedTuple):
    client: str
    position: int | None
    """How many events the client had before; None where it is nobody's."""
    what: str


class Findings:
    """How often each kind of violation was found, with the first examples, and what was announced."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[Violation]] = {kind: [] for kind in KINDS}
        self.gaps = 0
        self.missed = 0
        """Updates that a client never had, and need not have had; summed up over the clients."""

    def note(self, kind: Kind, client: str, position: int | None, what: str) -> None:
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(Violation(client, position, what))

    def violations(self, *, may_lose: bool) -> int:
        return self.counts.total() - (self.counts["lost"] if may_lose else 0)


def check(updates: Sequence[Update], histories: Iterable[History], last: History, closing: int) -> Findings:
    """What is wrong with `histories`, given the `last` reading of the log from `earliest`.

    `closing` is the serial of the last update, which all have to come to; what they had after it does not count.
    """
    return _Check(updates, [*histories, last], last, closing).findings


class _Check:
    def __init__(self, updates: Sequence[Update], histories: list[History], last: History, closing: int) -> None:
        self.findings = Findings()
        self._updates, self._closing = updates, closing
        self._began = [update.began for update in updates]
        for history in histories:
            _end(history, closing)
        stretches = [stretch for history in histories for stretch in history.stretches]
        self._had = set[int]().union(*(stretch.serials for stretch in stretches))
        acknowledged = {n for n, update in enumerate(updates) if update.acknowledged < math.inf}
        self._known = sorted(self._had | acknowledged)

        self._order = last.stretches[-1].serials if last.stretches else array("I")
        self._places: dict[int | None, int] = {n: place for place, n in enumerate(self._order)}
        gone = self._had - self._places.keys()
        witness = max(stretches, key=lambda stretch: len(gone.intersection(stretch.serials)), default=Stretch(0))
        self._gone: dict[int | None, int] = {n: place for place, n in enumerate(witness.serials) if n in gone}

        for history in histories:
            self._check_history(history)
        self._check_log()

    def _check_history(self, history: History) -> None:
        note, client, position, missed = self.findings.note, history.client, 0, set[int]()
        for corrupted in history.corrupted:
            note("corruption", client, *corrupted)
        for stretch in history.stretches:
            serials = stretch.serials
            ends = self._closing in serials or stretch is not history.stretches[-1]
            self.findings.gaps += stretch.announced
            for index, what in self._duplicates(serials):
                note("duplicate", client, position + index, what)
            for n, other in self._disorder(serials):
                what = f"{self._updates[n]} comes after {self._updates[other]}"
                note("reordering", client, position + serials.index(n), what)
            for n in sorted(missing := self._missing(stretch, ends=ends)):
                kind: Kind = "loss" if self._updates[n].acknowledged < math.inf else "disagreement"
                index = sum(other < n for other in serials) if self.findings.counts[kind] < EXAMPLES else 0
                note(kind, client, position + index, f"{self._updates[n]} is missing")
            missed |= missing
            position += len(serials)
        if not history.stretches or self._closing not in history.stretches[-1].serials:
            note("unfinished", client, position, "did not come to the last update")
        if history.stretches:
            had = missed.union(*(stretch.serials for stretch in history.stretches))
            self.findings.missed += len(self._since(history.stretches[0].since) - had)

    def _since(self, time: float) -> set[int]:
        """Those known that began later."""
        return set(self._known[bisect_left(self._known, bisect_right(self._began, time)) :])

    def _missing(self, stretch: Stretch, *, ends: bool) -> set[int]:
        """What it had to have; where it `ends`, nothing after the last one that it had."""
        had = set(stretch.serials)
        places = [self._places[n] for n in had if n in self._places]
        first = self._places.get(stretch.after, min(places, default=len(self._order)))
        end = max(places, default=-1) + 1 if ends else len(self._order)
        latest = math.inf if not ends else self._began[max(had)] if had else -math.inf
        by_time = {n for n in self._since(stretch.since) - had if self._updates[n].known < latest}
        return by_time.union(self._order[first:end]) - had - {stretch.after}

    def _duplicates(self, serials: array[int]) -> Iterator[tuple[int, str]]:
        if len(set(serials)) == len(serials):
            return
        first: dict[int, int] = {}
        for index, n in enumerate(serials):
            if first.setdefault(n, index) != index:
                yield index, f"{self._updates[n]} comes again, {index - first[n]} events later"

    def _disorder(self, serials: array[int]) -> Iterator[tuple[int, int]]:
        """Pairs of which the first is to come before the second, and does not."""
        start = self._places.get(serials[0], 0) if serials else 0
        if serials is not self._order and serials == self._order[start : start + len(serials)]:
            return  # it is a part of the last reading, which is looked at by itself
        latest, tops = -1, [(-1, -1), (-1, -1)]
        for n in dict.fromkeys(serials):
            before = latest if latest >= 0 and self._updates[n].known < self._began[latest] else None
            for line, places in enumerate((self._places, self._gone)):
                if (place := places.get(n)) is not None:
                    if place < tops[line][0]:
                        before = tops[line][1]
                    else:
                        tops[line] = place, n
            if before is not None:
                yield n, before
            latest = max(latest, n)

    def _check_log(self) -> None:
        # What began later is behind the beginning of the log; a reading that was not finished tells nothing of it.
        whole = self._order if self._closing in self._places else ()
        floor = min((self._updates[n].known for n in whole), default=math.inf)
        for n in self._known:
            update = self._updates[n]
            if n not in self._had:
                self.findings.note("lost", "", None, f"{update} was acknowledged, and nobody had it")
            elif n not in self._places and update.began > floor:
                self.findings.note("lost", "", None, f"{update} is in the log no more, which has earlier ones")
            if update.told and update.id and update.told != update.id:
                self.findings.note("corruption", "", None, f"{update} came with the id {update.id}")


def _end(history: History, closing: int) -> None:
    """Drop what came after the last update: what no publisher had an answer to, or, after a gap, a replay."""
    for index, stretch in enumerate(history.stretches):
        if closing in stretch.serials:
            del stretch.serials[stretch.serials.index(closing) + 1 :]
            del history.stretches[index + 1 :]


# -- an event stream


# -- HTTP


class Node:
    """One of the hub's URLs, and how it took updates."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL of a hub")
        self.url = url
        self.address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.authority = parts.netloc.rpartition("@")[2]
        self.path = parts.path or "/"
        self.acknowledged = self.uncertain = 0
        self.refused: Counter[str] = Counter()
        self.without_service = self._served = 0.0

    def count_service(self, now: float, *, begins: bool = False) -> None:
        """It has taken an update; or is to be counted from now."""
        self.without_service = 0.0 if begins else max(self.without_service, now - self._served)
        self._served = now


class _Connection:
    """One HTTP/1.1 connection, which is asked one thing at a time.  Raises OSError where it is cut off.

    Not httpx2, which takes several times as long for a chunk of a stream as the hub does: what is to be measured is
    the hub.
    """

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._node, self._reader, self._writer = node, reader, writer
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self._headed = self._complete = False

    @classmethod
    async def open(cls, node: Node, limit: int = 2**16) -> Self:
        return cls(node, *await asyncio.open_connection(*node.address, ssl=node.tls, limit=limit))

    @property
    def usable(self) -> bool:
        """Whether it may be asked once more."""
        return self._complete and self._parser.should_keep_alive() and not self._reader.at_eof()

    async def ask(self, method: str, query: str, headers: dict[str, str], body: str = "") -> int:
        """The status, once the head has come."""
        content = body.encode()
        target = self._node.path + (f"?{query}" if query else "")
        fields = {"Host": self._node.authority, "Content-Length": str(len(content))} | headers
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self._headed = self._complete = False
        self.headers.clear()
        self._writer.write("\r\n".join(lines).encode() + content)
        while not self._headed:
            await self._read()
        return self._parser.get_status_code()

    async def body(self) -> AsyncIterator[bytes]:
        while self._parts or not self._complete:
            if not self._parts:
                await self._read()
            parts, self._parts = self._parts, []
            yield b"".join(parts)

    async def _read(self) -> None:
        if not (data := await self._reader.read(2**16)):
            raise ConnectionError("cut off")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionError(f"no HTTP: {error}") from None

    def abort(self) -> None:
        self._writer.transport.abort()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._headed = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = True


# -- publishers and clients


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, and for how long."""

    urls: Sequence[str]
    token: str | None = None
    clients: int = 50
    publishers: int = 2
    """Of each node."""
    rate: float = 50.0
    """Updates a second in all."""
    seconds: float = 10.0
    churn: float = 3.0
    """Mean seconds between two disconnections of a client."""
    patience: float = 30.0
    """Seconds that there are for all clients to come to the last update."""
    private: float = 0.0
    """Share of private updates."""
    may_lose: bool = False
    seed: int = 0


class Progress(NamedTuple):
    elapsed: float
    published: int
    refused: int
    received: int
    reconnections: int

    def __str__(self) -> str:
        return (
            f"{self.published:,} published, {self.refused:,} refused, {self.received:,} received, "
            f"{self.reconnections:,} reconnections"
        )


async def verify(plan: Plan, watch: Callable[[Progress], object]) -> Report:
    """Do it, and report; `watch` is called some times a second.

    Raises ValueError for what is no URL, and OSError where a node cannot be reached or refuses at the start.
    """
    return await _Run(plan).run(watch)


class _Run:
    """What publishers and clients share.  Its mutable state is all in `__init__`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)  # noqa: S311
        self.name = secrets.token_hex(8)
        self.nodes = [Node(url) for url in plan.urls]
        self.headers = {} if plan.token is None else {"Authorization": f"Bearer {plan.token}"}
        self.query = ""
        self.updates: list[Update] = []
        self.opening = self.closing = 0
        """Serials of the last update before, and the last one after, those of the publishers."""
        self.is_closing = False
        self.arrived = asyncio.Event()
        """Set when somebody has come to what may be the last update."""
        self.received = self.reconnections = 0
        self.latencies: Counter[int] = Counter()
        """Of what came to clients that were there when it was sent, and that read at once; in tenths of a ms."""
        self._blocks: dict[bytes, tuple[str | None, int | None, str]] = {}
        self._began = time.monotonic()

    async def run(self, watch: Callable[[Progress], object]) -> Report:
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
        """See that updates can be published here, and followed in one of the dialects."""
        with contextlib.closing(_Publisher(self, node, 0)) as publisher:
            if await publisher.publish(len(self.updates) + 1) != "acknowledged":
                raise ConnectionError(f"{node.url} takes no update: {', '.join(node.refused) or 'it does not answer'}")
        self.opening = len(self.updates) - 1
        template = f"{_TOPIC}{self.name}/{{publisher}}"
        for selector in ("match_uritemplate", "topic"):
            self.query = urlencode({selector: template})
            connection = await _Connection.open(node)
            try:
                async with asyncio.timeout(_ANSWER):
                    status = await connection.ask("GET", self.query, self.headers)
            finally:
                connection.abort()
            if status == 200:
                node.acknowledged = 0
                node.count_service(time.monotonic(), begins=True)
                return
        raise ConnectionError(f"{node.url} refuses subscribers: {status}")

    async def _close(self) -> None:
        """Publish one last update, for all clients to come to, by whatever node takes one."""
        self.is_closing = True
        for number, node in enumerate(itertools.cycle(self.nodes), len(self.nodes) + 1):
            self.closing = len(self.updates)
            with contextlib.closing(_Publisher(self, node, 0)) as publisher:
                if await publisher.publish(number) == "acknowledged":
                    return
            await asyncio.sleep(0.1)

    def progress(self) -> Progress:
        published = sum(node.acknowledged for node in self.nodes)
        refused = sum(node.refused.total() for node in self.nodes)
        return Progress(time.monotonic() - self._began, published, refused, self.received, self.reconnections)

    async def _tell(self, watch: Callable[[Progress], object]) -> None:
        while True:
            watch(self.progress())
            await asyncio.sleep(0.2)

    def read(self, block: bytes, now: float) -> tuple[str | None, int | None, str]:
        """The id of an event, the serial of its update, and what is wrong with it."""
        if (known := self._blocks.get(block)) is None:
            if len(self._blocks) == _BLOCKS:
                self._blocks.clear()
            known = self._blocks[block] = self._read(block, now)
        return known

    def _read(self, block: bytes, now: float) -> tuple[str | None, int | None, str]:
        id, _, data, *_ = parse_block(block)
        if data is None:
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
        update = self.updates[serial]
        head = f"{self.name} {serial} {update.publisher} {update.number}"
        return f"{head} {crc32((head + padding).encode()):08x} {padding}"


class _Publisher:
    """Sends numbers to one node, each when the one before was answered or given up."""

    def __init__(self, run: _Run, node: Node, name: int) -> None:
        self._run, self._node, self._name = run, node, name
        self._connection: _Connection | None = None

    async def run(self, until: float) -> None:
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
        run, node = self._run, self._node
        try:
            async with asyncio.timeout(_ANSWER):
                connection = await self._connected()
        except OSError as error:
            node.refused[error.strerror or "no connection"] += 1
            return "refused"
        serial = len(run.updates)
        run.updates.append(update := Update(self._name, number, time.monotonic()))
        padding = "".join(run.random.choices(_PADDING, k=run.random.randrange(100)))
        form = {"topic": f"{_TOPIC}{run.name}/{self._name}", "data": run.data(serial, padding)}
        if run.random.random() < run.plan.private:
            form["private"] = "on"
        headers = run.headers | {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            async with asyncio.timeout(_ANSWER):
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

    async def _connected(self) -> _Connection:
        if self._connection is None or not self._connection.usable:
            self.close()
            self._connection = await _Connection.open(self._node)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class _Client:
    """Follows by one node after the other, and comes back with its cursor.

    Of ten, four begin with what comes, four with what came after the beginning, and two late: one with all that there
    is, and one in the middle.  One of seven is slow.  Who is not numbered is the last reading.
    """

    def __init__(self, run: _Run, number: int | None) -> None:
        self._run = run
        self._is_last = number is None
        self.history = History("the last reading" if number is None else f"client {number}")
        self.ends: set[int] = set()
        """The serials that it has had of what may be the last update."""
        self._kind = 8 if number is None else number % 10
        self._slow = number is not None and number % 7 == 3
        self._cursor: str | None = None
        self._after: int | None = None
        self._blocks = Blocks()
        self._connected = math.inf
        self._position = 0
        self._longer = 1
        """How many times as long as usual a connection lasts."""

    async def follow(self) -> None:
        run = self._run
        if self._kind >= 8 and not self._is_last:
            await asyncio.sleep(run.random.uniform(0.2, 0.6) * run.plan.seconds)
        if self._kind == 8:
            self._cursor = "earliest"
        elif self._kind == 9:
            acknowledged = [n for n, update in enumerate(run.updates) if update.acknowledged < math.inf]
            self._goes_on_from(run.random.choice(acknowledged))
        elif self._kind % 2:
            self._goes_on_from(run.opening)
        while True:
            await self._connect(run.random.choice(run.nodes))
            if self._cursor is None:  # it has had nothing, and is to come to the end of it all
                self._goes_on_from(run.opening)
            pause = run.random.choice((0, 0, run.random.expovariate(3 / run.plan.churn)))
            await asyncio.sleep(min(pause, 0.1) if run.is_closing else pause)

    async def _connect(self, node: Node) -> None:
        """Follow until it is time to go, or the connection ends."""
        run, connection = self._run, None
        cursor = {} if self._cursor is None else {"Last-Event-ID": self._cursor}
        try:
            async with asyncio.timeout(_ANSWER):
                connection = await _Connection.open(node, _SLOW if self._slow else 2**16)
                status = await connection.ask("GET", run.query, run.headers | cursor)
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
            if run.is_closing:  # a replay of everything may take longer than any connection before
                self._longer *= 2
        except OSError:  # it was not let in, or did not leave by itself, and does not ask in a tight loop
            await asyncio.sleep(run.random.uniform(0.05, 0.3))
        finally:
            if connection is not None:
                connection.abort()

    def _goes_on_from(self, serial: int) -> None:
        self._after, self._cursor = serial, self._run.updates[serial].told

    def _begin(self, headers: dict[bytes, bytes]) -> None:
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
        run, now, serials = self._run, time.monotonic(), self.history.stretches[-1].serials
        for block in self._blocks.feed(part):
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


# -- the report


@dataclass(frozen=True, slots=True)
class Report:
    plan: Plan
    run: str
    nodes: list[Node]
    progress: Progress
    latencies: Counter[int]
    findings: Findings

    @property
    def violations(self) -> int:
        return self.findings.violations(may_lose=self.plan.may_lose)

    def latency(self, share: float) -> float | None:
        """In ms; None where nothing came."""
        left = share * self.latencies.total()
        for tenths in sorted(self.latencies):
            left -= self.latencies[tenths]
            if left <= 0:
                return tenths / 10
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "seed": self.plan.seed,
            "seconds": round(self.progress.elapsed, 3),
            "clients": self.plan.clients,
            "received": self.progress.received,
            "reconnections": self.progress.reconnections,
            "nodes": [
                {
                    "url": node.url,
                    "acknowledged": node.acknowledged,
                    "refused": dict(node.refused),
                    "uncertain": node.uncertain,
                    "seconds_without_service": round(node.without_service, 3),
                }
                for node in self.nodes
            ],
            "latency_ms": {name: self.latency(share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
            "announced": {"gaps": self.findings.gaps, "missed": self.findings.missed},
            "violations": {
                kind: {
                    "count": self.findings.counts[kind],
                    "examples": [example._asdict() for example in self.findings.examples[kind]],
                }
                for kind in KINDS
            },
            "may_lose": self.plan.may_lose,
            "ok": not self.violations,
        }

    def __str__(self) -> str:
        progress, findings = self.progress, self.findings
        latency = ", ".join(f"{name} {ms} ms" for name, ms in self.to_json()["latency_ms"].items() if ms is not None)
        lines = [
            f"run             {self.run}, seed {self.plan.seed}, {progress.elapsed:.1f} s",
            f"clients         {self.plan.clients}, which had {progress.received:,} events and came back "
            f"{progress.reconnections:,} times",
            f"latency         {latency or 'unknown'}",
            f"announced gaps  {findings.gaps:,}, in which {findings.missed:,} updates were missed",
            "",
            "acknowledged  refused  uncertain  longest without service",
        ]
        for node in self.nodes:
            why = ", ".join(f"{reason}: {count}" for reason, count in node.refused.items())
            lines.append(
                f"{node.acknowledged:>12,}  {node.refused.total():>7,}  {node.uncertain:>9,}  "
                f"{node.without_service:>21.2f} s  {node.url}" + (f"  ({why})" if why else "")
            )
        lines.append("")
        for kind in KINDS:
            note = "  (it may lose)" if kind == "lost" and self.plan.may_lose else ""
            lines.append(f"{kind:<14}{findings.counts[kind]:>7,}{note}")
            for client, position, what in findings.examples[kind]:
                where = f"{client}, after {position:,} events: " if position is not None else ""
                lines.append(f"    {where}{what}")
        return "\n".join([*lines, "", f"{self.violations:,} violations" if self.violations else "All is well."])
