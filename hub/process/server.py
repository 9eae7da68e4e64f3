"""Server: run the hub under uvicorn, set up for very many connections that stay open.

Garbage collection.  A connection consists of about a hundred objects, which live for
minutes and form no reference cycles, so reference counting frees them.  Python's
garbage collector would still examine all of them, again and again as their number
grows.  With 12,000 connections, a full collection stops the process for 0.16 s, or for
0.32 s if each connection has a task.  The thresholds below therefore let only young
objects be collected, in small portions.  The longest pause is then 10 ms, or 16 ms with
tasks (medians in `bench/results/garbage.json`).  A full collection runs once an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from hub.errors import ConfigurationError, HistoryUnavailable
from hub.history import open_history
from hub.process.listeners import hand_over
from hub.process.workers import STARTUP_FAILURE
from hub.server.http1 import AttachedProtocol
from hub.server.plain import HubProtocol
from hub.server.socket_options import tune_listener
from hub.threads import call_soon

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from hub.http.embedding import HubApplication
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")

GRACE_SECONDS: Final = 5
"""Time for other responses to end, after the drain time of the streams."""
CUT_SECONDS: Final = 1
"""The last part of that time, for requests whose connections were aborted."""
TICK_SECONDS: Final = 1
"""Seconds between two changes of the `Date` of responses."""
RESERVED_FILES: Final = 100
"""Open files that are not connections of subscribers."""
GC_THRESHOLDS: Final = 5_000, 5, 1_000_000
"""Arguments of `gc.set_threshold`.

Generation 0 is collected after 5,000 new objects, and generation 1 after 5 collections
of generation 0.  Generation 2 is practically never collected by itself.
"""
COLLECTION_SECONDS: Final = 3_600
"""Time between two full collections."""
_UNLIMITED: Final = 2**31
"""The number of open files that stands for no limit."""


def fitting(settings: Settings) -> Settings:
    """Return `settings` with `max_connections` reduced to what the file limit allows.

    Raises the soft limit of open files to the hard limit first.  Raises
    `ConfigurationError` if the limit leaves no file for a connection.
    """
    limit = raised_file_limit()
    fit = limit - RESERVED_FILES
    if fit < 1:
        raise ConfigurationError(
            f"only {limit} files may be open, which leaves none for a subscriber: more than {RESERVED_FILES} are "
            "needed; see `ulimit -Hn`, or LimitNOFILE of systemd"
        )
    return settings.model_copy(update={"max_connections": min(fit, settings.max_connections)})


def warn_of_files(wanted: Settings, fitted: Settings) -> None:
    """Log a warning if `fitting` reduced `max_connections`, but not in development."""
    if fitted.max_connections < wanted.max_connections and not wanted.dev:
        limit = fitted.max_connections + RESERVED_FILES
        log.warning(
            f"max_connections is reduced from {wanted.max_connections} to {fitted.max_connections}, because only "
            f"{limit} files may be open; see `ulimit -Hn`, or LimitNOFILE of systemd"
        )


def check_files(settings: Settings) -> None:
    """Check that the hub can write its event log and open its history.

    Creates the directory of the event log if it is missing.  Raises
    `ConfigurationError` if the settings can never work.  A history that is unavailable
    now is not an error, because the hub waits for it.  Must be called outside an event
    loop.
    """
    if settings.event_log:
        try:
            Path(settings.event_log).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = "this is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise ConfigurationError(f"event_log: {settings.event_log}: {reason}") from None
        if not os.access(settings.event_log, os.W_OK | os.X_OK):
            raise ConfigurationError(f"event_log: {settings.event_log}: no permission to write there")

    async def open_and_close() -> None:
        """Open the history, read from it, and close it."""
        history = open_history(settings.history_url, settings.retention)
        try:
            await history.end()
        except HistoryUnavailable:
            pass
        finally:
            await history.aclose()

    asyncio.run(open_and_close())


def raised_file_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it.

    Returns the soft limit if it cannot be raised, and 2**31 if there is no limit.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _UNLIMITED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS allows less than it reports
            hard = soft
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def run(app: HubApplication, listener: socket.socket, *, detach: bool) -> None:
    """Serve until SIGINT or SIGTERM, and then until the responses have ended.

    After a second signal, it waits for no response.  If `detach` is true, event
    streams need no task; see `hub.server.connection`.  Exits the process with
    STARTUP_FAILURE if the server does not start.
    """
    settings: Settings = app.hub.settings
    config = uvicorn.Config(
        app,
        http=HubProtocol if detach else AttachedProtocol,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=settings.idle_timeout,
        timeout_graceful_shutdown=math.ceil(settings.drain) + GRACE_SECONDS,
        callback_notify=_Collector(),
        timeout_notify=COLLECTION_SECONDS,
    )
    app.listener_is_tuned = tune_listener(listener, client_timeout=settings.client_timeout)
    server = _Server(config)
    server.run(sockets=[listener])
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """uvicorn's server, which sleeps while it is idle and shuts down in another way."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exiting: asyncio.Event | None = None  # set by a signal; None before the server runs
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Do what uvicorn does each second, and return soon after a signal.

        uvicorn itself would look for a signal ten times a second.
        """
        self._exiting, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exiting.wait(), TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second signal, of either kind, ends all waiting."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)
        if self._loop is not None and self._exiting is not None:
            call_soon(self._loop, self._exiting.set)

    async def _wait_tasks_to_complete(self) -> None:
        """Wait for the responses to end, until the timeout or a second signal.

        Then abort the remaining connections.  uvicorn would cancel their tasks instead,
        and log a traceback for each.
        """
        state, patience = self.server_state, self.config.timeout_graceful_shutdown
        try:
            async with asyncio.timeout(None if patience is None else patience - CUT_SECONDS):
                while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await asyncio.sleep(0.1)  # after a second signal, the hub ends its streams now
        except TimeoutError:
            log.warning(f"{len(state.connections)} connections are cut off: their responses did not end in time")
        for connection in list(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CUT_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down the server, and always the application too."""
        for listener in sockets or []:
            await hand_over(listener)
        await super().shutdown(sockets)
        # uvicorn skips this after a second signal, but the hub must close its parts.
        if self.force_exit:
            await self.lifespan.shutdown()


class _Collector:
    """A full garbage collection, which uvicorn calls at the start and then regularly.

    The first call also freezes the objects that exist by then, and sets the thresholds.
    """

    def __init__(self) -> None:
        self._has_started = False

    async def __call__(self) -> None:
        gc.collect()
        if not self._has_started:
            self._has_started = True
            gc.freeze()  # modules and code, which stay until the end
            gc.set_threshold(*GC_THRESHOLDS)
