"""Request: the parts of an HTTP request that the endpoints use, and its answer."""

from __future__ import annotations

import ipaddress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias
from urllib.parse import quote

from hub.errors import InvalidRequest, TooLarge, UnsupportedContent
from hub.logs import LoggedRequest, current_request
from hub.protocol.origins import normal_origin
from hub.protocol.requests import decode_utf_8, header_values, preferences
from hub.server.begun import Begun
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request as StarletteRequest
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hub.protocol.requests import Headers

TOKENS: Final = "hub.tokens"
"""The key of the scope for the tokens that were taken out of the query (V42)."""


BODY_GRACE: Final = 10.0
"""Seconds that a body may take to arrive, however slowly; see `body_timeout`."""
LEAST_BODY_RATE: Final = 1_000
"""Bytes a second that a body must have for each second more."""

Patience: TypeAlias = "Callable[[float], AbstractAsyncContextManager[Callable[[float], None]]]"
"""Limits how long the code inside of a context waits; see `Shutdown.until_closing`."""
Answer: TypeAlias = "Callable[[], Awaitable[None]]"
"""A function that sends the answer to one request; it is called once.

It must not refer to parts of the request that it does not need, because a stream may
stay open for a long time.
"""


class Request:
    """One request, parsed from an ASGI scope, which must have the key `TOKENS`.

    `origin`, `address` and `raw_path` are computed on each access.
    """

    __slots__ = ("headers", "logged", "method", "query", "receive", "scope", "send", "tokens")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]  # still encoded, without tokens
        self.tokens: tuple[str, ...] = scope[TOKENS]  # the tokens of the query
        self.headers: Headers = scope["headers"]  # (name, value) in order; names are in lower case
        self.logged = LoggedRequest(self.headers, scope.get("client"), self.method, scope["path"])

    @classmethod
    def of(cls, request: StarletteRequest) -> Request:
        """Return a request that Starlette's router has passed on, and will answer."""
        own = cls(request.scope, request.receive, _answered_by_router)
        own.logged = current_request.get() or own.logged  # the one that log lines know
        return own

    @property
    def raw_path(self) -> str:
        """The path of the URL, still encoded, without the query.

        Raises `InvalidRequest` if it is not UTF-8.
        """
        return decode_utf_8("the path", self.scope.get("raw_path") or quote(self.scope["path"]).encode())

    @property
    def preferences(self) -> frozenset[str]:
        """The preferences of the client; see `hub.protocol.requests.preferences`."""
        return preferences(self.headers)

    @property
    def origin(self) -> str:
        """The scheme and authority of the request, as the server knows them."""
        for name, value in self.headers:
            if name == b"host":
                return _origin(self.scope["scheme"], value)
        return _origin(self.scope["scheme"], b"")

    @property
    def address(self) -> str:
        """The client that a request without a token's subject counts for.

        An IPv4 address, or an IPv6 network of 64 bits, because a single client has very
        many IPv6 addresses.  Other names are returned unchanged; "" if it is unknown.
        """
        host: str = (self.scope.get("client") or ("",))[0]
        if ":" not in host:
            return host
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            return host
        # An IPv4 client of a socket that serves both versions.
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))

    def answer(self, response: ASGIApp) -> Answer:
        """Return what sends `response` as the answer to this request."""
        return partial(response, self.scope, self.receive, self.send)

    async def body(self, limit: int, patience: Patience, most: float) -> bytes:
        """Read and return the body.

        It may take BODY_GRACE seconds to arrive, then longer if it arrives fast enough,
        but `most` seconds at most.

        Raises `UnsupportedContent` if it is compressed, and `TooLarge` as soon as it is
        longer than `limit` bytes; 0 is no limit.  Raises `InvalidRequest` if the client
        disconnects before the end, or if the server has dropped the body, and the
        errors of `patience`.
        """
        _require_plain(self.headers)
        body = bytearray()
        first = Begun(self._take_part(body, limit))
        if not first.has_ended or first.result:  # most bodies have arrived with their heads
            async with patience(min(most, BODY_GRACE)) as allow:
                has_more = await first
                while has_more:
                    allow(min(most, BODY_GRACE + len(body) / LEAST_BODY_RATE))
                    has_more = await self._take_part(body, limit)
        if not body:
            self._require_no_upgrade()
        return bytes(body)

    async def _take_part(self, body: bytearray, limit: int) -> bool:
        """Add the next part to a body, and return whether there are more."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            # The answer reaches no client, but the error is logged.
            raise InvalidRequest("the client disconnected before the whole body had arrived")
        body += message.get("body", b"")
        _require_size(len(body), limit)
        return bool(message.get("more_body", False))

    def _require_no_upgrade(self) -> None:
        """Raise `InvalidRequest` if a server may have dropped the body.

        Some servers drop the body of a request that asks for another protocol, instead
        of ignoring that (RFC 9110, 7.8).  The hub's own protocol ignores it.
        """
        if upgrade := header_values(self.headers, b"upgrade"):
            protocol = shown(upgrade[0].decode("latin-1"))
            raise InvalidRequest(
                f"the request has no body, as the server drops it because of Upgrade: {protocol}; start uvicorn with "
                "--http hub.server:HubProtocol, or let the client send HTTP/1.1 without an upgrade"
            )


class PlainRequest(Request):
    """A request whose whole body has arrived, and which is answered without ASGI."""

    __slots__ = ("_body",)

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope, _no_asgi, _no_asgi)
        self._body = body

    async def body(self, limit: int, patience: Patience, most: float) -> bytes:
        """Return the body, or raise `UnsupportedContent` or `TooLarge`."""
        _require_plain(self.headers)
        _require_size(len(self._body), limit)
        return self._body


@lru_cache(16)
def _origin(scheme: str, host: bytes) -> str:
    """Return the origin of requests with this Host, which is nearly always the same."""
    return normal_origin(scheme, host.decode("latin-1"))


def _require_plain(headers: Headers) -> None:
    """Raise `UnsupportedContent` if the body has a coding (R78)."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            coding = shown(value.decode("latin-1"))
            raise UnsupportedContent(
                f"the body has the Content-Encoding {coding}, and the hub takes bodies that are not compressed",
                {"Accept-Encoding": "identity"},
            )


def _require_size(size: int, limit: int) -> None:
    if 0 < limit < size:
        raise TooLarge(f"the body is longer than {limit} bytes")


async def _no_asgi(*_: object) -> NoReturn:
    raise AssertionError("the request is answered without ASGI")


async def _answered_by_router(_: Message) -> None:
    raise AssertionError("the router answers this request")
