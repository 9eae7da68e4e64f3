"""How fast does a FieldFilter find the values whose criteria a message meets?

Few values match or many do.  Other implementations of the same methods are measured,
too.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from itertools import chain, cycle
from typing import TYPE_CHECKING

from pyroaring import BitMap

from bench.benchmark import Case, Lines
from bench.measure import compare, memory
from bench.workloads import SEED
from skipfilter import FieldFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from skipfilter.fields.criteria import Criterion

QUESTION = "Which implementation finds the values whose criteria a message meets fastest?"
WORKLOAD = (
    "One to four criteria per value; one criterion in ten is that a field is present. Messages have eight random "
    "fields with random values: out of 20 fields of 1,000 values (selective), 12 of 100 (between), or 8 of 4 (dense). "
    "Baseline: the list comprehension that compares every set of criteria, to find the values of which all criteria "
    "are met; match_any and hits find more. The bytes are those of the filter, without values and texts."
)
PLOT = Lines(x="values", panel="spread")

SPREADS = {"selective": (20, 1_000), "between": (12, 100), "dense": (8, 4)}
"""The number of fields, and the number of values of a field."""
MESSAGES = 10
"""The number of messages, which are used in turn."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: each spread with some numbers of values."""
    for spread in SPREADS:
        for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000):
            yield Case(
                f"{spread}, {count:,} values", partial(measure, spread, count), at={"spread": spread, "values": count}
            )


def measure(spread: str, count: int, rounds: int) -> dict[str, Figures]:
    """Measure all methods, and other implementations of them, with `count` values."""
    subscribed, messages = workload(spread, count)
    taken = memory(lambda: filled(subscribed))
    readers = filled(subscribed)
    criteria_of = [(n, frozenset(c if isinstance(c, tuple) else (c,) for c in own)) for n, own in enumerate(subscribed)]

    def ask(message: dict[str, int]) -> list[int]:
        """Compare every set of criteria: the baseline."""
        rows = {*((name,) for name in message), *message.items()}
        return [reader for reader, criteria in criteria_of if criteria <= rows]

    def by_access(message: dict[str, int]) -> list[int]:
        """Find the values of which all criteria are met, by the rarest criterion."""
        return readers._resolve(readers._index.candidates(readers._index.read(message)).ids())

    def by_slices(message: dict[str, int]) -> list[int]:
        """Find the values of which all criteria are met, by bit slices."""
        return readers._resolve(readers._index._bucketed.matching(readers._index.read(message)))

    def by_counter(message: dict[str, int]) -> dict[int, int]:
        """Count the criteria that are met with a Counter."""
        counts = Counter(chain.from_iterable(readers._index._bucketed.met(readers._index.read(message))))
        ids = BitMap(counts)
        return dict(zip(readers._values.resolve(ids), (counts[id] for id in ids), strict=True))

    variants: dict[str, Callable[[dict[str, int]], object]] = {
        "compare every set": ask,
        "all, rarest criterion": by_access,
        "all, bit slices": by_slices,
        "match_all": readers.match_all,
        "match_any": readers.match_any,
        "hits, Counter": by_counter,
        "hits": readers.hits,
        "matches_all": readers.matches_all,
        "matches_any": readers.matches_any,
    }
    # All implementations must agree.
    for message in messages:
        expected = ask(message)
        assert all(variants[name](message) == expected for name in variants if "all" in name and name != "matches_all")
        assert by_counter(message) == readers.hits(message)
    # The number of calls is a multiple of the number of messages, so that all variants
    # get the same messages.
    calls = {name: MESSAGES * max(5, 100_000 // count) for name in variants} | {"compare every set": MESSAGES}
    made = compare({name: over(variant, messages) for name, variant in variants.items()}, calls=calls, rounds=rounds)
    for name in ("match_all", "match_any"):
        found = sum(len(found) for message in messages if isinstance(found := variants[name](message), list))
        made[name]["values found"] = found / MESSAGES
    made["match_all"]["bytes a value"] = taken / count
    return made


def over(variant: Callable[[dict[str, int]], object], messages: list[dict[str, int]]) -> Callable[[], object]:
    """Return a function that calls `variant` with the next message, in a cycle."""
    turn = cycle(messages)
    return lambda: variant(next(turn))


def workload(spread: str, count: int) -> tuple[list[list[Criterion]], list[dict[str, int]]]:
    """Return the criteria of `count` values, and MESSAGES messages.

    The field names and the values are random; `spread` is a key of SPREADS.
    """
    chance = random.Random(SEED + 20)
    fields, values = SPREADS[spread]
    names = [f"field {n}" for n in range(fields)]

    def criterion(name: str) -> Criterion:
        """Return a criterion of a field: its presence, for one in ten, or a value."""
        return name if chance.random() < 0.1 else (name, chance.randrange(values))

    subscribed = [[criterion(name) for name in chance.sample(names, chance.randint(1, 4))] for _ in range(count)]
    return subscribed, [{name: chance.randrange(values) for name in chance.sample(names, 8)} for _ in range(MESSAGES)]


def filled(subscribed: list[list[Criterion]]) -> FieldFilter[int]:
    """Return a filter whose values are the indexes of `subscribed`."""
    readers: FieldFilter[int] = FieldFilter()
    for reader, criteria in enumerate(subscribed):
        readers.add(reader, criteria)
    return readers
