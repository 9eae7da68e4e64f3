"""Embedding: a hub inside of a program, and the factories of its application.

    app = create_app(settings)      a program mounts it, or a server runs it
    await app.publish("a", …)       without HTTP, and without a token
    async for update in app.subscribe("a"): …
    await app.disconnect(subject="42")

Belongs here: what a program calls, the keys that are read again, and the metrics of one
process.  Does not belong here: requests (`application`).
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import CancelledError, wait
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from hub.auth.authorizer import operator_key
from hub.auth.signing import token_command
from hub.errors import Closing, ConfigurationError, NotRunning
from hub.history import open_history
from hub.history.base import newest_place
from hub.http.application import Application
from hub.http.operator import Operator, OperatorListeners
from hub.hub import Hub
from hub.logs import configure_log, log_beside_uvicorn
from hub.metrics.board import Board
from hub.metrics.gauges import gauges
from hub.metrics.recorder import Recorder
from hub.protocol.data import discovery_link
from hub.protocol.requests import selectors_of
from hub.protocol.updates import Update, require_updates
from hub.settings.sources import Sources

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
    from typing import Any, Unpack

    from hub.auth.grant import Grant
    from hub.control.commands import Named, Revocable
    from hub.explaining import Explained
    from hub.history.base import History
    from hub.http.authorization import Authorize
    from hub.metrics.board import Slot
    from hub.node.control import ConnectionPage, Outcome
    from hub.protocol.data import Data, Matchers
    from hub.settings import Settings


log = structlog.stdlib.get_logger("hub")


T = TypeVar("T")

KEYS_FAILED: Final = "the keys cannot be read again, so those before count"


class HubApplication(Application):
    """The application, for the program around the hub.

    The program publishes and subscribes with its methods, without HTTP and without a
    token.
    """

    def __init__(self, hub: Hub, authorize: Authorize | None = None, slot: Slot | None = None) -> None:
        super().__init__(hub, authorize)
        self.metrics_url = ""
        """Where the metrics of this process are served; "" if they are not."""
        self.listeners: OperatorListeners | None = None
        """Where commands come, which `running` closes; None if it opens them, too."""
        self._operator = Operator(hub, operator_key(hub.settings))
        self._slot = slot
        if slot is not None:
            self._record(slot)
        self._loop: asyncio.AbstractEventLoop | None = None  # while the hub runs
        self._read_again: Callable[[], Sources] | None = None  # reads the keys; None if that is not wanted
        self._reading: asyncio.Task[None] | None = None

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
        of `Publishing.publish`: `InvalidRequest` if the update breaks a rule,
        `NotRunning`, `Closing`, and `HistoryUnavailable`.
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
        return self._run_from_thread(
            "publish", self.publish(*topics, data=data, private=private, id=id, type=type, retry=retry)
        )

    def _run_from_thread(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop of the hub, and wait for its result here."""
        loop = self._loop
        if loop is None:
            work.close()
            raise NotRunning
        if _runs_here(loop):
            work.close()
            raise RuntimeError(f"{name}_sync would block the event loop of the hub: here, use `await {name}(…)`")
        try:
            running = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise NotRunning from None
        while not wait([running], timeout=1).done:
            if loop.is_closed() and not running.done():  # nothing will ever end it
                work.close()
                raise Closing
        try:
            return running.result()
        except CancelledError:  # the loop was closed meanwhile
            raise Closing from None

    async def disconnect(self, **named: Unpack[Named]) -> Outcome:
        """End streams now, on all processes of the hub, and return how many there were.

        Give one of: `subject`, the `sub` of tokens or the subject that `authorize`
        gives; `subscriber`, the id of a subscription; `token_id`, the `jti`; or
        `key_id`, the `kid`.  `issuer` narrows it to the tokens of one issuer, to
        "classic" tokens, or to the grants of the "application"; without it, all count.

        Call it after the session has ended: a browser reconnects at once, and is
        authorized anew.  After it has returned, no such stream receives anything that
        is published later, on all processes but those in `Outcome.silent`.

        Takes some ms, or up to two seconds if a process does not answer.  Raises
        `InvalidRequest`, `NotRunning`, and `HistoryUnavailable` if the history has been
        away for a thousand commands.
        """
        self._require_running()
        return await self.hub.control.give("kick", **named)

    def disconnect_sync(self, **named: Unpack[Named]) -> Outcome:
        """End streams now, from another thread of this process.

        Raises the errors of `disconnect`, and RuntimeError as `publish_sync` does.
        """
        return self._run_from_thread("disconnect", self.disconnect(**named))

    async def revoke(self, **named: Unpack[Revocable]) -> Outcome:
        """Refuse tokens from now on, and end their streams, as `disconnect` does.

        Give `subject`, for its tokens that were issued before now, or `token_id`, the
        `jti` of one.  A token of the subject counts as issued before now if it has no
        `iat`, or if its `iat` is not later than `leeway` seconds from now.  So a user
        who logs in again needs a token with a later `iat`.

        With the setting `max_token_life`, the revocation ends when no such token can be
        valid any more.  Without it, it stays until `lift`.  It survives a restart if
        the history does.  Grants of the application end, and are not revoked: see
        `Outcome.not_revoked`.

        Raises the errors of `disconnect`, and `ListFull` if there are already
        `max_revocations`.
        """
        self._require_running()
        return await self.hub.control.give("revoke", **named)

    def revoke_sync(self, **named: Unpack[Revocable]) -> Outcome:
        """Refuse tokens from now on, from another thread of this process.

        Raises the errors of `revoke`, and RuntimeError as `publish_sync` does.
        """
        return self._run_from_thread("revoke", self.revoke(**named))

    async def lift(self, **named: Unpack[Revocable]) -> Outcome:
        """Accept again what `revoke` with the same arguments has refused.

        Does nothing if there is no such revocation.  Raises the errors of `disconnect`.
        """
        self._require_running()
        return await self.hub.control.give("lift", **named)

    def revocations(self) -> list[dict[str, Any]]:
        """Return the revocations in force; see `Control.revocations`."""
        self._require_running()
        return self.hub.control.revocations()

    async def connections(self, *, after: str = "", **named: Unpack[Named]) -> ConnectionPage:
        """Return who is connected to all processes, 100 at a time.

        The first ones, by the ids of their subscribers, after the id `after`; the
        result has the one for the next page.  The other arguments are those of
        `disconnect`, and narrow it.  Raises the errors of `disconnect`, and
        `HistoryUnavailable` if the history is away.
        """
        self._require_running()
        return await self.hub.control.connected(after=after, **named)

    async def explain(
        self,
        *topics: str,
        private: bool = False,
        update: str | None = None,
        stream: str | None = None,
        token: str | None = None,
        grant: Grant | None = None,
        **named: Unpack[Named],
    ) -> Explained:
        """Return why an update does not arrive, or who gets it.

        The update has these `topics`, and may be `private`; or it is the one in the
        history with the id `update`.  The question is about the connections that the
        arguments of `disconnect` name, on all processes, or about all.  Or it is about
        a stream that would begin now: `stream` is its URL, or `?` and its query, and
        `token` or `grant` what its client may read.

        The result begins with a sentence.  It names subjects, addresses and patterns:
        show it to no client.

        Takes some ms for each matcher that does not match, and up to two seconds if a
        process does not answer.  Raises `InvalidRequest`, `NotFound` if the history
        does not have the update, `NotRunning`, and `HistoryUnavailable`.
        """
        self._require_running()
        compiled = None if grant is None else await self.hub.authorizer.compiled(grant)
        return await self.hub.explaining.explain(
            topics, private=private, update=update, stream=stream, token=token, grant=compiled, **named
        )

    def _require_running(self) -> None:
        if not self.hub.is_running:
            raise NotRunning

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
        return self.hub.subscribing.read(selectors_of(topics, matchers), last_event_id, waits=wait)

    async def position(self) -> str:
        """Return a cursor for now: a stream that begins with it as `last_event_id`
        receives all that is published after this call.

        So a page first gets the position, and then the state that the application has
        stored: no update is missing in between.  Call it before you read the state.
        Takes one look-up in the history.  Raises `NotRunning`, and `HistoryUnavailable`
        if the history is away.
        """
        self._require_running()
        return self.hub.history.cursor(*await newest_place(self.hub.history))

    def position_sync(self) -> str:
        """Return a cursor for now, from another thread of this process.

        Raises the errors of `position`, and RuntimeError as `publish_sync` does.
        """
        return self._run_from_thread("position", self.position())

    def link(self, position: str) -> str:
        """Return the value of a `Link` header, by which a page finds the hub and the
        position that belongs to the content of a response (discovery): the path of the
        hub, and the position as `last-event-id`.
        """
        return discovery_link(self.hub.settings.path, position)

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
            key = await asyncio.to_thread(operator_key, new)
            await self.hub.authorizer.take_keys(new)
            self._operator.key = key
        self.hub.settings = settings.with_keys_of(new)
        log.info("the keys were read again")
        if new.max_connections > settings.max_connections:  # the limit of open files has reduced it
            new = new.model_copy(update={"max_connections": settings.max_connections})
        if changed := settings.other_changes(new):
            log.warning("other settings have changed: they count after a restart", settings=", ".join(changed))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the hub while the context is entered; see `Application.running`."""
        try:
            with self._metrics():
                async with super().running():
                    self._loop = asyncio.get_running_loop()
                    if self._read_again is not None:
                        self._begin_reading()
                    with self._open_listeners() as listeners:
                        async with self._operator.serving(listeners):
                            yield
        finally:
            self._loop = None

    @contextmanager
    def _open_listeners(self) -> Iterator[OperatorListeners]:
        """Yield the listeners for commands, and close them at the end.

        Not later: a server may end the process as soon as the hub has ended.
        """
        with closing(self.listeners or OperatorListeners.open(self.hub.settings)) as listeners:
            yield listeners

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
