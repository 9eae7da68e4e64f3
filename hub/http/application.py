"""The ASGI application of a hub.

`create_app` is the only function that wires the parts of a hub together.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import CancelledError, wait
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from hub.auth.signing import token_command
from hub.delivery.subscriber import payer_at
from hub.errors import Closing, ConfigurationError, InvalidRequest, LimitExceeded, NotRunning, RequestError
from hub.history import open_history
from hub.http import problems
from hub.http.authorization import Authorization
from hub.http.cors import Cors, cors
from hub.http.endpoints import Endpoints
from hub.http.gauges import gauges
from hub.http.request import TOKENS, PlainRequest, Request
from hub.http.response import SERVER_SEND
from hub.hub import Hub
from hub.logs import configure_log, current_request, log_beside_uvicorn
from hub.metrics.board import Board
from hub.metrics.recorder import Recorder
from hub.node.shutdown import before_signals
from hub.protocol.requests import selectors_of, take_tokens
from hub.protocol.updates import Update, require_updates
from hub.server.http1 import lines_of
from hub.server.open_connections import CONNECTIONS, Connections
from hub.settings.sources import Sources
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Unpack

    from starlette.requests import Request as StarletteRequest
    from starlette.types import Message, Receive, Scope, Send

    from hub.history.base import History
    from hub.http.authorization import Authorize
    from hub.http.request import Answer
    from hub.metrics.board import Slot
    from hub.protocol.data import Data, Matchers
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


KEYS_FAILED: Final = "the keys cannot be read again, so those before count"

_SECURITY_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
"""Headers that are added to every response (R24)."""


class HubApplication:
    """A hub as an ASGI application, on its own or mounted in another application.

    Routes are compared with the full path of a request, so if the hub is mounted, its
    path in the settings must include the path of the mount.  Publish and subscribe
    requests are answered directly; all others go through Starlette's router.

    The program around the hub publishes and subscribes with its methods, without HTTP
    and without a token.
    """

    def __init__(self, hub: Hub, authorize: Authorize | None = None, slot: Slot | None = None) -> None:
        self.hub = hub
        self._connections: Connections | None = None  # those of the hub's own protocol
        self.metrics_url = ""
        """Where the metrics of this process are served; "" if they are not."""
        self.listener_is_tuned = False
        """Whether the server's connections have their time-outs from its listener."""
        self._slot = slot
        if slot is not None:
            self._record(slot)
        self._authorization = Authorization(hub, authorize)
        self._has_reported = False  # that its path lacks that of its mount
        self._loop: asyncio.AbstractEventLoop | None = None  # while the hub runs
        self._read_again: Callable[[], Sources] | None = None  # reads the keys; None if that is not wanted
        self._reading: asyncio.Task[None] | None = None
        self._endpoints = endpoints = Endpoints(hub, self._authorization)
        self._health_checks = frozenset(endpoints.health_checks())
        self._methods = endpoints.by_method()  # method -> endpoint, for the hub's own path
        self._cors = cors(hub.settings)
        self._router = Starlette(
            routes=endpoints.routes(),
            exception_handlers={RequestError: self._refuse, HTTPException: self._refuse},
            lifespan=self._lifespan,
        )
        # A path with an extra slash gets 404.  A redirect would lead to whatever host
        # the Host header names.
        self._router.router.redirect_slashes = False
        self.state = self._router.state  # Starlette's application state; `state.hub` is the hub
        self.state.hub = hub

    # -- for the program around the hub

    async def publish(
        self,
        *topics: str,
        data: Data = "",
        private: bool = False,
        id: str | None = None,
        type: str | None = None,
        retry: int | None = None,
    ) -> str:
        """Publish one update, and return its id.

        The first topic is the canonical one; `retry` is in ms.  A dict or list as data
        becomes compact JSON.  Raises TypeError for data of another type, and the errors
        of `Hub.publish`: `InvalidRequest` if the update breaks a rule, `NotRunning`,
        `Closing`, and `HistoryUnavailable`.
        """
        update = Update(topics, data, private, id, type, retry)
        await self.hub.publish(update)
        return update.id

    async def publish_many(self, updates: Iterable[Update]) -> list[str]:
        """Publish updates in one step, all or none, and return their ids.

        Raises the errors of `publish`, and `TooLarge` if there are too many.
        """
        together = list(updates)
        require_updates(together)
        await self.hub.publish(*together)
        return [update.id for update in together]

    def publish_sync(
        self,
        *topics: str,
        data: Data = "",
        private: bool = False,
        id: str | None = None,
        type: str | None = None,
        retry: int | None = None,
    ) -> str:
        """Publish one update from another thread of this process, and return its id.

        Frameworks run views that are not `async` in such threads.  Waits until the
        history has the update.  Raises RuntimeError in the thread of the hub's event
        loop, which it would block, and the errors of `publish`.  If it raises
        `Closing`, the update may have been published.
        """
        loop = self._loop
        if loop is None:
            raise NotRunning
        if _runs_here(loop):
            raise RuntimeError("publish_sync would block the event loop of the hub: here, use `await publish(…)`")
        update = self.publish(*topics, data=data, private=private, id=id, type=type, retry=retry)
        try:
            published = asyncio.run_coroutine_threadsafe(update, loop)
        except RuntimeError:  # the loop is closed
            update.close()
            raise NotRunning from None
        while not wait([published], timeout=1).done:
            if loop.is_closed() and not published.done():  # nothing will ever end it
                update.close()
                raise Closing
        try:
            return published.result()
        except CancelledError:  # the loop was closed meanwhile
            raise Closing from None

    def subscribe(
        self, *topics: str, last_event_id: str | None = None, wait: bool = True, **matchers: Unpack[Matchers]
    ) -> AsyncGenerator[Update, None]:
        """Return an iterator over the updates that match any of `topics` or `matchers`.

        Private updates are among them.  A topic is an exact one or a URI template; the
        name of a matcher is that of a parameter, as in `match_mqtt="sensors/#"`.

        The iterator begins after the update with the id `last_event_id`, or with the
        oldest one for "earliest".  Without an id, it begins with the first update that
        is published after this call.  It ends when the hub shuts down or, if `wait` is
        false, when it has read all that the history has.

        Raises `InvalidRequest` if a pattern is invalid, and `NotRunning`.  The
        iteration raises `PositionExpired` if the program is so slow that the history
        has forgotten updates before they were read.
        """
        return self.hub.read(selectors_of(topics, matchers), last_event_id, waits=wait)

    def read_keys_soon(self, read_again: Callable[[], Sources]) -> None:
        """Take the keys of the sources that `read_again` returns, in a moment.

        May be called from a signal handler, also before the hub runs.  Logs the result.
        """
        self._read_again = read_again
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reading)

    def _begin_reading(self) -> None:
        """Read the keys, unless they are being read: then they are read once more."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_keys())

    async def _read_keys(self) -> None:
        while (read_again := self._read_again) is not None:
            self._read_again = None
            try:
                await self._take_keys(await asyncio.to_thread(read_again))
            except ConfigurationError as error:
                log.error(KEYS_FAILED, reason=str(error))
            except Exception:
                log.exception(KEYS_FAILED)

    async def _take_keys(self, sources: Sources) -> None:
        settings = self.hub.settings
        with sources.named():
            new = sources.settings()
            settings.require_same_roles(new)
            await self.hub.authorizer.take_keys(new)
        self.hub.settings = settings.with_keys_of(new)
        log.info("the keys were read again")
        if new.max_connections > settings.max_connections:  # the limit of open files has reduced it
            new = new.model_copy(update={"max_connections": settings.max_connections})
        if changed := settings.other_changes(new):
            log.warning("other settings have changed: they count after a restart", settings=", ".join(changed))

    # -- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        if scope["type"] == "http":
            # The frames that make objects for the request have ended before the answer
            # begins, because a stream may stay open for a long time.
            try:
                await (await self._answer(scope, receive, send))()
            finally:
                current_request.set(None)  # the task may be that of a program, and go on
            return
        if scope["type"] == "lifespan" and "state" in scope:
            # uvicorn passes this state to the protocol of each connection.
            settings = self.hub.settings
            scope["state"][CONNECTIONS] = self._connections = Connections(
                max_header_fields=settings.max_header_fields,
                max_head=settings.max_head,
                refused=self.hub.observer.refused,
                publisher=self._publisher(),
                are_tuned=self.listener_is_tuned,
            )
        await self._router(scope, receive, partial(_send_reason, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer:
        """Return the answer to a request.

        An unexpected error of an endpoint is answered with 500 and raised again, so
        that the server logs it (R24).
        """
        # 1. Take the tokens out of the query first, and out of the server's own scope:
        #    the server writes that query to its access log.
        tokens: tuple[str, ...] = ()
        if scope["query_string"]:
            scope["query_string"], tokens = take_tokens(scope["query_string"])
        if not self.hub.is_running:
            raise NotRunning
        settings, add_cors = self.hub.settings, None
        # 2. CORS: answer a preflight request, or add headers to the response.
        preflight = None
        if self._cors is not None:
            headers = Headers(scope=scope)
            add_cors = partial(self._cors.send, request_headers=headers)
            if scope["method"] == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers:
                preflight, add_cors = self._cors.preflight_response(headers), None
        own = {**scope, "root_path": "", SERVER_SEND: send, TOKENS: tokens}
        request = Request(own, receive, partial(_send_with_headers, send, add_cors))
        current_request.set(request.logged)
        if preflight is not None:
            if preflight.status_code >= 400:
                log.info("request refused by CORS: `cors_origins` does not allow it", status=preflight.status_code)
                self.hub.observer.refused("cors")
            return request.answer(preflight)
        # 3. The target * is the server as a whole, of which there is only one thing to
        #    know: it answers (RFC 9110, 7.1 and 9.3.7).
        if scope["path"] == "*":
            return request.answer(_asterisk(request.method))
        # 4. Everything but publishing and subscribing goes through the router.
        if scope["path"] != settings.path or request.method not in self._methods:
            if path := _path_to_set(scope, settings):
                return request.answer(self._report_mount(path))
            return partial(self._route, request)
        # 5. Publish and subscribe requests.
        try:
            try:
                return await self._methods[request.method](request)
            except RequestError as error:
                return request.answer(problems.respond(error, request, self.hub))
        except Exception:
            self.hub.observer.refused("internal_server_error")
            await request.answer(PlainTextResponse("Internal Server Error", 500))()
            raise

    def _publisher(self) -> PlainPublisher | None:
        """Return what answers plain requests to publish, if there are any."""
        if "POST" not in self._methods or self._authorization.asks:
            return None
        return PlainPublisher(self, self._endpoints.publish, self._cors)

    def _report_mount(self, path: str) -> Response:
        """Log that the hub's path lacks that of its mount, and return the response."""
        detail = f"the hub is mounted in an application, so its path must be the whole one: Settings(path={path!r})"
        if not self._has_reported:
            self._has_reported = True
            log.error(detail)
        return problems.problem(404, "Not found", detail, {})

    async def _route(self, request: Request) -> None:
        """Let the router answer a request, which counts until it is answered.

        Health checks do not count, so that a hub with many requests is not taken for a
        broken one.
        """
        counted: AbstractContextManager[None] = nullcontext()
        if request.scope["path"] not in self._health_checks:
            counted = self.hub.shares.requests.taken(payer_at(request.address, True))
        try:
            with counted:
                await request.answer(self._router)()
        except LimitExceeded as error:  # never from the router, which answers its own
            await request.answer(problems.respond(error, request, self.hub))()
        except Exception:  # the router has answered
            self.hub.observer.refused("internal_server_error")
            raise

    def _refuse(self, request: StarletteRequest, error: Exception) -> Response:
        assert isinstance(error, RequestError | HTTPException)
        return problems.respond(error, Request.of(request), self.hub)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.running():
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hub while the context is entered, as the application's lifespan does.

        Enter it in the lifespan of an outer application if the hub is mounted in one:
        the lifespan of a mounted application is not called.

        In the main thread, SIGINT and SIGTERM first begin to end the hub's streams, and
        then go to the handler that was installed before.  Without this, a server would
        wait indefinitely at shutdown, because an event stream does not end by itself.
        """
        try:
            with self._metrics():
                async with self.hub.running():
                    self._loop = asyncio.get_running_loop()
                    if self._read_again is not None:
                        self._begin_reading()
                    with before_signals(self.hub.shutdown.begin):
                        yield
        finally:
            self._loop = None
            self._authorization.close()

    def _record(self, slot: Slot) -> None:
        self.hub.observe(Recorder(slot, lambda: gauges(self.hub, self._connections)))

    @contextmanager
    def _metrics(self) -> Iterator[None]:
        """Count and serve metrics inside of the context, if this process alone does.

        If they cannot be served, the hub works without them.
        """
        settings = self.hub.settings
        if settings.metrics_port is None or self._slot is not None or not _may_serve_metrics():
            yield
            return
        from hub.metrics.server import MetricsServer

        with closing(Board()) as board:
            try:
                server = MetricsServer(board, settings.metrics_host, settings.metrics_port)
            except OSError as error:
                log.error("no metrics", reason=str(error))
                yield
                return
            with closing(server):
                self._record(board.slots[0])
                self.metrics_url = server.url
                log.info("metrics are served", url=server.url)
                server.start()
                yield


class PlainPublisher:
    """Answers plain requests to publish; see `hub.server.open_connections.Publisher`.

    There are none if the application has a function `authorize`, because that gets a
    request of ASGI.
    """

    def __init__(
        self, app: HubApplication, publish: Callable[[Request], Awaitable[Response]], cors: Cors | None
    ) -> None:
        self.target = app.hub.settings.path.encode("utf-8")
        fields = [*_SECURITY_HEADERS, *([] if cors is None else [(b"vary", b"Origin")])]
        self.fields = lines_of(fields)  # those of a response to a request without an Origin
        # A history with time limits needs a task; a program's own may not say it.
        self.needs_task: bool = getattr(app.hub.history, "has_time_limits", True)
        self._app = app
        self._publish = publish

    def is_whole(self, app: object) -> bool:
        """Return whether an application of a server is the hub's own."""
        return app is self._app

    async def answer(self, scope: Scope, body: bytes) -> Response:
        """Answer a request.  Raises `NotRunning`, and unexpected errors."""
        hub = self._app.hub
        if not hub.is_running:
            raise NotRunning
        scope[TOKENS] = ()
        request = PlainRequest(scope, body)
        current_request.set(request.logged)
        try:
            try:
                return await self._publish(request)
            except RequestError as error:
                return problems.respond(error, request, hub)
        except Exception:
            hub.observer.refused("internal_server_error")
            raise


def create_app(
    settings: Settings, *, authorize: Authorize | None = None, history: History | None = None
) -> HubApplication:
    """Return the ASGI application of one hub, for a program that contains it.

    `authorize` is a function of the program, async or not, that takes a Starlette
    request without its body.  It returns a `Grant`, or None if it does not know the
    client: then tokens count, if the settings have keys for them, and else the client
    is anonymous or gets 401.  It is called for each request to publish, to subscribe
    or to list subscriptions.  An error that it raises is a 500.

    Updates are stored in `history`; if it is None, in the history that the settings
    name.  A process may have several applications.  The server must run the
    application's lifespan, or an outer application must enter `running()`.

    Raises `ConfigurationError` if a key does not fit, if a package is missing, or if
    nobody could subscribe.
    """
    configure_log(settings.log_format, with_clients=settings.log_clients)
    _warn_of_development(settings)
    if not (authorize is None or callable(authorize)):
        raise TypeError(f"authorize={authorize!r:.80} is no function")
    if authorize is None:
        settings.require_subscribers()
    if history is None:
        history = open_history(settings.history_url, settings.retention)
    return HubApplication(Hub(settings, history), authorize)


def server_app(settings: Settings, slot: Slot | None = None) -> HubApplication:
    """Return the application of a hub that a server serves alone.

    `slot` takes its metrics; if it is None, the application serves them itself, if the
    settings have a port for them.

    Raises `ConfigurationError` as `create_app` does, and if nobody could publish.
    """
    settings.require_publishers()
    settings.require_subscribers()
    return HubApplication(Hub(settings, open_history(settings.history_url, settings.retention)), slot=slot)


def _warn_of_development(settings: Settings) -> None:
    if settings.has_well_known_keys:
        log.warning("DEVELOPMENT MODE: the keys are public, so anyone can publish")
    elif settings.dev:
        # The default address: the server's own is not known yet.
        origin = (settings.public_urls or ("http://localhost:3000",))[0]
        log.warning("DEVELOPMENT MODE, with the keys that were set", to_sign_a_token=token_command(settings, origin))


def app_from_environment() -> HubApplication:
    """Return the application that `uvicorn hub:app` serves.

    Its settings come from the environment.  If they are invalid, prints one sentence to
    stderr and exits with status 2.
    """
    try:
        sources = Sources()
        with sources.named():
            settings = sources.settings()
            log_beside_uvicorn(settings.log_format, with_clients=settings.log_clients)
            sources.report()
            _warn_of_development(settings)
            return server_app(settings)
    except ConfigurationError as error:
        print(f"hub: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _may_serve_metrics() -> bool:
    """Return whether this process alone serves the hub, as far as it can know.

    Each of the workers of uvicorn would serve its own numbers, and only one of them
    could have the port.
    """
    import multiprocessing

    if multiprocessing.parent_process() is None:
        return True
    log.warning(
        "no metrics: this process is a worker of another server, which cannot add up the numbers of all; "
        "`skipfilter serve --workers` can"
    )
    return False


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether an event loop runs in the present thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _path_to_set(scope: Scope, settings: Settings) -> str:
    """Return the path that the settings of a mounted hub lack, or "".

    It is the path of the request, if the path in the settings does not begin with that
    of the mount.
    """
    mount, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if not mount or path != mount + settings.path or path == settings.metadata_path:
        return ""
    return "" if settings.path.startswith(mount + "/") else path


def _asterisk(method: str) -> Response:
    """Return the response to a request for the target *, which is for OPTIONS only."""
    if method == "OPTIONS":
        return Response(status_code=204)
    return problems.problem(400, InvalidRequest.title, f"the target * is for OPTIONS, not for {shown(method)}", {})


async def _send_reason(send: Send, message: Message) -> None:
    """Forward a lifespan message; one sentence for invalid settings, no traceback."""
    if message["type"] == "lifespan.startup.failed" and isinstance(error := sys.exception(), ConfigurationError):
        message = {**message, "message": f"hub: {error}"}
    await send(message)


async def _send_with_headers(send: Send, cors: Callable[..., Awaitable[None]] | None, message: Message) -> None:
    """Send a message; add the common headers if it is the start of a response."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
        if cors is not None:
            await cors(message, send=send)
            return
    await send(message)
