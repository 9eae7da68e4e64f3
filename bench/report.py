"""Draw the plots of the results, and write their tables and figures into the pages.

    python -m bench.report            bench/results, and the figures of the README files
    python -m bench.report RESULTS    another directory of results

All numbers come from the result files.  For each NAME.json there are two files beside
it: NAME.svg, the plot, and NAME.md, a page.  People write the page, except for the plot
and the table after its line `<!-- NAME -->`.  If the page does not exist, a new one is
made from the question and the workload in the result file.
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
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.benchmark import BENCH, factor, place, shown, table
from bench.figures import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes

    from bench.benchmark import Document

PAGES = (BENCH / "README.md", BENCH.parent / "README.md", BENCH.parent / "skipfilter" / "README.md")
"""The pages whose text has figures from the results."""

# The baseline is grey.  The other colours are those of Okabe and Ito, 2008, which
# colour-blind people can distinguish.
GREY = "#777777"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B", "#999933")
COLUMNS = 3
"""The maximum number of plots side by side."""
DECADE = 10
"""An axis is logarithmic if its ends differ by this factor or more."""

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",  # so that it is readable on a dark page
    "font.size": 9,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # looks the same without the fonts
    "svg.hashsalt": "bench",  # the same results make the same file
    "xtick.labelsize": 7.5,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the plots, the tables and the figures of a directory of results.

    The README files get new figures only if it is bench/results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="?", type=Path, default=BENCH / "results", help="the directory of NAME.json")
    results: Path = parser.parse_args(arguments).results
    report(results)
    if results.resolve() == BENCH / "results":
        for page in PAGES:
            page.write_text(fill(page.read_text("utf-8"), results), "utf-8")


def report(results: Path) -> None:
    """Write NAME.svg and the table of NAME.md for each NAME.json in `results`."""
    for path in sorted(results.glob("*.json")):
        document: Document = json.loads(path.read_text("utf-8"))
        draw(document, path.with_suffix(".svg"))
        page = path.with_suffix(".md")
        text = page.read_text("utf-8") if page.exists() else new_page(path.stem, document)
        page.write_text(with_table(text, path.stem, document), "utf-8")
        print(f"{path} -> {page}")


# -- tables


def new_page(name: str, document: Document) -> str:
    """Return a new page with the question and the workload of a result."""
    workload = textwrap.fill(document["workload"], 118)
    return f"# {name}: {document['question']}\n\n{workload}\n\n<!-- {name} -->\n"


def with_table(text: str, name: str, document: Document) -> str:
    """Return `text`, with the present plot and table after the line `<!-- NAME -->`.

    An older plot and table there are replaced.  If there is no such line, `text` is
    returned unchanged.
    """
    mark = f"<!-- {name} -->"
    made = f"{mark}\n![{document['question']}]({name}.svg)\n\n{markdown(table(document))}"
    old = rf"{re.escape(mark)}(\n!\[.*)?(\n*(\n\|.*)+)?"
    return re.sub(old, lambda _: made, text, count=1)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return `rows` as a Markdown table; the first row is the heading."""
    heading, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    rule = ["---" if number < 2 else "--:" for number in range(len(heading))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, rule, *body])


# -- plots


def draw(document: Document, path: Path) -> None:
    """Draw the plot of a document into the file `path`, in the format of its suffix.

    The same document makes the same SVG file.
    """
    kinds: dict[str, Callable[[Document], Figure]] = {"lines": lines, "bars": bars, "grid": grid, "series": series}
    with rc_context(STYLE):
        figure = kinds[document["plot"]["kind"]](document)
        figure.suptitle(document["question"], x=0.01, ha="left", fontsize=11)
        if figure.legends:  # there is no room for a label below the legend
            figure.legends[0].set_title(provenance(document), prop=FontProperties(size=7))
        else:
            figure.supxlabel(provenance(document), x=0.01, ha="left", fontsize=7, color=GREY)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def provenance(document: Document) -> str:
    """Return the rounds, the machine and the versions of a result, as one text."""
    machine: dict[str, Any] = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    rounds = f"median, and min to max, of {document['rounds']} rounds" if "rounds" in document else "one run"
    text = f"{rounds}; {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, {packages}"
    return textwrap.fill(text, 160)


def lines(document: Document) -> Figure:
    """Return a figure with one line per variant over the axis x.

    If there is one plot, the names of the variants are at the ends of the lines; if
    there are several, they are in a legend.  If a case has no value on the axis, it is
    not drawn.
    """
    plot, results = document["plot"], document["results"]
    # 1. Colours and dashes.  Cases may have different baselines: all of them are grey,
    # and their dashes differ.
    baselines = list(dict.fromkeys(next(iter(variants)) for variants in results.values()))
    dashes = dict(zip(baselines, cycle(("-", "--", ":")), strict=False))
    others = dict.fromkeys(variant for variants in results.values() for variant in variants if variant not in baselines)
    colours = dict.fromkeys(baselines, GREY) | dict(zip(others, cycle(COLOURS), strict=False))
    # 2. The points of each variant in each plot.
    panels: dict[Any, dict[str, list[tuple[float, dict[str, float]]]]] = {}
    for case, variants in results.items():
        at = document["axes"][case]
        for variant, row in variants.items() if plot["x"] in at else ():
            panels.setdefault(at.get(plot["panel"]), {}).setdefault(variant, []).append((at[plot["x"]], row))

    # 3. The plots, in rows of up to COLUMNS; those that are left over are empty.
    height = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(8, 4.5 if height == 1 else 3.2 * height), layout="constrained")
    width = min(len(panels), COLUMNS)
    drawn = figure.subplots(height, width, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in drawn[len(panels) :]:
        axes.set_axis_off()
    for axes, (panel, points) in zip(drawn, panels.items(), strict=False):
        for variant, its in points.items():
            its.sort(key=lambda point: point[0])
            xs, rows = zip(*its, strict=True)
            colour = colours[variant]
            axes.plot(
                xs,
                [row["median"] for row in rows],
                c=colour,
                ls=dashes.get(variant, "-"),
                marker="o",
                ms=3.5,
                label=variant,
            )
            least, most = [row["min"] for row in rows], [row["max"] for row in rows]
            axes.fill_between(xs, least, most, color=colour, alpha=0.2, linewidth=0)
        scaled(axes, "x", [x for its in points.values() for x, _ in its])
        axes.set(xlabel=plot["x"], title=None if panel is None else place(panel))
        axes.tick_params(labelbottom=True)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    # 4. The plots share their y axis, so it is scaled for the points of all plots.
    every = [
        row[end] for points in panels.values() for its in points.values() for _, row in its for end in ("min", "max")
    ]
    scaled(drawn[0], "y", every)
    for axes in drawn[::COLUMNS]:
        axes.set_ylabel(document["unit"])
    # 5. The names of the variants.
    if len(panels) == 1:
        ends = {variant: (its[-1][0], its[-1][1]["median"]) for variant, its in next(iter(panels.values())).items()}
        label_ends(drawn[0], ends, colours)
    else:
        named = {name: line for axes in drawn for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=4, frameon=False, alignment="left")
    return figure


def label_ends(axes: Axes, ends: dict[str, tuple[float, float]], colours: dict[str, str]) -> None:
    """Write the name of each variant to the right of the end of its line.

    A name moves up a little if it would overlap with the name below it.
    """
    axes.get_ylim()  # makes matplotlib update transData
    to_fraction = axes.transData + axes.transAxes.inverted()
    height = {variant: float(to_fraction.transform(end)[1]) for variant, end in ends.items()}
    # From the bottom to the top, at least this fraction of the plot's height apart.
    order = sorted(ends, key=lambda variant: height[variant])
    for lower, upper in pairwise(order):
        height[upper] = max(height[upper], height[lower] + 0.055)
    for variant in order:
        axes.annotate(
            variant,
            xy=ends[variant],
            xytext=(1.03, height[variant]),
            textcoords="axes fraction",
            color=colours[variant],
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colours[variant], "linewidth": 0.5, "alpha": 0.6},
        )


def bars(document: Document) -> Figure:
    """Return a figure with a group of bars per case; the first case is at the top.

    The length of a bar is the median, which is also its text.  The error bar is from
    min to max.
    """
    results = document["results"]
    variants = list(dict.fromkeys(variant for its in results.values() for variant in its))
    colour = dict(zip(variants, chain([GREY], cycle(COLOURS)), strict=False))
    rows = sum(len(its) + 1 for its in results.values())
    figure = Figure(figsize=(8, 1.2 + 0.2 * rows), layout="constrained")
    axes = figure.subplots()
    # `top` is the place of the next bar; an empty place separates the groups.
    middles, top = [], 0.0
    for its in results.values():
        middles.append(top + (len(its) - 1) / 2)
        for variant, row in its.items():
            spread = [[row["median"] - row["min"]], [row["max"] - row["median"]]]
            label = variant if variant not in axes.get_legend_handles_labels()[1] else None
            axes.barh(top, row["median"], xerr=spread, color=colour[variant], height=0.9, label=label, ecolor="black")
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
    """Return a figure with one heat map per panel.

    A cell has the factor by which the variant is faster than the baseline.
    """
    plot = document["plot"]
    cells = {
        (at[plot["panel"]], at[plot["y"]], at[plot["x"]]): factor(document["results"][case][plot["variant"]])
        for case, at in document["axes"].items()
    }
    # The colour is the logarithm of the factor, on one scale for all panels.
    panels, ys, xs = (sorted({at[axis] for at in cells}) for axis in range(3))
    norm = LogNorm(min(1, *cells.values()), max(cells.values()))
    figure = Figure(figsize=(8, 1.6 + 0.55 * len(ys)), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        rows = [[cells.get((panel, y, x), float("nan")) for x in xs] for y in ys]
        image = axes.imshow(rows, norm=norm, cmap="cividis", aspect="auto", origin="lower")
        # The text of each cell, white on a dark one.  NaN, which is not equal to
        # itself, stands for a case that does not exist.
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
    """Return a figure with one plot per quantity, one below the other.

    All plots have the same axis of time.
    """
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
    """Scale an axis for `values`, and write its numbers with `shown`.

    The axis is logarithmic if all values are positive and span a DECADE or more.
    """
    axis = axes.xaxis if direction == "x" else axes.yaxis
    if max(values) >= DECADE * min(values) > 0:
        (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(numticks=5))  # more labels would overlap
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))


if __name__ == "__main__":
    main()
