"""The HTTP edge: parse, ask the hub, answer.  Every route is on this page.

GET QUERY  HUB                                             subscribe: an event stream              N10–N31, V1–V6
                                                           with Prefer: wait=0, one that ends      hub.http.replay
HEAD       HUB                                             its headers alone; nobody subscribes    1.18
POST       HUB                                             publish: 200 and the id, or ids         N40–N57
GET        HUB/subscriptions                               who is there, if that is on             N130–N140, V63
GET        HUB/subscriptions/{match_type}/{match}          of one matcher
GET        HUB/subscriptions/{match_type}/{match}/{id}     of one subscriber
GET        HUB/subscriptions/{topic}                       the same in the classic dialect
GET        HUB/subscriptions/{topic}/{id}
GET        HUB/health/ready                                whether new clients are to come here      R51
GET        HUB/health/live                                 whether it works
GET        /.well-known/oauth-protected-resource + HUB     what clients of current tokens need     N145–N156
GET        HUB/debug/                                      the debugger, if it is on               R29
GET        /                                               there, if it is on
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import structlog
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hub.auth.grant import DETAIL_TYPE
from hub.auth.signing import development_token
from hub.errors import (
    HistoryUnavailable,
    Misdirected,
    NotFound,
    UnsupportedContent,
)
from hub.http.replay import ReplayResponse
from hub.http.request import Request
from hub.http.response import EventStream
from hub.protocol import events
from hub.protocol.requests import (
    FORM,
    NDJSON,
    Headers,
    SubscriptionPath,
    content_type,
    header_values,
    parse_subscribe,
    parse_subscription_path,
    preferences,
    read_updates,
)
from hub.protocol.subscriptions import CONTEXT, to_json
from hub.protocol.topics import MATCHER_TYPES, subscriptions_path
from hub.subscriber import Subscriber, may_want_presence
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from starlette.requests import Request as StarletteRequest

    from hub.auth.grant import Action, Grant
    from hub.hub import Hub
    from hub.protocol.subscriptions import Present, Subscription
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

DEBUGGER: Final = "/debug/"

NOT_STORED: Final = {"Cache-Control": "no-store"}
_DEBUGGER_FILES: Final = Path(__file__).parents[1] / "debugger"
PARSED_AT_ONCE: Final = 2**14
"""Bytes of a batch that are parsed between two looks at the other tasks: some 2 ms."""
_SUBSCRIPTIONS_AT_ONCE: Final = 100
"""Subscriptions that are written between two looks at the other tasks."""
_ETAG_ESCAPED: Final = frozenset([*range(0x21), ord('"'), ord("%"), 0x7F])


Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response | EventStream]]"


class Endpoints:
    """The routes of one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def by_method(self) -> dict[str, Endpoint]:
        """Return what the path of the hub answers, by the method of the request."""
        settings = self._hub.settings
        methods: dict[str, Endpoint] = {}
        if settings.can_subscribe:
            methods |= dict.fromkeys(("GET", "HEAD", "QUERY"), self.subscribe)
        if settings.can_publish:
            methods["POST"] = self.publish
        return methods

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the router, to which publish and subscribe requests never come."""
        settings = self._hub.settings
        routes: list[Route | Mount] = [
            Route(settings.path, _cold(self.head), methods=list(self.by_method())),
            Route(settings.path + "/health/ready", _cold(self.ready)),
            Route(settings.path + "/health/live", _cold(self.live)),
        ]
        if settings.issuers:  # without current tokens a client must not take the hub for a current one (N153)
            routes += [Route(path, _cold(self.metadata)) for path in self._metadata_paths()]
        if settings.subscriptions:
            who = subscriptions_path(settings.path)
            routes += [Route(who, _cold(self.subscriptions)), Route(who + "/{rest:path}", _cold(self.subscriptions))]
        if settings.debugger:
            page = settings.path + DEBUGGER
            routes += [
                Route(page, _cold(self.debugger)),
                Route(page + "config.json", _cold(self.debugger_config)),
                Mount(page, StaticFiles(directory=_DEBUGGER_FILES)),
                Route(page.rstrip("/"), RedirectResponse(page)),
                Route("/", RedirectResponse(page)),
            ]
        for route in routes:  # Starlette's end with $, which lets a line feed follow (R75)
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)
        return [*routes]

    def _metadata_paths(self) -> set[str]:
        """Beside the hub (N145), and where a resource identifier of another path leads."""
        settings = self._hub.settings
        return {settings.metadata_path, unquote(urlsplit(settings.metadata_url("") or settings.metadata_path).path)}

    async def subscribe(self, request: Request) -> Response | EventStream:
        hub = self._hub
        headers: Headers = request.headers
        body = b""
        if request.method == "QUERY":
            body = await self._body(request, hub.settings.max_query)
            if body and content_type(headers) != FORM:
                raise UnsupportedContent(f"the body of a QUERY must be {FORM}")
        grant = await self._authorize("subscribe", request)
        wanted = parse_subscribe(request.query, body, headers, hub.settings)
        preferred = preferences(headers)
        waits = "wait=0" not in preferred

        def answer(subscriber: Subscriber, preceding: str | None) -> Response | EventStream:
            headers = _cursor(preceding)
            if waits:
                return EventStream(subscriber, headers)
            return ReplayResponse(hub, subscriber, headers, metadata="metadata" in preferred)

        if request.method == "HEAD":  # it subscribes nobody, so it is not counted, and none of its patterns is compiled
            presence = may_want_presence(wanted.selectors, grant, hub.settings.path)
            position, preceding = await hub.find_start(wanted.last_event_id, presence=presence)
            return answer(Subscriber((), grant, position), preceding)
        try:
            subscriber, preceding = await hub.subscribe(
                wanted.selectors, grant, wanted.last_event_id, address=request.address
            )
        except HistoryUnavailable as error:
            if not waits:
                raise
            # EventSource comes back after an end, with the same cursor, and stays away for ever after a 503.
            log.warning("a stream ended before it began: the history is unavailable", reason=error.reason)
            first = events.HEARTBEAT + hub.admission.retry_hint()
            ended = Response(first, headers=NOT_STORED, media_type="text/event-stream")
            ended.raw_headers += _cursor(wanted.last_event_id)
            return ended
        return answer(subscriber, preceding)

    async def head(self, request: Request) -> Response:
        """Return the head of what a GET gets; no one subscribes."""
        response = Response()
        response.raw_headers = (await self.subscribe(request)).raw_headers
        return response

    async def publish(self, request: Request) -> Response:
        grant = await self._authorize("publish", request)
        body = await self._body(request, self._hub.settings.max_body)
        type = content_type(request.headers)
        updates: list[Update] = []
        turn = PARSED_AT_ONCE
        for start, update in read_updates(body, type, self._hub.settings):
            updates.append(update)
            if start >= turn:
                turn = start + PARSED_AT_ONCE
                await asyncio.sleep(0)
        await self._hub.publish(*updates, grant=grant)
        if type == NDJSON:
            return PlainTextResponse("".join(f"{update.id}\n" for update in updates))
        return PlainTextResponse(updates[0].id)

    async def _authorize(self, action: Action, request: Request, *, required: bool = False) -> Grant:
        return await self._hub.authorizer.authorize(
            action,
            request.headers,
            request.tokens,
            origin=self._public_origin(request),
            required=required,
        )

    def _public_origin(self, request: Request) -> str:
        """The origin that the request is to, or Misdirected (R6)."""
        origin, allowed = request.origin, self._hub.settings.public_urls
        if allowed and origin not in allowed:
            raise Misdirected(
                f"{shown(origin)} is none of the URLs of this hub; a proxy in front of it has to pass the Host header "
                "on, and the scheme in X-Forwarded-Proto"
            )
        return origin

    async def _body(self, request: Request, limit: int) -> bytes:
        """Return the body.  Raises TooLarge, TooSlow and Closing."""
        async with self._hub.shutdown.until_closing(self._hub.settings.body_timeout):
            return await request.body(limit)

    # -- who is there

    async def subscriptions(self, request: Request) -> Response:
        hub = self._hub
        grant = await self._authorize("subscribe", request, required=True)
        path = request.raw_path
        grant.require_read(path)  # the path as it came, and without the query (N131, V64)
        asked = parse_subscription_path(path, hub.settings)
        accepted = ",".join(value.decode("latin-1") for value in header_values(request.headers, b"accept"))
        classic = asked.classic
        if classic is None:  # HUB/subscriptions is the same path in both dialects (V84)
            asks_for_json = accepted.strip().lower() == "application/json"  # and nothing else, as the debugger does
            wants_classic = "application/ld+json" in accepted.lower() or (grant.classic and not asks_for_json)
            classic = hub.settings.classic and wants_classic
        cursor, repeated, present = await hub.presence.now()
        one = None
        if asked.subscriber is not None:
            who = [subscriber for subscriber in present if subscriber.id == asked.subscriber]
            one = next(filter(None, self._chosen(who, asked, classic=classic)), None)
            if one is None:
                raise NotFound("there is no such subscription")
        if _is_known(request.headers, cursor) and not repeated:
            response = Response(status_code=304)
        elif one is not None:
            document = one.document(json_ld=classic)
            response = Response(to_json(CONTEXT | document | {"lastEventID": cursor} if classic else document))
        else:
            opening = {"id": path, "type": "subscriptions"}
            if classic:
                uri = path + (f"?{query}" if (query := request.query.decode("latin-1")) else "")
                opening = CONTEXT | {"id": uri, "type": "Subscriptions", "lastEventID": cursor}
            chosen = self._chosen(present, asked, classic=classic)
            response = StreamingResponse(_collection(opening, chosen, json_ld=classic))
        response.headers["content-type"] = "application/ld+json" if classic else "application/json"
        response.raw_headers += self._cursor_headers(cursor, classic=classic)
        return response

    def _chosen(
        self, present: Iterable[Present], asked: SubscriptionPath, *, classic: bool
    ) -> Iterator[Subscription | None]:
        """The subscriptions that are asked for, and None in place of each other one."""
        for subscriber in present:
            for one in subscriber.subscriptions(self._hub.settings.path):
                if asked.matcher is None:
                    chosen = one.is_classic or not classic
                else:
                    chosen = (one.match_type, one.match) == asked.matcher
                yield one if chosen else None

    def _cursor_headers(self, cursor: str, *, classic: bool) -> Headers:
        """N135, N136.  A cursor may be any Unicode, and goes out as UTF-8 (R77)."""
        quoted = cursor.replace("\\", "\\\\").replace('"', '\\"')
        attributes = "" if classic else '; type="mercure"'
        link = f'<{self._hub.settings.path}>; rel="mercure"; last-event-id="{quoted}"{attributes}'
        link += f'; content-type="application/{"ld+json" if classic else "json"}"'
        return [
            (b"link", link.encode("utf-8")),
            (b"etag", _etag(cursor)),
            (b"cache-control", b"private, must-revalidate"),
            (b"vary", b"Accept, Authorization, Cookie"),
        ]

    # -- what the hub is

    async def metadata(self, request: Request) -> Response:
        """RFC 9728.  Open to all pages (N156)."""
        settings = self._hub.settings
        servers = [issuer.id for issuer in settings.issuers if issuer.authorization_server]
        document: dict[str, Any] = {
            "resource": settings.resource_at(self._public_origin(request)),
            "authorization_servers": servers,
            "authorization_details_types_supported": [DETAIL_TYPE] if settings.issuers else [],
            "bearer_methods_supported": ["header"],
            "mercure_cookie": settings.cookie,
            "mercure_subscriptions": settings.subscriptions,
            "mercure_matcher_types_supported": list(MATCHER_TYPES),
        }
        return JSONResponse(
            {name: value for name, value in document.items() if value}, headers={"Access-Control-Allow-Origin": "*"}
        )

    async def ready(self, request: Request) -> Response:
        """Whether new clients are to come here (R51): its log works, and no signal has come that ends the server."""
        return _health(await self._hub.health.check())

    async def live(self, request: Request) -> Response:
        """Whether it works: a log that fails is given a minute, as a new process would hardly do better."""
        return _health(await self._hub.health.check(patient=True))

    async def debugger(self, request: Request) -> Response:
        return FileResponse(_DEBUGGER_FILES / "index.html")

    async def debugger_config(self, request: Request) -> Response:
        """What the page needs to know; in development a token too."""
        settings = self._hub.settings
        return JSONResponse(
            {
                "hub": settings.path,
                "token": development_token(settings, request.origin) if settings.dev else "",
                "cookie": settings.cookie,
                "classic": settings.classic,
                "subscriptions": settings.subscriptions,
            },
            headers=NOT_STORED,
        )


def _cold(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[StarletteRequest], Awaitable[Response]]:
    """Return an endpoint for Starlette's router."""

    async def call(request: StarletteRequest) -> Response:
        return await endpoint(Request(request.scope, request.receive))

    return call


def _health(error: str | None) -> Response:
    if error is not None:
        return JSONResponse({"status": "error", "error": error}, 503, NOT_STORED)
    return JSONResponse({"status": "ok"}, headers=NOT_STORED)


def _cursor(id: str | None) -> Headers:
    """Return the headers with the id of the event before the first one of a stream (N107); none without a cursor.

    An id may be any Unicode, and goes out as UTF-8 (R77).  The second name is the classic one (V52).
    """
    if id is None:
        return []
    return [(name, id.encode("utf-8")) for name in (b"mercure-last-event-id", b"last-event-id")]


async def _collection(
    opening: dict[str, str], subscriptions: Iterable[Subscription | None], *, json_ld: bool
) -> AsyncIterator[str]:
    """JSON that ends in the array of `subscriptions`, a part at a time: there may be very many to look at."""
    part = [to_json(opening)[:-1], ',"subscriptions":[']
    comma = ""
    for count, subscription in enumerate(subscriptions, 1):
        if subscription is not None:
            part.append(comma + to_json(subscription.document(json_ld=json_ld)))
            comma = ","
        if count % _SUBSCRIPTIONS_AT_ONCE == 0:
            yield "".join(part)
            part = []
            await asyncio.sleep(0)
    yield "".join([*part, "]}"])


def _etag(cursor: str) -> bytes:
    escaped = "".join(f"%{byte:02X}" if byte in _ETAG_ESCAPED else chr(byte) for byte in cursor.encode("utf-8"))
    return b'"' + escaped.encode("latin-1") + b'"'


def _is_known(headers: Headers, cursor: str) -> bool:
    """Whether the client has what was current at the cursor; also unquoted, as 0.x wrote its tags (V63)."""
    tag = _etag(cursor)
    given = b",".join(header_values(headers, b"if-none-match")).strip()
    # Not split at commas, which a tag may have.
    return tag in re.findall(rb'"[^"]*"', given) or given in (tag[1:-1], b"*")
