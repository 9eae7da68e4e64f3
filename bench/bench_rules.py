"""How fast are rules on events, beside AWS event-ruler?

    program                      from           its rules
    EventRuler.java              Maven Central  JSON patterns
    a_tree/, built by cargo      crates.io      texts: region in ["a"] and kind in ["b"]

Each is started with a file of rules and one of events, and answers orders (see
EventRuler.java).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.benchmark import BENCH, Case, Lines
from bench.measure import figures, resident
from bench.workloads import SEED
from skipfilter.fields import FieldFilter, all_of, at_least, between, not_, one_of, prefix, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from bench.measure import Figures
    from skipfilter.fields import Expression

QUESTION = "How fast are rules on events, beside AWS event-ruler?"
WORKLOAD = (
    "Rules of two to eight conditions on nested JSON events of 13 fields: equality (20 regions, 50 types, 10,000 "
    "customers), one of three currencies, a least total or a range, a prefix, and that a field has another value. 500 "
    "random events in turn; all find the same rules. Equalities alone: only the first four fields, and one of three "
    "currencies. parsed: the event is a dict, or a tree of Jackson or serde_json. text: it is JSON, which is parsed, "
    "too. CPU time is that of the whole process, with the compilation and garbage collection of the Java machine, "
    "after a warm-up of 5 s. bytes a rule: the growth of the process, or of the used heap of Java."
)
UNIT = "CPU µs an event"
PLOT = Lines(x="rules", panel="event")

EVENTS = 500
"""The number of events that are matched in turn."""
FEW = 100
"""Up to this number of rules, event-ruler matches a hundred times as often as we do,
and otherwise three times, because the clock of its CPU time is coarse.
"""
MANY = 100_000
"""From this number of rules on, the memory and the time to add one are told of all."""
WARM_UP_SECONDS = 5.0
"""How many CPU seconds another library matches before the first measurement."""

MAVEN: Final = "https://repo1.maven.org/maven2"
ARCHIVES: Final = {
    "software/amazon/event/ruler/event-ruler/2.1.0/event-ruler-2.1.0.jar": "0de916a30048f996",
    "com/fasterxml/jackson/core/jackson-core/2.22.2/jackson-core-2.22.2.jar": "ff167a6317be1589",
    "com/fasterxml/jackson/core/jackson-databind/2.22.2/jackson-databind-2.22.2.jar": "d0da14c12b16b5d5",
    "com/fasterxml/jackson/core/jackson-annotations/2.22/jackson-annotations-2.22.jar": "21ddb598807d3a51",
    "ch/randelshofer/fastdoubleparser/2.0.1/fastdoubleparser-2.0.1.jar": "4242e23352990265",
}
"""event-ruler and what it needs; each with the beginning of its SHA-256."""
CACHE = Path.home() / ".cache" / "skipfilter-bench"
"""Where the archives and the program with a-tree are kept."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: numbers of rules, with and without parsing JSON."""
    java = ("event-ruler",)
    for count in (1, 100, 1_000) if quick else (1, 100, 10_000, 50_000):
        for form in ("parsed", "text"):
            at: dict[str, float | str] = {"rules": count, "event": form}
            label = f"{count:,} {'rule' if count == 1 else 'rules'}, {form}"
            yield Case(label, partial(measure, partial(random_rules, count), java, form), at)
    rules = partial(random_rules, 1_000, absent=1 / 6)
    yield Case("1,000 rules, one in six that a field is absent, parsed", partial(measure, rules, java, "parsed"))
    some, many = (500, 2_000) if quick else (100_000, 1_000_000)
    for count, peers in ((some, (*java, "a-tree")), (many, java)):
        rules = partial(random_rules, count, is_equal=True)
        yield Case(f"{count:,} rules of equalities alone, parsed", partial(measure, rules, peers, "parsed"))
    yield Case(f"{many:,} rules, parsed", partial(measure, partial(random_rules, many), (), "parsed"))


def versions() -> dict[str, str]:
    """Return the versions of the other libraries and of their languages."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    rust = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    return {"event-ruler": "2.1.0", "java": java.split('"')[1], "a-tree": "0.6.1", "rust": rust.split()[1]}


def measure(rules: Callable[[], Iterator[Rule]], peers: tuple[str, ...], form: str, rounds: int) -> dict[str, Figures]:
    """Measure rules with events as text or parsed, beside other libraries."""
    events = random_events()
    texts = [json.dumps(event) for event in events]
    taken: dict[str, list[float]] = {name: [] for name in (*peers, "FieldFilter")}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as processes:
        # 1. All have the rules, and find the same ones.
        others = {name: processes.enter_context(Peer(name, rules(), texts, Path(directory))) for name in peers}
        readers: FieldFilter[int] = FieldFilter()
        before, began = resident(os.getpid()), time.process_time()
        for number, rule in enumerate(rules()):
            readers.add(number, expression(rule))
        count = len(readers)
        added = (time.process_time() - began) / count * 1e6
        grown = (resident(os.getpid()) - before) / count
        match = readers.match_all
        found = [match(event) for event in events]
        for other in others.values():
            assert other.found == found, other

        def ours(times: int) -> float:
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

        # 2. A warm-up, and then all in turn.
        times = max(2, 20_000 // (count + 1_000))
        their_times = times * (100 if count <= FEW else 3 if count < MANY else 1)
        for other in others.values():
            warm = 0.0
            while warm < WARM_UP_SECONDS:
                warm += other.seconds(form, 1)
        ours(times)
        for _ in range(rounds):
            for name, other in others.items():
                taken[name].append(other.seconds(form, their_times) / their_times / EVENTS * 1e6)
            taken["FieldFilter"].append(ours(times) / times / EVENTS * 1e6)
    made = {name: figures(some, next(iter(taken.values()))) for name, some in taken.items()}
    made["FieldFilter"]["rules found"] = sum(map(len, found)) / EVENTS
    if count > 1:
        made["FieldFilter"]["µs a rule added"] = added
    if count >= MANY:
        made["FieldFilter"]["bytes a rule"] = grown
        for name, other in others.items():
            made[name] |= {"µs a rule added": other.added, "bytes a rule": other.grown}
    return made


class Peer:
    """The process of another library that has the rules."""

    def __init__(self, name: str, rules: Iterator[Rule], texts: list[str], directory: Path) -> None:
        files = directory / f"{name}.rules", directory / f"{name}.events"
        written = pattern_of if name == "event-ruler" else text_of
        with files[0].open("w") as file:
            file.writelines(written(rule) + "\n" for rule in rules)
        files[1].write_text("".join(text + "\n" for text in texts))
        command = java_command() if name == "event-ruler" else [str(built())]
        self._process = subprocess.Popen(
            [*command, *map(str, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        told: dict[str, Any] = json.loads(self._line())
        self.found: list[list[int]] = [sorted(map(int, found)) for found in told["found"]]
        """The rules that match each event."""
        self.added: float = told["nanoseconds"] / told["rules"] / 1e3
        """The CPU microseconds to add a rule."""
        self.grown: float = told["bytes"] / told["rules"]
        """The bytes of memory for a rule."""

    def seconds(self, form: str, times: int) -> float:
        """Match all events some times, and return the CPU seconds."""
        assert self._process.stdin is not None
        print(form, times, file=self._process.stdin, flush=True)
        return int(self._line().split()[0]) / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def built() -> Path:
    """Build the program with a-tree, and return its path."""
    target = CACHE / "a_tree"
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--target-dir", str(target)]
    subprocess.run(command, cwd=BENCH / "a_tree", check=True)
    return target / "release" / "a_tree"


def java_command() -> list[str]:
    """Return the command that starts event-ruler."""
    classes = ":".join(map(str, archives()))
    return ["java", "-Xmx8g", "-cp", classes, str(BENCH / "EventRuler.java")]


def archives() -> list[Path]:
    """Return the archives of event-ruler, and fetch those that are not there.

    Raises RuntimeError if the content of one is not what it was.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, digest in ARCHIVES.items():
        path = CACHE / name.rpartition("/")[2]
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


def random_rules(count: int, absent: float = 0, is_equal: bool = False) -> Iterator[Rule]:
    """Iterate over `count` rules of two conditions or more.

    A share `absent` ask that a field is absent.  If `is_equal`, all are equalities.
    """
    chance = random.Random(SEED + 40)
    low = partial(chance.randrange, TOTAL)
    some: list[tuple[float, Callable[[], tuple[str, str, Any]]]] = [
        (0.8, lambda: ("detail-type", "one_of", [chance.choice(TYPES)])),
        (0.6, lambda: ("region", "one_of", [chance.choice(REGIONS)])),
        (0.4, lambda: ("detail.order.currency", "one_of", chance.sample(CURRENCIES, 3))),
        (0.2, lambda: ("detail.customer.id", "one_of", [f"c{chance.randrange(CUSTOMERS)}"])),
    ]
    if not is_equal:
        some += [
            (0.2, lambda: ("detail.order.total", "at_least", low())),
            (0.2, lambda: ("detail.order.total", "between", (start := low(), start + 5_000))),
            (0.2, lambda: ("detail.path", "prefix", f"/{chance.randrange(10)}/{chance.randrange(10)}")),
            (absent, lambda: ("detail.test", "absent", None)),
            (0.15, lambda: ("detail.state", "other", chance.choice(STATES))),
        ]
    drawn = ([make() for share, make in some if chance.random() < share] for _ in repeat(None))
    return islice((rule for rule in drawn if len({field for field, _, _ in rule}) == len(rule) > 1), count)


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


def text_of(rule: Rule) -> str:
    """Return a rule of equalities alone as a-tree writes it."""
    fields = [(field.replace(".", "_").replace("-", "_"), json.dumps(argument)) for field, _, argument in rule]
    return " and ".join(f"{name} in {argument}" for name, argument in fields)


def pattern_of(rule: Rule) -> str:
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
    return json.dumps(pattern)
