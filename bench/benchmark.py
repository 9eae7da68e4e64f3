"""The parts of a benchmark: a file bench_NAME.py that defines four names.

    QUESTION = "Is a cached topic cheap?"                 one question
    WORKLOAD = "Subscribers with a tuple of topics; ..."  the workload and the baseline
    PLOT = Lines(x="subscribers")                         or Bars(), or Grid(...)

    def cases(quick: bool) -> Iterator[Case]:             cheap: Case.measure works
        for count in (1_000,) if quick else (1_000, 10_000):
            yield Case(f"{count:,} subscribers", partial(measure, count),
                       at={"subscribers": count})

    def measure(count: int, rounds: int) -> dict[str, Figures]:
        ...                                               may assert that variants agree
        return compare({"test every subscriber": ..., "cached": ...},
                       calls=..., rounds=rounds)

Each case is measured in a new process, so the heap of an earlier case has no effect on
it.  The result of a case is {variant: figures}; the first variant is the baseline.  If
a variant has other figures than min, median, max and ratio, each gets a column of its
own.

results/NAME.json has everything that the report needs.  Numbers have three significant
digits:

    question, workload, seed, unit, rounds
    machine    cpu, cores, python, packages
    plot       {"kind": "lines", "x": "subscribers", "panel": null}
    axes       {case: {"subscribers": 1000}}
    results    {case: {variant: {"min", "median", "max", "ratio", ...}}}
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
"""The content of results/NAME.json."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A plot with a line for the median of each variant, in a band from min to max.

    `x` is the horizontal axis.  There is one plot for each value of `panel`, or a
    single plot if `panel` is None.  In a plot, a variant has at most one point for each
    x.  If a case has no x, it is only in the table.
    """

    x: str
    panel: str | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """A plot with a group of horizontal bars for each case."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A plot with one heat map over `x` and `y` for each value of `panel`.

    A cell says how many times faster than the baseline `variant` is.
    """

    x: str
    y: str
    panel: str
    variant: str


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement of a benchmark."""

    label: str
    """Its name in the results, which no other case of the benchmark has."""
    measure: Callable[[int], dict[str, Figures]]
    """Return the figures of each variant after this number of rounds."""
    at: Mapping[str, float | str] = field(default_factory=dict)
    """Its values on the axes of the plot, by the name of the axis."""


class Benchmark(Protocol):
    """The names that a file bench_NAME.py must define.

    It may also define UNIT, if the unit is not that of `compare`; ROUNDS, the number of
    rounds without and with `--quick`; and `versions()`, which returns the versions of
    other software that a result depends on.
    """

    QUESTION: str
    WORKLOAD: str
    PLOT: Lines | Bars | Grid

    def cases(self, quick: bool) -> Iterable[Case]:
        """Return the cases in the order of the table; few and small ones if `quick`."""
        ...


def names() -> list[str]:
    """Return the names of all benchmarks, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in BENCH.glob("bench_*.py"))


def load(name: str) -> Benchmark:
    """Import the module of a benchmark, and return it."""
    return cast("Benchmark", import_module(f"bench.bench_{name}"))


def rounds_of(benchmark: Benchmark, quick: bool) -> int:
    """Return how many rounds a benchmark has."""
    rounds: tuple[int, int] = getattr(benchmark, "ROUNDS", (ROUNDS, QUICK_ROUNDS))
    return rounds[quick]


def run(name: str, index: int, quick: bool) -> dict[str, Figures]:
    """Measure case number `index` of a benchmark in this process.

    Returns the figures of each variant.
    """
    benchmark = load(name)
    return list(benchmark.cases(quick))[index].measure(rounds_of(benchmark, quick))


def document(name: str, results: Mapping[str, Mapping[str, Figures]], *, quick: bool) -> Document:
    """Return the result document of a benchmark.

    `results` has the figures of each variant, by the label of the case.
    """
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
            case: {
                variant: {name: significant(value) for name, value in row.items()} for variant, row in variants.items()
            }
            for case, variants in results.items()
        },
    }


def significant(value: float) -> float:
    """Return `value` with three significant digits, as an int if it is whole.

    >>> significant(2691.668), significant(0.0024439), significant(123_456)
    (2690, 0.00244, 123000)
    """
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


# -- tables


def table(document: Document) -> list[list[str]]:
    """Return the rows of the document's table; the first row is the heading.

    The layout depends on the kind of the plot.
    """
    kinds = {"grid": _grid_table, "series": _series_table}
    return kinds.get(document["plot"]["kind"], _long_table)(document)


def shown(value: float) -> str:
    """Return `value` as text with about three digits: 0.0169, 2.13, 538, 61,900."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def factor(figures: Figures) -> float:
    """Return how many times faster than the baseline a variant is."""
    return significant(1 / figures["ratio"])


def _long_table(document: Document) -> list[list[str]]:
    """Return a row for each variant of each case.

    Only the first row of a case has its label.
    """
    results: dict[str, dict[str, Figures]] = document["results"]
    # Each further figure has a column, which is empty for variants without it.
    common = {"min", "median", "max", "ratio"}
    others = list(dict.fromkeys(name for variants in results.values() for row in variants.values() for name in row))
    others = [name for name in others if name not in common]
    rows = [["case", "variant", f"{document['unit']}, median", "min to max", "ratio", *others]]
    for case, variants in results.items():
        for number, (variant, row) in enumerate(variants.items()):
            spread = f"{shown(row['min'])} to {shown(row['max'])}"
            further = [shown(row[name]) if name in row else "" for name in others]
            rows.append(["" if number else case, variant, shown(row["median"]), spread, shown(row["ratio"]), *further])
    return rows


def _grid_table(document: Document) -> list[list[str]]:
    """Return a row for each panel and y, with a column for each x.

    A cell has the factor by which the variant is faster.
    """
    plot, axes = document["plot"], document["axes"]
    cells = {
        (at[plot["panel"]], at[plot["y"]], at[plot["x"]]): factor(document["results"][case][plot["variant"]])
        for case, at in axes.items()
    }
    columns = sorted({x for _, _, x in cells})
    rows = [[plot["panel"], plot["y"], *(f"{plot['x']}: {place(x)}" for x in columns)]]
    for panel, y in dict.fromkeys((panel, y) for panel, y, _ in sorted(cells)):
        here = [f"{shown(cells[panel, y, x])}×" if (panel, y, x) in cells else "" for x in columns]
        rows.append([place(panel), place(y), *here])
    return rows


def _series_table(document: Document) -> list[list[str]]:
    """Return a row for each quantity of a series.

    It has the values at four times, the minimum and the maximum.
    """
    series: dict[str, list[float]] = document["series"]
    times = series[document["plot"]["x"]]
    # The first time and the last, and two between them.
    places = [(len(times) - 1) * part // 3 for part in range(4)]
    rows = [[document["plot"]["x"], *(f"{times[place]:.3g}" for place in places), "least", "most"]]
    for name, values in series.items():
        if name != document["plot"]["x"]:
            rows.append([name, *map(shown, [*(values[place] for place in places), min(values), max(values)])])
    return rows


def place(value: float | str) -> str:
    """Return a value of an axis as text."""
    return value if isinstance(value, str) else f"{value:,}"
