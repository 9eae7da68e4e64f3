"""CORS: what pages of other origins may ask, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from hub.protocol.origins import allows_origin

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Message, Send

    from hub.settings import Settings


def cors(settings: Settings) -> Cors | None:
    """Return what answers other origins; None if the settings allow none."""
    if not settings.cors_origins:
        return None
    return Cors(
        _nowhere,
        allow_origins=settings.cors_origins,
        allow_credentials="*" not in settings.cors_origins,  # N97
        allow_methods=["GET", "HEAD", "POST", "QUERY"],
        # N99
        allow_headers=["Authorization", "Cache-Control", "Content-Type", "If-None-Match", "Last-Event-ID"],
        expose_headers=["ETag", "Last-Event-ID", "Link", "Mercure-Last-Event-ID", "WWW-Authenticate"],  # N98
    )


async def _nowhere(*_: object) -> None:
    """The application below a middleware of which only the parts are called."""
    raise AssertionError


class Cors(CORSMiddleware):
    def is_allowed_origin(self, origin: str) -> bool:
        return allows_origin(self.allow_origins, origin)

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        if any(name == b"access-control-allow-origin" for name, _ in message.get("headers", ())):
            await send(message)  # what is open to all, and without credentials, says so itself (N156)
        else:
            await super().send(message, send, request_headers)
