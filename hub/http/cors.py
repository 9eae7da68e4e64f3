"""CORS: which requests pages of other origins may send, and what they may read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from starlette.middleware.cors import CORSMiddleware

from hub.protocol.origins import allows_origin
from hub.protocol.requests import header_values
from skipfilter.text import shown

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Message, Send

    from hub.delivery.observer import Observer
    from hub.http.request import Request
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")


def cors(settings: Settings) -> Cors | None:
    """Return the CORS rules of a hub; None if the settings allow no other origins."""
    if not settings.cors_origins:
        return None
    return Cors(
        _never_called,
        allow_origins=settings.cors_origins,
        allow_credentials="*" not in settings.cors_origins,  # N97
        allow_methods=["GET", "HEAD", "POST", "QUERY"],
        allow_headers=_REQUEST_HEADERS,
        expose_headers=_RESPONSE_HEADERS,
    )


_REQUEST_HEADERS: Final = (
    *("Authorization", "Cache-Control", "Content-Type", "If-None-Match", "Last-Event-ID", "Prefer"),
    *("Traceparent", "Tracestate", "X-Request-ID"),
)
"""What a page may send (N99).  The last line is what a page with tracing adds."""
_RESPONSE_HEADERS: Final = (
    *(
        "ETag",
        "Hub-Process-Reach",
        "Last-Event-ID",
        "Link",
        "Mercure-Last-Event-ID",
        "Preference-Applied",
        "Retry-After",
    ),
    "WWW-Authenticate",
)
"""What a page may read (N98)."""


def note_unreadable(request: Request, settings: Settings, observer: Observer) -> None:
    """Log and count a request of a page that cannot read its response."""
    for value in header_values(request.headers, b"origin")[:1]:
        origin = value.decode("latin-1")
        own = (request.origin, *settings.public_urls)
        if origin not in own and not allows_origin(settings.cors_origins, origin):
            log.info("refused by CORS: the page cannot read the stream, as `cors_origins` does not allow its origin")
            observer.refused("cors")


async def _never_called(*_: object) -> None:
    """Stand in for the application that Starlette's middleware would wrap."""
    raise AssertionError


class Cors(CORSMiddleware):
    """The CORS rules of a hub; only parts of Starlette's middleware are used."""

    def is_allowed_origin(self, origin: str) -> bool:
        """Return whether a page of `origin` may use the hub."""
        return allows_origin(self.allow_origins, origin)

    def refusal(self, headers: Headers) -> str:
        """Return why a preflight request is refused, for the log; "" if it is not."""
        method = headers["access-control-request-method"]
        asked = headers.get("access-control-request-headers")
        fields = set() if asked is None else {name.strip().lower() for name in asked.split(",")}
        others = sorted(fields - set(self.allow_headers))
        if not self.is_allowed_origin(headers["origin"]):
            return "`cors_origins` does not allow the page's origin"
        if method not in self.allow_methods:
            return f"the hub has no method {shown(method)}"
        if others:
            return f"the hub does not take the header field {shown(others[0])}"
        if "access-control-request-private-network" in headers:
            return "a public page may not use a hub in a private network"
        return ""

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        """Send the start of a response, with the CORS headers that apply.

        A response that already has CORS headers is sent unchanged.
        """
        # The metadata is readable by all origins, without credentials (N156).
        if any(name == b"access-control-allow-origin" for name, _ in message.get("headers", ())):
            await send(message)
        else:
            await super().send(message, send, request_headers)
