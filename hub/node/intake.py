"""Intake: the updates of a request are parsed and checked, a portion at a time.

Belongs here: whether the node takes updates now, and when other tasks run meanwhile.
Does not belong here: the rules that updates must follow (`protocol.updates`), and what
a grant covers (`auth.grant`).
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import structlog

from hub import turns
from hub.errors import Closing, InvalidRequest, NotRunning
from hub.protocol.hints import publish_hints
from hub.protocol.requests import FORM, parse_form_update, read_updates
from hub.protocol.updates import check_fields, check_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub.auth.grant import CompiledGrant
    from hub.node.shares import Shares
    from hub.node.shutdown import Shutdown
    from hub.protocol.updates import Update
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")


class Intake:
    """The intake of one node.  There may be very many updates in a request."""

    def __init__(self, settings: Settings, shares: Shares, shutdown: Shutdown) -> None:
        self._settings = settings
        self._publishes = shares.publishes
        self._shutdown = shutdown

    async def take(self, body: bytes, type: str, grant: CompiledGrant, *, alone: bool) -> list[Update]:
        """Return the updates of a body, whose media type is `type`.

        `alone` is whether no other publisher wants a turn.  Raises the errors of
        `check`, and `InvalidRequest` or `TooLarge` if the body cannot be parsed.
        """
        updates: list[Update] = []
        if type == FORM:
            updates.append(parse_form_update(body, self._settings))
        else:
            portion = turns.PARSED_BYTES if alone else turns.PARSED_IN_TURN
            parsed = portion
            for start, update in read_updates(body, type, self._settings):
                updates.append(update)
                if start >= parsed:
                    parsed = start + portion
                    await turns.other_tasks()
        if self._settings.dev:
            for hint in publish_hints(body, type):
                log.warning(hint)
        await self.check(updates, grant)
        return updates

    async def check(self, updates: Sequence[Update], grant: CompiledGrant | None) -> None:
        """Raise `InvalidRequest` for the first update that breaks a rule.

        Then raise `InsufficientScope` if the grant does not cover every topic (N80).
        Without a grant, the program itself publishes.  Raises `Closing` and
        `NotRunning`, and `LimitExceeded` if the publisher is too fast.
        """
        if self._shutdown.is_closing:
            raise Closing
        if not self._shutdown.is_running:
            raise NotRunning
        if grant is not None:
            self._publishes.take(grant.publisher, len(updates))
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
