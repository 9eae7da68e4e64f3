"""What a benchmark is: a file bench_NAME.py with four names in it.

    QUESTION = "Does a warm filter answer without asking everybody?"      one question
    WORKLOAD = "Subscribers with a tuple of topics; ..."                  what it is asked of, and the baseline
    PLOT = Lines(x="subscribers")                                         or Bars(), or Grid(...)

    def cases(quick: bool) -> Iterator[Case]:                             cheap: the work is in Case.measure
        for count in (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
            yield Case(f"{count:,} subscribers", partial(measure, count), at={"subscribers": count})

    def measure(count: int, rounds: int) -> dict[str, Figures]:
        ...                                                               may assert that the ways agree
        return compare({"ask everybody": ..., "asked before": ...}, calls=..., rounds=rounds)

A measurement runs in a process of its own, so no case meets the heap that another one has left.  Its result is
{way: figures}; the first way is the baseline.  A figure beside min, median, max and ratio gets a column of its own.

results/NAME.json holds all that the report needs:

    question, workload, seed, unit, rounds
    machine    cpu, cores, python, packages
    plot       {"kind": "lines", "x": "subscribers", "panel": null}
    axes       {case: {"subscribers": 1000}}
    results    {case: {way: {"min", "median", "max", "ratio", ...}}}       three significant digits
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from bench.measure import machine
from bench.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bench.measure import Figures

BENCH = Path(__file__).parent
ROUNDS = 5
QUICK_ROUNDS = 3

Document: TypeAlias = dict[str, Any]
"""What results/NAME.json holds."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The median of every way against the axis `x`, in a band from min to max; one plot a value of `panel`.

    A way has one point at each x of a panel; without `panel` there is one plot.  A case without an x is in the
    table alone.
    """

    x: str
    panel: str | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """A group of horizontal bars for each case."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The factor by which `way` beats the first way, over three axes: one heat map of `x` and `y` a `panel`."""

    x: str
    y: str
    panel: str
    way: str


@dataclass(frozen=True, slots=True)
class Case:
    """`measure(rounds)` makes the figures of each way; `at` says where the case lies on the axes of the plot."""

    label: str
    measure: Callable[[int], dict[str, Figures]]
    at: Mapping[str, float | str] = field(default_factory=dict)


class Benchmark(Protocol):
    """The names in a file bench_NAME.py.

    It may also have UNIT, where that is not the one of `compare`; ROUNDS, how many there are and how many of them in a
    hurry; and a function `versions()` of what else a result depends on.
    """

    QUESTION: str
    WORKLOAD: str
    PLOT: Lines | Bars | Grid

    def cases(self, quick: bool) -> Iterable[Case]: ...


def names() -> list[str]:
    """The benchmarks that there are."""
    return sorted(path.stem.removeprefix("bench_") for path in BENCH.glob("bench_*.py"))


def load(name: str) -> Benchmark:
    return cast("Benchmark", import_module(f"bench.bench_{name}"))


def rounds_of(benchmark: Benchmark, quick: bool) -> int:
    rounds: tuple[int, int] = getattr(benchmark, "ROUNDS", (ROUNDS, QUICK_ROUNDS))
    return rounds[quick]


def run(name: str, index: int, quick: bool) -> dict[str, Figures]:
    """Measure the case number `index` of the benchmark `name`, here and now."""
    benchmark = load(name)
    return list(benchmark.cases(quick))[index].measure(rounds_of(benchmark, quick))


def document(name: str, results: Mapping[str, Mapping[str, Figures]], *, quick: bool) -> Document:
    """The result document of the benchmark `name`, from the figures of its cases by label."""
    benchmark = load(name)
    return {
        "question": benchmark.QUESTION,
        "workload": benchmark.WORKLOAD,
        "seed": SEED,
        "unit": getattr(benchmark, "UNIT", "CPU µs a call"),
        "rounds": rounds_of(benchmark, quick),
        "machine": machine(**getattr(benchmark, "versions", dict)()),
        "plot": {"kind": type(benchmark.PLOT).__name__.lower(), **asdict(benchmark.PLOT)},
        "axes": {case.label: dict(case.at) for case in benchmark.cases(quick)},
        "results": {
            case: {way: {name: significant(value) for name, value in row.items()} for way, row in ways.items()}
            for case, ways in results.items()
        },
    }


def significant(value: float) -> float:
    """`value` with three significant digits; a whole number stays whole.

    >>> significant(2691.668), significant(0.0024439), significant(123_456)
    (2690, 0.00244, 123000)
    """
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


# -- a document as a table


def table(document: Document) -> list[list[str]]:
    """The rows of the document's table; the first is the heading."""
    kinds = {"grid": _grid_table, "series": _series_table}
    return kinds.get(document["plot"]["kind"], _long_table)(document)


def shown(value: float) -> str:
    """Three digits for the eye: 0.0169, 2.13, 538, 61,900."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def factor(figures: Figures) -> float:
    """How many times faster than the first way."""
    return significant(1 / figures["ratio"])


def _long_table(document: Document) -> list[list[str]]:
    """A row for each case and way; the case is named once."""
    results: dict[str, dict[str, Figures]] = document["results"]
    told = {"min", "median", "max", "ratio"}
    others = list(dict.fromkeys(name for ways in results.values() for row in ways.values() for name in row))
    others = [name for name in others if name not in told]
    rows = [["case", "way", f"{document['unit']}, median", "min to max", "ratio", *others]]
    for case, ways in results.items():
        for number, (way, row) in enumerate(ways.items()):
            spread = f"{shown(row['min'])} to {shown(row['max'])}"
            further = [shown(row[name]) if name in row else "" for name in others]
            rows.append(["" if number else case, way, shown(row["median"]), spread, shown(row["ratio"]), *further])
    return rows


def _grid_table(document: Document) -> list[list[str]]:
    """A row for each panel and y, a column for each x; a cell says how many times faster."""
    plot, axes = document["plot"], document["axes"]
    cells = {
        (at[plot["panel"]], at[plot["y"]], at[plot["x"]]): factor(document["results"][case][plot["way"]])
        for case, at in axes.items()
    }
    columns = sorted({x for _, _, x in cells})
    rows = [[plot["panel"], plot["y"], *(f"{plot['x']}: {place(x)}" for x in columns)]]
    for panel, y in dict.fromkeys((panel, y) for panel, y, _ in sorted(cells)):
        here = [f"{shown(cells[panel, y, x])}×" if (panel, y, x) in cells else "" for x in columns]
        rows.append([place(panel), place(y), *here])
    return rows


def _series_table(document: Document) -> list[list[str]]:
    """A row for each quantity of a series, at four times and at its extremes."""
    series: dict[str, list[float]] = document["series"]
    times = series[document["plot"]["x"]]
    places = [(len(times) - 1) * part // 3 for part in range(4)]
    rows = [[document["plot"]["x"], *(f"{times[place]:.3g}" for place in places), "least", "most"]]
    for name, values in series.items():
        if name != document["plot"]["x"]:
            rows.append([name, *map(shown, [*(values[place] for place in places), min(values), max(values)])])
    return rows


def place(value: float | str) -> str:
    """A value of an axis, as it is shown."""
    return value if isinstance(value, str) else f"{value:,}"
