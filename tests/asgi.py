"""Requests to a hub's application in this process, without sockets: tests see the
bytes.

This module plays the server, as uvicorn would.  `wire` uses a real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode

from hub import Settings, create_app
from hub.auth.signing import sign_classic_token, sign_token
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from tests.waiting import HANG
from tests.wire import FORM as FORM
from tests.wire import PATH as PATH
from tests.wire import Event, parse_event
from tests.wire import bearer as bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from starlette.types import ASGIApp, Message, Receive

    from hub.http.embedding import HubApplication

NDJSON = ("content-type", "application/x-ndjson")


@dataclass
class Answer:
    """A whole response."""

    status: int
    raw_headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """The values of each name, joined by ", "; names in lower case."""
        joined: dict[str, list[str]] = {}
        for name, value in self.raw_headers:
            joined.setdefault(name.decode("latin-1").lower(), []).append(value.decode("utf-8"))
        return {name: ", ".join(values) for name, values in joined.items()}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """The detail of a problem document."""
        assert self.headers["content-type"] == "application/problem+json", self.text
        assert self.json()["status"] == self.status
        detail: str = self.json()["detail"]
        return detail

    @property
    def is_ended_stream(self) -> bool:
        """Whether it is a stream that ends at once, with a hint when to come back."""
        return self.status == 200 and re.fullmatch(rb":\nretry: \d+\n", self.body) is not None


@contextlib.asynccontextmanager
async def application(**settings: Any) -> AsyncIterator[HubApplication]:
    """A running hub: in development mode by default, without retry hints and
    lifetimes.
    """
    app = create_app(Settings(**{"dev": True, "retry": 0, "max_lifetime": 0} | settings))
    async with app.running():
        yield app


def current_token(
    publish: Iterable[str | tuple[str, str]] = (), subscribe: Iterable[str | tuple[str, str]] = (), **more: Any
) -> str:
    """A current token for a hub in development at https://hub.example; a pattern
    without a type is an exact one.
    """
    chosen: dict[str, Any] = {
        "issuer": DEVELOPMENT_ISSUER,
        "resource": f"https://hub.example{PATH}",
        "seconds": 86_400,
        "now": time.time(),
    }
    matchers = [[one if isinstance(one, tuple) else ("exact", one) for one in some] for some in (publish, subscribe)]
    return sign_token(DEVELOPMENT_KEY, "HS256", publish=matchers[0], subscribe=matchers[1], **chosen | more)


def classic_token(publish: Iterable[str] = (), subscribe: Iterable[str] = (), payload: Any = None) -> str:
    """A classic token for a hub in development."""
    return sign_classic_token(
        DEVELOPMENT_KEY, "HS256", publish=publish, subscribe=subscribe, payload=payload, seconds=86_400, now=time.time()
    )


def scope_of(
    method: str, target: str | bytes, headers: Iterable[tuple[str | bytes, str | bytes]], **more: Any
) -> dict[str, Any]:
    raw_path, _, query = (target.encode("utf-8") if isinstance(target, str) else target).partition(b"?")
    given = [(_bytes(name).lower(), _bytes(value)) for name, value in headers]
    if not any(name == b"host" for name, _ in given):
        given.insert(0, (b"host", b"hub.example"))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": given,
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 443),
        "state": {},
    } | more


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def _sending(body: bytes, *, until: asyncio.Event) -> Receive:
    """The message of a client that disconnects."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await until.wait()
        return {"type": "http.disconnect"}

    return receive


async def ask(
    app: ASGIApp,
    method: str,
    target: str | bytes,
    headers: Iterable[tuple[str | bytes, str | bytes]] = (),
    body: bytes = b"",
    **scope: Any,
) -> Answer:
    """Return the response to one request.

    The client of an event stream disconnects as soon as the stream has begun.
    """
    messages: list[Message] = []
    begun = asyncio.Event()

    async def send(message: Message) -> None:
        messages.append(message)
        if message["type"] == "http.response.body":
            begun.set()

    await asyncio.wait_for(app(scope_of(method, target, headers, **scope), _sending(body, until=begun), send), HANG)
    assert [message["type"] for message in messages] == ["http.response.start"] + ["http.response.body"] * (
        len(messages) - 1
    )
    return Answer(
        messages[0]["status"],
        list(messages[0]["headers"]),
        b"".join(message.get("body", b"") for message in messages[1:]),
    )


class Following:
    """An open event stream; `body` has all bytes received so far."""

    def __init__(self) -> None:
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.ended = False
        self._read = 0
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def headers(self) -> dict[str, str]:
        return Answer(self.status, self.raw_headers, b"").headers

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.raw_headers = message["status"], list(message["headers"])
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        self._changed.set()

    async def changed(self) -> None:
        """Wait for more bytes."""
        self._changed.clear()
        await asyncio.wait_for(self._changed.wait(), HANG)

    async def begun(self) -> None:
        while not self.body and not self.ended:
            await self.changed()

    async def next_event(self) -> Event:
        """Return the next event.

        Raises AssertionError if the stream ends before it.
        """
        while not self._events:
            *blocks, rest = self.body[self._read :].split(b"\n\n")
            self._read = len(self.body) - len(rest)
            self._events.extend(filter(None, (parse_event(block.decode("utf-8")) for block in blocks)))
            if not self._events:
                assert not self.ended, "the stream has ended"
                await self.changed()
        return self._events.popleft()

    async def until(self, data: str) -> list[Event]:
        """The events up to the one with this data, which is left out."""
        events: list[Event] = []
        while (event := await self.next_event()).data != data:
            events.append(event)
        return events

    async def end(self) -> None:
        """Wait for the stream to end."""
        while not self.ended:
            await self.changed()

    def go(self) -> None:
        """Have the client go away."""
        self._gone.set()


@contextlib.asynccontextmanager
async def follow(
    app: ASGIApp,
    *parameters: tuple[str, str],
    headers: Sequence[tuple[str | bytes, str | bytes]] = (),
    method: str = "GET",
    target: str | None = None,
    body: bytes = b"",
    **scope: Any,
) -> AsyncIterator[Following]:
    """Subscribe, by `parameters` or to a whole `target`; the stream has begun, or has
    been refused, when it is entered.
    """
    stream = Following()
    where = f"{PATH}?{urlencode(parameters)}" if target is None else target
    task = asyncio.ensure_future(
        app(scope_of(method, where, headers, **scope), _sending(body, until=stream._gone), stream.send)
    )
    begun = asyncio.ensure_future(stream.begun())
    await asyncio.wait([task, begun], return_when=asyncio.FIRST_COMPLETED, timeout=HANG)
    begun.cancel()
    if task.done():
        task.result()
    try:
        yield stream
    finally:
        stream.go()
        await asyncio.wait_for(task, HANG)


async def publish(app: ASGIApp, token: str, *fields: tuple[str, str], path: str = PATH) -> str:
    """Publish, and return the id."""
    reply = await ask(app, "POST", path, [FORM, bearer(token)], urlencode(fields).encode())
    assert reply.status == 200, reply.text
    return reply.text
