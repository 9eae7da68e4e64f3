"""Admission: decides which connections may start, and how long they last (N23).

    admit ──► Ticket ──► compile patterns, look up the cursor, stream ──► give_back

A subscriber is admitted before any expensive work is done for it.  From then on until
its connection ends, its ticket counts all that it uses (`shares`).

Source: the rates are token buckets.  J. Turner, New directions in communications, 1986,
describes the same as a leaky bucket, which fills up instead of running empty.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog
from cachetools import TTLCache

from hub.delivery.heartbeats import LATE_SECONDS
from hub.delivery.subscriber import ADDRESS, payer_at
from hub.errors import Busy, Full, LimitExceeded, NotAsked, Undecided
from hub.node.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from random import Random

    from hub.auth.grant import CompiledGrant
    from hub.delivery.subscriber import Payer
    from hub.errors import RequestError
    from hub.node.shares import Shares
    from hub.protocol.topics import TopicMatcher
    from hub.settings import Settings

log = structlog.stdlib.get_logger("hub")

MAX_BUCKETS: Final = 10_000
"""Clients whose token buckets are kept.

If there are more, the client that was idle longest starts with a full bucket again.
"""


WATCHED: Final = 100
"""After each so many subscribers, it is checked whether they have the same address."""


class Admission:
    """The rates of connections of one hub, and the limit for each client.

    `clock` returns monotonic seconds, and `wall_clock` seconds since the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        shares: Shares,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._settings = settings
        self._shares = shares
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self.outage = Outage(settings.retry, clock=clock, random=random)
        """Since when subscribers cannot be served."""
        # The rate of all clients together, and the rates of each; None without a limit.
        self._rate = TokenBucket(settings.connection_rate, clock()) if settings.connection_rate else None
        per_client = settings.connection_rate_per_client
        self._rates = Rates(per_client, clock=clock) if per_client else None
        self._has_warned = False  # of clients with one address

    def take_rate(self, payer: Payer) -> None:
        """Use one token of the client's own rate, and of those of its wider networks.

        Raises `LimitExceeded` without one.
        """
        if self._rates is None:
            return
        for name, times, one in payer.limits(1):
            if wait := self._rates.take(name, times):
                raise LimitExceeded(f"the limit of new subscribers a second for {one} is exceeded").retry_after(wait)

    @contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """Bound how often, and how often at a time, an address has the application
        asked about a stream, which happens inside of the context.

        Raises `LimitExceeded` if the address connects too often, `NotAsked` if it has
        more than its share of the requests in progress, and `Undecided` if there are
        too many.
        """
        payer, requests = payer_at(address, True), self._shares.requests
        self.take_rate(payer)
        try:
            requests.take(payer)
        except LimitExceeded as error:
            kind = Undecided if isinstance(error, Full) else NotAsked
            raise kind(f"authorize was not called: {error}") from None
        try:
            yield
        finally:
            requests.give_back(payer)

    def request(self, payer: Payer) -> AbstractContextManager[None]:
        """Count a request that is no stream, inside of the context.

        Raises `LimitExceeded` if there are too many.
        """
        return self._shares.requests.taken(payer)

    def admit(self, payer: Payer, rated: Payer | None = None) -> Ticket:
        """Count one more connection of `payer`, until the ticket is given back.

        `rated` is the client whose rate the connection has already used.

        Raises `LimitExceeded` if `payer`, or a network around it, connects too often
        or has too many connections.  Raises `Busy` if all clients together do.  A
        refused connection does not count, but it may have used up a token of a rate.
        """
        connections, limit = self._shares.connections, self._settings.max_connections_per_client
        # The client's own rate comes first, so that a client that connects too often
        # does not use up the tokens of all.
        if rated is None or rated.name != payer.name:
            self.take_rate(payer)
        if self._rate is not None and self._rate.take(self._clock()):
            raise self._busy("the limit of new subscribers a second is exceeded")
        if limit:
            connections.require_below(payer, limit)
        try:
            connections.take(payer)
        except Full as error:
            raise self._busy(str(error)) from None
        if connections.used % WATCHED == 0 and not self._has_warned:
            self._warn_of_one_address(payer)
        return Ticket(self._shares, payer)

    def _busy(self, message: str) -> RequestError:
        # A random time, because clients with the same time would return together.
        return Busy(message).retry_after(self._random.uniform(1, 10))

    def _warn_of_one_address(self, payer: Payer) -> None:
        """Warn if nearly all subscribers have one address, perhaps a proxy's."""
        used, held = self._shares.connections.used, self._shares.connections.held(payer)
        if payer.name.startswith(ADDRESS) and held >= 0.95 * used:
            self._has_warned = True
            log.warning(
                f"{held:,} of {used:,} subscribers have the same address, so they have one share together; if it is a "
                "proxy's, the proxy must send X-Forwarded-For, and FORWARDED_ALLOW_IPS must list its address",
                address=payer.name.removeprefix(ADDRESS),
            )

    def deadline(self, grant: CompiledGrant) -> tuple[float, bool]:
        """Return when a connection must end (N82, R33), and whether its grant expires
        then.

        The time is by `clock`.  It is infinite if the connection need not end, and now
        if its token expires before the next check of deadlines, which may be late.
        """
        now, lifetime = self._clock(), self._settings.max_lifetime
        expires = math.inf if grant.expires is None else now + grant.expires - self._wall_clock()
        if expires <= now + LATE_SECONDS:
            return now, True
        # Up to a fifth less, so that clients that connected together do not all
        # reconnect together.
        ends = now + lifetime * self._random.uniform(0.8, 1.0) if lifetime else math.inf
        return (expires, True) if expires <= ends else (ends, False)

    def hint(self, *, ends: bool = False) -> float | None:
        """Return how many seconds a client should wait before it reconnects (N30).

        The time is random, between half of the setting and one and a half times it.  If
        the stream `ends` at once because of a fault of the hub, the time is longer, the
        longer the fault lasts.  If the setting is 0, there is a hint during and after a
        fault only.
        """
        return self.outage.hint() if ends else self.outage.usual_hint()


class Ticket:
    """All that one connection of `payer` uses, until the ticket is given back."""

    __slots__ = ("_is_given_back", "_is_reader", "_matchers", "_shares", "_url_patterns", "payer")

    def __init__(self, shares: Shares, payer: Payer) -> None:
        self.payer = payer
        self._shares = shares
        self._matchers = 0  # the bytes of its matchers
        self._url_patterns = 0  # their URL Patterns with groups
        self._is_reader = False  # whether it counts as a reader that does not wait
        self._is_given_back = False

    def hold(self, matcher: TopicMatcher) -> None:
        """Count a matcher of the connection."""
        self._matchers += matcher.size
        self._shares.matchers.hold(self.payer, matcher.size)
        if matcher.cost:
            self._url_patterns += matcher.cost
            self._shares.url_patterns.hold(self.payer, matcher.cost)

    def require_alike(self, owners: Sequence[Payer | None]) -> None:
        """Raise `LimitExceeded` if the client must not have one more pattern beside
        others, which count for the clients `owners`.
        """
        others = [owner for owner in owners if owner is not None]
        held = [sum(name == other.name or name in other.networks for other in others) + 1 for name in self.payer.names]
        self._shares.alike.require(self.payer, used=len(owners), held=held)

    def begin_reading(self) -> None:
        """Count a reader that does not wait.  Raises `LimitExceeded`."""
        self._shares.readers.take(self.payer)
        self._is_reader = True

    def give_back(self) -> None:
        """Stop counting the connection.  A second call does nothing."""
        if not self._is_given_back:
            self._is_given_back = True
            if self._is_reader:
                self._shares.readers.give_back(self.payer)
            if self._matchers:
                self._shares.matchers.release(self.payer, self._matchers)
            if self._url_patterns:
                self._shares.url_patterns.release(self.payer, self._url_patterns)
            self._shares.connections.give_back(self.payer)


class TokenBucket:
    """A bucket that gains `rate` tokens a second, and is full at first.

    It holds as many tokens as it gains in a second, but at least one.  `now` is the
    present time, in seconds.
    """

    __slots__ = ("_at", "_most", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = self._tokens = max(1.0, rate)  # the number of tokens ...
        self._at = now  # ... at this time

    def take(self, now: float) -> float:
        """Take a token and return 0.0, or return the seconds until the next token."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= 1.0
        return 0.0


class Rates:
    """A token bucket for each client, and for the networks around it.

    At most MAX_BUCKETS are kept.  A bucket that is full again is forgotten.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        # An empty bucket is full again after the time to live.
        self._buckets: TTLCache[str, TokenBucket] = TTLCache(MAX_BUCKETS, ttl=max(1.0, 1.0 / rate), timer=clock)

    def take(self, name: str, times: float = 1) -> float:
        """Take one of the tokens of a client or network, as `TokenBucket.take` does, in
        O(1).  Its rate is `times` that of a client.
        """
        now = self._clock()
        bucket = self._buckets.get(name) or TokenBucket(self._rate * times, now)
        self._buckets[name] = bucket  # its time to live starts again
        return bucket.take(now)
