"""A crowd of streams, of which an operator ends those of one user after the other.

    main thread   epoll ─► recv ─► the times in the updates, and the end of each stream
    operator      kick, revoke, kick, ...; at once after each, an update for that user
    publisher     private updates, each to one group of users, all the time

The data of each update is the time of its publication.  So a client can tell whether an
update was published after a command had returned: then none of the streams that the
command was about may have received a byte of it.  All else that must hold is asked at
the end, too: those streams have ended, and no others, which have received everything.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, count, cycle
from random import Random
from select import EPOLLIN, EPOLLRDHUP, epoll
from statistics import median
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import httpx2

from bench.clients import due_times
from bench.measure import figures
from bench.workloads import SEED
from hub.auth.signing import sign_classic_token
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.measure import Figures
    from bench.targets import Target

_HEAD_END: Final = b"\r\n\r\n"
_AT_ONCE: Final = 100
"""Streams that wait for their heads at a time."""
_SECONDS: Final = 30.0
"""How long a request may take, and how long the last deliveries may."""
_LARGE: Final = "https://example.com/large/{item}"
_LARGE_BYTES: Final = 2**16
_LARGE_UPDATES: Final = 16
"""What a client has to come that does not read: more than all buffers hold."""
_ACTIONS: Final = ("kick", "revoke")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How many users there are, and how long the operator takes."""

    leaving: int = 100
    """Users whose streams are ended, one user after the other; an even number."""
    streams: int = 30
    """Streams of each of them."""
    deaf: int = 2
    """How many of these do not read."""
    others: int = 7_000
    """Streams of users who stay."""
    groups: int = 50
    """An update goes to all users of a group."""
    rate: float = 50.0
    """Updates a second, besides the one that follows each command."""
    seconds: float = 60.0
    """Seconds from the first command to the last."""


@dataclass(slots=True, eq=False)
class Stream:
    """What a client knows of its stream."""

    user: int
    socket: socket.socket
    reads: bool = True
    rest: bytes = b""
    """The incomplete time at the end of what was read."""
    count: int = 0
    total: int = 0
    """The sum of the times that it has received."""
    latest: int = 0
    """The latest of them."""
    ended: int = 0
    """When its end was seen."""

    def take(self, read: bytes) -> None:
        """Note the times in what was read."""
        times, self.rest = due_times(self.rest + read)
        if times:
            self.count += len(times)
            self.total += sum(times)
            self.latest = max(self.latest, *times)


@dataclass(slots=True)
class _Command:
    """A command, with its times in nanoseconds."""

    action: str
    user: int
    began: int
    returned: int


def send_away(crowd: Crowd, targets: Sequence[Target], operator_sockets: Sequence[str]) -> dict[str, Figures]:
    """End the streams of users of a crowd; return the figures of each kind of command.

    The clients are spread over the `targets`, which are nodes of one hub, and so are
    the commands over the `operator_sockets` of the nodes.  Raises AssertionError if a
    client has received what it must not have, or has lost something.
    """
    with ExitStack() as stack:
        return _Run(crowd, targets, operator_sockets, stack).run()


class _Run:
    """One run of a crowd; its sockets are closed with `stack`."""

    def __init__(
        self, crowd: Crowd, targets: Sequence[Target], operator_sockets: Sequence[str], stack: ExitStack
    ) -> None:
        self._crowd, self._targets = crowd, targets
        self._chance = Random(SEED)
        self._streams: dict[int, Stream] = {}  # by file descriptor
        self._commands: list[_Command] = []
        self._published: list[list[int]] = [[] for _ in range(crowd.groups)]  # the times of each group
        self._publish_token = sign_classic_token(DEVELOPMENT_KEY, publish=["*"], seconds=None)
        self._http = stack.enter_context(httpx2.Client(timeout=_SECONDS))
        self._operators = cycle(
            stack.enter_context(httpx2.Client(transport=httpx2.HTTPTransport(uds=path), timeout=_SECONDS))
            for path in operator_sockets
        )
        self._epoll = stack.enter_context(epoll())
        stack.callback(self._close)

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.socket.close()

    # -- streams

    def _connect(self) -> None:
        """Open all streams, in random order."""
        crowd = self._crowd
        wanted = [(user, n >= crowd.deaf) for user in range(crowd.leaving) for n in range(crowd.streams)]
        wanted += [(crowd.leaving + n // crowd.streams, True) for n in range(crowd.others)]
        self._chance.shuffle(wanted)
        targets = cycle(self._targets)
        while wanted:
            opened = [self._open(*wanted.pop(), next(targets)) for _ in range(min(_AT_ONCE, len(wanted)))]
            for stream in opened:
                self._begin(stream)

    def _open(self, user: int, reads: bool, target: Target) -> Stream:
        topics = [_topic(self._group(user), "{item}"), *([] if reads else [_LARGE])]
        token = sign_classic_token(DEVELOPMENT_KEY, subscribe=["*"], subject=_name(user), seconds=None)
        connection = socket.socket()
        connection.settimeout(_SECONDS)
        if not reads:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect((target.host, target.port))
        query = "&".join(f"topic={quote(topic, safe='')}" for topic in topics)
        connection.sendall(
            f"GET /.well-known/mercure?{query} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        return Stream(user, connection, reads)

    def _begin(self, stream: Stream) -> None:
        """Read the head of a stream, and watch it."""
        read = b""
        while _HEAD_END not in read:
            more = stream.socket.recv(4_096)
            if not more or (read and not read.startswith(b"HTTP/1.1 200 ")):
                raise RuntimeError(f"a subscriber was refused: {(read + more).decode('latin-1')}")
            read += more
        stream.socket.setblocking(False)
        self._streams[stream.socket.fileno()] = stream
        self._epoll.register(stream.socket, EPOLLRDHUP | (EPOLLIN if stream.reads else 0))

    def _turn(self, seconds: float) -> None:
        """Read what has arrived, or wait for it."""
        for fd, events in self._epoll.poll(seconds):
            stream = self._streams[fd]
            if events & ~EPOLLIN:
                stream.ended = time.monotonic_ns()
                self._epoll.unregister(fd)
            self._read(stream)

    def _read(self, stream: Stream) -> None:
        """Read all that has arrived, and note its times."""
        while True:
            try:
                read = stream.socket.recv(2**18)
            except OSError:  # nothing more now, or the stream was aborted
                return
            if not read:
                return
            stream.take(read)

    # -- the operator and the publisher

    def _operate(self) -> None:
        """Give all commands, at equal distances; after each, publish for its user."""
        crowd = self._crowd
        began = time.monotonic()
        for user in range(crowd.leaving):
            time.sleep(max(0, began + user * crowd.seconds / max(1, crowd.leaving - 1) - time.monotonic()))
            action = _ACTIONS[user % 2]
            sent = time.monotonic_ns()
            reply = next(self._operators).post(f"http://hub/{action}", json={"subject": _name(user)})
            returned = time.monotonic_ns()
            answer = reply.raise_for_status().json()
            assert answer["ended"] == {"classic": crowd.streams}, answer
            assert answer["silent"] == [], answer
            self._commands.append(_Command(action, user, sent, returned))
            for target in self._targets:
                self._publish(self._group(user), target)

    def _publish_all(self, is_over: Callable[[], bool]) -> None:
        """Publish until the operator is done, at random times."""
        chance, began = Random(SEED), time.monotonic()
        for due in accumulate(chance.expovariate(self._crowd.rate) for _ in count()):
            if is_over():
                return
            time.sleep(max(0, began + due - time.monotonic()))
            self._publish(chance.randrange(self._crowd.groups), chance.choice(self._targets))

    def _publish(self, group: int, target: Target) -> None:
        now = time.monotonic_ns()
        self._post(target, topic=_topic(group, "news"), data=f"~{now:019d}")
        self._published[group].append(now)

    def _post(self, target: Target, **update: str) -> None:
        url = f"http://{target.host}:{target.port}/.well-known/mercure"
        headers = {"Authorization": f"Bearer {self._publish_token}"}
        self._http.post(url, data=update | {"private": "on"}, headers=headers).raise_for_status()

    def _group(self, user: int) -> int:
        return user % self._crowd.groups

    # -- the run

    def run(self) -> dict[str, Figures]:
        self._connect()
        for _ in range(_LARGE_UPDATES if self._crowd.deaf else 0):
            self._post(self._targets[0], topic=_LARGE.replace("{item}", "news"), data="x" * _LARGE_BYTES)
        with ThreadPoolExecutor(2) as threads:
            operating = threads.submit(self._operate)
            publishing = threads.submit(self._publish_all, operating.done)
            while not publishing.done():
                self._turn(0.05)
            operating.result()
            publishing.result()
        end = time.monotonic() + _SECONDS
        while (found := self._faults()) and time.monotonic() < end:
            self._turn(0.05)
        assert not found, found[:10]
        return self._figures()

    def _faults(self) -> list[str]:
        returned = {command.user: command.returned for command in self._commands}
        return faults(self._streams.values(), returned, self._published)

    def _figures(self) -> dict[str, Figures]:
        ends = [0] * self._crowd.leaving  # the last of each user
        for stream in self._streams.values():
            if stream.ended:
                ends[stream.user] = max(ends[stream.user], stream.ended)
        figures_of = {
            action: [
                ((ends[one.user] - one.began) / 1e6, (one.returned - one.began) / 1e6)
                for one in self._commands
                if one.action == action
            ]
            for action in _ACTIONS
        }
        deliveries = sum(stream.count for stream in self._streams.values())
        baseline = [taken for taken, _ in figures_of["kick"]]
        return {
            action: figures([taken for taken, _ in its], baseline)
            | {
                "call, median ms": median(call for _, call in its),
                "call, most ms": max(call for _, call in its),
                "ended": len(its) * self._crowd.streams,
                "stayed": self._crowd.others,
                "deliveries": deliveries,
            }
            for action, its in figures_of.items()
        }


def faults(streams: Iterable[Stream], returned: Mapping[int, int], published: Sequence[Sequence[int]]) -> list[str]:
    """Return what is wrong with some streams, or has not arrived yet.

    `returned` has the time at which the command about a user had returned, and
    `published` the times of the updates of each group.  The sum of the times stands for
    all of them, so a stream that has received one twice and lacks another is found.
    """
    wanted = [(len(times), sum(times)) for times in published]
    found = []
    for stream in streams:
        name, expected = _name(stream.user), wanted[stream.user % len(wanted)]
        if stream.user in returned:
            if not stream.ended:
                found.append(f"a stream of {name} goes on")
            if stream.latest > returned[stream.user]:
                found.append(f"{name} has received what was published after the end")
        elif stream.ended:
            found.append(f"a stream of {name} has ended")
        elif (stream.count, stream.total) != expected:
            found.append(f"{name} has received {stream.count} updates of {expected[0]}, or other ones")
    return found


def _topic(group: int, item: str) -> str:
    return f"https://example.com/{group}/{item}"


def _name(user: int) -> str:
    return f"user {user}"
