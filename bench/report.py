"""Write the tables of bench/README.md anew, from the result files."""

from __future__ import annotations

import json
import re
from typing import Any

from bench.measure import RESULTS

README = RESULTS.parent / "README.md"


def table(name: str, results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Ratios to the baseline, which is the first way of each case, and the median of the others in µs."""
    baseline, *ways = next(iter(results.values()))
    rows = [["case", *(f"{way} / {baseline}" for way in ways), *(f"{way}, µs" for way in ways)]]
    rows.append(["---"] * len(rows[0]))
    for case, figures in results.items():
        ratios = [f"{figures[way][f'times {baseline}']:.3g}" for way in ways]
        rows.append([case, *ratios, *(f"{figures[way]['median']:,.3g}" for way in ways)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([f"<!-- {name} -->", *lines])


def main() -> None:
    text = README.read_text("utf-8")
    for path in sorted(RESULTS.glob("*.json")):
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        made = table(path.stem, document["results"])
        text, count = re.subn(rf"<!-- {path.stem} -->(\n\|.*)*", made.replace("\\", r"\\"), text)
        assert count == 1, f"{README} has {count} places for the table of {path.name}"
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
