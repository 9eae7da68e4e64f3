"""The interface of all engines: subscriptions to patterns, and lookups of topics.

    subscribe("stock.*.nyse", "ann")  -> 0
    subscribe("stock.#", "bob")       -> 1
    lookup("stock.ibm.nyse")          -> {"ann", "bob"}
    matches("forex.usd")              -> False
    unsubscribe(0)
    lookup("stock.ibm.nyse")          -> {"bob"}

A subscription is a pattern and a value; a handle identifies it.  If two subscriptions
have the same pattern and value, the value is found until both have ended.  So most
engines count, for each pattern, the subscriptions of each value; no count is zero.

Source: P. Hintjens, High-speed message matching (iMatix), for the difference between
matching and filtering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Value = TypeVar("Value", bound="Hashable")


class Engine(Protocol[Value]):
    """A set of subscriptions, and a lookup of those that match a topic.

    One thread may use an engine at a time, unless the engine says otherwise.  Raises
    TypeError if it is copied or pickled.
    """

    def subscribe(self, pattern: str, value: Value) -> int:
        """Add a subscription, and return its handle.

        Takes O(|pattern|), unless the engine says otherwise.  A handle is never used
        twice.  Raises PatternError if the grammar refuses the pattern, and TypeError if
        the value cannot be hashed.
        """
        ...

    def unsubscribe(self, handle: int) -> None:
        """End a subscription.

        Takes O(|pattern|), unless the engine says otherwise.  Raises KeyError, and
        changes nothing, if no subscription has this handle.
        """
        ...

    def lookup(self, topic: str) -> set[Value]:
        """Return the values of all subscriptions that match `topic`, as a new set.

        Takes as long as the class of the engine says.  The set is empty if none
        matches.  Raises TypeError if the topic is not a str.
        """
        ...

    def matches(self, topic: str) -> bool:
        """Return whether any subscription matches `topic`.

        Takes as long as the class of the engine says.  Stops at the first match.
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
    """Count one subscription less with `value`, which must have at least one."""
    if counts[value] == 1:
        del counts[value]
    else:
        counts[value] -= 1
