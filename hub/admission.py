"""Admission: which connections may start now, how long they last, when to reconnect
(N23).

A subscriber is admitted before any expensive work for it: its patterns are compiled,
and its position in the history is looked up, under a ticket that counts until the
connection ends.

Rates are token buckets: J. Turner, New directions in communications, 1986 (as a leaky
bucket, which is the same upside down).
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
"""Clients whose buckets are kept.  If there are more, the one idle longest
starts anew."""


class Admission:
    """The limits and rates of one hub, and the number of connections that each client
    has.
    """

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
        """The number of connections of each client that has any."""
        self._connections = 0
        """The number of connections of all clients."""

    def admit(self, client: str) -> Ticket:
        """Count one more connection of `client`.

        Raises LimitExceeded or Busy, and then counts nothing.
        """
        settings = self._settings
        if self._rates is not None and (wait := self._rates.take(client)):
            raise LimitExceeded("the limit of subscriptions a second for one client is exceeded").retry_after(wait)
        if self._rate is not None and self._rate.take(self._clock()):
            # A random time: clients with the same time would come back together.
            raise Busy("the limit of new subscribers a second is exceeded").retry_after(self._random.uniform(1, 10))
        if self._connections >= settings.max_connections:
            raise LimitExceeded(f"the limit of {settings.max_connections} subscribers is reached")
        if 0 < settings.max_connections_per_client <= self._clients[client]:
            raise LimitExceeded(f"the limit of {self._clients[client]} subscribers for one client is reached")
        self._clients[client] += 1
        self._connections += 1
        return Ticket(self, client)

    def deadline(self, grant: Grant) -> tuple[float, str]:
        """Return when a connection that starts now must end, by the clock, and why
        (N82, R33).
        """
        now, lifetime = self._clock(), self._settings.max_lifetime
        expires = math.inf if grant.expires is None else now + grant.expires - self._wall_clock()
        # Up to a fifth less, so that clients that came together do not return together.
        ends = now + lifetime * self._random.uniform(0.8, 1.0) if lifetime else math.inf
        return (expires, "its token expires") if expires <= ends else (ends, "it has reached the maximum lifetime")

    def expires_within(self, seconds: float, grant: Grant) -> bool:
        """Return whether a grant expires within `seconds`."""
        return grant.expires is not None and grant.expires - seconds <= self._wall_clock()

    def retry_hint(self) -> bytes:
        """Return the field that says when a client should reconnect, or b"" (N30).

        The time is random around the setting.
        """
        seconds = self._settings.retry
        return events.retry(seconds * self._random.uniform(0.5, 1.5)) if seconds else b""

    def leave(self, client: str) -> None:
        """Count one connection of `client` less."""
        self._connections -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


class Ticket:
    """One connection of a client, which counts until the ticket is given back."""

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
    """A bucket that gains `rate` tokens a second, up to one second's worth, at least
    one.
    """

    __slots__ = ("_at", "_most", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = self._tokens = max(1.0, rate)  # the number of tokens ...
        self._at = now  # ... at this time

    def take(self, now: float) -> float:
        """Take a token and return 0.0, or return the seconds until there is one."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= 1.0
        return 0.0


class Rates:
    """A bucket for each client; a bucket that is full again is forgotten."""

    def __init__(self, rate: float, *, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: TTLCache[str, TokenBucket] = TTLCache(CLIENTS, ttl=max(1.0, 1.0 / rate), timer=clock)

    def take(self, client: str) -> float:
        """Take one of `client`'s tokens, as TokenBucket.take does.  Costs O(1)."""
        now = self._clock()
        bucket = self._buckets.get(client) or TokenBucket(self._rate, now)
        self._buckets[client] = bucket  # starts its time to live again
        return bucket.take(now)
