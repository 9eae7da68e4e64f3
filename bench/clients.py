"""The subscribers and publishers of a load, in one epoll.

    epoll ─► readable socket ─► recv into one buffer ─► count the marks
       └──► due update ───────► POST on an idle connection

The data of an update is one mark, which occurs nowhere else in what a server sends, the
time at which the update was due, and padding.  A mark is one byte, so it is never split
between two reads, and the number of marks is the number of deliveries, however the
frames arrive.  Counting them costs little more than the system call: nothing is parsed.
Some subscribers, the probes, also read the times.

The times of updates are fixed before the run.  The latency of an update counts from its
time, even if no publisher was free then, so a server that stalls does not get less
load.
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
_EVENTS: Final = 256  # events of one poll: the clock is read after about half a millisecond of them
_OPENING: Final = 200  # the number of lasting connections that are opened at a time
_HANG: Final = 60 * 10**9
_STAY: Final = 0.5  # seconds that a visitor stays
_SOURCES: Final = 20  # addresses of this machine to connect from, because each has only 28,000 ports
_IP_BIND_ADDRESS_NO_PORT: Final = 24


def raise_file_limit() -> int:
    """Allow this process and its children to open `_FILES` files, or as many as
    possible; return the number.
    """
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
    """When it was due to connect, in ns."""
    socket: socket.socket | None = None
    asked: bool = False
    head: bytes = b""


class Clients:
    """All subscribers and publishers of a load.

    The lists in `__init__` have file descriptors as indexes, because they are used for
    every read.
    """

    def __init__(self, load: Load, target: Target) -> None:
        self.load, self._target, self._dialect = load, target, target.dialect
        self._batch = load.batch if target.dialect.batches else 1
        self._chance = Random(SEED)
        self._epoll = epoll()
        self._buffer = bytearray(_BUFFER)
        self._sources = count()
        files = raise_file_limit()
        self._read: list[Callable[[bytearray], int] | None] = [None] * files  # recv_into() of readers and probes
        self._tails: list[bytes | None] = [None] * files  # of probes: the end of the last read
        self._received = [0] * files  # deliveries
        self._turns: dict[int, Callable[[int, int], None]] = {}  # what to call for all other sockets
        self._subscribers: dict[int, Subscriber] = {}
        self._opening = 0
        self._visitors: deque[tuple[int, int]] = deque()  # (when it leaves, file descriptor), the earliest first

        self._publishers: dict[int, socket.socket] = {}
        self._idle: list[int] = []
        self._unsent: dict[int, memoryview] = {}
        self._answers: dict[int, bytes] = {}

        self._audience = [0] * (load.groups + 1)  # readers of each group; the last group has none
        self._published = [0] * (load.groups + 1)  # updates of each group
        self._number = 0
        self.updates = self.expected = self.delivered = self.further = 0
        self.closed = self.refused = 0
        self.latencies: list[int] = []  # ns
        self.arrivals: list[int] = []  # ns that visitors and newcomers waited for the head of their response
        self._spins = load.spin and len(os.sched_getaffinity(0)) > 1
        self._turned = 0  # when the last turn ended, in ns
        self.spun = 0  # ns of turns without an event

    def close(self) -> None:
        """Close all sockets."""
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
        # One reader in 20 of a group is a probe; in a small group, more are.
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
        """Publish an update of each of `groups`, one after the other; wait after each
        until it is delivered.

        Raises RuntimeError if a delivery is missing.
        """
        for group in groups:
            self._publish([(group, time.monotonic_ns())])
            self.finish()
            if self.delivered != self.expected:
                raise RuntimeError(f"{self.delivered} of {self.expected} deliveries arrived")

    def forget(self) -> None:
        """Start all counts again from 0."""
        self.updates = self.expected = self.delivered = self.further = 0
        self.spun = 0
        self._published = [0] * len(self._published)
        self._received = [0] * len(self._received)
        self.latencies.clear()

    def publish(self, watch: Callable[[], None] | None, every: float) -> None:
        """Publish until the end of the load.

        Calls `watch` before the first update, and then every `every` seconds.
        """
        load = self.load
        began = time.monotonic_ns()
        end = began + int(load.seconds * 1e9)
        updates = (began + due for due in self._due(load.rate, load.seconds, poisson=load.poisson))
        arrivals = (began + due for due in self._due(load.visitors or load.newcomers, load.seconds))
        watches = (began + due for due in self._due(1 / every if watch else 0, load.seconds))
        update, arrival, look = next(updates, end), next(arrivals, end), next(watches, end)
        if watch is not None:
            watch()
        # What was due before the end is still done after it, however late.
        while (now := time.monotonic_ns()) < end or update < end or arrival < end:
            if now > end + load.seconds * 1e9 + _HANG:
                raise RuntimeError("updates that were due long ago are still not published")
            # 1. Updates at their times, in batches if several are due.
            while update <= now and update < end and self._may_publish():
                batch: list[tuple[int, int]] = []
                while update <= now and update < end and len(batch) < self._batch:
                    batch.append((self._group(), update))
                    update = next(updates, end)
                self._publish(batch)
            # 2. Without a rate: as many updates as the window allows.
            if not load.rate:
                while self._may_publish() and self._in_window():
                    self._publish([(self._group(), now) for _ in range(self._batch)])
            # 3. Subscribers that come or go.
            while arrival <= now and arrival < end:
                self._arrive(arrival)
                arrival = next(arrivals, end)
            while self._visitors and self._visitors[0][0] <= now:
                self._drop(self._visitors.popleft()[1])
            if watch is not None and look <= now < end:
                watch()
                look = next(watches, end)
            # 4. Wait for the next due time.  If all publishers are busy, a response
            # ends the wait.
            due = (update if self._may_publish() else end, arrival, look, end)
            self._turn((min(due) - now) / 1e9)

    def finish(self) -> None:
        """Wait until every reader has all deliveries and every request is answered, or
        until nothing more arrives.

        If a reader gets an update twice, that does not hide a missing delivery of
        another reader; but it does hide a missing one of the same reader.
        """
        moved, last = 0, time.monotonic()
        while not self._is_delivered() or len(self._idle) < len(self._publishers) or self._opening:
            self._turn(0.05)
            if (done := self.delivered + len(self.arrivals)) > moved:
                moved, last = done, time.monotonic()
            elif time.monotonic() > last + self.load.patience:
                break

    def differences(self) -> tuple[int, int]:
        """Return the number of missing deliveries, and of those that came too often."""
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
        """The number of subscribers that have the head of their response."""
        return len(self._subscribers) - self._opening
        return len(self._subscribers) - self._opening

    # -- one turn

    def _turn(self, seconds: float) -> None:
        """Wait up to `seconds` for events, and handle them.

        If the load spins, it does not wait, because the CPU for waking a sleeping
        process would be the server's.  Otherwise it spins for less than a millisecond,
        because epoll counts in whole milliseconds and wakes up too late.
        """
        whole = 0 if self._spins else int(seconds * 1_000)
        ready = self._epoll.poll((whole - 0.5) / 1_000 if whole > 0 else 0, _EVENTS)
        if not ready and whole <= 0:
            self.spun += time.monotonic_ns() - self._turned
        reads, received, tails, buffer = self._read, self._received, self._tails, self._buffer
        delivered = 0
        for fd, events in ready:
            # The most frequent events come first: data for a reader or a probe.  Other
            # sockets have a callback.
            read = reads[fd]
            if read is None:
                if fd in self._turns:  # the socket may have been closed in this turn
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
        """Handle a connection that was made, or a part of the response head."""
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
        """Start a subscriber after its response head; `rest` is the start of its
        stream.
        """
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
        else:  # `_visitors` still has it, and closes the socket
            self.closed += 1
            self._epoll.unregister(fd)
            del self._turns[fd]

    def _drop(self, fd: int) -> None:
        connection = self._subscribers.pop(fd).socket
        self._turns.pop(fd, None)
        assert connection is not None
        connection.close()

    def _lost(self, fd: int) -> None:
        """Handle a stream that the server closed.

        The socket stays open, so that its number is not used again.
        """
        self.closed += 1
        self._read[fd] = None
        self._epoll.unregister(fd)

    # -- publishers

    def _due(self, rate: float, seconds: float, *, poisson: bool = False) -> Iterator[int]:
        """Yield the due times of events that come `rate` times a second, in ns after
        the start.
        """
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
        """Whether one more batch fits in the window, or all updates are delivered."""
        missing = self.expected - self.delivered
        each = self.load.connections // self.load.groups
        return missing <= max(0, self.load.window - self._batch) * each

    def _publish(self, updates: Sequence[tuple[int, int]]) -> None:
        """Publish `updates` in one request; each is a group and a due time."""
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
        if not read and fd in self._idle:  # the server closed an idle connection
            self._idle.remove(fd)
            del self._turns[fd], self._answers[fd]
            self._publishers.pop(fd).close()
            return
        self._answers[fd] += read
        if not read or not _is_whole(self._answers[fd]):
            if not read:
                raise RuntimeError(f"the server closed a publisher's connection: {self._answers[fd].decode('latin-1')}")
            return
        if not self._answers[fd].split(b" ", 2)[1].startswith(b"2"):
            raise RuntimeError(f"an update was refused: {self._answers[fd].decode('latin-1')}")
        self._answers[fd] = b""
        self._idle.append(fd)


def due_times(text: bytes) -> tuple[list[int], bytes]:
    """Return the times after the marks in `text`, in ns, and the end of `text` if its
    last time is incomplete.
    """
    torn = text.rfind(b"~", 1 - _TIME_BYTES)
    return [int(due) for due in _TIME.findall(text)], text[torn:] if torn >= 0 else b""


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(_HEAD_END)
    if not end:
        return False
    if length := _LENGTH.search(head):
        return len(body) >= int(length[1])
    return b" 204 " in head or body.endswith(b"0\r\n\r\n")
