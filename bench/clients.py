"""The subscribers and publishers of a load, in one epoll.

    epoll ─► readable socket ─► recv into one buffer ─► count the marks
       └──► due update ───────► POST on an idle connection

The data of an update is a mark, the time at which the update was due, and padding.  A
mark is a byte that occurs nowhere else in the output of a server.  It is never split
between two reads, so the number of marks is the number of deliveries, however the
frames arrive.  Counting marks costs little more than the system call, because nothing
is parsed.  Some subscribers, the probes, also read the times.

If the load has a rate, the times of updates do not depend on the server.  The latency
of an update counts from its time, even if no publisher was free then.  So a server that
stalls does not get less load.
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
_TIME_BYTES: Final = 20  # with the mark
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"

_OPEN_FILES: Final = 2**16
_BUFFER_BYTES: Final = 2**18
_EVENTS_PER_POLL: Final = 256  # they take about half a millisecond; then the clock is read again
_OPENING_AT_ONCE: Final = 200  # the maximum of lasting connections that wait for a response head
_HANG_NS: Final = 60 * 10**9  # a run fails if it takes this much longer than twice its load
_STAY_SECONDS: Final = 0.5  # how long a visitor stays
_SOURCE_ADDRESSES: Final = 20  # loopback addresses to connect from: each has only 28,000 ports
_IP_BIND_ADDRESS_NO_PORT: Final = 24  # of Linux: connect() chooses the port, not bind()


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its children, and return it.

    The limit is 65,536, or the hard limit if it is lower and this process may not raise
    it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, PermissionError):  # only root may raise the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, max(hard, _OPEN_FILES)))
        return _OPEN_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@dataclass(slots=True)
class Subscriber:
    """One connection of a subscriber."""

    role: Literal["reader", "probe", "stuck", "visitor", "newcomer"]
    """A probe is a reader that also measures latencies.

    Only readers and probes must get all updates.  `Load` describes the other roles.
    """
    group: int
    due: int = 0
    """When a visitor or newcomer was due to connect, in ns."""
    socket: socket.socket | None = None
    asked: bool = False
    """Whether the request was sent."""
    head: bytes = b""
    """The part of the response head that has arrived so far."""


class Clients:
    """All subscribers and publishers of a load.

    One thread at a time.  `connect` makes the lasting connections, `publish` runs the
    load, and `finish` waits for its last deliveries.  The public attributes count what
    has happened so far.
    """

    def __init__(self, load: Load, target: Target) -> None:
        self.load, self._target, self._dialect = load, target, target.dialect
        self._batch = load.batch if target.dialect.batches else 1  # updates per request
        self._chance = Random(SEED)
        self._epoll = epoll()
        self._buffer = bytearray(_BUFFER_BYTES)  # for every read of a subscriber
        self._sources = count()  # the next address to connect from
        files = raise_file_limit()
        # Lists by file descriptor: they are used for every read, and faster than dicts.
        self._read: list[Callable[[bytearray], int] | None] = [None] * files  # recv_into() of readers and probes
        self._tails: list[bytes | None] = [None] * files  # of probes: the incomplete time at the end of a read
        self._received = [0] * files  # deliveries of readers and probes
        self._callbacks: dict[int, Callable[[int, int], None]] = {}  # for the events of all other sockets
        self._subscribers: dict[int, Subscriber] = {}  # by file descriptor
        self._opening = 0  # subscribers without a response head
        self._visitors: deque[tuple[int, int]] = deque()  # (when it leaves, file descriptor), the earliest first

        # Publishers, by file descriptor.
        self._publishers: dict[int, socket.socket] = {}
        self._idle: list[int] = []  # those without an unanswered request
        self._unsent: dict[int, memoryview] = {}  # the rest of a request
        self._answers: dict[int, bytes] = {}  # the part of a response that has arrived so far

        # The last group is one that no subscriber is in.
        self._audience = [0] * (load.groups + 1)  # readers and probes of each group
        self._published = [0] * (load.groups + 1)  # updates of each group
        self._number = 0  # of the next update
        self.updates = 0  # that were published
        self.expected = 0  # deliveries to readers and probes
        self.delivered = 0  # deliveries to readers and probes
        self.further = 0  # deliveries to visitors and newcomers
        self.closed = 0  # streams that the server closed
        self.refused = 0  # visitors and newcomers that the server refused
        self.latencies: list[int] = []  # of the deliveries to probes, in ns
        self.arrivals: list[int] = []  # ns that visitors and newcomers waited for their response head
        self._spins = load.spin and len(os.sched_getaffinity(0)) > 1
        self._poll_ended = 0  # when the last turn ended, in ns
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
        """Make all lasting connections, and wait until they have their response heads.

        Raises RuntimeError if the server refuses one.
        """
        load = self.load
        # One reader in 20 is a probe; more if the groups have fewer than 100 readers.
        # The order is random, so that the groups and the roles are mixed.
        places = list(range(load.connections))
        self._chance.shuffle(places)
        spacing = min(20, max(1, load.connections // load.groups // 5))
        wanted = deque(
            Subscriber("reader" if place % spacing else "probe", place * load.groups // load.connections)
            for place in places
        )
        wanted.extend(Subscriber("stuck", n % load.groups) for n in range(load.stuck))
        while wanted or self._opening:
            while wanted and self._opening < _OPENING_AT_ONCE:
                self._open(wanted.popleft())
            self._turn(0.05)

    def publish_now(self, groups: Sequence[int]) -> None:
        """Publish one update to each of `groups`, and wait for its deliveries.

        Raises RuntimeError if a delivery is missing.
        """
        for group in groups:
            self._publish([(group, time.monotonic_ns())])
            self.finish()
            if self.delivered != self.expected:
                raise RuntimeError(f"{self.delivered} of {self.expected} deliveries arrived")

    def forget(self) -> None:
        """Set the counts of updates and deliveries, and the latencies, back to 0."""
        self.updates = self.expected = self.delivered = self.further = 0
        self.spun = 0
        self._published = [0] * len(self._published)
        self._received = [0] * len(self._received)
        self.latencies.clear()

    def publish(self, watch: Callable[[], None] | None, every: float) -> None:
        """Publish until the end of the load.

        Calls `watch` before the first update, and then every `every` seconds.  Returns
        before the last updates are delivered.  Raises RuntimeError if updates are still
        not published a minute after twice the length of the load.
        """
        load = self.load
        # The times of all events, in ns.  If there are no more, the next one is `end`.
        began = time.monotonic_ns()
        end = began + int(load.seconds * 1e9)
        updates = (began + due for due in self._due(load.rate, load.seconds, poisson=load.poisson))
        arrivals = (began + due for due in self._due(load.visitors or load.newcomers, load.seconds))
        watches = (began + due for due in self._due(1 / every if watch else 0, load.seconds))
        update, arrival, look = next(updates, end), next(arrivals, end), next(watches, end)
        if watch is not None:
            watch()
        # All that was due before the end is done, even if it is late.
        while (now := time.monotonic_ns()) < end or update < end or arrival < end:
            if now > end + load.seconds * 1e9 + _HANG_NS:
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
            # 4. The watcher.
            if watch is not None and look <= now < end:
                watch()
                look = next(watches, end)
            # 5. Wait for the next due time.  If all publishers are busy, a response
            # ends the wait.
            due = (update if self._may_publish() else end, arrival, look, end)
            self._turn((min(due) - now) / 1e9)

    def finish(self) -> None:
        """Wait until all deliveries have arrived and all requests are answered.

        Stops waiting if nothing has arrived for `load.patience` seconds.  If a reader
        gets an update twice, this does not hide a missing delivery of another reader,
        but it does hide a missing one of the same reader.
        """
        moved, last = 0, time.monotonic()
        while not self._is_delivered() or len(self._idle) < len(self._publishers) or self._opening:
            self._turn(0.05)
            if (done := self.delivered + len(self.arrivals)) > moved:
                moved, last = done, time.monotonic()
            elif time.monotonic() > last + self.load.patience:
                break

    def differences(self) -> tuple[int, int]:
        """Return the number of missing deliveries, and of surplus ones."""
        differences = [
            self._published[subscriber.group] - self._received[fd]
            for fd, subscriber in self._subscribers.items()
            if subscriber.role in ("reader", "probe")
        ]
        return sum(n for n in differences if n > 0), -sum(n for n in differences if n < 0)

    def _is_delivered(self) -> bool:
        """Return whether no delivery is missing.  The cheap test comes first."""
        return self.delivered >= self.expected and not self.differences()[0]

    @property
    def connected(self) -> int:
        """The number of subscribers that have the head of their response."""
        return len(self._subscribers) - self._opening

    # -- one turn

    def _turn(self, seconds: float) -> None:
        """Wait up to `seconds` for events, and handle those that have come.

        If the load spins, it does not wait, because the server would pay the CPU for
        waking a sleeping process.  Otherwise it spins only if less than a millisecond
        is left, because epoll counts in whole milliseconds and would wake up too late.
        """
        whole = 0 if self._spins else int(seconds * 1_000)
        ready = self._epoll.poll((whole - 0.5) / 1_000 if whole > 0 else 0, _EVENTS_PER_POLL)
        if not ready and whole <= 0:
            self.spun += time.monotonic_ns() - self._poll_ended
        reads, received, tails, buffer = self._read, self._received, self._tails, self._buffer
        delivered = 0
        for fd, events in ready:
            # 1. Other sockets have a callback.
            read = reads[fd]
            if read is None:
                if fd in self._callbacks:  # if not, the socket was closed in this turn
                    self._callbacks[fd](fd, events)
                continue
            # 2. Readers and probes, which have by far the most events: count the marks.
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
        self._poll_ended = time.monotonic_ns()

    def _probe(self, fd: int, read: bytes) -> None:
        """Measure the latencies of the updates in `read`."""
        now = time.monotonic_ns()
        dues, self._tails[fd] = due_times((self._tails[fd] or b"") + read)
        self.latencies += [now - due for due in dues]

    # -- subscribers

    def _open(self, subscriber: Subscriber) -> None:
        """Start to connect a subscriber; `_opened` handles its events."""
        connection = self._socket()
        if subscriber.role == "stuck":  # a small buffer is full soon
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.setblocking(False)
        connection.connect_ex((self._target.host, self._target.port))
        subscriber.socket, fd = connection, connection.fileno()
        self._subscribers[fd] = subscriber
        self._callbacks[fd] = self._opened
        self._opening += 1
        self._epoll.register(fd, EPOLLOUT)

    def _socket(self) -> socket.socket:
        """Return a socket.  If the server is local, the source addresses take turns."""
        connection = socket.socket()
        if self._target.host.startswith("127."):
            connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            connection.bind((f"127.0.0.{next(self._sources) % _SOURCE_ADDRESSES + 1}", 0))
        return connection

    def _opened(self, fd: int, events: int) -> None:
        """Send the request on a new connection, or read a part of the response head."""
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
        # The start of the stream may follow the head in the same read.
        subscriber.head += read
        head, end, rest = subscriber.head.partition(_HEAD_END)
        if not end and read:
            return
        # A stream with a length ends at once, as those that a hub has no room for.
        if head.split(b" ", 2)[1:2] != [b"200"] or b"\r\ncontent-length:" in head.lower():
            self._refused(fd, subscriber.head.decode("latin-1"))
            return
        subscriber.head = b""
        self._opening -= 1
        self._begin(fd, subscriber, rest)

    def _begin(self, fd: int, subscriber: Subscriber, rest: bytes) -> None:
        """Handle a complete response head; `rest` is the start of the stream."""
        assert subscriber.socket is not None
        match subscriber.role:
            case "reader" | "probe":
                self._audience[subscriber.group] += 1
                self._received[fd] = rest.count(_MARK)
                self.delivered += rest.count(_MARK)
                self._read[fd] = subscriber.socket.recv_into
                del self._callbacks[fd]
                if subscriber.role == "probe":
                    self._tails[fd] = b""
                    self._probe(fd, rest)
            case "stuck":
                self._epoll.unregister(fd)
                del self._callbacks[fd]
            case "visitor" | "newcomer":
                now = time.monotonic_ns()
                self.arrivals.append(now - subscriber.due)
                self._callbacks[fd] = self._visit
                if subscriber.role == "visitor":
                    self._visitors.append((now + int(_STAY_SECONDS * 1e9), fd))

    def _refused(self, fd: int, reason: str) -> None:
        """Count a visitor or newcomer that the server refused.

        Raises RuntimeError for any other subscriber.
        """
        subscriber = self._subscribers[fd]
        if subscriber.role not in ("visitor", "newcomer"):
            raise RuntimeError(f"a subscriber was refused: {reason}")
        self.refused += 1
        self._opening -= 1
        self._drop(fd)

    def _arrive(self, due: int) -> None:
        """Connect a visitor of a random group, or a newcomer of the empty group."""
        if self.load.visitors:
            self._open(Subscriber("visitor", self._chance.randrange(self.load.groups), due))
        else:
            self._open(Subscriber("newcomer", self.load.groups, due))

    def _visit(self, fd: int, events: int) -> None:
        """Count the deliveries to a visitor or newcomer."""
        subscriber = self._subscribers[fd]
        assert subscriber.socket is not None
        try:
            size = subscriber.socket.recv_into(self._buffer)
        except OSError:
            size = 0
        if size:
            self.further += self._buffer.count(_MARK, 0, size)
        else:  # the server closed the stream; the socket of a visitor is closed when it leaves
            self.closed += 1
            self._epoll.unregister(fd)
            del self._callbacks[fd]

    def _drop(self, fd: int) -> None:
        """Close the connection of a subscriber, and forget it."""
        connection = self._subscribers.pop(fd).socket
        self._callbacks.pop(fd, None)
        assert connection is not None
        connection.close()

    def _lost(self, fd: int) -> None:
        """Count the stream of a reader or probe that the server closed.

        The socket stays open, so that no new one gets its file descriptor.
        """
        self.closed += 1
        self._read[fd] = None
        self._epoll.unregister(fd)

    # -- publishers

    def _due(self, rate: float, seconds: float, *, poisson: bool = False) -> Iterator[int]:
        """Iterate over the due times of events, in ns after the start.

        `rate` is the number of events a second.  The gaps between them are equal, or
        random with `poisson`.
        """
        if not rate:
            return
        gaps = (self._chance.expovariate(rate) for _ in count())
        for due in accumulate(gaps) if poisson else (number / rate for number in count(1)):
            if due >= seconds:
                return
            yield int(due * 1e9)

    def _group(self) -> int:
        """Return the group of the next update."""
        return self.load.groups if self.load.unwanted else self._chance.randrange(self.load.groups)

    def _may_publish(self) -> bool:
        """Return whether a publisher is idle or may still be made."""
        return bool(self._idle) or len(self._publishers) < self.load.publishers

    def _in_window(self) -> bool:
        """Return whether one more batch fits in the window.

        It also fits if all updates are delivered, even if it is larger than the window.
        """
        missing = self.expected - self.delivered
        each = self.load.connections // self.load.groups
        return missing <= max(0, self.load.window - self._batch) * each

    def _publish(self, updates: Sequence[tuple[int, int]]) -> None:
        """Publish `updates` in one request; each is a group and a due time in ns."""
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
        """Connect a publisher, and return its file descriptor."""
        publisher = self._socket()
        publisher.connect((self._target.host, self._target.publish_port or self._target.port))
        publisher.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        publisher.setblocking(False)
        fd = publisher.fileno()
        self._publishers[fd] = publisher
        self._callbacks[fd] = self._answered
        self._answers[fd] = b""
        self._epoll.register(fd, EPOLLIN)
        return fd

    def _send(self, fd: int) -> None:
        """Send the unsent rest of a request, or a part of it if the socket is full."""
        unsent = self._unsent.pop(fd)
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[self._publishers[fd].send(unsent) :]
        if unsent:
            self._unsent[fd] = unsent
        self._epoll.modify(fd, EPOLLIN | EPOLLOUT if unsent else EPOLLIN)

    def _answered(self, fd: int, events: int) -> None:
        """Handle the events of a publisher.

        Raises RuntimeError if the server refuses an update, or closes the connection
        before its response.
        """
        if fd in self._unsent and events & EPOLLOUT:
            self._send(fd)
        if not events & ~EPOLLOUT:
            return
        try:
            read = self._publishers[fd].recv(65_536)
        except ConnectionError:
            read = b""
        # 1. The server closed an idle connection, as it may.
        if not read and fd in self._idle:
            self._idle.remove(fd)
            del self._callbacks[fd], self._answers[fd]
            self._publishers.pop(fd).close()
            return
        # 2. A part of a response.
        self._answers[fd] += read
        if not read or not _is_whole(self._answers[fd]):
            if not read:
                raise RuntimeError(f"the server closed a publisher's connection: {self._answers[fd].decode('latin-1')}")
            return
        # 3. A whole response.
        if not self._answers[fd].split(b" ", 2)[1].startswith(b"2"):
            raise RuntimeError(f"an update was refused: {self._answers[fd].decode('latin-1')}")
        self._answers[fd] = b""
        self._idle.append(fd)


def due_times(text: bytes) -> tuple[list[int], bytes]:
    """Return the times after the marks in `text`, in ns, and its incomplete end.

    The end begins with the last mark if its time is incomplete, and is empty otherwise.
    """
    torn = text.rfind(b"~", 1 - _TIME_BYTES)
    return [int(due) for due in _TIME.findall(text)], text[torn:] if torn >= 0 else b""


def _is_whole(answer: bytes) -> bool:
    """Return whether `answer` is a whole response.

    If it has no Content-Length, it has no body (status 204) or a chunked one.
    """
    head, end, body = answer.partition(_HEAD_END)
    if not end:
        return False
    if length := _LENGTH.search(head):
        return len(body) >= int(length[1])
    return b" 204 " in head or body.endswith(b"0\r\n\r\n")
