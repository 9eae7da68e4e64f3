"""The subscribers and publishers of a load, in one epoll.

    epoll ─► readable socket ─► recv into one buffer ─► count the marks        no parsing, no task, no decoding
       └──► due update ───────► POST on an idle connection                     at times that are fixed beforehand

The data of an update is one mark, which is in nothing else that a server sends, the time when the update was due, and
padding.  A byte cannot be torn in two by the end of a read, so counting marks counts deliveries, however many frames
come at once; it costs the load little more than the system call.  Some subscribers, the probes, read the times too.
The latency of an update counts from when it was due, whether or not a publisher was free then: a server that stalls
is not asked less.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import time
from collections import deque
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random
from select import EPOLLIN, EPOLLOUT, epoll
from typing import TYPE_CHECKING, Final, Literal

from bench.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.targets import Load, Target

_MARK: Final = ord("~")
_TIME: Final = re.compile(rb"~(\d{19})")
_TIME_BYTES: Final = 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"

_FILES: Final = 2**16
_BUFFER: Final = 2**18
_EVENTS: Final = 256  # between two looks at the clock: half a millisecond
_OPENING: Final = 200  # lasting connections that are being made at a time; who comes later comes when it is due
_HANG: Final = 60 * 10**9
_STAY: Final = 0.5  # seconds for which a visitor stays
_SOURCES: Final = 20  # addresses of this machine to connect from: each has 28,000 ports
_IP_BIND_ADDRESS_NO_PORT: Final = 24


def raise_file_limit() -> int:
    """Allow this process, and those that it starts, _FILES open files, or as many as it may; and say how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, PermissionError):  # only root may raise the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, max(hard, _FILES)))
        return _FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@dataclass(slots=True)
class Subscriber:
    """One connection; its deliveries count if it is a reader or a probe."""

    role: Literal["reader", "probe", "stuck", "visitor", "newcomer"]
    group: int
    due: int = 0
    """When it was to connect, in ns."""
    socket: socket.socket | None = None
    asked: bool = False
    head: bytes = b""


class Clients:
    """All subscribers and publishers of a load, and the one epoll that they are in.

    All its mutable state is listed in `__init__`.  What is in lists there has the file descriptor as index, as it is
    looked at for every read.
    """

    def __init__(self, load: Load, target: Target) -> None:
        self.load, self._target, self._dialect = load, target, target.dialect
        self._batch = load.batch if target.dialect.batches else 1
        self._chance = Random(SEED)
        self._epoll = epoll()
        self._buffer = bytearray(_BUFFER)
        self._sources = count()
        files = raise_file_limit()
        self._read: list[Callable[[bytearray], int] | None] = [None] * files  # of those that are counted
        self._tails: list[bytes | None] = [None] * files  # of the probes: the end of what was read
        self._received = [0] * files
        self._turns: dict[int, Callable[[int, int], None]] = {}  # what to do with all others, by descriptor
        self._subscribers: dict[int, Subscriber] = {}
        self._opening = 0
        self._visitors: deque[tuple[int, int]] = deque()  # until when, descriptor

        self._publishers: dict[int, socket.socket] = {}
        self._idle: list[int] = []
        self._unsent: dict[int, memoryview] = {}
        self._answers: dict[int, bytes] = {}

        self._audience = [0] * (load.groups + 1)  # readers of a group; the last group has none
        self._published = [0] * (load.groups + 1)  # updates about a group
        self._number = 0
        self.updates = self.expected = self.delivered = self.further = 0
        self.closed = self.refused = 0
        self.latencies: list[int] = []  # ns
        self.arrivals: list[int] = []  # ns that visitors and newcomers waited for the head of their stream
        self._spins = load.spin and len(os.sched_getaffinity(0)) > 1
        self._turned = 0  # when the last turn ended, ns
        self.spun = 0  # ns of turns that found nothing

    def close(self) -> None:
        for subscriber in self._subscribers.values():
            if subscriber.socket is not None:
                subscriber.socket.close()
        for publisher in self._publishers.values():
            publisher.close()
        self._epoll.close()

    # -- phases

    def connect(self) -> None:
        """Make all lasting connections."""
        load = self.load
        # Of 20 readers of a group one is a probe; where a group is small, more.
        places = list(range(load.connections))
        self._chance.shuffle(places)
        spacing = min(20, max(1, load.connections // load.groups // 5))
        wanted = deque(
            Subscriber("reader" if place % spacing else "probe", place * load.groups // load.connections)
            for place in places
        )
        wanted.extend(Subscriber("stuck", n % load.groups) for n in range(load.stuck))
        while wanted or self._opening:
            while wanted and self._opening < _OPENING:
                self._open(wanted.popleft())
            self._turn(0.05)

    def publish_now(self, groups: Sequence[int]) -> None:
        """Publish an update about each of `groups`, one after the other, and wait until all is delivered."""
        for group in groups:
            self._publish([(group, time.monotonic_ns())])
            self.finish()
            if self.delivered != self.expected:
                raise RuntimeError(f"{self.delivered} came of {self.expected} deliveries")

    def forget(self) -> None:
        """Count from here."""
        self.updates = self.expected = self.delivered = self.further = 0
        self.spun = 0
        self._published = [0] * len(self._published)
        self._received = [0] * len(self._received)
        self.latencies.clear()

    def publish(self, watch: Callable[[], None] | None, every: float) -> None:
        """Publish for as long as the load says; `watch` is called before, and all `every` seconds."""
        load = self.load
        began = time.monotonic_ns()
        end = began + int(load.seconds * 1e9)
        updates = (began + due for due in self._due(load.rate, load.seconds, poisson=load.poisson))
        arrivals = (began + due for due in self._due(load.visitors or load.newcomers, load.seconds))
        watches = (began + due for due in self._due(1 / every if watch else 0, load.seconds))
        update, arrival, look = next(updates, end), next(arrivals, end), next(watches, end)
        if watch is not None:
            watch()
        # What was due before the end is done, however late.
        while (now := time.monotonic_ns()) < end or update < end or arrival < end:
            if now > end + load.seconds * 1e9 + _HANG:
                raise RuntimeError("updates are still to be published that were due long ago")
            while update <= now and update < end and self._may_publish():
                batch: list[tuple[int, int]] = []
                while update <= now and update < end and len(batch) < self._batch:
                    batch.append((self._group(), update))
                    update = next(updates, end)
                self._publish(batch)
            if not load.rate:
                while self._may_publish() and self._in_window():
                    self._publish([(self._group(), now) for _ in range(self._batch)])
            while arrival <= now and arrival < end:
                self._arrive(arrival)
                arrival = next(arrivals, end)
            while self._visitors and self._visitors[0][0] <= now:
                self._drop(self._visitors.popleft()[1])
            if watch is not None and look <= now < end:
                watch()
                look = next(watches, end)
            # Whoever waits for an answer or a delivery is woken by it.
            due = (update if self._may_publish() else end, arrival, look, end)
            self._turn((min(due) - now) / 1e9)

    def finish(self) -> None:
        """Wait until every reader has what it should and every request is answered, or until nothing comes any more.

        What one reader got twice does not hide what another still misses; but it hides what that reader misses itself.
        """
        moved, last = 0, time.monotonic()
        while not self._is_delivered() or len(self._idle) < len(self._publishers) or self._opening:
            self._turn(0.05)
            if (done := self.delivered + len(self.arrivals)) > moved:
                moved, last = done, time.monotonic()
            elif time.monotonic() > last + self.load.patience:
                break

    def differences(self) -> tuple[int, int]:
        """Deliveries that are missing, and those that are too many."""
        differences = [
            self._published[subscriber.group] - self._received[fd]
            for fd, subscriber in self._subscribers.items()
            if subscriber.role in ("reader", "probe")
        ]
        return sum(n for n in differences if n > 0), -sum(n for n in differences if n < 0)

    def _is_delivered(self) -> bool:
        return self.delivered >= self.expected and not self.differences()[0]

    @property
    def connected(self) -> int:
        return len(self._subscribers) - self._opening

    # -- one turn

    def _turn(self, seconds: float) -> None:
        """Wait for up to so many seconds, and see to all that has come.

        Where the load spins, it returns at once, for to wake who sleeps would be on the server's account.  Else it
        spins for less than a millisecond: epoll counts in whole ones, and wakes too late rather than too early.
        """
        whole = 0 if self._spins else int(seconds * 1_000)
        ready = self._epoll.poll((whole - 0.5) / 1_000 if whole > 0 else 0, _EVENTS)
        if not ready and whole <= 0:
            self.spun += time.monotonic_ns() - self._turned
        reads, received, tails, buffer = self._read, self._received, self._tails, self._buffer
        delivered = 0
        for fd, events in ready:
            read = reads[fd]
            if read is None:
                if fd in self._turns:  # it may have been closed in this turn
                    self._turns[fd](fd, events)
                continue
            try:
                size = read(buffer)
            except OSError:
                size = 0
            if not size:
                self._lost(fd)
                continue
            marks = buffer.count(_MARK, 0, size)
            received[fd] += marks
            delivered += marks
            if tails[fd] is not None:
                self._probe(fd, bytes(buffer[:size]))
        self.delivered += delivered
        self._turned = time.monotonic_ns()

    def _probe(self, fd: int, read: bytes) -> None:
        now = time.monotonic_ns()
        dues, self._tails[fd] = due_times((self._tails[fd] or b"") + read)
        self.latencies += [now - due for due in dues]

    # -- subscribers

    def _open(self, subscriber: Subscriber) -> None:
        connection = self._socket()
        if subscriber.role == "stuck":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.setblocking(False)
        connection.connect_ex((self._target.host, self._target.port))
        subscriber.socket, fd = connection, connection.fileno()
        self._subscribers[fd] = subscriber
        self._turns[fd] = self._opened
        self._opening += 1
        self._epoll.register(fd, EPOLLOUT)

    def _socket(self) -> socket.socket:
        connection = socket.socket()
        if self._target.host.startswith("127."):
            connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            connection.bind((f"127.0.0.{next(self._sources) % _SOURCES + 1}", 0))
        return connection

    def _opened(self, fd: int, events: int) -> None:
        """A connection is there, or a part of the head of its stream is."""
        subscriber = self._subscribers[fd]
        assert subscriber.socket is not None
        try:
            if not subscriber.asked:
                subscriber.socket.send(self._dialect.subscribe(subscriber.group, self.load))
                subscriber.asked = True
                self._epoll.modify(fd, EPOLLIN)
                return
            read = subscriber.socket.recv(4_096)
        except OSError as error:
            self._refused(fd, str(error))
            return
        subscriber.head += read
        head, end, rest = subscriber.head.partition(_HEAD_END)
        if not end and read:
            return
        if head.split(b" ", 2)[1:2] != [b"200"]:
            self._refused(fd, subscriber.head.decode("latin-1"))
            return
        subscriber.head = b""
        self._opening -= 1
        self._begin(fd, subscriber, rest)

    def _begin(self, fd: int, subscriber: Subscriber, rest: bytes) -> None:
        """The head of its stream has come, and of the stream `rest`."""
        assert subscriber.socket is not None
        match subscriber.role:
            case "reader" | "probe":
                self._audience[subscriber.group] += 1
                self._received[fd] = rest.count(_MARK)
                self.delivered += rest.count(_MARK)
                self._read[fd] = subscriber.socket.recv_into
                del self._turns[fd]
                if subscriber.role == "probe":
                    self._tails[fd] = b""
                    self._probe(fd, rest)
            case "stuck":
                self._epoll.unregister(fd)
                del self._turns[fd]
            case "visitor" | "newcomer":
                now = time.monotonic_ns()
                self.arrivals.append(now - subscriber.due)
                self._turns[fd] = self._visit
                if subscriber.role == "visitor":
                    self._visitors.append((now + int(_STAY * 1e9), fd))

    def _refused(self, fd: int, reason: str) -> None:
        subscriber = self._subscribers[fd]
        if subscriber.role not in ("visitor", "newcomer"):
            raise RuntimeError(f"a subscriber was refused: {reason}")
        self.refused += 1
        self._opening -= 1
        self._drop(fd)

    def _arrive(self, due: int) -> None:
        if self.load.visitors:
            self._open(Subscriber("visitor", self._chance.randrange(self.load.groups), due))
        else:
            self._open(Subscriber("newcomer", self.load.groups, due))

    def _visit(self, fd: int, events: int) -> None:
        subscriber = self._subscribers[fd]
        assert subscriber.socket is not None
        try:
            size = subscriber.socket.recv_into(self._buffer)
        except OSError:
            size = 0
        if size:
            self.further += self._buffer.count(_MARK, 0, size)
        else:  # its place in `_visitors` sees to the rest
            self.closed += 1
            self._epoll.unregister(fd)
            del self._turns[fd]

    def _drop(self, fd: int) -> None:
        connection = self._subscribers.pop(fd).socket
        self._turns.pop(fd, None)
        assert connection is not None
        connection.close()

    def _lost(self, fd: int) -> None:
        """The server has closed a stream.  The socket stays, so that no other has its number."""
        self.closed += 1
        self._read[fd] = None
        self._epoll.unregister(fd)

    # -- publishers

    def _due(self, rate: float, seconds: float, *, poisson: bool = False) -> Iterator[int]:
        """The ns after the beginning at which something is due that comes `rate` times a second."""
        if not rate:
            return
        gaps = (self._chance.expovariate(rate) for _ in count())
        for due in accumulate(gaps) if poisson else (number / rate for number in count(1)):
            if due >= seconds:
                return
            yield int(due * 1e9)

    def _group(self) -> int:
        return self.load.groups if self.load.unwanted else self._chance.randrange(self.load.groups)

    def _may_publish(self) -> bool:
        return bool(self._idle) or len(self._publishers) < self.load.publishers

    def _in_window(self) -> bool:
        """Whether a batch more is no more than the window, or all is delivered."""
        missing = self.expected - self.delivered
        each = self.load.connections // self.load.groups
        return missing <= max(0, self.load.window - self._batch) * each

    def _publish(self, updates: Sequence[tuple[int, int]]) -> None:
        """Publish `updates`, each a group and the time when it was due, in one request."""
        made = []
        for group, due in updates:
            number = self._number if self.load.new_topics else 0
            made.append((group, number, f"~{due:019d}".ljust(self.load.payload, "x")))
            self._number += 1
            self._published[group] += 1
            self.expected += self._audience[group]
        self.updates += len(updates)
        fd = self._idle.pop() if self._idle else self._new_publisher()
        self._unsent[fd] = memoryview(self._dialect.publish(made, self.load))
        self._send(fd)

    def _new_publisher(self) -> int:
        publisher = self._socket()
        publisher.connect((self._target.host, self._target.publish_port or self._target.port))
        publisher.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        publisher.setblocking(False)
        fd = publisher.fileno()
        self._publishers[fd] = publisher
        self._turns[fd] = self._answered
        self._answers[fd] = b""
        self._epoll.register(fd, EPOLLIN)
        return fd

    def _send(self, fd: int) -> None:
        unsent = self._unsent.pop(fd)
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[self._publishers[fd].send(unsent) :]
        if unsent:
            self._unsent[fd] = unsent
        self._epoll.modify(fd, EPOLLIN | EPOLLOUT if unsent else EPOLLIN)

    def _answered(self, fd: int, events: int) -> None:
        if fd in self._unsent and events & EPOLLOUT:
            self._send(fd)
        if not events & ~EPOLLOUT:
            return
        try:
            read = self._publishers[fd].recv(65_536)
        except ConnectionError:
            read = b""
        if not read and fd in self._idle:  # it was idle for too long
            self._idle.remove(fd)
            del self._turns[fd], self._answers[fd]
            self._publishers.pop(fd).close()
            return
        self._answers[fd] += read
        if not read or not _is_whole(self._answers[fd]):
            if not read:
                raise RuntimeError(f"a publisher was cut off: {self._answers[fd].decode('latin-1')}")
            return
        if not self._answers[fd].split(b" ", 2)[1].startswith(b"2"):
            raise RuntimeError(f"an update was refused: {self._answers[fd].decode('latin-1')}")
        self._answers[fd] = b""
        self._idle.append(fd)


def due_times(text: bytes) -> tuple[list[int], bytes]:
    """The times that follow the marks in `text`, ns; and its end, where a mark waits for the rest of its time."""
    torn = text.rfind(b"~", 1 - _TIME_BYTES)
    return [int(due) for due in _TIME.findall(text)], text[torn:] if torn >= 0 else b""


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(_HEAD_END)
    if not end:
        return False
    if length := _LENGTH.search(head):
        return len(body) >= int(length[1])
    return b" 204 " in head or body.endswith(b"0\r\n\r\n")
