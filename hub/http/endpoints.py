"""Endpoints: every route of the hub.  Each one parses, calls the hub and answers.

    GET QUERY   HUB                  subscribe: an event stream         N10–N31, V1–V6
                                     ends if `Prefer: wait=0`           hub.http.replay
    HEAD        HUB                  the headers of a GET, without a subscription
    POST        HUB                  publish: 200 and the id or ids     N40–N57
    GET         HUB/subscriptions    all subscriptions, if enabled      N130–N140, V63
                  /{match_type}/{match}         those of one matcher
                  /{match_type}/{match}/{id}    one subscription
                  /{topic}                      the same in the classic dialect
                  /{topic}/{id}
    GET         HUB/health/ready     whether to send new clients here   R51
    GET         HUB/health/live      whether the process works
                                     both also at /mercure/health/, where the
                                     reference has them
    GET         /healthz             the same as HUB/health/live        R27
    GET         /robots.txt          no page is for search engines      R27
    GET         /.well-known/oauth-protected-resource + HUB
                                     metadata, if issuers are set       N145–N156
    GET         HUB/client.js        the client for browsers            R100
    GET         HUB/debug/           the debugger, if enabled           R29
    GET         /                    a redirect to it, if enabled

HUB is the path of the hub in the settings.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import structlog
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hub.auth.grant import DETAIL_TYPE
from hub.auth.signing import development_token, token_command
from hub.errors import UnsupportedContent
from hub.http.listing import listed
from hub.http.replay import ReplayResponse
from hub.http.request import Request
from hub.http.response import STREAM_FIELDS, Published, cursor_headers, open_stream, stream_headers
from hub.logs import DEBUGGED, current_request
from hub.protocol.events import SIGNALS
from hub.protocol.requests import FORM, content_type
from hub.protocol.topics import MATCHER_TYPES, subscriptions_path
from hub.subscribing import Ended, Question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request as StarletteRequest

    from hub.http.authorization import Authorization
    from hub.http.request import Answer
    from hub.hub import Hub

log = structlog.stdlib.get_logger("hub")

DEBUGGER: Final = "/debug/"

NOT_STORED: Final = {"Cache-Control": "no-store"}
_DEBUGGER_FILES: Final = Path(__file__).parents[1] / "debugger"
_BROWSER_FILES: Final = StaticFiles(directory=Path(__file__).parents[1] / "browser")

Endpoint: TypeAlias = "Callable[[Request], Awaitable[Answer]]"
ColdEndpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"  # is used rarely


class Endpoints:
    """The endpoints of one hub.

    An endpoint takes a `Request`, and raises a `RequestError` if it refuses it.
    """

    def __init__(self, hub: Hub, authorization: Authorization) -> None:
        self._hub = hub
        self._publishing = hub.publishing
        self._subscribing = hub.subscribing
        self._presence = hub.presence
        self._health = hub.health
        self._patience = hub.shutdown.until_closing
        self._max_body = hub.settings.max_body
        self._body_timeout = hub.settings.body_timeout
        self._authorization = authorization

    def by_method(self) -> dict[str, Endpoint]:
        """Return the endpoints of the hub's own path, by method; HEAD has a route."""
        methods: dict[str, Endpoint] = {}
        if self._authorization.may_allow("subscribe"):
            methods |= dict.fromkeys(("GET", "QUERY"), self.subscribe)
        if self._authorization.may_allow("publish"):
            methods["POST"] = self._publish
        return methods

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the router.

        Publish and subscribe requests do not reach the router.  It has a route for the
        hub's own path all the same: for HEAD, and to answer other methods with 405.
        """
        settings = self._hub.settings
        routes: list[Route | Mount] = [
            Route(settings.path, _cold(self.head), methods=list(self.by_method())),
            *(Route(path, _cold(check)) for path, check in self.health_checks().items()),
            Route("/robots.txt", _cold(self.robots)),
            Route(settings.path + "/client.js", _cold(self.client)),
        ]
        # Without issuers, the hub takes no tokens of the current dialect.  It then has
        # no metadata, so that clients take it for a classic hub (N153).
        if settings.issuers:
            routes += [Route(path, _cold(self.metadata)) for path in self._metadata_paths()]
        if settings.subscriptions:
            path = subscriptions_path(settings.path)
            routes += [Route(path, _cold(self.subscriptions)), Route(path + "/{rest:path}", _cold(self.subscriptions))]
        if settings.debugger:
            page = settings.path + DEBUGGER
            routes += [
                Route(page + "config.json", _cold(self.debugger_config)),
                Mount(page, StaticFiles(directory=_DEBUGGER_FILES, html=True)),
                Route(page.rstrip("/"), RedirectResponse(page)),
                Route("/", RedirectResponse(page)),
            ]
        # Starlette's patterns end with $, which also matches before a final line feed
        # (R75).
        for route in routes:
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)
        return [*routes]

    def health_checks(self) -> dict[str, ColdEndpoint]:
        """Return the endpoints of health checks, by path (R51).

        The reference has its own at /mercure/health/, with the name of the hub or
        without it (R1), and version 0.x has one at /healthz (R27).
        """
        parents = (self._hub.settings.path + "/health/", "/mercure/health/", "/mercure/health/default/")
        checks: dict[str, ColdEndpoint] = {"/healthz": self.live}
        for parent in parents:
            checks |= {parent + "ready": self.ready, parent + "live": self.live}
        return checks

    def _metadata_paths(self) -> set[str]:
        """Return the metadata's path (N145), and the one of the resource identifier."""
        settings = self._hub.settings
        return {settings.metadata_path, unquote(urlsplit(settings.metadata_url("") or settings.metadata_path).path)}

    async def subscribe(self, request: Request) -> Answer:
        """Answer a GET or QUERY of the hub's own path with a stream.

        If the client prefers `wait=0`, the stream ends by itself.
        """
        preferred = request.preferences
        waits = "wait=0" not in preferred
        grant = self._authorization.of_subscriber(request)
        body = partial(self._query, request) if request.method == "QUERY" else None
        question = Question(request.query, request.headers, body)
        opening = await self._subscribing.subscribe_request(
            request.address, grant, question, waits=waits, is_rated=self._authorization.asks
        )
        if isinstance(opening, Ended):
            ended = Response(opening.first, headers=STREAM_FIELDS, media_type="text/event-stream")
            ended.raw_headers += cursor_headers(opening.cursor)
            return request.answer(ended)
        subscriber, cursor = opening.subscriber, cursor_headers(opening.preceding)
        subscriber.log_context = request.logged.context if DEBUGGED.isEnabledFor(logging.INFO) else None
        if waits:
            current_request.set(None)
            return await open_stream(request, self._hub, subscriber, cursor)
        return request.answer(ReplayResponse(self._hub, subscriber, cursor, metadata="metadata" in preferred))

    async def _query(self, request: Request) -> bytes:
        """Return the body of a QUERY, which must be a form."""
        body = await request.body(self._hub.settings.max_query, self._patience, self._body_timeout)
        if body and content_type(request.headers) != FORM:
            raise UnsupportedContent(f"the body of a QUERY must be {FORM}", {"Accept-Query": FORM})
        return body

    async def head(self, request: Request) -> Response:
        """Return an empty response with the headers that a GET would get."""
        preferred = request.preferences
        grant = await self._authorization.of_reader(request)
        opening = await self._subscribing.preview(grant, Question(request.query, request.headers))
        response, cursor = Response(), cursor_headers(opening.preceding)
        if "wait=0" in preferred:
            replay = ReplayResponse(self._hub, opening.subscriber, cursor, metadata="metadata" in preferred)
            response.raw_headers = replay.raw_headers
        else:
            response.raw_headers = stream_headers(cursor)
        return response

    async def _publish(self, request: Request) -> Answer:
        return request.answer(await self.publish(request))

    async def publish(self, request: Request) -> Response:
        """Publish one update from a form, or a batch from JSON or lines of JSON.

        The response is the ids as plain text, one per line for a batch.
        """
        type = content_type(request.headers)
        grant = self._authorization.of_publisher(request)
        body = partial(request.body, self._max_body, self._patience, self._body_timeout)
        updates, reach = await self._publishing.publish_request(request.address, grant, body, type)
        if type == FORM:
            return Published(updates[0].id, reach)
        return Published("".join(f"{update.id}\n" for update in updates), reach)

    async def subscriptions(self, request: Request) -> Response:
        """Return the subscriptions of all nodes, those of one matcher, or a single one.

        The answer is 304 if the client has the current version.  Raises `NotFound` if
        the path names a subscription that does not exist.
        """
        grant = await self._authorization.of_reader(request, required=True)
        return await listed(request, grant, self._presence, self._hub.settings)

    # -- about the hub

    async def metadata(self, request: Request) -> Response:
        """Return the metadata of the protected resource (RFC 9728).

        Pages of any origin may read it (N156).
        """
        settings = self._hub.settings
        servers = [issuer.id for issuer in settings.issuers if issuer.authorization_server]
        document: dict[str, Any] = {
            "resource": settings.resource_at(self._authorization.public_origin(request)),
            "authorization_servers": servers,
            "authorization_details_types_supported": [DETAIL_TYPE] if settings.issuers else [],
            "bearer_methods_supported": ["header"],
            "mercure_cookie": settings.cookie,
            "mercure_subscriptions": settings.subscriptions,
            "mercure_matcher_types_supported": list(MATCHER_TYPES),
            "mercure_signals_supported": list(SIGNALS),
        }
        return JSONResponse(
            {name: value for name, value in document.items() if value}, headers={"Access-Control-Allow-Origin": "*"}
        )

    async def ready(self, request: Request) -> Response:
        """Return 200 if new clients should come here, otherwise 503 (R51).

        It fails if the history does not work, or if the hub is shutting down.
        """
        return _health(await self._health.check())

    async def live(self, request: Request) -> Response:
        """Return 200 if this process works, otherwise 503 (R51).

        It fails only if the history has failed for a minute, because a new process
        would hardly do better.
        """
        return _health(await self._health.check(patient=True))

    async def robots(self, request: Request) -> Response:
        """Return a robots.txt that asks search engines to read nothing here (R27)."""
        return PlainTextResponse("User-agent: *\nDisallow: /\n")

    async def client(self, request: Request) -> Response:
        """Return the client for browsers, which pages of any origin may load (R100)."""
        response = await _BROWSER_FILES.get_response("client.js", request.scope)
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Content-Type"] = "text/javascript; charset=utf-8"  # the system's list may have another
        return response

    async def debugger_config(self, request: Request) -> Response:
        """Return the settings of the debugger's page; in development, a token too.

        It is signed with the well-known key.  If the hub has other keys, its operator
        signs a token with the command.
        """
        settings = self._hub.settings
        token = development_token(settings, request.origin)
        return JSONResponse(
            {
                "hub": settings.path,
                "token": token,
                "token_command": token_command(settings, request.origin) if settings.dev and not token else "",
                "classic": settings.classic,
                "subscriptions": settings.subscriptions,
            },
            headers=NOT_STORED,
        )


def _cold(endpoint: ColdEndpoint) -> Callable[[StarletteRequest], Awaitable[Response]]:
    """Return `endpoint` as Starlette's router calls it."""

    async def call(request: StarletteRequest) -> Response:
        """Call the endpoint with the hub's own kind of request."""
        return await endpoint(Request.of(request))

    return call


def _health(error: str | None) -> Response:
    """Return the response of a health check that has failed with `error`, if any."""
    if error is not None:
        return JSONResponse({"status": "error", "error": error}, 503, NOT_STORED)
    return JSONResponse({"status": "ok"}, headers=NOT_STORED)
