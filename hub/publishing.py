"""Publishing: from a request, or a call of the program, to the history.

    grant ─► share ─► body ─► turn: parse, check ─► window ─► history
     401      429      408     400, 403, 429         waits    durable

    grant     what the client may publish; nothing is read for a client without one
    share     how many requests of this client may be in progress
    body      the bytes, as far as they are allowed
    turn      one request of each publisher at a time, unless it is alone
    window    the room for updates that are not dispatched yet

Whose question it is, the grant and the body come from the caller, who may wait for them
as it likes.  The program's own updates begin with their check.

Belongs here: the order of these steps.  Does not belong here: HTTP, and anything that
one step can do alone.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import structlog

from hub import turns
from hub.auth.grant import ANONYMOUS
from hub.delivery.subscriber import payer_for
from hub.errors import Closing, InvalidRequest, NotRunning
from hub.protocol.hints import publish_hints
from hub.protocol.requests import FORM, parse_form_update, read_updates
from hub.protocol.updates import check_fields, check_topic
from hub.turns import FairTurns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hub.auth.grant import CompiledGrant
    from hub.delivery.log_lines import LogLines
    from hub.delivery.observer import Observer
    from hub.history.base import History
    from hub.node.publish_window import PublishWindow
    from hub.node.shares import Shares
    from hub.node.shutdown import Shutdown
    from hub.protocol.updates import Update
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")


class Publishing:
    """The publishing of updates on one node.  `clock` returns monotonic seconds."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        *,
        shares: Shares,
        window: PublishWindow,
        shutdown: Shutdown,
        observer: Observer,
        log_lines: LogLines,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._history = history
        self._shares = shares
        self._window = window
        self._shutdown = shutdown
        self._observer = observer
        self._log_lines = log_lines
        self._clock = clock
        self._turns = FairTurns(clock)  # of publishers

    async def publish_request(
        self, address: str, grant: Awaitable[CompiledGrant], body: Callable[[], Awaitable[bytes]], type: str
    ) -> Sequence[Update]:
        """Publish the updates in the body of a request, and return them.

        `address` is where the request comes from, and `type` the media type of its
        body: one update from a form, or a batch from JSON or lines of JSON.

        Raises the errors of `grant`, of `body` and of `publish`, and `LimitExceeded` if
        the client has too many requests in progress.
        """
        granted = await grant
        payer = payer_for(granted.subject, address, granted is ANONYMOUS)
        self._shares.requests.take(payer)
        try:
            content = await body()
            turn = self._turns.of(granted.publisher)
            if turn is None:
                updates = await self._checked(content, type, granted, turns.PARSED_BYTES)
            else:
                await turn.acquire()
                try:
                    updates = await self._checked(content, type, granted, turns.PARSED_IN_TURN)
                finally:
                    self._turns.end(turn)
            await self._append(updates, granted)
        finally:
            self._shares.requests.give_back(payer)
        return updates

    async def publish(self, updates: Sequence[Update], grant: CompiledGrant | None = None) -> None:
        """Append updates to the history, from which all nodes dispatch them.

        They are appended in order, in one step.  With an idempotency window, updates
        whose id the same publisher has already used are left out.  Without `grant`, the
        program itself publishes, and may publish to every topic.

        Waits while dispatch is far behind the history, but never for a subscriber.

        Raises `InvalidRequest` if an update breaks a rule, `InsufficientScope` if the
        grant does not cover a topic, `TooLarge` if there are more updates than the hub
        accepts at once, `LimitExceeded` if the publisher is too fast, `NotRunning`
        before the hub runs, and `Closing` if it is shutting down.  If it raises
        `HistoryUnavailable` or is cancelled, the updates may have been appended.
        """
        await self._check(updates, grant)
        await self._append(updates, grant)

    async def _checked(self, content: bytes, type: str, grant: CompiledGrant, portion: int) -> list[Update]:
        """Return the updates of a body.

        Lets other tasks run after each `portion` bytes.  Raises an error if a rule or
        the grant forbids any of the updates.
        """
        updates: list[Update] = []
        if type == FORM:
            updates.append(parse_form_update(content, self._settings))
        else:
            parsed = portion
            for start, update in read_updates(content, type, self._settings):
                updates.append(update)
                if start >= parsed:
                    parsed = start + portion
                    await turns.other_tasks()
        if self._settings.dev:
            for hint in publish_hints(content, type):
                log.warning(hint)
        await self._check(updates, grant)
        return updates

    async def _check(self, updates: Sequence[Update], grant: CompiledGrant | None) -> None:
        """Raise `InvalidRequest` for the first update that breaks a rule.

        Then raise `InsufficientScope` if the grant does not cover every topic (N80).
        """
        if self._shutdown.is_closing:
            raise Closing
        if not self._shutdown.is_running:
            raise NotRunning
        if grant is not None:
            self._shares.publishes.take(grant.publisher, len(updates))
        path = self._settings.path
        # 1. One update with a topic, as in most requests, takes no time.
        if len(updates) == 1 and len(updates[0].topics) == 1 and (grant is None or len(grant.publish) == 1):
            update = updates[0]
            check_topic(update.topics[0], path=path)
            check_fields(update)
            if grant is not None:
                grant.require_publish(update.topics[0])
            return
        # 2. There may be very many.
        topics = turns.Portion(turns.CHECKED_TOPICS)
        for number, update in enumerate(updates, 1):
            try:
                for topic in update.topics:
                    if topics.is_over():
                        await topics.pause()
                    check_topic(topic, path=path)
                check_fields(update)
            except InvalidRequest as error:
                raise InvalidRequest(f"update {number}: {error}" if len(updates) > 1 else str(error)) from None
        if grant is not None:
            matchers = turns.Portion(turns.TESTED_MATCHERS)
            for topic in chain.from_iterable(update.topics for update in updates):
                if matchers.is_over(len(grant.publish)):
                    await matchers.pause()
                grant.require_publish(topic)

    async def _append(self, updates: Sequence[Update], grant: CompiledGrant | None) -> None:
        """Append updates that are checked, as soon as the window has room."""
        publisher = "" if grant is None else grant.publisher
        began = self._clock()
        self._log_lines.trace(updates)
        stored = await self._window.append(updates, partial(self._history.append, updates, publisher=publisher))
        self._observer.published(updates, len(stored), self._clock() - began)
        if len(updates) != 1 or updates[0].size > self._settings.large_update:
            self._log_lines.warn_of_size(updates, publisher)
