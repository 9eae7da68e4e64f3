"""Admission: which connections may come now, by number and by rate (N23), how long they last, and when to come back.

A subscriber is admitted before anything is done for it that costs: its patterns are compiled, and its position in the
log is looked up, under a ticket that counts until the connection ends.

Rates are token buckets: J. Turner, New directions in communications, 1986 (as a leaky bucket, the same upside down).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from cachetools import TTLCache

from hub.errors import Busy, LimitExceeded
from hub.protocol import events

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hub.auth.grant import Grant
    from hub.settings import Settings

CLIENTS: Final = 10_000
"""Clients whose buckets are kept; where there are more, who was idle longest has a new one."""


class Admission:
    """The limits and rates of one hub, and the number of connections that each client has."""

    def __init__(
        self, settings: Settings, *, clock: Callable[[], float], wall_clock: Callable[[], float], random: Random
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._rate = TokenBucket(settings.connection_rate, clock()) if settings.connection_rate else None
        per_client = settings.connection_rate_per_client
        self._rates = Rates(per_client, clock=clock) if per_client else None
        self._clients: Counter[str] = Counter()
        """Connections of each client that has any."""
        self._connections = 0
        """Connections of all clients."""

    def admit(self, client: str) -> Ticket:
        """Count one more connection of `client`.  Raises LimitExceeded or Busy, and has counted nothing then."""
        settings = self._settings
        if self._rates is not None and (wait := self._rates.take(client)):
            raise LimitExceeded("you subscribe more often than one client may").retry_after(wait)
        if self._rate is not None and self._rate.take(self._clock()):
            # At random: clients that were given the same time would come back together.
            raise Busy("more subscribers come than the hub takes in a second").retry_after(self._random.uniform(1, 10))
        if self._connections >= settings.max_connections:
            raise LimitExceeded(f"the limit of {settings.max_connections} subscribers is reached")
        if 0 < settings.max_connections_per_client <= self._clients[client]:
            raise LimitExceeded(f"you have {self._clients[client]} subscribers, which is the limit for one client")
        self._clients[client] += 1
        self._connections += 1
        return Ticket(self, client)

    def deadline(self, grant: Grant) -> tuple[float, str]:
        """Return when a connection that begins now ends, by the clock, and why (N82, R33)."""
        now, lifetime = self._clock(), self._settings.max_lifetime
        expires = math.inf if grant.expires is None else now + grant.expires - self._wall_clock()
        # Less a random fifth, so that clients that came together do not come back together.
        ends = now + lifetime * self._random.uniform(0.8, 1.0) if lifetime else math.inf
        return (expires, "its token expires") if expires <= ends else (ends, "it has lasted as long as it may")

    def expires_within(self, seconds: float, grant: Grant) -> bool:
        """Return whether a grant expires in this time."""
        return grant.expires is not None and grant.expires - seconds <= self._wall_clock()

    def retry_hint(self) -> bytes:
        """Return the field that tells a client when to come back, at random around the setting (N30); b"" for none."""
        seconds = self._settings.retry
        return events.retry(seconds * self._random.uniform(0.5, 1.5)) if seconds else b""

    def leave(self, client: str) -> None:
        """Count one connection less."""
        self._connections -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


class Ticket:
    """One connection of a client, which counts until it is given back."""

    __slots__ = ("_admission", "client")

    def __init__(self, admission: Admission, client: str) -> None:
        self.client = client
        self._admission: Admission | None = admission

    def give_back(self) -> None:
        """Stop counting the connection.  A second call does nothing."""
        if self._admission is not None:
            self._admission.leave(self.client)
            self._admission = None


class TokenBucket:
    """`rate` tokens a second, of which one second's worth is kept, and one at least.

    All its mutable state: how many tokens there were, and when.
    """

    __slots__ = ("_at", "_most", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = self._tokens = max(1.0, rate)
        self._at = now

    def take(self, now: float) -> float:
        """Take a token: 0.0; or, if there is none, the seconds until there is one."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= 1.0
        return 0.0


class Rates:
    """A bucket for each client.  One that is full again is like a new one, so those of the idle are forgotten."""

    def __init__(self, rate: float, *, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: TTLCache[str, TokenBucket] = TTLCache(CLIENTS, ttl=max(1.0, 1.0 / rate), timer=clock)

    def take(self, client: str) -> float:
        """Take one of `client`'s tokens; see TokenBucket.take.  Costs O(1)."""
        now = self._clock()
        bucket = self._buckets.get(client) or TokenBucket(self._rate, now)
        self._buckets[client] = bucket  # from now on it is kept as long as a new one
        return bucket.take(now)
