"""How fast are rules on events, beside AWS event-ruler?

event-ruler is a Java library; its archives come from Maven Central.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.benchmark import BENCH, Case, Lines
from bench.measure import figures
from bench.workloads import SEED
from skipfilter.fields import FieldFilter, all_of, at_least, between, not_, one_of, prefix, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measure import Figures
    from skipfilter.fields import Expression

QUESTION = "How fast are rules on events, beside AWS event-ruler?"
WORKLOAD = (
    "Rules of two to eight conditions on nested JSON events of 13 fields: equality (20 regions, 50 types, 10,000 "
    "customers), one of three currencies, a least total or a range, a prefix, and that a field has another value. 500 "
    "random events in turn; both find the same rules. parsed: the event is a dict, or a tree of Jackson. text: it is "
    "JSON, which is parsed, too. CPU time is that of the whole process, with the compilation and garbage collection of "
    "the Java machine, after a warm-up of 5 s."
)
UNIT = "CPU µs an event"
PLOT = Lines(x="rules", panel="event")

EVENTS = 500
"""The number of events that are matched in turn."""
FEW = 100
"""Up to this number of rules, event-ruler matches a hundred times as often as we do,
and otherwise three times, because the clock of its CPU time is coarse.
"""
WARM_UP_SECONDS = 5.0
"""How many CPU seconds event-ruler matches before the first measurement."""

MAVEN: Final = "https://repo1.maven.org/maven2"
ARCHIVES: Final = {
    "software/amazon/event/ruler/event-ruler/2.1.0/event-ruler-2.1.0.jar": "0de916a30048f996",
    "com/fasterxml/jackson/core/jackson-core/2.22.2/jackson-core-2.22.2.jar": "ff167a6317be1589",
    "com/fasterxml/jackson/core/jackson-databind/2.22.2/jackson-databind-2.22.2.jar": "d0da14c12b16b5d5",
    "com/fasterxml/jackson/core/jackson-annotations/2.22/jackson-annotations-2.22.jar": "21ddb598807d3a51",
    "ch/randelshofer/fastdoubleparser/2.0.1/fastdoubleparser-2.0.1.jar": "4242e23352990265",
}
"""event-ruler and what it needs; each with the beginning of its SHA-256."""
JARS = Path.home() / ".cache" / "skipfilter-bench"
"""Where the archives are kept."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: numbers of rules, with and without parsing JSON."""
    for count in (1, 100, 1_000) if quick else (1, 100, 10_000, 50_000):
        for form in ("parsed", "text"):
            at: dict[str, float | str] = {"rules": count, "event": form}
            yield Case(f"{count:,} {'rule' if count == 1 else 'rules'}, {form}", partial(measure, count, form, 0), at)
    yield Case("1,000 rules, one in six that a field is absent, parsed", partial(measure, 1_000, "parsed", 1 / 6))


def versions() -> dict[str, str]:
    """Return the versions of event-ruler and of Java."""
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return {"event-ruler": "2.1.0", "java": text.split('"')[1]}


def measure(count: int, form: str, absent: float, rounds: int) -> dict[str, Figures]:
    """Measure `count` rules with events as text or parsed.

    A share `absent` of the rules ask that a field is absent.
    """
    rules, events = random_rules(count, absent), random_events()
    texts = [json.dumps(event) for event in events]
    readers: FieldFilter[int] = FieldFilter()
    began = time.process_time()
    for number, rule in enumerate(rules):
        readers.add(number, expression(rule))
    added = time.process_time() - began
    match = readers.match_all
    taken: dict[str, list[float]] = {"event-ruler": [], "FieldFilter": []}
    times = max(2, 20_000 // (count + 1_000))
    their_times = times * (100 if count <= FEW else 3)

    def ours() -> float:
        """Match all events `times` times, and return the CPU seconds."""
        began = time.process_time()
        for _ in range(times):
            if form == "text":
                for text in texts:
                    match(json.loads(text))
            else:
                for event in events:
                    match(event)
        return time.process_time() - began

    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory, "rules"), Path(directory, "events")
        files[0].write_text("".join(json.dumps(as_pattern(rule)) + "\n" for rule in rules))
        files[1].write_text("".join(text + "\n" for text in texts))
        classes = ":".join(map(str, archives()))
        command = ["java", "-Xmx4g", "-cp", classes, str(BENCH / "EventRuler.java"), *map(str, files)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java:
            assert java.stdin is not None
            assert java.stdout is not None
            # 1. Both find the same rules.
            theirs = [sorted(map(int, found)) for found in json.loads(java.stdout.readline())]
            assert theirs == [match(event) for event in events]

            def theirs_for(turns: int) -> float:
                """Match all events `turns` times, and return the CPU seconds."""
                assert java.stdin is not None
                assert java.stdout is not None
                print(form, turns, file=java.stdin, flush=True)
                return int(java.stdout.readline().split()[0]) / 1e9

            # 2. A warm-up, and then both in turn.
            warm = 0.0
            while warm < WARM_UP_SECONDS:
                warm += theirs_for(1)
            ours()
            for _ in range(rounds):
                taken["event-ruler"].append(theirs_for(their_times) / their_times / EVENTS * 1e6)
                taken["FieldFilter"].append(ours() / times / EVENTS * 1e6)
            java.stdin.close()
    made = {name: figures(some, taken["event-ruler"]) for name, some in taken.items()}
    made["FieldFilter"]["rules found"] = sum(map(len, theirs)) / EVENTS
    if count > 1:
        made["FieldFilter"]["µs a rule added"] = added / count * 1e6
    return made


def archives() -> list[Path]:
    """Return the archives of event-ruler, and fetch those that are not there.

    Raises RuntimeError if the content of one is not what it was.
    """
    JARS.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, digest in ARCHIVES.items():
        path = JARS / name.rpartition("/")[2]
        if not path.exists():
            with urllib.request.urlopen(f"{MAVEN}/{name}") as response:
                path.write_bytes(response.read())
        if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest):
            raise RuntimeError(f"{path} is not the {name} of {MAVEN}")
        paths.append(path)
    return paths


# -- the workload

Rule = list[tuple[str, str, Any]]
"""Conditions: a field, a kind, and its argument."""

REGIONS = [f"region-{n}" for n in range(20)]
TYPES = [f"Type {n}" for n in range(50)]
CURRENCIES = ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "PLN", "CZK", "HUF"]
STATES = ["pending", "running", "stopping", "stopped", "failed"]
CUSTOMERS = 10_000
TOTAL = 100_000


def random_rules(count: int, absent: float) -> list[Rule]:
    """Return `count` rules of two conditions or more; a share `absent` ask that a field
    is absent.
    """
    chance = random.Random(SEED + 40)
    low = partial(chance.randrange, TOTAL)
    some: list[tuple[float, Callable[[], tuple[str, str, Any]]]] = [
        (0.8, lambda: ("detail-type", "one_of", [chance.choice(TYPES)])),
        (0.6, lambda: ("region", "one_of", [chance.choice(REGIONS)])),
        (0.4, lambda: ("detail.order.currency", "one_of", chance.sample(CURRENCIES, 3))),
        (0.2, lambda: ("detail.customer.id", "one_of", [f"c{chance.randrange(CUSTOMERS)}"])),
        (0.2, lambda: ("detail.order.total", "at_least", low())),
        (0.2, lambda: ("detail.order.total", "between", (start := low(), start + 5_000))),
        (0.2, lambda: ("detail.path", "prefix", f"/{chance.randrange(10)}/{chance.randrange(10)}")),
        (absent, lambda: ("detail.test", "absent", None)),
        (0.15, lambda: ("detail.state", "other", chance.choice(STATES))),
    ]
    made: list[Rule] = []
    while len(made) < count:
        rule = [make() for share, make in some if chance.random() < share]
        fields = {field for field, _, _ in rule}
        if len(fields) == len(rule) > 1:
            made.append(rule)
    return made


def random_events() -> list[dict[str, Any]]:
    """Return EVENTS events."""
    chance = random.Random(SEED + 41)
    return [
        {
            "version": "0",
            "id": f"{chance.getrandbits(64):016x}",
            "source": "shop",
            "time": f"2026-11-25T12:00:{n % 60:02}Z",
            "region": chance.choice(REGIONS),
            "detail-type": chance.choice(TYPES),
            "detail": {
                "state": chance.choice(STATES),
                "path": f"/{chance.randrange(10)}/{chance.randrange(10)}/{n}",
                "customer": {"id": f"c{chance.randrange(CUSTOMERS)}", "name": "Ann"},
                "order": {"currency": chance.choice(CURRENCIES), "total": chance.randrange(TOTAL), "items": 3},
            }
            | ({"test": True} if chance.random() < 0.1 else {}),
        }
        for n in range(EVENTS)
    ]


def expression(rule: Rule) -> Expression:
    """Return a rule as an expression."""
    parts: list[Expression] = []
    for field, kind, argument in rule:
        match kind:
            case "one_of":
                parts.append(one_of(field, *argument))
            case "at_least":
                parts.append(at_least(field, argument))
            case "between":
                parts.append(between(field, *argument))
            case "prefix":
                parts.append(prefix(field, argument))
            case "absent":
                parts.append(not_(present(field)))
            case _:
                parts.append(all_of(present(field), not_(one_of(field, argument))))
    return all_of(*parts)


def as_pattern(rule: Rule) -> dict[str, Any]:
    """Return a rule as event-ruler writes it."""
    pattern: dict[str, Any] = {}
    for field, kind, argument in rule:
        *path, name = field.split(".")
        inner = pattern
        for step in path:
            inner = inner.setdefault(step, {})
        match kind:
            case "one_of":
                inner[name] = argument
            case "at_least":
                inner[name] = [{"numeric": [">=", argument]}]
            case "between":
                inner[name] = [{"numeric": [">=", argument[0], "<=", argument[1]]}]
            case "prefix":
                inner[name] = [{"prefix": argument}]
            case "absent":
                inner[name] = [{"exists": False}]
            case _:
                inner[name] = [{"anything-but": argument}]
    return pattern
