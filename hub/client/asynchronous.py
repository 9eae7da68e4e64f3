"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING

import httpx2

from hub.client.errors import NoAnswer, Unreachable
from hub.client.following import Following
from hub.client.messages import (
    FORM,
    IDENTITY,
    LINES,
    MAX_REFUSAL,
    aparts_of,
    aread,
    form_of,
    http_options,
    id_in,
    ids_in,
    lines_of,
    longest_answer,
    note_reach,
    refusal,
    sending,
)
from hub.protocol.data import discovery_link
from hub.protocol.events import MAX_EVENT
from hub.proxies import usable_proxies
from skipfilter.errors import not_copied

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from hub.client.messages import Answer, Event
    from hub.protocol.data import Data, Matchers
    from hub.protocol.updates import Update


class Client:
    """A client of the hub at `url`; use it as an async context manager.

    Without `token` it can only read public updates, if the hub allows that.  A function
    as `token`, async or not, is called before each request, so that it can return a new
    one.  `retry` is the seconds before a reconnection, unless the hub says otherwise,
    and `timeout` those that an answer may take.  `max_event` is the most bytes that an
    event may have.  `headers` are sent with each request.
    `on_reach` is called with what a hub says of the receivers of each publish, as in
    "receivers=3, without-grant=1", if its setting `tell_publishers` is on.
    `ssl_context` has your own certificate authorities; `transport` replaces the
    network.

    Its methods raise `Refused` if the hub refuses a request, `Unreachable` if there is
    no connection, and `Unsendable` if a text has a wrong character.  The constructor
    raises `ConfigurationError` if the environment names a proxy that cannot be used.
    """

    __reduce__ = not_copied

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str | Awaitable[str]] | None = None,
        retry: float = 1.0,
        timeout: float = 30.0,
        max_event: int = MAX_EVENT,
        headers: Mapping[str, str] | None = None,
        on_reach: Callable[[str], object] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._token = token
        self._retry = retry
        self._max_event = max_event
        self._on_reach = on_reach
        with usable_proxies():
            self._http = httpx2.AsyncClient(**http_options(timeout, headers, ssl_context), transport=transport)
        self._answer = httpx2.Timeout(timeout)
        self._stream = httpx2.Timeout(timeout, read=None)  # `_next` limits it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

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
        is sent as compact JSON.  Raises TypeError for data of another type.
        """
        form = form_of(topics, data, private=private, id=id, type=type, retry=retry)
        return id_in(await self._post(form, content_type=FORM))

    async def publish_many(self, updates: Iterable[Update]) -> list[str]:
        """Publish updates in one request, all or none, and return their ids.

        Other hubs do not support this request.
        """
        return await self.publish_lines(lines_of(updates))

    async def publish_lines(self, lines: bytes) -> list[str]:
        """Publish lines of JSON in one request, all or none, and return their ids.

        Each line is an object with a `topic`, which may be a list, and with any of the
        arguments of `publish`; its data is a text.
        """
        return ids_in(await self._post(lines, content_type=LINES))

    async def subscribe(
        self,
        *topics: str,
        last_event_id: str | None = None,
        wait: bool = True,
        on_open: Callable[[], object] | None = None,
        on_gap: Callable[[str], object] | None = None,
        on_heartbeat: Callable[[], object] | None = None,
        **matchers: Unpack[Matchers],
    ) -> AsyncGenerator[Event, None]:
        """Yield the updates that match any of `topics` or `matchers`.

        A topic is an exact one or a URI template, in the classic dialect.  The name of
        a matcher is that of a parameter of the current one, as in `match_mqtt`.  Begins
        after `last_event_id` if the hub still has that event, or at the oldest update
        for "earliest".

        If the connection ends, it reconnects after a random pause, which grows, and
        continues with its cursor.  It has no end if `wait` is true; otherwise it ends
        when it has all that the history has.  `on_open` is called for each connection,
        as soon as no later update can be missed.  `on_gap` is called if updates may be
        missing: with the last id if the hub cannot continue after it, or with "" if the
        connection was lost before the first update.  `on_heartbeat` is called when
        this hub shows that an idle stream is alive.  If two do not come, the connection
        counts as lost; other hubs must send something within 120 s.

        Raises an error if the first connection fails, or if the hub refuses the
        subscription; `NotAHub` if the response is no event stream; `EventTooLarge` for
        an event of more than `max_event` bytes.  Follows no redirect, so that the token
        stays where it is.
        """
        following = Following(
            topics,
            matchers,
            last_event_id,
            wait=wait,
            retry=self._retry,
            max_event=self._max_event,
            on_open=on_open,
            on_gap=on_gap,
            on_heartbeat=on_heartbeat,
        )
        async with aclosing(self._follow(following)) as events:
            async for event in events:
                yield event

    async def position(self) -> str:
        """Return a cursor for now: a subscription with it as `last_event_id` receives
        all that is published after this call.

        So first ask for the position, then load what you have stored, and subscribe
        from the position: nothing is missing in between.

        Raises `Refused` if the hub refuses a subscription, and `NotAHub` if it is a hub
        of another kind, which has no such cursors.
        """
        following = Following.of_position(retry=self._retry, max_event=self._max_event)
        async with aclosing(self._follow(following)) as events:
            async for _ in events:
                pass
        return following.require_cursor()

    def link(self, position: str, *, url: str = "") -> str:
        """Return the value of a `Link` header, by which a page finds the hub and the
        position that belongs to the content of a response (discovery).

        `url` is that of the hub for pages; by default, it is the client's.
        """
        return discovery_link(url or self._url, position)

    async def _follow(self, following: Following) -> AsyncGenerator[Event, None]:
        while True:
            headers = following.headers() + await self._credentials()
            try:
                with sending():
                    async with self._http.stream(
                        "GET", self._url, params=following.params, headers=headers, timeout=self._stream
                    ) as response:
                        if response.status_code == 200:
                            following.begin(response)
                            parts = aparts_of(response)
                            while (part := await self._next(parts, following.silence)) is not None:
                                for event in following.feed(part):
                                    yield event
                        else:
                            following.refused(refusal(await aread(response, MAX_REFUSAL)))
            except Unreachable as error:
                following.lost(error)
            if following.end():
                return
            await asyncio.sleep(following.pause())

    @staticmethod
    async def _next(parts: AsyncIterator[bytes], silence: float) -> bytes | None:
        """Return the next part of a stream, or None after the last one.

        Raises `NoAnswer` if there is none for so many seconds.
        """
        try:
            async with asyncio.timeout(silence):
                return await anext(parts, None)
        except TimeoutError:
            raise NoAnswer(f"nothing has come for {silence:g} s") from None

    async def _post(self, content: bytes, *, content_type: tuple[bytes, bytes]) -> Answer:
        headers = [content_type, IDENTITY, *await self._credentials()]
        with sending():
            async with self._http.stream(
                "POST", self._url, content=content, headers=headers, timeout=self._answer
            ) as response:
                answer = await aread(response, longest_answer(content))
        note_reach(answer, self._on_reach)
        return answer

    async def _credentials(self) -> list[tuple[bytes, bytes]]:
        token = self._token
        if callable(token):
            given = token()
            token = await given if inspect.isawaitable(given) else given
        return [] if token is None else [(b"Authorization", f"Bearer {token}".encode())]
