"""What does a subscription with a pattern of its own take, up to a million of them?

Compared with an older checkout, if BENCH_BEFORE names one, and with paho-mqtt.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from bench import checkouts
from bench.benchmark import Bars, Case
from bench.checkouts import Variant, in_turn, roots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "What does a subscription with a pattern of its own take, up to a million of them?"
WORKLOAD = (
    "Each value declares one pattern that no other declares. The bytes are the growth of the process, with the text of "
    "the pattern and the integer that is the value. MQTT filters have four words and a +; those of machines share "
    "their beginning, those of random words hardly anything. Every new topic matches one pattern; a known topic was "
    "asked for before. Baseline: MQTTMatcher of paho-mqtt for its filters, else the code before, or the first row."
)
PLOT = Bars()
UNIT = "bytes a subscription"
ROUNDS = 3, 1

KINDS = ("exact", "template", "template with a query", "url pattern")


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: MQTT filters, other types, and a million."""
    some, many = (2_000, 5_000) if quick else (200_000, 1_000_000)
    for kind in ("machines", "random words"):
        yield Case(f"{some:,} MQTT filters, {kind}", partial(measure, kind, some, "paho"))
    for kind in KINDS:
        yield Case(f"{some:,} of type {kind}", partial(measure, kind, some, ""))
    yield Case("1,000 templates", partial(measure, "template", 1_000, ""))
    yield Case(f"{many:,} templates", partial(measure, "template", many, ""))


def versions() -> dict[str, str]:
    """Return the versions that the result depends on."""
    return {"paho-mqtt": version("paho-mqtt"), **checkouts.versions()}


def measure(kind: str, count: int, baseline: str, rounds: int) -> dict[str, Figures]:
    """Measure one kind of patterns in each checkout, one by one and many at once."""
    variants = {"paho-mqtt": Variant("subscriptions", (kind, count, baseline))} if baseline else {}
    for name, root in roots().items():
        variants[f"{name}, add"] = Variant("subscriptions", (kind, count, "add"), root)
    variants["now, add_many"] = Variant("subscriptions", (kind, count, "add_many"))
    return in_turn(variants, rounds, of="bytes")
