"""A warm index, as the pipeline writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import parquet
from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA = pyarrow.schema(
    [
        pyarrow.field("hub", pyarrow.string()),
        pyarrow.field("epoch", pyarrow.string(), nullable=False),
        pyarrow.field("topic", pyarrow.string(), nullable=False),
        pyarrow.field("cursor", pyarrow.int64(), nullable=False),
        pyarrow.field("subscribed", pyarrow.binary(), nullable=False),
        pyarrow.field("authorised", pyarrow.binary(), nullable=False),
        pyarrow.field("hits", pyarrow.int64(), nullable=False),
        pyarrow.field("format_version", pyarrow.int32(), nullable=False),
    ]
)


def row(topic: str, hits: int = 1, **other: Any) -> dict[str, Any]:
    nobody = BitMap().serialize()
    known = {"epoch": "e", "cursor": 0, "subscribed": nobody, "authorised": nobody, "format_version": 1}
    return {"hub": None, "topic": topic, "hits": hits} | known | other


def table(rows: Iterable[dict[str, Any]]) -> Any:
    return pyarrow.Table.from_pylist(list(rows), SCHEMA)


def write(path: Path, table: Any) -> Path:
    parquet.write_table(table, path, compression="zstd", write_page_checksum=True)
    return path


def columns_that_are_wrong(good: Any) -> dict[str, Any]:
    """Tables that are no warm index, and what is said of them."""
    version, topic = good.schema.get_field_index("format_version"), good.schema.get_field_index("topic")
    return {
        "it has no column topic": good.drop_columns("topic"),
        "it has no column hits, format_version": good.drop_columns(["hits", "format_version"]),
        "column format_version: it is 2, and not 1": good.set_column(
            version, "format_version", pyarrow.array([2] * len(good), pyarrow.int32())
        ),
        "column topic: it has nulls": good.set_column(
            topic, "topic", pyarrow.array([None] * len(good), pyarrow.string())
        ),
        "column topic: ": good.set_column(topic, "topic", pyarrow.array([["/a"]] * len(good))),
    }
