"""Rates: how many may come in a second, hub-wide and of each client.

A token bucket, which fills at its rate up to one second's worth: whoever comes takes a token, or is told when to come
again.  Source: J. Turner, New directions in communications, 1986 (as a leaky bucket, which is the same upside down).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cachetools import TTLCache

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS: Final = 10_000
"""Clients whose buckets are kept; where there are more, who was idle longest has a new one."""


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
