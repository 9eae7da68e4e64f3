"""Publishing: from a request, or a call of the program, to the history.

    grant ─► share ─► body ─► turn: parse, check ─► window ─► history
     401      429      408     400, 403, 429         waits    durable

    grant     what the client may publish; nothing is read for a client without one
    share     how many requests of this client may be in progress
    body      the bytes, as far as they are allowed
    turn      one request of each publisher at a time, unless it is alone
    window    the room for updates that are not dispatched yet
    history   appends them, unless a command has met the grant meanwhile

Whose question it is, the grant and the body come from the caller, who may wait for them
as it likes.  The program's own updates begin with their check.

Belongs here: the order of these steps.  Does not belong here: HTTP, and anything that
one step can do alone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hub.delivery.subscriber import payer_for
from hub.errors import Outdated
from hub.turns import FOUND_TOPICS, FairTurns, Portion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hub.auth.grant import CompiledGrant
    from hub.delivery.audience import Audience
    from hub.delivery.observer import Observer
    from hub.history.base import Entry, History
    from hub.node.control import Control
    from hub.node.intake import Intake
    from hub.node.publish_window import PublishWindow
    from hub.node.shares import Held
    from hub.protocol.updates import Update


class Reach(NamedTuple):
    """Whom updates reach on one process; each update counts by itself."""

    receivers: int
    without_grant: int
    """How many want them, and may not read them."""


class Publishing:
    """The publishing of updates on one node.

    `tells` is whether publishers learn whom they reach.  `clock` returns monotonic
    seconds.
    """

    def __init__(
        self,
        history: History,
        audience: Audience,
        *,
        requests: Held,
        intake: Intake,
        control: Control,
        window: PublishWindow,
        observer: Observer,
        tells: bool,
        clock: Callable[[], float],
    ) -> None:
        self.history = history
        """Where updates are appended."""
        self._audience = audience
        self._requests = requests  # those in progress
        self._turns = FairTurns(clock)
        self._intake = intake
        self._control = control
        self._window = window
        self._observer = observer
        self._tells = tells
        self._clock = clock

    async def publish_request(
        self, address: str, grant: Awaitable[CompiledGrant], body: Callable[[], Awaitable[bytes]], type: str
    ) -> tuple[Sequence[Update], Reach | None]:
        """Publish the updates in the body of a request, and return them, and whom they
        reach if publishers may learn that.

        `address` is where the request comes from, and `type` the media type of its
        body: one update from a form, or a batch from JSON or lines of JSON.

        Raises the errors of `grant`, of `body`, of `Intake.take` and of `publish`, and
        `LimitExceeded` if the client has too many requests in progress.
        """
        heard = self._control.heard
        granted = await grant
        payer = payer_for(granted, address)
        self._requests.take(payer)
        try:
            content = await body()
            turn = self._turns.of(granted.publisher)
            if turn is None:
                updates = await self._intake.take(content, type, granted, alone=True)
            else:
                await turn.acquire()
                try:
                    updates = await self._intake.take(content, type, granted, alone=False)
                finally:
                    self._turns.end(turn)
            await self._append(updates, granted, heard)
            return updates, await self._reach(updates) if self._tells else None
        finally:
            self._requests.give_back(payer)

    async def publish(self, updates: Sequence[Update], grant: CompiledGrant | None = None) -> None:
        """Append updates to the history, from which all nodes dispatch them.

        They are appended in order, in one step.  With an idempotency window, updates
        whose id the same publisher has already used are left out.  Without `grant`, the
        program itself publishes, and may publish to every topic.

        Waits while dispatch is far behind the history, but never for a subscriber.

        Raises the errors of `Intake.check`, and `TooLarge` if there are more updates
        than the hub accepts at once.  If it raises `HistoryUnavailable` or is
        cancelled, the updates may have been appended.
        """
        heard = self._control.heard
        await self._intake.check(updates, grant)
        await self._append(updates, grant, heard)

    async def _reach(self, updates: Sequence[Update]) -> Reach:
        """Return how many subscribers of this process receive updates now, and how many
        want them and may not read them; each update counts by itself.

        Other tasks run in between.
        """
        pace = Portion(FOUND_TOPICS)
        receivers = without_grant = 0
        for update in updates:
            subscribed, receiving = await self._audience.reach(update, pace)
            receivers += receiving
            without_grant += subscribed - receiving
        return Reach(receivers, without_grant)

    async def _append(self, updates: Sequence[Update], grant: CompiledGrant | None, heard: int) -> None:
        """Append updates that are checked, as soon as the window has room."""
        began = self._clock()
        self._observer.publishing(updates)
        stored = await self._window.append(updates, partial(self._store, updates, grant, heard))
        publisher = "" if grant is None else grant.publisher
        self._observer.published(updates, len(stored), self._clock() - began, publisher)

    async def _store(self, updates: Sequence[Update], grant: CompiledGrant | None, heard: int) -> list[Entry]:
        """Append updates, unless a command after the mark `heard` has met their grant.

        Raises the errors of `Control.require_good`.
        """
        if self._control.pending:
            await self._control.write_pending()
        if grant is None:
            return await self.history.append(updates)
        while True:
            # Nothing is awaited between the question and the append, and the history
            # asks again in its own step.
            known = self._control.require_good(grant, heard)
            try:
                return await self.history.append(updates, publisher=grant.publisher, known=known)
            except Outdated:
                continue
