"""What every engine answers: who subscribed to a pattern that matches this topic?

    subscribe("stock.*.nyse", "ann")  -> 0        lookup("stock.ibm.nyse")  -> {"ann", "bob"}
    subscribe("stock.#", "bob")       -> 1        matches("forex.usd")      -> False
    unsubscribe(0)                                lookup("stock.ibm.nyse")  -> {"bob"}

A subscription is a pattern and a value, and its handle names it.  Two may have the same pattern and the same
value; the value is found until the last of them is gone.  So what stands at a pattern is a dict of counts:
value -> how many subscriptions of this pattern hold it, never zero.

Source: matching and filtering as P. Hintjens, High-speed message matching (iMatix), tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Value = TypeVar("Value", bound="Hashable")


class Engine(Protocol[Value]):
    """Subscriptions, and which of their values a topic finds.

    One thread at a time, unless the engine says otherwise.  An engine cannot be copied or pickled: TypeError.
    """

    def subscribe(self, pattern: str, value: Value) -> int:
        """The handle of a new subscription; no handle is used twice.

        Raises PatternError for what the grammar refuses, and TypeError for a value that cannot be hashed.
        """
        ...

    def unsubscribe(self, handle: int) -> None:
        """End one subscription.  Raises KeyError where it is not there, or no longer, and changes nothing then."""
        ...

    def lookup(self, topic: str) -> set[Value]:
        """The values of the subscriptions whose patterns match `topic`; the set is the caller's own.

        Raises TypeError for a topic that is not a str, as `matches` does.
        """
        ...

    def matches(self, topic: str) -> bool:
        """Whether any subscription's pattern matches `topic`.  Stops at the first that does."""
        ...

    def __len__(self) -> int:
        """The number of subscriptions."""
        ...

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        ...


def count_in(counts: dict[Value, int], value: Value) -> None:
    """One subscription more holds `value`."""
    counts[value] = counts.get(value, 0) + 1


def count_out(counts: dict[Value, int], value: Value) -> None:
    """One subscription less holds `value`, which at least one does."""
    if counts[value] == 1:
        del counts[value]
    else:
        counts[value] -= 1
