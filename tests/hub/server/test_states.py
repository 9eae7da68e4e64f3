"""The states of a connection: each transition of the table happens, and no other."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from hub.server import http1
from hub.server.http1 import TRANSITIONS, HttpProtocol, State
from hub.server.plain import HubProtocol
from tests.hub.server.transports import Transport

pytestmark = pytest.mark.anyio

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
WITH_BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
NONSENSE = b"nonsense\r\n\r\n"
WEBSOCKET = (
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Owner:
    """The owner of a detached response, which does nothing."""

    def lost(self, error: Exception | None) -> None: ...

    def sent_more(self) -> None: ...

    def drained(self) -> None: ...


class Connection:
    """A protocol whose application answers each request when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        config = uvicorn.Config(
            self._app, http=HttpProtocol, interface="asgi3", ws="wsproto", access_log=False, log_config=None
        )
        config.load()
        self.transport = Transport()
        self.protocol = HubProtocol(config, ServerState(), {})
        self.transport.protocol = self.protocol
        self.protocol.connection_made(self.transport)

    def state(self) -> State:
        return self.protocol.state

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.go.wait()
        if scope["type"] == "websocket":
            return
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def get(self, data: bytes) -> None:
        """Receive bytes."""
        self.protocol.data_received(data)

    async def answer(self) -> None:
        """Let the application answer."""
        self.go.set()
        for _ in range(5):
            await asyncio.sleep(0)

    def detach(self) -> None:
        """Detach the response to the request."""
        cycle: Any = self.protocol.cycle
        assert self.protocol.detach(cycle, Owner())

    def lose(self) -> None:
        """Lose the connection, and let the application end."""
        self.go.set()
        self.transport.is_over = True
        self.protocol.connection_lost(None)
        assert self.state() is State.CLOSED


def test_the_page_of_the_module_has_the_table() -> None:
    assert http1.__doc__ is not None
    rows = re.findall(r"(?m)^    (?! {17}\S*$)([A-Z_]+|any of these)? {2,}\S.*? {2,}([A-Z_]+)$", http1.__doc__)
    shown: dict[State, set[State]] = {state: set() for state in State}
    state = ""
    for name, after in rows:
        state = name or state
        for before in State if state == "any of these" else [State[state]]:
            if before is not State.CLOSED:
                shown[before].add(State[after])
    assert shown == TRANSITIONS


async def requests_are_answered_one_after_the_other() -> None:
    connection = Connection()
    connection.get(REQUEST + REQUEST)
    assert connection.state() is State.ANSWERING
    await connection.answer()
    assert connection.state() is State.IDLE
    assert connection.transport.written.count(b"HTTP/1.1 204") == 2
    connection.lose()


async def a_bad_head_is_refused() -> None:
    connection = Connection()
    connection.get(NONSENSE)
    assert connection.state() is State.LINGERING
    connection.get(b"more")
    assert connection.transport.written.count(b"HTTP/1.1 400") == 1
    connection.get(b"x" * http1.LINGER_BYTES)
    assert connection.transport.is_over
    connection.lose()


async def a_bad_head_behind_a_request_ends_the_connection_after_its_response() -> None:
    for half_closes in (False, True):
        connection = Connection()
        connection.get(REQUEST + NONSENSE)
        assert connection.state() is State.ANSWERING_LAST
        if half_closes:
            assert connection.protocol.eof_received()
            assert connection.state() is State.HALF_CLOSED
        else:
            connection.get(REQUEST)  # is dropped
        connection.get(NONSENSE)  # is dropped, too
        await connection.answer()
        assert connection.state() is State.LINGERING
        assert connection.transport.written.count(b"HTTP/1.1") == 1
        connection.lose()


async def a_client_may_close_its_half_while_it_waits_for_a_response() -> None:
    connection = Connection()
    connection.get(REQUEST)
    assert connection.protocol.eof_received()
    assert connection.state() is State.HALF_CLOSED
    await connection.answer()
    assert connection.state() is State.LINGERING
    assert connection.transport.is_over
    connection.lose()


async def a_client_that_closes_its_half_within_a_request_is_gone() -> None:
    for part in (b"", REQUEST[:9], WITH_BODY, REQUEST + REQUEST[:9]):
        connection = Connection()
        connection.get(part)
        assert not connection.protocol.eof_received()
        connection.lose()


async def a_response_to_a_request_whose_body_was_not_read_is_the_last_one() -> None:
    connection = Connection()
    connection.get(WITH_BODY)
    await connection.answer()
    assert connection.state() is State.LINGERING
    connection.get(b"the body!" + REQUEST)
    assert connection.transport.written.count(b"HTTP/1.1") == 1
    connection.lose()


async def a_detached_response_may_be_followed_by_a_request() -> None:
    connection = Connection()
    connection.get(REQUEST)
    connection.detach()
    assert connection.state() is State.DETACHED
    connection.get(b"\r\n")  # no request begins
    connection.protocol.reattach()
    assert connection.state() is State.IDLE
    connection.get(REQUEST)
    assert connection.state() is State.ANSWERING
    connection.lose()


async def a_detached_response_is_the_last_one_if_a_client_says_so_or_sends_more() -> None:
    for more, request in ((b"", LAST), (b"G", REQUEST)):
        connection = Connection()
        connection.get(request)
        connection.detach()
        connection.get(more)
        assert connection.state() is State.DETACHED_LAST
        connection.get(REQUEST)
        connection.protocol.reattach()
        assert connection.state() is State.LINGERING
        assert connection.transport.is_over
        connection.lose()


async def a_response_with_nonsense_behind_it_may_be_detached() -> None:
    connection = Connection()
    connection.get(REQUEST + NONSENSE)
    connection.detach()
    assert connection.state() is State.DETACHED_LAST
    connection.protocol.reattach()
    assert connection.state() is State.LINGERING
    connection.lose()


async def a_connection_may_be_closing_when_its_detached_response_ends() -> None:
    """A reset is noticed by the write of the last chunk."""
    connection = Connection()
    connection.get(REQUEST)
    connection.detach()
    connection.transport.close()
    connection.protocol.reattach()
    assert connection.state() is State.LINGERING
    connection.lose()


async def a_request_may_be_in_progress_when_another_protocol_takes_the_connection() -> None:
    connection = Connection()
    connection.get(REQUEST + WEBSOCKET)
    assert connection.state() is State.CLOSED
    await connection.answer()
    assert b"HTTP/1.1 204" in connection.transport.written
    assert connection.state() is State.CLOSED


async def a_connection_is_lost_in_any_state() -> None:
    for begin in (REQUEST, REQUEST + NONSENSE):
        connection = Connection()
        connection.get(begin)
        connection.lose()
    connection = Connection()
    connection.get(REQUEST)
    assert connection.protocol.eof_received()
    connection.lose()
    for request in (REQUEST, LAST):
        connection = Connection()
        connection.get(request)
        connection.detach()
        connection.lose()


async def test_the_table_has_exactly_the_transitions_that_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[State, State]] = set()
    to = HttpProtocol._to

    def noted(protocol: HttpProtocol, state: State) -> None:
        seen.add((protocol.state, state))
        to(protocol, state)

    monkeypatch.setattr(HttpProtocol, "_to", noted)
    await requests_are_answered_one_after_the_other()
    await a_bad_head_is_refused()
    await a_bad_head_behind_a_request_ends_the_connection_after_its_response()
    await a_client_may_close_its_half_while_it_waits_for_a_response()
    await a_client_that_closes_its_half_within_a_request_is_gone()
    await a_response_to_a_request_whose_body_was_not_read_is_the_last_one()
    await a_detached_response_may_be_followed_by_a_request()
    await a_detached_response_is_the_last_one_if_a_client_says_so_or_sends_more()
    await a_response_with_nonsense_behind_it_may_be_detached()
    await a_connection_may_be_closing_when_its_detached_response_ends()
    await a_request_may_be_in_progress_when_another_protocol_takes_the_connection()
    await a_connection_is_lost_in_any_state()
    assert seen == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    connection = Connection()
    with pytest.raises(AssertionError, match="idle -> detached"):
        connection.protocol._to(State.DETACHED)
