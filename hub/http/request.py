"""Request: what an endpoint needs to know of an HTTP request."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from hub.errors import InvalidRequest, TooLarge
from hub.protocol.origins import normal_origin
from hub.protocol.requests import decode_utf_8, header_values

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from hub.protocol.requests import Headers

TOKENS: Final = "hub.tokens"
"""The key of a scope under which the tokens of the query are, which is then without them (V42)."""


class Request:
    """One request.  `origin`, `address` and `raw_path` are computed when they are asked for."""

    __slots__ = ("_receive", "_scope", "headers", "method", "query", "tokens")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        """The query as it came, without tokens."""
        self.tokens: tuple[str, ...] = scope[TOKENS]
        """The tokens of the query."""
        self.headers: Headers = scope["headers"]
        """(name, value) in their order; names are in lower case."""

    @property
    def raw_path(self) -> str:
        """The path as it came, with escapes, and without the query.  Raises InvalidRequest if it is not UTF-8."""
        return decode_utf_8("the path", self._scope.get("raw_path") or quote(self._scope["path"]).encode())

    @property
    def origin(self) -> str:
        """The scheme and authority that the client asked for, as far as the server knows."""
        host = next(iter(header_values(self.headers, b"host")), b"").decode("latin-1")
        return normal_origin(self._scope["scheme"], host)

    @property
    def address(self) -> str:
        """The client that an anonymous connection counts for.

        An address or, because a client has very many, an IPv6 network of 64 bits.
        """
        host = (self._scope.get("client") or ("",))[0]
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return cast("str", host)
        if address.version == 6 and address.ipv4_mapped is not None:  # an IPv4 client of a socket for both
            address = address.ipv4_mapped
        return str(address if address.version == 4 else ipaddress.ip_network((address, 64), strict=False))

    async def body(self, limit: int) -> bytes:
        """Return the body, of which no more than `limit` bytes are ever held; 0 for no limit.

        Raises TooLarge, and InvalidRequest if the client goes away.
        """
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":  # no client reads the answer, and the log has a line of it
                raise InvalidRequest("the client went away before all of the body had come")
            body += message.get("body", b"")
            if 0 < limit < len(body):
                raise TooLarge(f"the body is longer than {limit} bytes")
            if not message.get("more_body", False):
                return bytes(body)
