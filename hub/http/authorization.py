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
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest

from hub.auth.grant import ANONYMOUS, CompiledGrant, Grant
from hub.auth.presented import require_same_site
from hub.delivery.subscriber import payer_at
from hub.errors import Full, LimitExceeded, NotAsked, TokenRequired, Undecided
from hub.protocol.requests import header_values
from hub.threads import call_soon

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from hub.auth.grant import Action
    from hub.delivery.subscriber import Payer
    from hub.http.request import Request
    from hub.hub import Hub

Authorize: TypeAlias = Callable[[StarletteRequest], Grant | Awaitable[Grant | None] | None]
"""A function of an application that decides what the client of a request may do."""

THREADS: Final = 16
"""Threads for a function that is not `async`; more calls wait for one of them."""

_BY_THE_BROWSER: Final = frozenset([b"basic", b"digest", b"negotiate", b"ntlm"])
"""Schemes of credentials that a browser adds to requests of any page."""


class Authorization:
    """The decisions of one hub, with the function `authorize` of its application."""

    def __init__(self, hub: Hub, authorize: Authorize | None) -> None:
        self._hub = hub
        self._authorize = authorize
        self._is_async = authorize is not None and _is_async(authorize)
        self._threads = ThreadPoolExecutor(THREADS, "hub-authorize")  # it starts none before the first call
        self._idle = asyncio.Semaphore(THREADS)  # the number of threads that are idle
        settings = hub.settings
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
        settings = self._hub.settings
        return self._authorize is not None or (settings.can_publish if action == "publish" else settings.can_subscribe)

    def take_rate(self, address: str) -> None:
        """Use the rate of an address, if the application is to be asked.

        Raises `LimitExceeded` if the address connects too often.
        """
        if self._authorize is not None:
            self._hub.admission.take_rate(payer_at(address))

    @contextmanager
    def bounded(self, address: str) -> Iterator[Payer]:
        """Bound how often, and how often at a time, an address has the application
        asked about a stream, which happens inside of the context.

        Yields the client whose rate is used.

        Raises `LimitExceeded` if the address connects too often, `NotAsked` if it has
        more than its share of the requests in progress, and `Undecided` if there are
        too many.
        """
        client, requests = payer_at(address, True), self._hub.shares.requests
        self.take_rate(address)
        try:
            requests.take(client)
        except LimitExceeded as error:
            kind = Undecided if isinstance(error, Full) else NotAsked
            raise kind(f"authorize was not called: {error}") from None
        try:
            yield client
        finally:
            requests.give_back(client)

    def recent(self, action: Action, request: Request, origin: str) -> CompiledGrant | None:
        """Return the grant of a token that was used before; None if `grant` decides."""
        if self._authorize is not None or self._hub.settings.log_decisions:
            return None
        return self._hub.authorizer.recent(action, request.headers, origin=origin)

    def grant(
        self, action: Action, request: Request, origin: str, *, required: bool = False
    ) -> Coroutine[Any, Any, CompiledGrant]:
        """Return what the client of a request may do.

        `origin` is the scheme and authority that the request is to.  If a grant is
        `required`, it is not ANONYMOUS.

        Raises the errors of `Authorizer.authorize`, `Undecided` if the application does
        not decide in time, and any error of its function.
        """
        if self._authorize is None:
            return self._by_token(action, request, origin, required=required)
        return self._decision(self._authorize, action, request, origin, required=required)

    def _by_token(
        self, action: Action, request: Request, origin: str, *, required: bool
    ) -> Coroutine[Any, Any, CompiledGrant]:
        return self._hub.authorizer.authorize(action, request.headers, request.tokens, origin=origin, required=required)

    async def _decision(
        self, authorize: Authorize, action: Action, request: Request, origin: str, *, required: bool
    ) -> CompiledGrant:
        settings = self._hub.settings
        grant = await self._ask(authorize, request)
        if grant is not None:
            if action == "publish" and not _is_no_page(request):
                own = (origin, *settings.public_urls)
                require_same_site(request.headers, own, settings.publish_origins, "with a session")
            return await self._compiled(grant)
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
        seconds = self._hub.settings.authorize_timeout
        began = self._hub.delivery.clock()
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
            self._hub.observer.decided(self._hub.delivery.clock() - began)
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

    async def _compiled(self, grant: Grant) -> CompiledGrant:
        """Return a grant with its matchers.

        Raises `PatternError` if a pattern is invalid, which is a fault of the
        application, and `TokenRequired` if the grant has expired.
        """
        hub = self._hub
        expires = grant.expires
        assert not isinstance(expires, datetime)  # Grant has made it a number
        if expires is not None and expires <= hub.wall_clock():
            raise TokenRequired("the grant of the application has expired")
        published, subscribed = grant.selectors("publish"), grant.selectors("subscribe")
        compiled = await hub.compiler.compile_all([*published, *subscribed])
        subject = f"application {grant.subject}" if grant.subject else None
        return CompiledGrant(
            publish=tuple(compiled[selector] for selector in published),
            subscribe=tuple(compiled[selector] for selector in subscribed),
            expires=expires,
            subject=subject,
            publisher=subject or hashlib.sha256(json.dumps(["application", sorted(published)]).encode()).hexdigest(),
        )

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
