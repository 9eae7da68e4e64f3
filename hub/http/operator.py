"""Operator: commands over HTTP on listeners of their own, never the public one (R89).

    POST /kick      {"subject": "42"}                     end streams now
    POST /revoke    {"subject": "42", "issuer": "…"}      refuse tokens, too
    POST /lift      {"subject": "42"}                     accept them again

    200  {"ended": {"classic": 2}, "silent": [], "stored": true, "not_revoked": 0}

    POST /revocations  {}                                 which are in force

    200  {"revocations": [{"subject": "42", "before": "2026-…", …}]}

    POST /connections  {"after": "urn:uuid:…"}            who is connected
    POST /explain      {"update": "urn:uuid:…"}           why it did not arrive
    POST /top          {}                                 how busy the hub is

    200  {"connections": [{"subscriber": …}], "next": "urn:uuid:…", "silent": []}
    200  {"sentence": "…", "update": {"topics": […]}, "subscribers": […], …}

Subjects are in the body, so that no log of URLs has them.  Over the Unix socket, the
permissions of the file decide.  Over TCP, the operator's key must be in the header
`Authorization: Bearer …`, and an address that has sent MOST_FAILURES wrong ones in
FAILURE_SECONDS is refused.  There is no CORS, and a body must be JSON, so no page can
give a command.

Belongs here: the form of requests and answers, and who may send them.  Does not belong
here: what a command does (`hub.node.control`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_args

import structlog
import uvicorn
from cachetools import TTLCache
from starlette.responses import JSONResponse, Response
from uvicorn.server import ServerState

from hub.control.commands import By
from hub.errors import ConfigurationError, InvalidRequest, RequestError
from hub.http import problems
from hub.http.request import TOKENS, Request
from hub.node.top import merge
from hub.protocol.requests import content_type, header_values
from hub.server.http1 import HttpProtocol
from hub.server.open_connections import CONNECTIONS, Connections
from hub.server.private_socket import InUse, listen_privately
from hub.settings.settings import SERVER_DEFAULTS
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from hub.control.commands import Action
    from hub.hub import Hub
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")

MAX_BODY: Final = 2**16
"""Bytes in the body of a request, at most."""
BODY_SECONDS: Final = 5.0
"""Seconds that a body may take."""
MAX_HEAD: Final = 2**14
"""Bytes in the head of a request, at most."""
MOST_CONNECTIONS: Final = 100
"""Open connections, at most; a further one ends the one that has been idle longest."""
MOST_FAILURES: Final = 10
"""Wrong keys of one address in FAILURE_SECONDS before it is refused without a look."""
FAILURE_SECONDS: Final = 60.0
TOP_SECONDS: Final = 1.0
"""Seconds for which all who look at `/top` get the same answer."""
_MOST_ADDRESSES: Final = 1_000
_BACKLOG: Final = 128
JSON: Final = "application/json"
NOT_STORED: Final = {"Cache-Control": "no-store"}
_FIELDS: Final = frozenset([*get_args(By), "issuer"])


class OperatorListeners(NamedTuple):
    """The sockets on which commands come."""

    sockets: tuple[tuple[socket.socket, bool], ...]
    """Each with whether the operator's key is needed."""
    close: Callable[[], None]
    """Closes them."""

    @classmethod
    def open(cls, settings: Settings) -> OperatorListeners:
        """Listen where the settings say.

        If another process listens on the default socket, or it cannot be made there,
        there is none.  Raises ConfigurationError if what is set cannot be opened.
        """
        sockets: list[tuple[socket.socket, bool]] = []
        with ExitStack() as opened:
            if path := settings.operator_socket:
                try:
                    private, remove = listen_privately(path)
                except OSError as error:
                    reason = str(error) if isinstance(error, InUse | FileExistsError) else error.strerror or str(error)
                    if path != SERVER_DEFAULTS["operator_socket"]:
                        raise ConfigurationError(f"operator_socket: {path}: {reason}") from None
                    log.warning("no socket for commands", path=path, reason=reason)
                else:
                    opened.callback(private.close)
                    opened.callback(remove)
                    sockets.append((private, False))
            if settings.operator_port is not None:
                try:
                    address = (settings.operator_host, settings.operator_port)
                    family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
                    public = socket.create_server(address, family=family, backlog=_BACKLOG)
                except (OSError, UnicodeError) as error:
                    where = f"{settings.operator_host} port {settings.operator_port}"
                    reason = getattr(error, "strerror", None) or str(error)
                    raise ConfigurationError(f"operator_port: cannot listen on {where}: {reason}") from None
                opened.callback(public.close)
                sockets.append((public, True))
            kept = opened.pop_all()
        return cls(tuple(sockets), kept.close)

    @property
    def url(self) -> str:
        """The URL of the listener over TCP, or ""."""
        for one, needs_key in self.sockets:
            if needs_key:
                host, port = one.getsockname()[:2]
                return f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return ""


class _Refused(Exception):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, title: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.title = status, title
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Operator:
    """What answers the operator of one hub."""

    def __init__(self, hub: Hub, key: bytes) -> None:
        self.key = key
        """The operator's key; it changes when the keys are read again."""
        self._hub = hub
        self._failures: TTLCache[str, int] = TTLCache(_MOST_ADDRESSES, FAILURE_SECONDS, timer=hub.delivery.clock)
        self._looking = asyncio.Lock()
        self._top_of: TTLCache[str, dict[str, Any]] = TTLCache(1, TOP_SECONDS, timer=hub.delivery.clock)
        self._answers: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "/kick": partial(self._command, "kick"),
            "/revoke": partial(self._command, "revoke"),
            "/lift": partial(self._command, "lift"),
            "/revocations": self._revocations,
            "/connections": self._list,
            "/explain": self._explain,
            "/top": self._top,
        }

    @asynccontextmanager
    async def serving(self, listeners: OperatorListeners) -> AsyncIterator[None]:
        """Serve on the listeners inside of the context; they stay open."""
        loop, state = asyncio.get_running_loop(), ServerState()
        shared = {CONNECTIONS: Connections(max_head=MAX_HEAD, limit=MOST_CONNECTIONS)}
        async with AsyncExitStack() as stack:
            for listener, needs_key in listeners.sockets:
                app = partial(self._answer, needs_key)
                config = uvicorn.Config(
                    app, interface="asgi3", lifespan="off", log_config=None, proxy_headers=False, server_header=False
                )
                config.load()
                protocol = partial(HttpProtocol, config, state, shared)
                # A duplicate, because the server closes what it gets.
                server = await loop.create_server(protocol, sock=listener.dup())
                stack.callback(server.close)
            try:
                yield
            finally:
                await stack.aclose()
                for connection in list(state.connections):
                    cast("Any", connection).transport.abort()
                if state.tasks:
                    await asyncio.wait(state.tasks, timeout=BODY_SECONDS)

    async def _answer(self, needs_key: bool, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request({**scope, TOKENS: ()}, receive, send)
        try:
            if needs_key:
                self._require_key(request)
            response: Response = JSONResponse(await self._result(request), headers=NOT_STORED)
        except (_Refused, RequestError) as error:
            log.info("command refused", status=error.status, reason=str(error), address=request.address or "the socket")
            response = problems.problem(error.status, error.title, str(error), dict(error.headers))
        except Exception:
            log.exception("a command failed")
            response = problems.problem(500, "Internal server error", "the hub's log says why", {})
        await response(scope, receive, send)

    def _require_key(self, request: Request) -> None:
        """Refuse a request without the operator's key.

        All of it is compared, in a time that says nothing about it.  An address that
        has sent too many wrong ones is refused without a comparison.
        """
        address = request.address
        failures = self._failures.get(address, 0)
        if failures >= MOST_FAILURES:
            wait = f"{FAILURE_SECONDS:.0f}"
            raise _Refused(429, "Too many wrong keys", f"wait {wait} seconds", Retry_After=wait)
        given = header_values(request.headers, b"authorization")
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        is_right = hmac.compare_digest(key.strip(), self.key)
        if not (is_right and self.key and scheme.lower() == b"bearer"):
            self._failures[address] = failures + 1
            log.warning("a command with a wrong key", address=address)
            raise _Refused(401, "Wrong key", "the operator's key is needed", WWW_Authenticate="Bearer")

    async def _result(self, request: Request) -> Any:
        """Do what a request asks for, and return what is answered."""
        path = request.scope["path"]
        if path not in self._answers:
            raise _Refused(404, "Not found", f"the paths are {', '.join(self._answers)}")
        if request.method != "POST":
            raise _Refused(405, "Method not allowed", "the method of each path is POST", Allow="POST")
        if content_type(request.headers) != JSON:
            raise _Refused(415, "Unsupported content", f"the body must be {JSON}", Accept_Post=JSON)
        body = await request.body(MAX_BODY, self._hub.shutdown.until_closing, BODY_SECONDS)
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise InvalidRequest('the body must be an object of JSON, as in {"subject": "42"}')
        tell = log.debug if path == "/top" else log.info  # that one comes every second or two
        tell("the operator gives a command", path=path, address=request.address or "the socket")
        return await self._answers[path](given)

    async def _command(self, action: Action, given: dict[str, Any]) -> dict[str, Any]:
        """Give a command to all processes, and return what it has done."""
        _require_texts(given, _FIELDS)
        outcome = await self._hub.control.give(action, **given)
        return {
            "ended": dict(outcome.ended),
            "silent": list(outcome.silent),
            "stored": outcome.is_stored,
            "not_revoked": outcome.not_revoked if action == "revoke" else 0,
        }

    async def _revocations(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the revocations in force."""
        _require_texts(given, frozenset())
        return {"revocations": self._hub.control.revocations()}

    async def _list(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the connections of all processes."""
        _require_texts(given, _FIELDS | {"after"})
        return (await self._hub.control.connected(**given))._asdict()

    async def _explain(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what became of an update, or would become of one."""
        topics, private = given.pop("topics", []), given.pop("private", False)
        if not (isinstance(topics, list) and all(isinstance(topic, str) for topic in topics)):
            raise InvalidRequest("topics must be an array of strings")
        if not isinstance(private, bool):
            raise InvalidRequest("private must be true or false")
        _require_texts(given, _FIELDS | {"update", "stream", "token"})
        return (await self._hub.explaining.explain(topics, private=private, **given))._asdict()

    async def _top(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return how busy the processes are."""
        _require_texts(given, frozenset())
        async with self._looking:  # many that look ask once
            if (found := self._top_of.get("")) is None:
                found = self._top_of[""] = merge(*await self._hub.control.ask("top", ""))._asdict()
            return found


def _require_texts(given: dict[str, Any], allowed: frozenset[str]) -> None:
    """Raise `InvalidRequest` unless all members of an object are allowed strings."""
    if unknown := given.keys() - allowed:
        raise InvalidRequest(f"{shown(min(unknown))} is none of {', '.join(sorted(allowed))}")
    if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
        raise InvalidRequest(f"{wrong[0]} must be a string")
