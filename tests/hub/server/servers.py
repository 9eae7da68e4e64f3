"""The hub's own connections on a server that the test blocks: ASGI, or uvicorn's protocol."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.flow_control import FlowControl

from hub.http.response import connection_of
from hub.server.http1 import HttpProtocol, State
from hub.server.open_connections import Connections
from tests.hub.world import SETTINGS, Wire

if TYPE_CHECKING:
    from starlette.types import Message

    from hub.delivery.stream import Connection


class ServerWire(Wire):
    """A wire with the connection that the hub makes for a request.

    It stands for uvicorn's cycle and for its transport.  With `detaches`, it has a
    `protocol`, so that the connection is a `UvicornConnection`.  Otherwise the
    connection is an `AsgiConnection`, whose `send` suspends while there is no room.
    """

    more_body = False
    keep_alive = True
    response_complete = False
    disconnected = False
    holds_head = False
    held = b""

    def __init__(self, *, detaches: bool) -> None:
        super().__init__()
        self.protocol = _Protocol(self) if detaches else None
        if not detaches:
            self.over.set()  # with the task of the request, the response is over

    @cached_property
    def connection(self) -> Connection:
        """The connection of the request."""
        return connection_of({"http_version": "1.1"}, self.receive, self.send, SETTINGS)

    def unblock(self) -> None:
        super().unblock()
        if self.protocol is not None:
            self.protocol.flush()

    def go(self) -> None:
        super().go()
        if self.protocol is not None:
            self.protocol.lose()

    def abort(self, *, reset: bool = False) -> None:
        super().abort()
        if self.protocol is not None:
            self.protocol.lose()

    # -- the server's side of ASGI

    async def send(self, message: Message) -> None:
        if not await self._is_open():
            return
        assert not self.ended
        self.ended = not message["more_body"]
        if message["body"]:
            self._take(message["body"])

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    # -- the transport

    @property
    def transport(self) -> ServerWire:
        return self

    def get_extra_info(self, name: str) -> None:
        return None

    def get_protocol(self) -> _Protocol | None:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0 if self.protocol is None else sum(map(len, self.protocol.waiting))

    def write(self, chunk: bytes) -> None:
        assert self.protocol is not None
        if self.fails is not None:
            raise self.fails
        if self.is_closing():
            return
        if not self._room.is_set():
            self.protocol.flow.pause_writing()
            self.protocol.waiting.append(chunk)
        else:
            self.take_chunk(chunk)

    def take_chunk(self, chunk: bytes) -> None:
        assert not self.ended
        size, _, body = chunk.partition(b"\r\n")
        assert len(body) == int(size, 16) + 2
        if body == b"\r\n":
            self.ended = True
        else:
            self._take(body[:-2])


class _Protocol(HttpProtocol):
    """A uvicorn protocol that has parsed one request."""

    def __init__(self, wire: ServerWire) -> None:
        self.transport: Any = wire
        self.flow = FlowControl(cast("Any", wire))
        self.cycle: Any = wire
        self.state, self._owner, self._answering = State.ANSWERING, None, None
        self.shared = Connections()
        self._limit = self._new_limit()
        self.waiting: list[bytes] = []
        self._wire = wire

    def flush(self) -> None:
        """Write the waiting chunks, because the socket has room again."""
        for chunk in self.waiting:
            self._wire.take_chunk(chunk)
        self.waiting.clear()
        self.resume_writing()

    def lose(self) -> None:
        """Lose the connection; the event loop reports the loss in its next turn."""
        self.waiting.clear()
        asyncio.get_running_loop().call_soon(self._report_loss)

    def _report_loss(self) -> None:
        owner, self._owner = self._owner, None
        self._wire.disconnected = True
        self.flow.resume_writing()
        if owner is not None:
            owner.lost(ConnectionResetError())
        self._wire.over.set()

    def on_response_complete(self) -> None:
        self._wire.over.set()
