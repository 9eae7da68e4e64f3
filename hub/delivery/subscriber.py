"""Subscriber: the subscriptions, the grant and the deadline of one connection.

Belongs here: all decisions about a connection before it has a seat.  Does not belong
here: anything that changes while it lasts.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Network
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from hub.auth.grant import ANONYMOUS
from hub.protocol.updates import new_id
from skipfilter import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hub.auth.grant import CompiledGrant
    from hub.history.cursor import Start
    from hub.logs import LogContext
    from hub.protocol.topics import TopicMatcher


ADDRESS: Final = "address "


WIDER: Final = 56, 48
"""Bits of the networks around one of 64 bits; each may use twice as much as the one
before, although it has 256 times as many addresses."""


class Payer(NamedTuple):
    """The client that connections count for, toward the limits and shares."""

    name: str
    """`subject …` if its token has a subject, otherwise `address …`."""
    anonymous: bool = False
    """Whether it has no token."""
    networks: tuple[str, ...] = ()
    """The wider networks of an IPv6 address, which have shares of their own."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that its connections count for: itself, and its wider networks."""
        return self.name, *self.networks

    def limits(self, most: float) -> Iterator[tuple[str, float, str]]:
        """Yield each of `names`, its limit, and what a message calls it.

        `most` is the limit of one client; see `WIDER`.
        """
        for index, name in enumerate(self.names):
            yield name, most * 2**index, "one network" if index else "one client"


@lru_cache(1_024)
def payer_at(address: str, anonymous: bool = False) -> Payer:
    """Return the payer with an address, and without the subject of a token.

    A household often has a network of 56 bits, and a rented server one of 48 bits.
    """
    networks: list[str] = []
    if address.endswith("/64"):
        with suppress(ValueError):  # a proxy may have any name for a client
            network = IPv6Network(address)
            networks = [f"network {network.supernet(new_prefix=bits)}" for bits in WIDER]
    return Payer(ADDRESS + address, anonymous, tuple(networks))


def payer_for(grant: CompiledGrant, address: str) -> Payer:
    """Return the payer of a client: its subject, or its address if it has none."""
    return payer_at(address, grant is ANONYMOUS) if grant.subject is None else _payer_with(grant.subject)


@lru_cache(1_024)
def _payer_with(subject: str) -> Payer:
    return Payer(f"subject {subject}")


class Ticket(Protocol):
    """The count of a connection toward the limits."""

    @property
    def payer(self) -> Payer:
        """The payer that the connection counts for."""
        ...

    def require_alike(self, owners: Sequence[Payer | None]) -> None:
        """Raise an error if the client must not have one more pattern beside others.

        `owners` are the payers that the others count for.
        """
        ...

    def give_back(self) -> None:
        """Stop counting the connection.  A second call does nothing."""
        ...


class Subscriber:
    """The subscriptions and the grant of one connection.

    - `subscribed`: the matchers of its request.
    - `grant`: what its token allows.
    - `start`: the position in the history after which it receives entries.
    - `deadline`: when its connection must end, by the hub's monotonic clock; inf if it
      need not end.
    - `expires`: whether that is because its grant expires.
    - `presence_after`: the position after which it may want presence updates; inf if it
      never does.
    - `address`: where its request came from, as far as that is known.
    - `heard`: a mark for the commands that were known when its request came; None if no
      command can end it before it has a seat.
    - `signals`: how it begins, if it wants signals (R91); None if it does not.
    - `log_context`: what log lines say about its request; None if it has none.
    - `ticket`: counts the connection toward the limits; None if it does not count.
    """

    __slots__ = (
        "_ticket",
        "address",
        "deadline",
        "expires",
        "grant",
        "heard",
        "id",
        "log_context",
        "presence_after",
        "signals",
        "start",
        "subscribed",
    )

    def __init__(
        self,
        subscribed: Iterable[TopicMatcher],
        grant: CompiledGrant,
        start: int,
        *,
        ticket: Ticket | None = None,
        deadline: float = math.inf,
        expires: bool = False,
        presence_after: float = math.inf,
        address: str = "",
        heard: int | None = None,
        signals: Start | None = None,
        log_context: LogContext | None = None,
    ) -> None:
        self.id = new_id()  # N125: random, and no client chooses it
        self.subscribed = tuple(subscribed)
        self.grant = grant
        self.deadline = deadline
        self.expires = expires
        self.start = start
        self.presence_after = presence_after
        self.address = address
        self.heard = heard
        self.signals = signals
        self.log_context = log_context
        self._ticket = ticket

    @property
    def payer(self) -> Payer | None:
        """The client that it counts for; None without a ticket."""
        return None if self._ticket is None else self._ticket.payer

    def require_alike(self, owners: Sequence[Subscriber]) -> None:
        """Raise an error if it must not have one more pattern that is like others.

        `owners` are the subscribers that the others count for.  Raises `LimitError` if
        it has no ticket.
        """
        if self._ticket is None:
            raise LimitError(f"{len(owners)} patterns have the same fixed text")
        self._ticket.require_alike([one.payer for one in owners])

    def leave(self) -> None:
        """Stop counting toward the limits.  A second call does nothing."""
        if self._ticket is not None:
            self._ticket.give_back()
