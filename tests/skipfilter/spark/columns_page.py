"""The tables of columns in skipfilter/spark/README.md: those of the outputs, made from
skipfilter/bulk/outputs.py, and those of the source, made from hub/spark/source.py.

    python -m tests.skipfilter.spark.columns_page     write the tables
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import skipfilter.spark
from hub.spark.source import COLUMNS
from skipfilter.bulk.outputs import Output
from skipfilter.spark.tables.schemas import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipfilter.bulk.columns import Column

README: Final = Path(skipfilter.spark.__file__).with_name("README.md")


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


def _cells(columns: Iterable[Column]) -> list[str]:
    """Return the name, type and content of each column."""
    return [
        f"`{column.name}` | `{field.dataType.simpleString()}`{', or null' * field.nullable} | {column.meaning}"
        for column, field in zip(columns, schema(columns), strict=True)
    ]


def with_tables(page: str) -> str:
    """Return a page whose tables are replaced by the current ones."""
    for name, table in (("outputs", outputs()), ("source", source())):
        page = re.sub(rf"(?<=<!-- {name} -->\n)(\|.*\n)*", lambda _, table=table: table, page, count=1)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text("utf-8")), "utf-8")
