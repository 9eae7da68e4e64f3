"""What does a linear matcher cost beside the regular expression that it replaces, and what does it save?

Baseline: `re` with the expression that the deployed hubs' library makes of the template.
"""

from __future__ import annotations

import re
from typing import Any

from bench.measure import compare, save
from skipfilter import UriTemplate

ITEM = r"(?:[A-Za-z0-9\-._~,]|%[0-9A-Fa-f]{2})*"
PAIR = r"(?:[A-Za-z0-9\-._~,=]|%[0-9A-Fa-f]{2})*"
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
    "three expressions, matches": (
        "https://example.com/{shelf}/books{/id}{?page*}",
        rf"https://example\.com/(?:{ITEM})?/books(?:/{ITEM})?(?:\?{PAIR}(?:&{PAIR})*)?",
        "https://example.com/new/books/12345?page=1&size=10",
        5_000,
    ),
    "{a*} and 8 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 8 + "!", 100),
    "{a*} and 12 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 12 + "!", 10),
    "{a*} and 16 commas": ("{a*}", rf"(?:{PAIR}(?:,{PAIR})*)?", "," * 16 + "!", 1),
}


def measure(template: str, expression: str, topic: str, calls: int) -> dict[str, Any]:
    ours, theirs = UriTemplate(template), re.compile(expression)
    assert ours.match(topic) == bool(theirs.fullmatch(topic))
    return compare(
        {"re": lambda: theirs.fullmatch(topic), "UriTemplate": lambda: ours.match(topic)},
        calls={"re": calls, "UriTemplate": 5_000},
    )


def compiling() -> dict[str, Any]:
    template, expression, _, _ = CASES["three expressions, matches"]

    def compile_re() -> object:
        re.purge()
        return re.compile(expression)

    return compare(
        {"re": compile_re, "UriTemplate": lambda: UriTemplate(template)}, calls={"re": 50, "UriTemplate": 1_000}
    )


if __name__ == "__main__":
    results = {name: measure(*case) for name, case in CASES.items()} | {"compiling three expressions": compiling()}
    save("uri_template", "Matching a topic against a URI template: re against UriTemplate", results)
