"""Authorization: what the client of a request may do.

    authorize(request) ─► a Grant                          the application has decided
                       └► None ─┬► the token of the request, if there are keys
                                └► ANONYMOUS, or TokenRequired

Without the function `authorize`, tokens alone decide.

Belongs here: the call of the application's function, and its bounds.  Does not belong
here: tokens (`auth`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest

from hub.auth.grant import ANONYMOUS, Grant
from hub.auth.presented import require_same_site
from hub.delivery.log_lines import shown_matchers
from hub.delivery.subscriber import payer_at
from hub.errors import Misdirected, TokenRequired, Undecided
from hub.http.cors import note_unreadable
from hub.protocol.requests import header_values
from hub.server.begun import Begun
from hub.threads import call_soon
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hub.auth.grant import Action, CompiledGrant
    from hub.http.request import Request
    from hub.hub import Hub

log = structlog.stdlib.get_logger("hub")

Authorize: TypeAlias = Callable[[StarletteRequest], Grant | Awaitable[Grant | None] | None]
"""A function of an application that decides what the client of a request may do."""

THREADS: Final = 16
"""Threads for a function that is not `async`; more calls wait for one of them."""

_BY_THE_BROWSER: Final = frozenset([b"basic", b"digest", b"negotiate", b"ntlm"])
"""Schemes of credentials that a browser adds to requests of any page."""


class Authorization:
    """The decisions of one hub, with the function `authorize` of its application."""

    def __init__(self, hub: Hub, authorize: Authorize | None) -> None:
        self._settings = settings = hub.settings
        self._authorizer = hub.authorizer
        self._admission = hub.admission
        self._observer = hub.observer
        self._clock = hub.delivery.clock
        self._authorize = authorize
        self._is_async = authorize is not None and _is_async(authorize)
        self._threads = ThreadPoolExecutor(THREADS, "hub-authorize")  # it starts none before the first call
        self._idle = asyncio.Semaphore(THREADS)  # the number of threads that are idle
        self._takes_tokens: dict[Action, bool] = {
            "publish": settings.has_keys("publisher"),
            "subscribe": settings.has_keys("subscriber"),
        }

    @property
    def asks(self) -> bool:
        """Whether there is a function to ask."""
        return self._authorize is not None

    def may_allow(self, action: Action) -> bool:
        """Return whether any request could be allowed this action."""
        settings = self._settings
        return self._authorize is not None or (settings.can_publish if action == "publish" else settings.can_subscribe)

    def public_origin(self, request: Request) -> str:
        """Return the origin of the request's URL.

        Raises `Misdirected` if the settings list public URLs and it is none of them
        (R6).
        """
        origin, allowed = request.origin, self._settings.public_urls
        if allowed and origin not in allowed:
            raise Misdirected(
                f"{shown(origin)} is not a URL of this hub; {_cause(request)}; to use the hub at this URL, too, add it "
                "to `public_urls`"
            )
        return origin

    # -- the grants of requests; they raise the errors of `Authorizer.authorize`,
    #    `Undecided` if the application does not decide in time, and any error of its
    #    function

    async def of_publisher(self, request: Request) -> CompiledGrant:
        """Return the grant of a request whose body is read afterwards."""
        origin = self.public_origin(request)
        grant = None
        if self._authorize is None and not self._settings.log_decisions:
            grant = self._authorizer.recent("publish", request.headers, origin=origin)
        if grant is None:
            grant = await self._counted("publish", request)
        request.logged.subject = grant.subject
        return grant

    async def of_subscriber(self, request: Request) -> CompiledGrant:
        """Return the grant of a request for a stream.

        If its page cannot read the stream, that is logged: its client is known now.
        """
        if self._authorize is not None:
            with self._admission.asking(request.address):
                grant = await self._decided("subscribe", request)
        elif request.method == "QUERY":
            grant = await self._counted("subscribe", request)
        else:
            grant = await self._decided("subscribe", request)
        request.logged.subject = grant.subject
        note_unreadable(request, self._settings, self._observer)
        return grant

    async def of_reader(self, request: Request, *, required: bool = False) -> CompiledGrant:
        """Return the grant of a request that reads something else.

        If it is `required`, it is not ANONYMOUS.  Raises `LimitExceeded` if the
        application is to be asked, and the address asks too often.
        """
        if self._authorize is not None:
            self._admission.take_rate(payer_at(request.address))
        grant = await self._decided("subscribe", request, required=required)
        request.logged.subject = grant.subject
        return grant

    async def _counted(self, action: Action, request: Request) -> CompiledGrant:
        """Return the grant of a request, which counts as long as it waits.

        While its token waits for keys, or for the application, nobody knows its client.
        So it counts as one without a token, which the kept part is not for.
        """
        if self._authorize is not None:
            with self._admission.request(payer_at(request.address, True)):
                return await self._decided(action, request)
        begun = Begun(self._decided(action, request))
        if begun.has_ended:
            return begun.result
        with self._admission.request(payer_at(request.address, True)):
            return await begun

    async def _decided(self, action: Action, request: Request, *, required: bool = False) -> CompiledGrant:
        """Return what the client of a request may do, and log it if that is wanted."""
        origin = self.public_origin(request)
        if self._authorize is None:
            grant = await self._by_token(action, request, origin, required=required)
        else:
            grant = await self._by_function(self._authorize, action, request, origin, required=required)
        if self._settings.log_decisions:
            request.logged.subject = grant.subject
            matchers = grant.publish if action == "publish" else grant.subscribe
            anonymous = {"anonymous": True} if grant is ANONYMOUS else {}
            grants = {"grants": len(matchers), "first_grants": shown_matchers(matchers)}
            log.info("client authorized", action=action, **anonymous, **grants, **grant.token)
        return grant

    def _by_token(
        self, action: Action, request: Request, origin: str, *, required: bool
    ) -> Coroutine[Any, Any, CompiledGrant]:
        return self._authorizer.authorize(action, request.headers, request.tokens, origin=origin, required=required)

    async def _by_function(
        self, authorize: Authorize, action: Action, request: Request, origin: str, *, required: bool
    ) -> CompiledGrant:
        settings = self._settings
        grant = await self._ask(authorize, request)
        if grant is not None:
            if action == "publish" and not _is_no_page(request):
                own = (origin, *settings.public_urls)
                require_same_site(request.headers, own, settings.publish_origins, "with a session")
            return await self._authorizer.compiled(grant)
        if self._takes_tokens[action]:
            return await self._by_token(action, request, origin, required=required)
        if action == "subscribe" and settings.anonymous and not required:
            return ANONYMOUS
        raise TokenRequired(f"the application does not know this client, which must be known to {action}")

    async def _ask(self, authorize: Authorize, request: Request) -> Grant | None:
        """Return the decision of the application about a request.

        The function gets the request without its body, and without the tokens of its
        query.
        """
        seconds = self._settings.authorize_timeout
        began = self._clock()
        try:
            async with asyncio.timeout(seconds) as timeout:
                grant = await self._call(authorize, StarletteRequest(request.scope))
        except HTTPException as error:
            raise RuntimeError("authorize raised an HTTPException: it must return None, or a Grant") from error
        except TimeoutError:
            if not timeout.expired():
                raise  # it is the function's own
            raise Undecided(f"authorize has not returned within {seconds:g} s (authorize_timeout)") from None
        finally:
            self._observer.decided(self._clock() - began)
        if grant is not None and not isinstance(grant, Grant):
            raise TypeError(f"authorize returned a {type(grant).__name__}: it must return a Grant or None")
        return grant

    async def _call(self, authorize: Authorize, request: StarletteRequest) -> object:
        result = authorize(request) if self._is_async else await self._call_in_thread(authorize, request)
        return await result if inspect.isawaitable(result) else result

    async def _call_in_thread(self, authorize: Authorize, request: StarletteRequest) -> object:
        """Call the function in a thread, as soon as one is idle.

        A thread that the function does not leave stays busy, also after the time limit.
        """
        await self._idle.acquire()
        loop = asyncio.get_running_loop()
        call = self._threads.submit(contextvars.copy_context().run, _checked, authorize, request)
        call.add_done_callback(lambda _: call_soon(loop, self._idle.release))
        return await asyncio.wrap_future(call)

    def close(self) -> None:
        """End the threads of calls that are over."""
        self._threads.shutdown(wait=False)


def _checked(authorize: Authorize, request: StarletteRequest) -> object:
    """Call the function; a StopIteration could not leave the future of a thread."""
    try:
        return authorize(request)
    except StopIteration as error:
        raise RuntimeError("authorize raised StopIteration") from error


def _is_async(function: Authorize) -> bool:
    """Return whether a function, or an object that is called like one, is async."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _is_no_page(request: Request) -> bool:
    """Return whether no page of another site can have made a request that publishes.

    A browser names the origin of the page.  If it does not, a page cannot have added
    an Authorization header, unless the browser itself adds it.
    """
    given = header_values(request.headers, b"authorization")
    scheme = given[0].strip().partition(b" ")[0].lower() if given else b""
    return bool(scheme) and scheme not in _BY_THE_BROWSER and not header_values(request.headers, b"origin")


def _cause(request: Request) -> str:
    """Return why a request may have another origin than its client wrote."""
    for value in header_values(request.headers, b"x-forwarded-proto")[-1:]:
        scheme = value.decode("latin-1")
        if not request.origin.startswith(f"{scheme}://"):
            return (
                f"the server does not take X-Forwarded-Proto: {shown(scheme)}, which must be http or https alone, and "
                "from an address in FORWARDED_ALLOW_IPS"
            )
    return "a proxy in front of it must pass the Host header on, and send the scheme in X-Forwarded-Proto"
