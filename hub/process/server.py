"""The hub as a server of its own: uvicorn, made ready for very many connections that stay.

Memory management.  A connection is some hundred objects that stay for minutes and make no reference cycles, so
reference counting frees them.  Python's garbage collector would still look through all of them again and again as
their number grows: with 12,000 connections a full collection takes 0.16 s, or 0.32 s with a task each, in which nothing
else happens.  So young objects are looked through in small portions, 10 to 16 ms at most, and the rest once an hour
(`bench/results/garbage.json`).
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import open_history
from hub.http.uvicorn_protocol import AttachedProtocol, HttpProtocol
from hub.process.workers import STARTUP_FAILURE

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from hub.http.application import HubApplication
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")

GRACE: Final = 5
"""Seconds that are left, when all streams have ended, for what else is being answered."""
CUT: Final = 1
"""Seconds of these in which requests end whose connections were cut off."""
OTHERS: Final = 100
"""Files that are open beside the connections of subscribers."""
YOUNG: Final = 5_000, 5, 1_000_000
"""Objects that are new when they are looked through for cycles; how often so before they count as old; and never."""
COLLECTED: Final = 3_600
"""Seconds between two collections of all garbage."""
_UNLIMITED: Final = 2**31


def fitting(settings: Settings) -> Settings:
    """`settings` with no more connections than this process may have files open, which is made as many as can be.

    Raises ConfigurationError if there is none for a connection.
    """
    limit = raised_file_limit()
    fit = limit - OTHERS
    if fit < 1:
        raise ConfigurationError(
            f"only {limit} files may be open, which leaves none for a subscriber: more than {OTHERS} are needed; see "
            "`ulimit -Hn`, or LimitNOFILE of systemd"
        )
    if settings.max_connections <= fit:
        return settings
    log.warning(
        f"{fit} subscribers fit, not {settings.max_connections}: so few files may be open; see `ulimit -Hn`, or "
        "LimitNOFILE of systemd"
    )
    return settings.model_copy(update={"max_connections": fit})


def check_files(settings: Settings) -> None:
    """Open what the hub writes to, and close it again.  Raises ConfigurationError if that can never work.

    A log that cannot be reached now is no such error: the hub waits for it.  Call it outside an event loop.
    """
    if settings.event_log:
        try:
            Path(settings.event_log).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = "this is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigurationError(f"event_log: {settings.event_log}: {reason}") from None
        if not os.access(settings.event_log, os.W_OK | os.X_OK):
            raise ConfigurationError(f"event_log: {settings.event_log}: there is no permission to write there")

    async def open_and_leave() -> None:
        history = open_history(settings.history_url.get_secret_value(), settings.retention)
        try:
            await history.end()
        except HistoryUnavailable:
            pass
        finally:
            await history.aclose()

    asyncio.run(open_and_leave())


def raised_file_limit() -> int:
    """Raise the limit of open files to the hard limit, and return it."""
    try:
        import resource
    except ImportError:  # not on Windows, where there is no such limit
        return _UNLIMITED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS allows less than it says
            hard = soft
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def run(app: HubApplication, listener: socket.socket, *, park: bool) -> None:
    """Serve until SIGINT or SIGTERM, and then for as long as the streams take to end; at a second signal, no longer.

    With `park`, streams do without a task; see `stream`.
    """
    settings: Settings = app.hub.settings
    config = uvicorn.Config(
        app,
        http=HttpProtocol if park else AttachedProtocol,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.idle_timeout,
        timeout_graceful_shutdown=math.ceil(settings.drain) + GRACE,
        callback_notify=_Collector(),
        timeout_notify=COLLECTED,
    )
    server = _Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True  # wait for no connection and no task
        super().handle_exit(sig, frame)

    async def _wait_tasks_to_complete(self) -> None:
        """Wait for responses to end, but no longer than the grace, or after a second signal; then cut them off.

        uvicorn would cancel their tasks, and log a traceback for each.
        """
        state, patience = self.server_state, self.config.timeout_graceful_shutdown
        try:
            async with asyncio.timeout(None if patience is None else patience - CUT):
                while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)  # at a second signal, the hub ends its streams
        except TimeoutError:
            log.warning(f"{len(state.connections)} connections are cut off: their responses did not end in time")
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CUT)
        for server in self.servers:
            await server.wait_closed()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then, and the hub would not end as it should
            await self.lifespan.shutdown()


class _Collector:
    """Called when the server has started, and once in COLLECTED seconds."""

    def __init__(self) -> None:
        self._has_started = False

    async def __call__(self) -> None:
        gc.collect()
        if not self._has_started:
            self._has_started = True
            gc.freeze()  # modules and code, which stay
            gc.set_threshold(*YOUNG)
