"""The parameters of a load, and the requests of each kind of server.

A `Load` says how many clients there are and how fast they publish.  A `Target` is a
running server.  Its `Dialect` makes the requests, so that `clients` works with every
server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from hub.auth.signing import sign_classic_token
from hub.development import DEVELOPMENT_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_DAY: Final = 86_400


def option(default: T, help: str) -> T:
    """Return a dataclass field with the help text of its command line option."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size and the kind of a load.

    The text of each field is also the help text of its option.
    """

    connections: int = option(1_000, "subscribers whose deliveries are counted")
    groups: int = option(1, "groups; a subscriber is in one group, and an update goes to one, at random")
    rate: float = option(20.0, "updates a second; 0 for the most that the window allows")
    window: int = option(1, "with rate 0: the number of updates that may be undelivered at a time")
    seconds: float = option(3.0, "seconds for which updates are published")
    poisson: bool = option(True, "random gaps between updates; otherwise the gaps are equal")
    payload: int = option(192, "bytes of data of an update; the frame of a hub has about 60 more")
    batch: int = option(1, "updates per request, as NDJSON; 1 if the server does not accept it")
    publishers: int = option(32, "the maximum number of connections for publishing, opened when they are needed")
    new_topics: bool = option(False, "every update has a new topic")
    private: bool = option(False, "updates are private, and every subscriber has a token for its group")
    unwanted: bool = option(False, "updates have topics without subscribers")
    fresh_tokens: bool = option(False, "every publish request has a new token")
    spin: bool = option(True, "poll without sleeping if there are two processors, so that the server need not wake it")
    patience: float = option(5.0, "seconds without a delivery after which missing deliveries count as lost")
    stuck: int = option(0, "further subscribers that never read")
    visitors: float = option(0.0, "further subscribers that connect each second, and leave half a second later")
    newcomers: float = option(0.0, "further subscribers that connect each second and stay, without updates")


class Dialect(Protocol):
    """The requests that a server accepts."""

    batches: bool
    """Whether a request may publish more than one update."""

    def subscribe(self, group: int, load: Load) -> bytes:
        """Return the request of a subscriber of `group`."""
        ...

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        """Return the request that publishes `updates`.

        Each update is a group, a number that distinguishes its topic from others of the
        group, and data.
        """
        ...


class Mercure:
    """The classic dialect of Mercure.

    `token` publishes; if it is empty, `key` signs one.  `key` also signs the tokens of
    private subscriptions and, if each request needs a new token, those of publishers.
    `batches` is whether the server accepts NDJSON.
    """

    def __init__(self, url: str, *, token: str = "", key: str = DEVELOPMENT_KEY, batches: bool = True) -> None:
        self.batches = batches
        parts = urlsplit(url)
        # The start of a request, without its method and query.
        self._request = f"%s {parts.path}%s HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self._key = key
        self._numbers = count()  # one in each token, so that no two are equal
        self._token = token or self._signed(publish=["*"])

    def subscribe(self, group: int, load: Load) -> bytes:
        """Return the request of a subscriber to the URI template of `group`.

        It has a token for this template if updates are private.
        """
        template = f"https://example.com/{group}/{{item}}"
        head = self._request % ("GET", f"?topic={quote(template, safe='')}") + "Accept: text/event-stream\r\n"
        if load.private:
            head += f"Authorization: Bearer {self._signed(subscribe=[template])}\r\n"
        return f"{head}\r\n".encode()

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        """Return the request that publishes `updates`, as NDJSON or as a form."""
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
        """Return a new token, which differs from all earlier ones."""
        number, now = next(self._numbers), time.time()
        return sign_classic_token(
            self._key, "HS256", publish=publish, subscribe=subscribe, payload=number, seconds=_DAY, now=now
        )


class Since:
    """A dialect of Mercure in which subscribers have a last event id.

    With `earliest`, they ask for the whole history.
    """

    def __init__(self, dialect: Dialect, last_event_id: str) -> None:
        self.batches = dialect.batches
        self._dialect = dialect
        self._query = f"&last_event_id={quote(last_event_id)} HTTP/1.1".encode()

    def subscribe(self, group: int, load: Load) -> bytes:
        """Return the request of `dialect`, with the last event id."""
        return self._dialect.subscribe(group, load).replace(b" HTTP/1.1", self._query, 1)

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        """Return the request of `dialect`."""
        return self._dialect.publish(updates, load)


class Nchan:
    """The dialect of nchan as `servers.nchan` configures it: a group is a channel."""

    batches = False

    def subscribe(self, group: int, load: Load) -> bytes:
        """Return the request of a subscriber to the channel of `group`."""
        return f"GET /subscribe?topic={group} HTTP/1.1\r\nHost: nchan\r\nAccept: text/event-stream\r\n\r\n".encode()

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        """Return the request that publishes the only one of `updates`."""
        [(group, _, data)] = updates
        head = f"POST /publish?topic={group} HTTP/1.1\r\nHost: nchan\r\nContent-Type: text/plain\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n{data}".encode()


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    host: str
    port: int
    dialect: Dialect
    pids: tuple[int, ...] = ()
    """All its processes, for CPU and memory; () if they are not measured."""
    publish_port: int | None = None
    """The port of another node, to which updates are published; None for `port`."""
