"""A warm index in Parquet: which topics are asked most, and who passes them; read without Spark.

    topic      hits   epoch   cursor   subscribed   authorised   format_version
    /books/1   1,702  "7f3a"  5        {0, 2, 3}    {0}          1
    /books/2   94     "7f3a"  5        {1}          {}           1

A row is two entries for `SkipFilter.load`, one a role.  Bitmaps are roaring, 32 bits, in the portable format; ids are
those of the epoch, and every id below the cursor was looked at, also those that are gone.  Who has other ids can use
the topics alone.

`path` is a file, or a directory of them as Spark writes it.  It needs pyarrow: `pip install skipfilter[parquet]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from skipfilter.container import WarmEntry

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    Path = str | os.PathLike[str]

FORMAT_VERSION: Final = 1

_TYPES: Final = {
    "topic": "string",
    "hits": "int64",
    "epoch": "string",
    "cursor": "int64",
    "subscribed": "binary",
    "authorised": "binary",
    "format_version": "int32",
}
_ONE_GROUP: Final = (1).to_bytes(8, "little") + (0).to_bytes(4, "little")
"""What makes a bitmap of 32 bits one of 64: it has one group of ids, whose upper halves are 0."""


def hot_topics(path: Path, most: int | None = None) -> list[str]:
    """The topics, those with the most hits first, each once, at most so many.

    The bitmaps are not read.  Raises ValueError, which names the file and the column, for what is no warm index.
    """
    (topics,) = _columns(path, "topic")
    return list(dict.fromkeys(topics))[:most]


def entries(path: Path, role: Literal["subscribed", "authorised"]) -> Iterator[WarmEntry[str]]:
    """Who passes each topic in this role, those with the most hits first.

    The file is read at once, with the checksums of its pages where it has them.  Raises ValueError, which names the
    file and the column, for what is no warm index.
    """
    topics, epochs, cursors, bitmaps = _columns(path, "topic", "epoch", "cursor", role)
    if max(cursors, default=0) > 2**32:  # or who has a greater id would count as one who does not pass
        raise ValueError(f"{path} cannot be read as a warm index: column cursor: {max(cursors)} is beyond 32 bits")
    for topic, epoch, cursor, bitmap in zip(topics, epochs, cursors, bitmaps, strict=True):
        yield WarmEntry(topic, epoch, cursor, _ONE_GROUP + bitmap)


def _columns(path: Path, *names: str) -> list[list[Any]]:
    """What is in these columns, in the order of hits."""
    try:  # where it is asked for: it takes a third of a second, and 40 MB
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("a warm index needs pyarrow: pip install skipfilter[parquet]") from None
    wanted = [*names, "hits", "format_version"]
    try:
        file = parquet.ParquetDataset(path, page_checksum_verification=True)
        if missing := [name for name in wanted if name not in file.schema.names]:
            raise ValueError(f"it has no column {', '.join(missing)}")
        table = file.read(wanted, use_threads=False)
        for place, name in enumerate(wanted):
            table = table.set_column(place, name, _typed(table[name], name))
        if others := set(table["format_version"].to_pylist()) - {FORMAT_VERSION}:
            raise ValueError(f"column format_version: it is {min(others)}, and not {FORMAT_VERSION}")
        table = table.sort_by([("hits", "descending")])
        return [table[name].to_pylist() for name in names]
    except FileNotFoundError:
        raise ValueError(f"{path} cannot be read as a warm index: there is no such file") from None
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} cannot be read as a warm index: {error}") from None


def _typed(column: Any, name: str) -> Any:
    try:
        column = column.cast(_TYPES[name])
    except Exception as error:
        raise ValueError(f"column {name}: {error}") from None
    if column.null_count:
        raise ValueError(f"column {name}: it has nulls")
    return column
