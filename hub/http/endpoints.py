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
    GET         HUB/debug/           the debugger, if enabled           R29
    GET         /                    a redirect to it, if enabled

HUB is the path of the hub in the settings.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

import structlog
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from hub import turns
from hub.auth.grant import ANONYMOUS, DETAIL_TYPE
from hub.auth.signing import development_token, token_command
from hub.delivery.log_lines import shown_matchers
from hub.delivery.subscriber import Subscriber, payer_at, payer_for
from hub.errors import (
    InvalidRequest,
    Misdirected,
    NotAsked,
    NotFound,
    RequestError,
    UnsupportedContent,
)
from hub.http.replay import ReplayResponse
from hub.http.request import PlainRequest, Request
from hub.http.response import STREAM_FIELDS, Published, open_stream, stream_headers
from hub.logs import DEBUGGED, current_request
from hub.node.presence import may_want_presence
from hub.protocol.data import to_json
from hub.protocol.hints import publish_hints, subscribe_hints
from hub.protocol.origins import allows_origin
from hub.protocol.requests import (
    FORM,
    Headers,
    SubscribeRequest,
    SubscriptionPath,
    content_type,
    header_values,
    parse_form_update,
    parse_subscribe,
    parse_subscription_path,
    preferences,
    read_updates,
)
from hub.protocol.subscriptions import CONTEXT
from hub.protocol.topics import FORBIDDEN, MATCHER_TYPES, subscriptions_path
from hub.server.begun import Begun
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator

    from starlette.requests import Request as StarletteRequest

    from hub.auth.grant import Action, CompiledGrant
    from hub.delivery.subscriber import Payer
    from hub.http.authorization import Authorization
    from hub.http.request import Answer
    from hub.hub import Hub
    from hub.protocol.subscriptions import Present, Subscription
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

DEBUGGER: Final = "/debug/"

BODY_GRACE: Final = 10.0
"""Seconds that a body may take to arrive, however slowly; see `body_timeout`."""
LEAST_BODY_RATE: Final = 1_000
"""Bytes a second that a body must have for each second more."""

NOT_STORED: Final = {"Cache-Control": "no-store"}
_DEBUGGER_FILES: Final = Path(__file__).parents[1] / "debugger"
_ETAG_ESCAPED: Final = frozenset([*range(0x21), ord('"'), ord("%"), 0x7F])
"""Bytes that an entity tag cannot contain, and the percent sign that escapes them."""


Endpoint: TypeAlias = "Callable[[Request], Awaitable[Answer]]"
ColdEndpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"  # is used rarely


class Endpoints:
    """The endpoints of one hub.

    An endpoint takes a `Request`, and raises a `RequestError` if it refuses it.
    """

    def __init__(self, hub: Hub, authorization: Authorization) -> None:
        self._hub = hub
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
        hub, preferred = self._hub, preferences(request.headers)
        waits, cursor = "wait=0" not in preferred, None
        try:
            grant, rated = await self._granted(request)
            wanted = await self._wanted(request, grant)
            cursor = wanted.last_event_id
            log_context = request.logged.context if DEBUGGED.isEnabledFor(logging.INFO) else None
            if origin := header_values(request.headers, b"origin"):
                self._check_cors(request, origin[0].decode("latin-1"))
            subscriber, preceding = await hub.subscribe(
                wanted.selectors,
                grant,
                cursor,
                address=request.address,
                waits=waits,
                rated=rated,
                log_context=log_context,
            )
        except RequestError as error:
            if not waits or error.status != 503:
                raise
            # Not 503: clients reconnect after the end of a stream, with the same
            # cursor, but most of them never after a 503; see `node.outage`.
            hub.admission.outage.report(error)
            hub.observer.refused(error.kind())
            first = hub.admission.first_bytes(ends=not isinstance(error, NotAsked))
            ended = Response(first, headers=STREAM_FIELDS, media_type="text/event-stream")
            if cursor is not None and FORBIDDEN.isdisjoint(cursor):  # else it is no id
                ended.raw_headers += _cursor(cursor)
            return request.answer(ended)
        if waits:
            current_request.set(None)
            return await open_stream(request, hub, subscriber, _cursor(preceding))
        metadata = "metadata" in preferred
        return request.answer(ReplayResponse(hub, subscriber, _cursor(preceding), metadata=metadata))

    def _check_cors(self, request: Request, origin: str) -> None:
        """Log and count a request of a page that cannot read its response."""
        settings = self._hub.settings
        own = (request.origin, *settings.public_urls)
        if origin not in own and not allows_origin(settings.cors_origins, origin):
            log.info("refused by CORS: the page cannot read the stream, as `cors_origins` does not allow its origin")
            self._hub.observer.refused("cors")

    async def head(self, request: Request) -> Response:
        """Return an empty response with the headers that a GET would get.

        It makes no subscription: it does not count toward the limits, and its patterns
        are not compiled.
        """
        hub, preferred = self._hub, preferences(request.headers)
        self._authorization.take_rate(request.address)
        grant = await self._authorize("subscribe", request)
        request.logged.subject = grant.subject
        wanted = await self._wanted(request, grant)
        presence = may_want_presence(wanted.selectors, grant, hub.settings.path)
        start = await hub.find_start(wanted.last_event_id, presence=presence)
        response, headers = Response(), _cursor(start.preceding)
        if "wait=0" in preferred:
            subscriber, metadata = Subscriber((), grant, start.position), "metadata" in preferred
            response.raw_headers = ReplayResponse(hub, subscriber, headers, metadata=metadata).raw_headers
        else:
            response.raw_headers = stream_headers(headers)
        return response

    async def _granted(self, request: Request) -> tuple[CompiledGrant, Payer | None]:
        """Return the grant of a subscriber, and the client whose rate it has used."""
        rated = None
        if self._authorization.asks:
            with self._authorization.bounded(request.address) as rated:
                grant = await self._authorize("subscribe", request)
        elif request.method == "QUERY":
            grant = await self._allowed("subscribe", request)
        else:
            grant = await self._authorize("subscribe", request)
        request.logged.subject = grant.subject
        return grant, rated

    async def _wanted(self, request: Request, grant: CompiledGrant) -> SubscribeRequest:
        """Return the subscriptions of a request."""
        settings = self._hub.settings
        body = b""
        if request.method == "QUERY":
            client = self._count(grant, request)
            try:
                body = await self._body(request, settings.max_query)
            finally:
                self._hub.shares.requests.give_back(client)
            if body and content_type(request.headers) != FORM:
                raise UnsupportedContent(f"the body of a QUERY must be {FORM}")
        if settings.dev:
            _log_hints(subscribe_hints(request.query, body, settings))
        return parse_subscribe(request.query, body, request.headers, settings)

    async def _publish(self, request: Request) -> Answer:
        return request.answer(await self.publish(request))

    async def publish(self, request: Request) -> Response:
        """Publish one update from a form, or a batch from JSON or lines of JSON.

        The response is the ids as plain text, one per line for a batch.
        """
        hub = self._hub
        origin = self._public_origin(request)
        grant = self._authorization.recent("publish", request, origin) or await self._allowed("publish", request)
        client = self._count(grant, request)
        try:
            body = await self._body(request, hub.settings.max_body)
            type = content_type(request.headers)
            turn = hub.publisher_turns.of(grant.publisher)
            if turn is None:
                updates = await self._checked_updates(body, type, grant, turns.PARSED_BYTES)
            else:
                await turn.acquire()
                try:
                    updates = await self._checked_updates(body, type, grant, turns.PARSED_IN_TURN)
                finally:
                    hub.publisher_turns.end(turn)
            await hub.append(updates, grant)
        finally:
            hub.shares.requests.give_back(client)
        if type == FORM:
            return Published(updates[0].id)
        return Published("".join(f"{update.id}\n" for update in updates))

    async def _checked_updates(self, body: bytes, type: str, grant: CompiledGrant, portion: int) -> list[Update]:
        """Return the updates of a body.

        Lets other tasks run after each `portion` bytes.  Raises an error if a rule or
        the grant forbids any of the updates.
        """
        updates: list[Update] = []
        if type == FORM:
            updates.append(parse_form_update(body, self._hub.settings))
        else:
            parsed = portion
            for start, update in read_updates(body, type, self._hub.settings):
                updates.append(update)
                if start >= parsed:
                    parsed = start + portion
                    await turns.other_tasks()
        if self._hub.settings.dev:
            _log_hints(publish_hints(body, type))
        await self._hub.check(updates, grant)
        return updates

    def _count(self, grant: CompiledGrant, request: Request) -> Payer:
        """Count a request with a grant, until its client is given back."""
        request.logged.subject = grant.subject
        client = payer_for(grant.subject, request.address, grant is ANONYMOUS)
        self._hub.shares.requests.take(client)
        return client

    async def _allowed(self, action: Action, request: Request) -> CompiledGrant:
        """Return the grant of a request, whose body must be read only afterwards.

        While its token waits for keys, or for the application, nobody knows its client.
        So it counts as one without a token, which the kept part is not for.
        """
        waiting = self._hub.shares.requests.taken(payer_at(request.address, True))
        if self._authorization.asks:
            with waiting:
                return await self._authorize(action, request)
        decision = Begun(self._authorize(action, request))
        if decision.has_ended:
            return decision.result
        with waiting:
            return await decision

    def _authorize(
        self, action: Action, request: Request, *, required: bool = False
    ) -> Coroutine[Any, Any, CompiledGrant]:
        """Return the grant of the request; see `Authorization.grant`."""
        decision = self._authorization.grant(action, request, self._public_origin(request), required=required)
        return _logged(decision, action, request) if self._hub.settings.log_decisions else decision

    def _public_origin(self, request: Request) -> str:
        """Return the origin of the request's URL.

        Raises `Misdirected` if the settings list public URLs and it is none of them
        (R6).
        """
        origin, allowed = request.origin, self._hub.settings.public_urls
        if allowed and origin not in allowed:
            raise Misdirected(
                f"{shown(origin)} is not a URL of this hub; a proxy in front of it must pass the Host header on, and "
                "send the scheme in X-Forwarded-Proto"
            )
        return origin

    async def _body(self, request: Request, limit: int) -> bytes:
        """Return the body.

        Raises `TooLarge` if it is longer than `limit`, `TooSlow` if it does not arrive
        in time, `Closing` if the hub shuts down, and `InvalidRequest` if the server has
        dropped it.
        """
        if isinstance(request, PlainRequest):
            return await request.body(limit)  # it waits for nothing
        most = self._hub.settings.body_timeout
        async with self._hub.shutdown.until_closing(min(most, BODY_GRACE)) as allow:

            def extend() -> None:
                """Allow more time for what has arrived."""
                allow(min(most, BODY_GRACE + request.arrived / LEAST_BODY_RATE))

            request.progress = extend
            extend()
            try:
                return await request.body(limit) or _no_body(request)
            finally:
                request.progress = None

    # -- the subscription API

    async def subscriptions(self, request: Request) -> Response:
        """Return the subscriptions of all nodes, those of one matcher, or a single one.

        The answer is 304 if the client has the current version.  Raises `NotFound` if
        the path names a subscription that does not exist.
        """
        hub = self._hub
        self._authorization.take_rate(request.address)
        grant = await self._authorize("subscribe", request, required=True)
        path = request.raw_path
        request.logged.subject = grant.subject
        grant.require_read(path)  # still encoded, and without the query (N131, V64)
        asked = parse_subscription_path(path, hub.settings)

        # The path decides the dialect, except for HUB/subscriptions, which is the same
        # in both (V84).  For that path, the client gets the classic dialect if it
        # accepts JSON-LD, or if its token is classic.  A classic token gets the current
        # dialect if the client accepts only plain JSON, as the debugger does.
        accepted = ",".join(value.decode("latin-1") for value in header_values(request.headers, b"accept"))
        classic = asked.classic
        if classic is None:
            asks_for_json = accepted.strip().lower() == "application/json"
            wants_classic = "application/ld+json" in accepted.lower() or (grant.classic and not asks_for_json)
            classic = hub.settings.classic and wants_classic

        cursor, repeated, present = await hub.presence.snapshot()
        single = None
        if asked.subscriber is not None:
            same_id = [subscriber for subscriber in present if subscriber.id == asked.subscriber]
            single = next(filter(None, self._chosen(same_id, asked, classic=classic)), None)
            if single is None:
                raise NotFound("there is no such subscription")

        # If two updates have the cursor's id, it does not identify a version.
        if _is_known(request.headers, cursor) and not repeated:
            response = Response(status_code=304)
        elif single is not None:
            document = single.document(json_ld=classic)
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
        """Yield each subscription of `present`, or None instead if it is not asked for.

        The Nones let the caller pause while it skips many subscriptions.
        """
        for subscriber in present:
            for subscription in subscriber.subscriptions(self._hub.settings.path):
                # A classic collection has only the classic subscriptions.
                if asked.matcher is None:
                    chosen = subscription.is_classic or not classic
                else:
                    chosen = (subscription.match_type, subscription.match) == asked.matcher
                yield subscription if chosen else None

    def _cursor_headers(self, cursor: str, *, classic: bool) -> Headers:
        """Return the headers of a document with this cursor (N135, N136).

        A cursor may be any Unicode, and is sent as UTF-8 (R77).
        """
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

    # -- about the hub

    async def metadata(self, request: Request) -> Response:
        """Return the metadata of the protected resource (RFC 9728).

        Pages of any origin may read it (N156).
        """
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
        """Return 200 if new clients should come here, otherwise 503 (R51).

        It fails if the history does not work, or if the hub is shutting down.
        """
        return _health(await self._hub.health.check())

    async def live(self, request: Request) -> Response:
        """Return 200 if this process works, otherwise 503 (R51).

        It fails only if the history has failed for a minute, because a new process
        would hardly do better.
        """
        return _health(await self._hub.health.check(patient=True))

    async def robots(self, request: Request) -> Response:
        """Return a robots.txt that asks search engines to read nothing here (R27)."""
        return PlainTextResponse("User-agent: *\nDisallow: /\n")

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
                "cookie": settings.cookie,
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


async def _logged(decision: Coroutine[Any, Any, CompiledGrant], action: Action, request: Request) -> CompiledGrant:
    """Return the grant that a decision allows, and log it; a refusal is logged too."""
    grant = await decision
    request.logged.subject = grant.subject
    matchers = grant.publish if action == "publish" else grant.subscribe
    anonymous = {"anonymous": True} if grant is ANONYMOUS else {}
    grants = {"grants": len(matchers), "first_grants": shown_matchers(matchers)}
    log.info("client authorized", action=action, **anonymous, **grants, **grant.token)
    return grant


def _no_body(request: Request) -> bytes:
    """Return the empty body of a request; raise `InvalidRequest` if it was dropped.

    Some servers drop the body of a request that asks for another protocol, instead of
    ignoring that (RFC 9110, 7.8).  The hub's own protocol ignores it.
    """
    if upgrade := header_values(request.headers, b"upgrade"):
        protocol = shown(upgrade[0].decode("latin-1"))
        raise InvalidRequest(
            f"the request has no body, as the server drops it because of Upgrade: {protocol}; start uvicorn with "
            "--http hub.server:HubProtocol, or let the client send HTTP/1.1 without an upgrade"
        )
    return b""


def _log_hints(hints: Iterable[str]) -> None:
    for hint in hints:
        log.warning(hint)


def _health(error: str | None) -> Response:
    """Return the response of a health check that has failed with `error`, if any."""
    if error is not None:
        return JSONResponse({"status": "error", "error": error}, 503, NOT_STORED)
    return JSONResponse({"status": "ok"}, headers=NOT_STORED)


def _cursor(id: str | None) -> Headers:
    """Return the headers with the id of the event before a stream's first one (N107).

    Returns an empty list if `id` is None.  An id may be any Unicode, and is sent as
    UTF-8 (R77).  The second name is the one of the classic dialect (V52).
    """
    if id is None:
        return []
    return [(name, id.encode("utf-8")) for name in (b"mercure-last-event-id", b"last-event-id")]


async def _collection(
    opening: dict[str, str], subscriptions: Iterable[Subscription | None], *, json_ld: bool
) -> AsyncIterator[str]:
    """Yield a JSON object in parts: `opening`, and then the array of `subscriptions`.

    Other tasks run in between, because there may be very many.
    """
    part = [to_json(opening)[:-1], ',"subscriptions":[']
    comma = ""
    async for portion in turns.in_turns(subscriptions, turns.LISTED_SUBSCRIPTIONS):
        for subscription in portion:
            if subscription is not None:
                part.append(comma + to_json(subscription.document(json_ld=json_ld)))
                comma = ","
        if len(portion) == turns.LISTED_SUBSCRIPTIONS:
            yield "".join(part)
            part = []
    yield "".join([*part, "]}"])


def _etag(cursor: str) -> bytes:
    """Return the entity tag of a document with this cursor."""
    escaped = "".join(f"%{byte:02X}" if byte in _ETAG_ESCAPED else chr(byte) for byte in cursor.encode("utf-8"))
    return b'"' + escaped.encode("latin-1") + b'"'


def _is_known(headers: Headers, cursor: str) -> bool:
    """Return whether If-None-Match names the document of this cursor.

    The tag may lack its quotes, as the 0.x hub wrote tags (V63).
    """
    tag = _etag(cursor)
    given = b",".join(header_values(headers, b"if-none-match")).strip()
    # Not split at commas, because a tag may contain them.
    return tag in re.findall(rb'"[^"]*"', given) or given in (tag[1:-1], b"*")
