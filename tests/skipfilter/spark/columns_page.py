"""The tables of columns in skipfilter/spark: in README.md those of the outputs and of the
source, and in QUESTIONS.md those of all that SQL may ask.

    python -m tests.skipfilter.spark.columns_page     write the tables
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import skipfilter.spark
from hub.spark.source import COLUMNS
from skipfilter.bulk.outputs import Output
from skipfilter.spark.tables.schemas import TABLES, schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.bulk.columns import Column

README, QUESTIONS = (Path(skipfilter.spark.__file__).with_name(f"{name}.md") for name in ("README", "QUESTIONS"))


def outputs() -> str:
    """Return the table of the outputs, in Markdown."""
    rows = ["| output | a row for | column | type | content |", "|---|---|---|---|---|"]
    for output in Output:
        for at, cells in enumerate(_cells(output.columns)):
            rows.append(f"| {f'`{output}` | {output.row}' if at == 0 else ' | '} | {cells} |")
    return "".join(row + "\n" for row in rows)


def source() -> str:
    """Return the table of the source's columns, in Markdown."""
    rows = ["| column | type | content |", "|---|---|---|", *(f"| {cells} |" for cells in _cells(COLUMNS))]
    return "".join(row + "\n" for row in rows)


def tables() -> str:
    """Return the table of the tables' columns, in Markdown."""
    rows = ["| table | column | type | content |", "|---|---|---|---|"]
    for name, columns in TABLES.items():
        rows += [f"| {f'`{name}`' * (at == 0)} | {cells} |" for at, cells in enumerate(_cells(columns))]
    return "".join(row + "\n" for row in rows)


def _cells(columns: Iterable[Column]) -> list[str]:
    """Return the name, type and content of each column."""
    return [
        f"`{column.name}` | `{field.dataType.simpleString()}`{', or null' * field.nullable} | {column.meaning}"
        for column, field in zip(columns, schema(columns), strict=True)
    ]


def with_tables(page: str) -> str:
    """Return a page whose tables are replaced by the current ones."""
    for name, table in (("outputs", outputs()), ("source", source()), ("tables", tables())):
        page = re.sub(rf"(?<=<!-- {name} -->\n)(\|.*\n)*", lambda _, table=table: table, page, count=1)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    for page in (README, QUESTIONS):
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
