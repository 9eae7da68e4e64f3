"""Shares: how much of each costly thing the clients use, and how much one may use.

    in use      0 ──────────── half ────────────────────────── bound
    refused     nobody         clients above their share       everybody
                               near the bound: also clients that hold more
                               than PATIENCE times what is free

So a greedy client meets its own limit before anyone else meets one.  While half of a
resource is free, nobody is refused, and many people may share an address.  Near the
bound, the clients that hold most are refused first, and those without a token before
the others.  A share ends no stream that is open.

A client is the subject of a token or, without one, an address or an IPv6 network of
64 bits.  The wider networks of 56 and 48 bits count as well, with a share that is twice
and four times as large, so that many networks of one household count for little.

Source: the limit that shrinks with what is free is A. Choudhury and E. Hahne, Dynamic
Queue Length Thresholds for Shared-Memory Packet Switches, 1998.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from hub.delivery.subscriber import Payer
from hub.errors import Full, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hub.settings import Settings

PATIENCE: Final = 16
"""Near the bound, a client may hold up to this many times what is free."""
KEPT: Final = 16
"""One part in this many of each bound is kept for clients with a token."""


ISSUER: Final = Payer("issuer")
"""The client that the patterns of all tokens count for: the issuers chose them."""


class Resource(NamedTuple):
    """Something of which a client can use more and more.

    All these are counted by each process alone, but for the ids, which are in the
    history.
    """

    counted: str
    """What is counted, in the plural."""
    setting: str
    """The setting with the bound of all clients together."""
    until: str
    """Until when one of them counts."""
    share: str = "client_share"
    """The setting with the share of one client; "" if the oldest are forgotten."""


RESOURCES: Final = {
    "connections": Resource("subscribers", "max_connections", "the connection ends", "max_connections_per_client"),
    "url_patterns": Resource(
        "URL Patterns with groups", "max_url_patterns", "no connection, request or cached token has the pattern"
    ),
    "matchers": Resource(
        "bytes of matchers", "max_matchers_memory", "no connection, request or cached token has the pattern"
    ),
    "alike": Resource("patterns with the same fixed text", "max_alike", "no connection has the pattern"),
    "readers": Resource("readers that do not wait", "max_readers", "the response is complete"),
    "requests": Resource("requests that are not streams", "max_requests", "the request is answered"),
    "announcements": Resource("presence updates in the queue", "max_announcements", "the update is in the history"),
    "publishes": Resource("updates a second", "publish_rate", "the second is over"),
    "ids": Resource("ids of updates that are remembered", "history_updates", "`idempotency_window` is over", ""),
}
"""All that clients can make grow, and the bounds.

The names are those of the attributes of `Shares`; `ids` has none, because the history
bounds them.  The share of updates a second belongs to a `CompiledGrant.publisher`.
"""


class Share:
    """The bound of one resource, and the share of each client.  `most` is the share."""

    __slots__ = ("_half", "_most", "_resource", "bound")

    def __init__(self, resource: Resource, bound: float = math.inf, most: float = math.inf) -> None:
        self.bound = bound
        self._resource = resource
        self._half = bound / 2
        self._most = most

    def require(self, payer: Payer, *, used: float, held: Sequence[float], more: float = 1) -> None:
        """Raise LimitExceeded if a client must not use `more` of the resource.

        It is Full if no other client, with a token or without one as this, may either.
        All clients use `used` now.  Afterwards, each of `payer.names` would hold what
        is at its place in `held`.
        """
        if used + more <= self._half:
            return
        counted, setting = self._resource.counted, self._resource.setting
        widest_first = reversed([*zip(held, payer.limits(self._most), strict=True)])
        for each, (_, most, one) in widest_first:
            if each > most:
                raise LimitExceeded(
                    f"the limit of {most:,.0f} {counted} for {one} is reached (client_share); it applies while more "
                    f"than half of {self.bound:,.0f} are in use ({setting})"
                )
        free = self.bound - used
        if payer.anonymous:
            free -= self.bound // KEPT
        if more <= free and held[0] <= PATIENCE * free:
            return
        limit = f"the limit of {self.bound:,.0f} {counted}"
        if used + more > self.bound:
            raise Full(f"{limit} is reached ({setting})")
        kind = Full if more > free else LimitExceeded
        raise kind(f"{limit} is nearly reached ({setting}): clients that have few, or a token, come first")


class Held(Share):
    """A resource that clients hold for some time."""

    __slots__ = ("_held", "used")

    def __init__(self, resource: Resource, bound: float = math.inf, most: float = math.inf) -> None:
        super().__init__(resource, bound, most)
        self.used = 0
        """What all clients use together.  What several clients share counts once."""
        self._held: dict[str, int] = {}  # client or network -> what it holds; never 0

    def held(self, payer: Payer) -> int:
        """Return what one client holds; what it shares with others counts too."""
        return self._held.get(payer.name, 0)

    def require_below(self, payer: Payer, limit: int) -> None:
        """Raise LimitExceeded if a client holds `limit`, or a network around it more.

        `limit` is that of one client.
        """
        for name, most, one in payer.limits(limit):
            if self._held.get(name, 0) >= most:
                raise LimitExceeded(f"the limit of {most:,} {self._resource.counted} for {one} is reached")

    def require_more(self, payer: Payer, amount: int) -> None:
        """Raise LimitExceeded if a client must not use so much more."""
        held = [self._held.get(name, 0) + amount for name in payer.names]
        self.require(payer, used=self.used, held=held, more=amount)

    def take(self, payer: Payer, amount: int = 1) -> None:
        """Count what a client begins to use, or raise LimitExceeded."""
        if self.used + amount > self._half:
            self.require_more(payer, amount)
        self.add(payer, amount)

    def add(self, payer: Payer, amount: int) -> None:
        """Count what a client begins to use, without a limit."""
        self.used += amount
        self.hold(payer, amount)

    def give_back(self, payer: Payer, amount: int = 1) -> None:
        """Count what a client no longer uses."""
        self.used -= amount
        self.release(payer, amount)

    @contextmanager
    def taken(self, payer: Payer) -> Iterator[None]:
        """Take one inside of the context; for what happens rarely."""
        self.take(payer)
        try:
            yield
        finally:
            self.give_back(payer)

    def hold(self, payer: Payer, amount: int) -> None:
        """Count what a client begins to use, and others may share, for it alone."""
        # For each publish, so without the call of `names`; the same in `release`.
        for name in (payer.name, *payer.networks) if amount else ():
            self._held[name] = self._held.get(name, 0) + amount

    def release(self, payer: Payer, amount: int) -> None:
        """Undo `hold`."""
        for name in (payer.name, *payer.networks) if amount else ():
            if left := self._held[name] - amount:
                self._held[name] = left
            else:
                del self._held[name]

    @property
    def clients(self) -> dict[str, int]:
        """What each client and network holds, by its name; none holds nothing."""
        return dict(self._held)


class Rate(Share):
    """A resource that is counted anew each second.

    A client may exceed its share by its last use, so that it can use much at once.
    `clock` returns seconds.
    """

    __slots__ = ("_clock", "_counts", "_ends", "_used")

    def __init__(self, resource: Resource, bound: float, most: float, *, clock: Callable[[], float]) -> None:
        super().__init__(resource, bound, most)
        self._clock = clock
        self._ends = -math.inf  # when the present second is over
        self._used = 0  # what all clients have used in it
        self._counts: dict[str, int] = {}  # client -> what it has used in it

    def take(self, name: str, amount: int) -> None:
        """Count what a client uses now, or raise LimitExceeded.  `name` is its name."""
        now = self._clock()
        if now >= self._ends:
            self._ends = now + 1
            self._used = 0
            self._counts.clear()
        before = self._counts.get(name, 0)
        if self._used >= self._half:
            try:
                self.require(Payer(name), used=self._used, held=[before + 1])
            except LimitExceeded as error:
                raise error.retry_after(self._ends - now) from None
        self._used += amount
        self._counts[name] = before + amount


class Shares:
    """The resources of one hub, each with what its clients use.

    `clock` returns monotonic seconds.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        def of(name: str) -> tuple[Resource, float, float]:
            """Return a resource, its bound, and the share of a client."""
            bound: float = getattr(settings, RESOURCES[name].setting)
            return RESOURCES[name], bound, max(1, math.floor(bound * settings.client_share))

        self.connections = Held(*of("connections")[:2], math.inf)
        self.url_patterns = Held(*of("url_patterns"))
        self.matchers = Held(*of("matchers"))
        self.alike = Share(*of("alike"))
        self.readers = Held(*of("readers"))
        self.requests = Held(*of("requests"))
        self.announcements = Held(*of("announcements"))
        self.publishes = Rate(*of("publishes"), clock=clock)
