"""Server: any ASGI application on a real port of this machine, in a thread."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

SECONDS: Final = 30.0
"""Seconds that an application may take to start, and to end."""


class _Server(uvicorn.Server):
    """A server that says when it has started."""

    def __init__(self, config: uvicorn.Config, before_end: Callable[[], object]) -> None:
        super().__init__(config)
        self.is_decided = Event()  # whether it has started, or never will
        self._before_end = before_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.is_decided.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, after `before_end`."""
        self._before_end()
        await super().shutdown(sockets)


@contextmanager
def serve(app: ASGIApp, *, before_end: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Serve an application on a free port, with its lifespan, and yield its URL.

    The URL has no path.  At the end, streams that are open are cut after a second, so
    `before_end` may end them first: it is called in the event loop.  Raises
    RuntimeError if the application does not start.
    """
    server = _Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1), before_end)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=_run, args=(server, listener), daemon=True)
        thread.start()
        try:
            if not server.is_decided.wait(SECONDS) or not server.started:
                raise RuntimeError("the application has not started; its log says why")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(SECONDS)


def _run(server: _Server, listener: socket.socket) -> None:
    try:
        with suppress(SystemExit):  # which uvicorn raises if the application does not start
            server.run([listener])
    finally:
        server.is_decided.set()
