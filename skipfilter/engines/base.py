"""The interface of all engines: subscriptions to patterns, and lookups of topics.

    subscribe("stock.*.nyse", "ann")  -> 0
    subscribe("stock.#", "bob")       -> 1
    lookup("stock.ibm.nyse")          -> {"ann", "bob"}
    matches("forex.usd")              -> False
    unsubscribe(0)
    lookup("stock.ibm.nyse")          -> {"bob"}

A subscription is a pattern and a value, and its handle names it.  Two subscriptions may
have the same pattern and value; the value is found until the last one has ended.  So an
engine counts the subscriptions of each pattern by value; no count is zero.

Source: P. Hintjens, High-speed message matching (iMatix), for matching against
filtering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Value = TypeVar("Value", bound="Hashable")


class Engine(Protocol[Value]):
    """Subscriptions, and a lookup of the values that a topic matches.

    One thread at a time, unless the engine says otherwise.  Raises TypeError if an
    engine is copied or pickled.
    """

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription, and return its handle.  No handle is used twice.

        Raises PatternError if the grammar refuses the pattern, and TypeError if the
        value cannot be hashed.
        """
        ...

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.  Raises KeyError if there is none with this handle."""
        ...

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of all subscriptions that match `topic`, as a new set.

        Raises TypeError if the topic is not a str.
        """
        ...

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.  Stops at the first.

        Raises TypeError if the topic is not a str.
        """
        ...

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        ...

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        ...


def count_in(counts: dict[Value, int], value: Value) -> None:
    """Count one more subscription with `value`."""
    counts[value] = counts.get(value, 0) + 1


def count_out(counts: dict[Value, int], value: Value) -> None:
    """Count one subscription less with `value`; there must be at least one."""
    if counts[value] == 1:
        del counts[value]
    else:
        counts[value] -= 1
