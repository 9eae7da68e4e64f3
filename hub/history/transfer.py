"""Prune, export, import and back up the history of a hub, while the hub runs.

    history ─► export ─► updates.ndjson, updates.parquet ─► import ─► another history
       └─────► backup ─► a file to put in the place of mercure.db

An update is a line of JSON, or a row:

    position   int64              position in the history; grows, with gaps if forgotten
    time       timestamp[ms, UTC] time of the append; in JSON, ms since 1970
    id         string
    topics     list<string>       the canonical topic first
    private    bool
    type       string             or null
    retry      int64              ms, or null
    data       string
    presence   bool               whether the hub published it to tell who is connected;
                                  false if it is absent, as in files of earlier versions

An export contains the updates that the history has when the export begins, and perhaps
some that arrive before its last page is read.  If the history forgets published updates
before they are read, the export reports a gap and continues with the oldest update that
is left.  Forgotten presence updates are not reported.  If a new epoch begins meanwhile,
the export fails, because two epochs are not one history.  An export needs memory for
one page or, in Parquet, one row group.

An import keeps ids and times, so that clients can continue from their last event in the
new history.  The positions are new.  Presence updates stay presence updates, so they
do not displace published ones.  Their topics are some that no publisher may use.
Therefore an import does not apply the rules for publishers: it only checks that an
update can be sent.
"""

from __future__ import annotations

import json
import math
import os
import sys
from codecs import BOM_UTF8
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hub.errors import ConfigurationError, HistoryUnavailable, InvalidRequest, PositionExpired
from hub.history import codec, open_history
from hub.history.base import EARLIEST, Retention
from hub.protocol.topics import check_text
from skipfilter.text import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO

    from hub.history.base import Entry, History, Page

    Write = Callable[[Page], None]

ROW_GROUP: Final = 50_000
"""Rows of a row group in Parquet, at most."""
ROW_GROUP_BYTES: Final = 2**26
"""Approximate bytes after which a row group ends, even if it has fewer rows."""
BATCH_UPDATES: Final = 1_000
"""Updates that an import appends at a time, at most."""
BATCH_BYTES: Final = 2**22
"""Approximate bytes after which a batch ends, even if it has fewer updates."""

_Int64 = Annotated[int, Field(ge=0, lt=2**63)]
_YEAR_10000: Final = 253_402_300_800_000  # in ms since 1970; no date in a Parquet file or in Python is later


class Step(NamedTuple):
    """The progress of a prune, an export or an import."""

    updates: int
    """The number of updates so far."""
    share: float | None = None
    """The share of the work that is done, from 0 to 1, or None if it is unknown."""
    position: int | None = None
    """The position of the last update in the source, or None for a prune."""


class Read(NamedTuple):
    """An entry that was read from a file."""

    share: float | None
    """The share of the file up to it, or None if the size is unknown, as for a pipe."""
    entry: Entry
    presence: bool
    """Whether it is a presence update."""


class Gap(NamedTuple):
    """A range of positions whose entries were forgotten before the export read them."""

    first: int
    last: int


class Exported(NamedTuple):
    """The outcome of an export."""

    updates: int
    gaps: list[Gap]


def open_log(url: str, *, create: bool = False) -> History:
    """Return the history of a URL, without bounds, so that opening it forgets nothing.

    Raises ConfigurationError if the history is in memory, or if its file does not exist
    and `create` is False.
    """
    if url.partition(":")[0] == "memory":
        raise ConfigurationError(
            "a history in memory belongs to one process, and no other can open it: name another one with --url or "
            "HUB_HISTORY_URL, as in sqlite:///mercure.db"
        )
    history = open_history(url, Retention(sys.maxsize, sys.maxsize, math.inf, sys.maxsize, sys.maxsize))
    if not create and (path := history.would_create()) is not None:
        raise ConfigurationError(f"there is no history at {path}: name one with --url or HUB_HISTORY_URL")
    return history


async def prune(
    history: History,
    *,
    max_updates: int = sys.maxsize,
    max_bytes: int = sys.maxsize,
    max_age: float = math.inf,
    note: Callable[[Step], None],
) -> int:
    """Forget the oldest published updates until they are within these bounds.

    Forgets as `History.prune` does, but without its limit for a call.  Returns how many
    updates of both kinds were forgotten.  `note` is called after each part of the work.
    """
    forgotten = 0
    while portion := await history.prune(max_updates=max_updates, max_bytes=max_bytes, max_age=max_age):
        forgotten += portion
        note(Step(forgotten))
    return forgotten


async def backup(history: History, target: Path) -> None:
    """Write a copy of the history into a new file that a hub can open.

    Raises ConfigurationError if the file exists, or if the history has no backup.
    """
    with when_whole(target) as part:
        await history.backup(str(part))


async def export(history: History, write: Write, *, after: str | None = None, note: Callable[[Step], None]) -> Exported:
    """Pass the entries of a history to `write`, page by page, oldest first.

    With `after`, it begins after the entry with this id.  `note` is called after each
    page.  If the history is empty, `write` is not called.

    Raises LookupError if the history does not have the id, and HistoryUnavailable if a
    new epoch begins meanwhile.
    """
    before = await history.stats()
    position = EARLIEST if after is None else await history.find(after)
    if position is None:
        raise LookupError(f"id {after!r} is not in the history")
    updates, gaps = 0, list[Gap]()
    if before.oldest is None or before.newest is None:
        return Exported(0, gaps)
    start, end = max(position, before.oldest.position - 1), before.newest.position
    while position < end:
        try:
            page = await history.read(position)
        except PositionExpired:
            # Either entries were forgotten, which is a gap, or a new epoch has begun,
            # which is an error.  The check comes after the read, so that the page is
            # known to be of the same epoch.
            page = await history.read(EARLIEST)
            await _check_epoch(history, before.epoch)
            gaps.append(Gap(position + 1, page[0].position - 1))
        write(page)
        updates += len(page)
        position = page[-1].position
        note(Step(updates, min(1.0, (position - start) / (end - start)), position))
    await _check_epoch(history, before.epoch)
    return Exported(updates, gaps)


async def _check_epoch(history: History, epoch: str) -> None:
    """Raise HistoryUnavailable if the history is in another epoch."""
    if (await history.stats()).epoch != epoch:
        raise HistoryUnavailable("it is in another epoch since the export began; export again")


async def load(history: History, entries: Iterable[Read], *, note: Callable[[Step], None]) -> int:
    """Append the entries of a file to a history in batches, and return how many.

    `note` is called after each batch.  If `entries` raises ValueError, the earlier full
    batches stay in the history, and the error says how many updates that are.
    """
    batch: list[Entry] = []
    presence: set[int] = set()
    count = size = 0

    async def flush(share: float | None) -> None:
        """Append the batch, and begin a new one."""
        nonlocal count, size
        await history.load(batch, presence)
        count, size = count + len(batch), 0
        note(Step(count, share, batch[-1].position))
        batch.clear()
        presence.clear()

    try:
        for share, entry, is_presence in entries:
            batch.append(entry)
            if is_presence:
                presence.add(entry.position)
            size += entry.size
            if len(batch) == BATCH_UPDATES or size >= BATCH_BYTES:
                await flush(share)
    except ValueError as error:
        raise ValueError(f"{error}; {count:,} updates from before it are in the history") from None
    if batch:
        await flush(1.0)
    return count


# -- files


@contextmanager
def when_whole(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` for writing, and rename it to `path` at the end.

    The yielded path has the suffix `.part`, and must exist at the end.  If the block
    raises, it is removed.  So a file at `path` is always complete.  Raises
    ConfigurationError if `path` exists.
    """
    if path.exists():
        raise ConfigurationError(f"{path} already exists: name a new file")
    part = path.absolute().with_name(path.name + ".part")
    # SQLite leaves its journal behind if the disk is full.
    parts = part, part.with_name(part.name + "-journal")
    for file in parts:
        file.unlink(missing_ok=True)
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.rename(path)
    except BaseException:
        for file in parts:
            file.unlink(missing_ok=True)
        raise


def read(name: str, format: str, file: BinaryIO) -> Iterator[Read]:
    """Yield each entry of a file.

    `name` is the name of the file in errors, and `format` is a key of FORMATS.

    Raises ValueError if a record is not an entry, or if its position is not greater
    than that of the record before.  The message begins with the line or row.
    """
    last = -1
    for place, share, record in FORMATS[format].read(file, name):
        try:
            entry, presence = _entry(record)
        except ValidationError as error:
            raise ValueError(f"{place}: {_sentences(error)}") from None
        except InvalidRequest as error:
            raise ValueError(f"{place}: {error}") from None
        if entry.position <= last:
            raise ValueError(f"{place}: position {entry.position} comes after {last}")
        last = entry.position
        yield Read(share, entry, presence)


class _Record(BaseModel):
    """The JSON object that `codec.record` makes of an entry."""

    model_config = ConfigDict(strict=True)

    position: _Int64
    time: Annotated[int, Field(ge=0, lt=_YEAR_10000)]
    id: str = Field(min_length=1)
    topics: list[str] = Field(min_length=1)
    private: bool
    type: str | None
    retry: _Int64 | None
    data: str
    presence: bool = False


def _entry(record: bytes | dict[str, Any]) -> tuple[Entry, bool]:
    """Return the entry of a record, and whether it is a presence update, validated."""
    valid = _Record.model_validate_json(record) if isinstance(record, bytes) else _Record.model_validate(record)
    entry = codec.from_record(vars(valid))
    update = entry.update
    # A line break in an id, for example, could end its line in an event stream.
    for name, text in (("id", update.id), ("type", update.type or ""), *(("topic", topic) for topic in update.topics)):
        check_text(name, text)
    return entry, valid.presence


def _records(page: Page) -> Iterator[dict[str, Any]]:
    """Yield the record of each entry."""
    for entry in page:
        yield codec.record(entry) | {"presence": entry.position in page.presence}


def _sentences(error: ValidationError) -> str:
    """Return the errors of a validation as one line of text."""
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the line'}: {e['msg']}" for e in error.errors())


@contextmanager
def _write_ndjson(file: BinaryIO) -> Iterator[Write]:
    """Yield a function that writes entries to a file, one JSON object a line."""

    def write(page: Page) -> None:
        for record in _records(page):
            line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
            file.write(line.encode("utf-8") + b"\n")

    yield write


def _read_ndjson(file: BinaryIO, name: str) -> Iterator[tuple[str, float | None, bytes]]:
    """Yield the lines of a file that are not empty: place, share of the file, line."""
    size, done = os.fstat(file.fileno()).st_size, 0  # the size of a pipe is 0
    for number, line in enumerate(file, 1):
        done += len(line)
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if line.strip():
            yield f"{name} line {number}", done / size if size else None, line


@contextmanager
def _write_parquet(file: BinaryIO) -> Iterator[Write]:
    """Yield a function that writes entries to a file, in row groups."""
    pyarrow, parquet = _pyarrow()
    schema = _schema(pyarrow)
    rows: list[dict[str, Any]] = []
    size = 0

    def write(page: Page) -> None:
        nonlocal size
        for entry, record in zip(page, _records(page), strict=True):
            rows.append(record)
            size += entry.size
            if len(rows) == ROW_GROUP or size >= ROW_GROUP_BYTES:
                flush()

    def flush() -> None:
        nonlocal size
        writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema))
        rows.clear()
        size = 0

    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        yield write
        if rows:
            flush()


def _read_parquet(file: BinaryIO, name: str) -> Iterator[tuple[str, float | None, dict[str, Any]]]:
    """Yield the rows of a file: place, share of the file, record.

    Additional columns are ignored.
    """
    pyarrow, parquet = _pyarrow()
    schema = _schema(pyarrow)
    # All columns may be null here, so that the validation of a record can report a null
    # with its row.  Times are cast to the schema first, and then to numbers.
    nullable = pyarrow.schema([field.with_nullable(True) for field in schema])
    numbers = nullable.set(schema.get_field_index("time"), pyarrow.field("time", pyarrow.int64()))
    try:
        rows = parquet.ParquetFile(file)
        absent = [column for column in schema.names if column not in rows.schema_arrow.names]
        if missing := [column for column in absent if column != "presence"]:
            raise ValueError(f"it has no column {', '.join(missing)}")
        names = [column for column in schema.names if column not in absent]
        nullable, numbers = (pyarrow.schema(some.field(column) for column in names) for some in (nullable, numbers))
        number, count = 0, rows.metadata.num_rows
        for batch in rows.iter_batches(BATCH_UPDATES, columns=names):
            for record in batch.select(names).cast(nullable).cast(numbers).to_pylist():
                number += 1
                yield f"{name} row {number}", number / count, record
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{name}: {error}") from None


def _schema(pyarrow: Any) -> Any:
    """Return the columns of the module docstring as an Arrow schema."""
    types = {
        "position": pyarrow.int64(),
        "time": pyarrow.timestamp("ms", tz="UTC"),
        "id": pyarrow.string(),
        "topics": pyarrow.list_(pyarrow.string()),
        "private": pyarrow.bool_(),
        "type": pyarrow.string(),
        "retry": pyarrow.int64(),
        "data": pyarrow.string(),
        "presence": pyarrow.bool_(),
    }
    return pyarrow.schema([pyarrow.field(name, types[name], name in ("type", "retry")) for name in types])


def _pyarrow() -> tuple[Any, Any]:
    """Import pyarrow on use, because the import takes a third of a second."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigurationError(missing("Parquet", "pyarrow", "parquet")) from None
    return pyarrow, parquet


class Format(NamedTuple):
    """The suffixes of a file format, and its writer and reader."""

    suffixes: tuple[str, ...]
    write: Callable[[BinaryIO], AbstractContextManager[Write]]
    read: Callable[[BinaryIO, str], Iterator[tuple[str, float | None, Any]]]


FORMATS: Final = {
    "ndjson": Format((".ndjson", ".jsonl"), _write_ndjson, _read_ndjson),
    "parquet": Format((".parquet",), _write_parquet, _read_parquet),
}


def format_of(file: str) -> str:
    """Return the name of the format of a file, by its suffix; `-` is ndjson.

    Raises ConfigurationError if the suffix is unknown.

    >>> format_of("updates.jsonl")
    'ndjson'
    """
    for name, format in FORMATS.items():
        if file.endswith(format.suffixes):
            return name
    if file == "-":
        return "ndjson"
    raise ConfigurationError(f"{file} does not end in .ndjson, .jsonl or .parquet: name the format with --format")
