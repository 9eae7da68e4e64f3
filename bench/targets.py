"""The load on a server, and the server with its dialect."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from hub.auth.signing import sign_classic_token
from hub.settings import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_DAY: Final = 86_400


def option(default: T, help: str) -> T:
    """Return a field that is also an option of the command line."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size and the kind of a load."""

    connections: int = option(1_000, "subscribers whose deliveries are counted")
    groups: int = option(1, "groups; a subscriber is in one group, and an update goes to one, at random")
    rate: float = option(20.0, "updates a second; 0 for as many as WINDOW allows")
    window: int = option(1, "with rate 0: the number of updates that are not yet delivered to all")
    seconds: float = option(3.0, "for which updates are published")
    poisson: bool = option(True, "random gaps between updates; otherwise equal ones")
    payload: int = option(192, "bytes of an update's data; a hub's frame has about 60 more")
    batch: int = option(1, "updates per request, as NDJSON if the server accepts it")
    publishers: int = option(32, "connections for publishing, opened when they are needed")
    new_topics: bool = option(False, "every update has a new topic")
    private: bool = option(False, "updates are private, and every subscriber has a token for its group")
    unwanted: bool = option(False, "updates have topics without subscribers")
    fresh_tokens: bool = option(False, "every publish request has a new token")
    spin: bool = option(True, "poll all the time, on a processor of its own, so that the server need not wake it")
    patience: float = option(5.0, "seconds without a delivery after which missing deliveries count as lost")
    stuck: int = option(0, "further subscribers that never read")
    visitors: float = option(0.0, "further subscribers that connect each second, and leave half a second later")
    newcomers: float = option(0.0, "further subscribers that connect each second and stay, without updates")


class Dialect(Protocol):
    """The requests that a server accepts."""

    batches: bool
    """Whether a request may have more than one update."""

    def subscribe(self, group: int, load: Load) -> bytes:
        """Return the request of a subscriber."""
        ...

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        """Return the request that publishes `updates`; each is a group, a number within
        the group, and data.
        """
        ...


class Mercure:
    """The classic dialect of Mercure.

    `key` signs the tokens that are not given: those of private subscriptions, and fresh
    ones.
    """

    def __init__(self, url: str, *, token: str = "", key: str = DEVELOPMENT_KEY, batches: bool = True) -> None:
        self.batches = batches
        parts = urlsplit(url)
        self._request = f"%s {parts.path}%s HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self._key = key
        self._numbers = count()
        self._token = token or self._signed(publish=["*"])

    def subscribe(self, group: int, load: Load) -> bytes:
        template = f"https://example.com/{group}/{{item}}"
        head = self._request % ("GET", f"?topic={quote(template, safe='')}") + "Accept: text/event-stream\r\n"
        if load.private:
            head += f"Authorization: Bearer {self._signed(subscribe=[template])}\r\n"
        return f"{head}\r\n".encode()

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        token = self._signed(publish=["*"]) if load.fresh_tokens else self._token
        if load.batch > 1 and self.batches:
            type = "application/x-ndjson"
            private = ', "private": true' if load.private else ""
            body = "".join(
                f'{{"topic": "https://example.com/{group}/{number}", "data": "{data}"{private}}}\n'
                for group, number, data in updates
            )
        else:
            type = "application/x-www-form-urlencoded"
            [(group, number, data)] = updates
            body = f"topic=https%3A%2F%2Fexample.com%2F{group}%2F{number}&data={data}"
            body += "&private=on" if load.private else ""
        head = f"Authorization: Bearer {token}\r\nContent-Type: {type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return (self._request % ("POST", "") + head + body).encode()

    def _signed(self, *, publish: Sequence[str] = (), subscribe: Sequence[str] = ()) -> str:
        """Return a new token; no two are equal."""
        number, now = next(self._numbers), time.time()
        return sign_classic_token(
            self._key, "HS256", publish=publish, subscribe=subscribe, payload=number, seconds=_DAY, now=now
        )


class FromEarliest:
    """A dialect of Mercure whose subscribers ask for the whole history."""

    def __init__(self, dialect: Dialect) -> None:
        self.batches = dialect.batches
        self._dialect = dialect

    def subscribe(self, group: int, load: Load) -> bytes:
        return self._dialect.subscribe(group, load).replace(b" HTTP/1.1", b"&last_event_id=earliest HTTP/1.1", 1)

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        return self._dialect.publish(updates, load)


class Nchan:
    """The requests of `servers.nchan`: a group is a channel."""

    batches = False

    def subscribe(self, group: int, load: Load) -> bytes:
        return f"GET /subscribe?topic={group} HTTP/1.1\r\nHost: nchan\r\nAccept: text/event-stream\r\n\r\n".encode()

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        [(group, _, data)] = updates
        head = f"POST /publish?topic={group} HTTP/1.1\r\nHost: nchan\r\nContent-Type: text/plain\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode()


@dataclass(frozen=True, slots=True)
class Target:
    """A server.  Its CPU and memory are measured if `pids` has all its processes."""

    host: str
    port: int
    dialect: Dialect
    pids: tuple[int, ...] = ()
    publish_port: int | None = None
    """The port of another node for publishing; None for the same node."""
