"""What does the linear URI template matcher cost?

It is compared with the regular expressions that deployed hubs use.  Some topics make
those take exponential time.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.measure import compare
from skipfilter import UriTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does a linear matcher cost, compared with a regular expression?"
WORKLOAD = (
    "One template and one topic per case. "
    "Baseline: `re` with the expression that the library of the deployed hubs makes of the template."
)
PLOT = Bars()

ITEM = r"(?:[A-Za-z0-9\-._~,]|%[0-9A-Fa-f]{2})*"
PAIR = r"(?:[A-Za-z0-9\-._~,=]|%[0-9A-Fa-f]{2})*"
THREE = (
    "https://example.com/{shelf}/books{/id}{?page*}",
    rf"https://example\.com/(?:{ITEM})?/books(?:/{ITEM})?(?:\?{PAIR}(?:&{PAIR})*)?",
)
# The template, the regular expression, the topic, and how often `re` is called in a
# round.
CASES = {
    "one variable, matches": (
        "https://example.com/books/{id}",
        rf"https://example\.com/books/(?:{ITEM})?",
        "https://example.com/books/12345",
        5_000,
    ),
    "one variable, another host": (
        "https://example.com/books/{id}",
        rf"https://example\.com/books/(?:{ITEM})?",
        "https://example.org/books/12345",
        5_000,
    ),
    "three expressions, matches": (*THREE, "https://example.com/new/books/12345?page=1&size=10", 5_000),
    "{a*} and 8 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 8 + "!", 100),
    "{a*} and 12 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 12 + "!", 10),
    "{a*} and 16 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 16 + "!", 1),
}


def cases(quick: bool) -> Iterator[Case]:  # noqa: ARG001 (all cases are quick)
    """Iterate over the cases: matches of CASES, and the compilation of a template."""
    for label, case in CASES.items():
        yield Case(label, partial(measure, *case))
    yield Case("compiling three expressions", compiling)


def measure(template: str, expression: str, topic: str, calls: int, rounds: int) -> dict[str, Figures]:
    """Measure a match of `topic`; both matchers must agree."""
    ours, theirs = UriTemplate(template), re.compile(expression)
    assert ours.match(topic) == bool(theirs.fullmatch(topic))
    return compare(
        {"re": lambda: theirs.fullmatch(topic), "UriTemplate": lambda: ours.match(topic)},
        calls={"re": calls, "UriTemplate": 5_000},
        rounds=rounds,
    )


def compiling(rounds: int) -> dict[str, Figures]:
    """Measure how long it takes to compile a template."""
    template, expression = THREE

    def compile_re() -> object:
        """Compile the regular expression, without the cache of `re`."""
        re.purge()
        return re.compile(expression)

    return compare(
        {"re": compile_re, "UriTemplate": lambda: UriTemplate(template)},
        calls={"re": 50, "UriTemplate": 1_000},
        rounds=rounds,
    )
