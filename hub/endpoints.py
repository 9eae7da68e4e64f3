"""The HTTP edge: parse, ask the hub, answer.  Every route is on this page.

GET   HUB             subscribe: an event stream           N10–N31, V1–V6
HEAD  HUB             its headers alone; nobody subscribes  1.18
POST  HUB             publish: 200 and the id               N40–N57
GET   HUB/debug/      the debugger, if it is on             R29
GET   /               there, if it is on
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hub.errors import InvalidToken, RequestError, TooLarge
from hub.protocol import Headers, parse_subscribe, parse_update
from hub.settings import DEVELOPMENT_TOKEN
from hub.stream import Stream

if TYPE_CHECKING:
    from starlette.requests import Request

    from hub.hub import Hub

log = structlog.stdlib.get_logger("hub")

DEBUGGER: Final = "/debug/"


class Endpoints:
    """The routes of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def routes(self) -> list[BaseRoute]:
        settings = self._hub.settings
        routes: list[BaseRoute] = [
            Route(settings.path, self.publish_or_subscribe, methods=["GET", "POST"]),
        ]
        if settings.debugger:
            page = settings.path + DEBUGGER
            routes += [
                Route(page + "config.json", self.debugger_config),
                Mount(page, StaticFiles(directory=Path(__file__).parent / "debugger", html=True)),
                Route("/", RedirectResponse(page)),
            ]
        return routes

    async def publish_or_subscribe(self, request: Request) -> Response:
        return await (self.publish(request) if request.method == "POST" else self.subscribe(request))

    async def subscribe(self, request: Request) -> Response:
        hub = self._hub
        headers: Headers = request.scope["headers"]
        grant = hub.authorizer.authorize("subscribe", headers, own_origin=_origin(request))
        wanted = parse_subscribe(request.scope["query_string"], headers, hub.settings)
        subscriber, preceding = await hub.subscribe(wanted.matchers, grant, wanted.last_event_id)
        extra = []
        if preceding is not None:
            # An id may be any Unicode, and goes out as UTF-8 (R77).  The second name is the classic one (V52).
            cursor = preceding.encode("utf-8")
            extra = [(b"mercure-last-event-id", cursor), (b"last-event-id", cursor)]
        return Stream(hub, subscriber, extra)

    async def publish(self, request: Request) -> Response:
        hub = self._hub
        headers: Headers = request.scope["headers"]
        grant = hub.authorizer.authorize("publish", headers, own_origin=_origin(request))
        content_type = request.headers.get("content-type", "").encode("latin-1")
        async with hub.until_closing(hub.settings.body_timeout):
            body = await _read_body(request, hub.settings.max_body)
        update = parse_update(body, content_type, hub.settings)
        return PlainTextResponse(await hub.publish(update, grant))

    async def debugger_config(self, request: Request) -> Response:
        """What the page needs to know; in development a token too."""
        hub = self._hub
        return JSONResponse(
            {
                "hub": hub.settings.path,
                "token": DEVELOPMENT_TOKEN if hub.settings.dev else "",
                "cookie": hub.settings.cookie,
            },
            headers={"Cache-Control": "no-store"},
        )


async def _read_body(request: Request, limit: int) -> bytes:
    """The body, of which no more than `limit` bytes are ever held.  Raises TooLarge."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"the body is longer than {limit} bytes")
    return bytes(body)


def _origin(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


async def answer(request: Request, error: Exception) -> Response:
    """A problem document (RFC 9457) for what `RequestError` and Starlette raise; the one place that answers."""
    if isinstance(error, RequestError):
        reason = error.reason if isinstance(error, InvalidToken) else str(error)
        # A token that is refused puzzles people, who should find out why wherever the hub runs.
        level = logging.WARNING if error.challenge else logging.INFO
        log.log(level, "request refused", method=request.method, status=error.status, reason=reason)
        return _problem(error.status, error.title, str(error), {"WWW-Authenticate": error.challenge})
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, error.detail, _DETAILS.get(error.status_code, ""), dict(error.headers or {}))


_DETAILS: Final = {
    404: "there is nothing at this path",
    405: "GET subscribes and POST publishes",
}


def _problem(status: int, title: str, detail: str, headers: dict[str, str | None] | dict[str, str]) -> Response:
    return JSONResponse(
        {"type": "about:blank", "title": title, "status": status, "detail": detail},
        status_code=status,
        headers={name: value for name, value in headers.items() if value is not None},
        media_type="application/problem+json",
    )
