"""Draws the plots of the results, and writes their tables and figures into the pages.

    python -m bench.report            bench/results, and the figures of the README files
    python -m bench.report RESULTS    another directory of results

Everything comes from the result files.  Beside NAME.json are NAME.svg, the plot, and
NAME.md, a page that people write: the plot and the table follow its line `<!-- NAME -->`.
If there is no page, a new one says what the result file says.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from matplotlib import rc_context
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.benchmark import BENCH, factor, place, shown, table
from bench.figures import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes

    from bench.benchmark import Document

PAGES = (BENCH / "README.md", BENCH.parent / "README.md")
"""Pages with figures from the results."""

# The baseline is grey; the others are the colours of Okabe and Ito, 2008, which the colour-blind can tell apart.
GREY = "#777777"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
COLUMNS = 3
"""Plots side by side."""
DECADE = 10
"""An axis is logarithmic where its ends are this far apart, as a factor."""

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",  # also on a dark page
    "font.size": 9,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # looks the same whatever fonts the reader has
    "svg.hashsalt": "bench",  # the same results make the same file
    "xtick.labelsize": 7.5,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Report on the results that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="?", type=Path, default=BENCH / "results", help="the directory of NAME.json")
    results: Path = parser.parse_args(arguments).results
    report(results)
    if results.resolve() == BENCH / "results":
        for page in PAGES:
            page.write_text(fill(page.read_text("utf-8"), results), "utf-8")


def report(results: Path) -> None:
    """Draw each NAME.json in `results` into NAME.svg, and write its table into NAME.md."""
    for path in sorted(results.glob("*.json")):
        document: Document = json.loads(path.read_text("utf-8"))
        draw(document, path.with_suffix(".svg"))
        page = path.with_suffix(".md")
        text = page.read_text("utf-8") if page.exists() else new_page(path.stem, document)
        page.write_text(with_table(text, path.stem, document), "utf-8")
        print(f"{path} -> {page}")


# -- tables


def new_page(name: str, document: Document) -> str:
    """Return a page with the question and the workload of a result."""
    workload = textwrap.fill(document["workload"], 118)
    return f"# {name}: {document['question']}\n\n{workload}\n\n<!-- {name} -->\n"


def with_table(text: str, name: str, document: Document) -> str:
    """Return `text` with the plot and the table after the line `<!-- NAME -->`, new or replaced."""
    mark = f"<!-- {name} -->"
    made = f"{mark}\n![{document['question']}]({name}.svg)\n\n{markdown(table(document))}"
    old = rf"{re.escape(mark)}(\n!\[.*)?(\n*(\n\|.*)+)?"
    return re.sub(old, lambda _: made, text, count=1)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    heading, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    rule = ["---" if number < 2 else "--:" for number in range(len(heading))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, rule, *body])


# -- plots


def draw(document: Document, path: Path) -> None:
    """Write the plot that the document asks for; the format is that of `path`'s suffix."""
    kinds: dict[str, Callable[[Document], Figure]] = {"lines": lines, "bars": bars, "grid": grid, "series": series}
    with rc_context(STYLE):
        figure = kinds[document["plot"]["kind"]](document)
        figure.suptitle(document["question"], x=0.01, ha="left", fontsize=11)
        if figure.legends:  # it stands where the other would
            figure.legends[0].set_title(provenance(document), prop=FontProperties(size=7))
        else:
            figure.supxlabel(provenance(document), x=0.01, ha="left", fontsize=7, color=GREY)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def provenance(document: Document) -> str:
    machine: dict[str, Any] = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    rounds = f"median, and min to max, of {document['rounds']} rounds" if "rounds" in document else "one run"
    told = f"{rounds}; {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, {packages}"
    return textwrap.fill(told, 160)


def lines(document: Document) -> Figure:
    """A line a way against the axis x.  A single plot has their names at their ends, several have a legend.

    A case that has no place on the axis is not drawn.
    """
    plot, results = document["plot"], document["results"]
    baselines = list(dict.fromkeys(next(iter(ways)) for ways in results.values()))
    dashes = dict(zip(baselines, cycle(("-", "--", ":")), strict=False))
    others = dict.fromkeys(way for ways in results.values() for way in ways if way not in baselines)
    colours = dict.fromkeys(baselines, GREY) | dict(zip(others, cycle(COLOURS), strict=False))
    panels: dict[Any, dict[str, list[tuple[float, dict[str, float]]]]] = {}
    for case, ways in results.items():
        at = document["axes"][case]
        for way, row in ways.items() if plot["x"] in at else ():
            panels.setdefault(at.get(plot["panel"]), {}).setdefault(way, []).append((at[plot["x"]], row))

    height = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(8, 4.5 if height == 1 else 3.2 * height), layout="constrained")
    width = min(len(panels), COLUMNS)
    drawn = figure.subplots(height, width, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in drawn[len(panels) :]:
        axes.set_axis_off()
    for axes, (panel, points) in zip(drawn, panels.items(), strict=False):
        for way, its in points.items():
            its.sort(key=lambda point: point[0])
            xs, rows = zip(*its, strict=True)
            colour = colours[way]
            axes.plot(
                xs, [row["median"] for row in rows], c=colour, ls=dashes.get(way, "-"), marker="o", ms=3.5, label=way
            )
            least, most = [row["min"] for row in rows], [row["max"] for row in rows]
            axes.fill_between(xs, least, most, color=colour, alpha=0.2, linewidth=0)
        scaled(axes, "x", [x for its in points.values() for x, _ in its])
        axes.set(xlabel=plot["x"], title=None if panel is None else place(panel))
        axes.tick_params(labelbottom=True)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    every = [
        row[end] for points in panels.values() for its in points.values() for _, row in its for end in ("min", "max")
    ]
    scaled(drawn[0], "y", every)
    for axes in drawn[::COLUMNS]:
        axes.set_ylabel(document["unit"])
    if len(panels) == 1:
        ends = {way: (its[-1][0], its[-1][1]["median"]) for way, its in next(iter(panels.values())).items()}
        label_ends(drawn[0], ends, colours)
    else:
        named = {name: line for axes in drawn for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=4, frameon=False, alignment="left")
    return figure


def label_ends(axes: Axes, ends: dict[str, tuple[float, float]], colours: dict[str, str]) -> None:
    """Write each way's name to the right, as high as its line ends, or a little off where two would overlap."""
    axes.get_ylim()  # brings transData up to date
    to_fraction = axes.transData + axes.transAxes.inverted()
    height = {way: float(to_fraction.transform(end)[1]) for way, end in ends.items()}
    order = sorted(ends, key=lambda way: height[way])
    for lower, upper in pairwise(order):
        height[upper] = max(height[upper], height[lower] + 0.055)
    for way in order:
        axes.annotate(
            way,
            xy=ends[way],
            xytext=(1.03, height[way]),
            textcoords="axes fraction",
            color=colours[way],
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours[way], "linewidth": 0.5, "alpha": 0.6},
        )


def bars(document: Document) -> Figure:
    """A group of bars a case, from the first at the top; the median is written at the end of each."""
    results = document["results"]
    ways = list(dict.fromkeys(way for its in results.values() for way in its))
    colour = dict(zip(ways, chain([GREY], cycle(COLOURS)), strict=False))
    rows = sum(len(its) + 1 for its in results.values())
    figure = Figure(figsize=(8, 1.2 + 0.2 * rows), layout="constrained")
    axes = figure.subplots()
    middles, top = [], 0.0
    for its in results.values():
        middles.append(top + (len(its) - 1) / 2)
        for way, row in its.items():
            spread = [[row["median"] - row["min"]], [row["max"] - row["median"]]]
            label = way if way not in axes.get_legend_handles_labels()[1] else None
            axes.barh(top, row["median"], xerr=spread, color=colour[way], height=0.9, label=label, ecolor="black")
            axes.annotate(shown(row["median"]), (row["max"], top), (4, 0), textcoords="offset points", va="center")
            top += 1
        top += 1
    scaled(axes, "x", [row[end] for its in results.values() for row in its.values() for end in ("min", "max")])
    axes.margins(x=0.12, y=0.01)
    axes.set(xlabel=document["unit"])
    axes.set_yticks(middles, list(results))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    figure.legend(loc="outside lower left", ncols=4, frameon=False, alignment="left")
    return figure


def grid(document: Document) -> Figure:
    """A heat map a panel; a cell says how many times faster than the baseline the way is."""
    plot = document["plot"]
    cells = {
        (at[plot["panel"]], at[plot["y"]], at[plot["x"]]): factor(document["results"][case][plot["way"]])
        for case, at in document["axes"].items()
    }
    panels, ys, xs = (sorted({at[axis] for at in cells}) for axis in range(3))
    norm = LogNorm(min(1, *cells.values()), max(cells.values()))
    figure = Figure(figsize=(8, 1.6 + 0.55 * len(ys)), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        rows = [[cells.get((panel, y, x), float("nan")) for x in xs] for y in ys]
        image = axes.imshow(rows, norm=norm, cmap="cividis", aspect="auto", origin="lower")
        for row, values in enumerate(rows):
            for column, value in enumerate(values):
                dark = value == value and norm(value) < 0.6
                text = f"{shown(value)}×" if value == value else ""
                axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
        axes.set(title=f"{plot['panel']}: {place(panel)}", xlabel=plot["x"])
        axes.set_xticks(range(len(xs)), [place(x) for x in xs])
        axes.set_yticks(range(len(ys)), [place(y) for y in ys])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.axes[0].set_ylabel(plot["y"])
    figure.colorbar(image, ax=figure.axes, label="times faster", format="{x:,.0f}")
    return figure


def series(document: Document) -> Figure:
    """A plot a quantity, one below the other, over the same time."""
    quantities: dict[str, list[float]] = dict(document["series"])
    name = document["plot"]["x"]
    times = quantities.pop(name)
    figure = Figure(figsize=(8, 1 + 1.3 * len(quantities)), layout="constrained")
    drawn = figure.subplots(len(quantities), 1, squeeze=False, sharex=True).ravel()
    for axes, (quantity, values) in zip(drawn, quantities.items(), strict=True):
        axes.plot(times, values, c=COLOURS[0], lw=1)
        axes.set_ylim(0, 1.1 * max(values))
        axes.set_title(quantity, loc="left", fontsize=9)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    drawn[-1].set_xlabel(name)
    return figure


def scaled(axes: Axes, direction: Literal["x", "y"], values: Sequence[float]) -> None:
    """Numbers as people write them, on a logarithmic scale where `values` span a DECADE."""
    axis = axes.xaxis if direction == "x" else axes.yaxis
    if max(values) >= DECADE * min(values) > 0:
        (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))


if __name__ == "__main__":
    main()
