"""Local tables: mistakes that show in the directories, before Spark has started.

Spark needs ten seconds and more to report them.  A path that Spark may resolve to
another machine is not looked at, and neither are tables of other forms: Spark reports
those.
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Days: TypeAlias = tuple[date | None, date | None]
"""The first and the last day of a period; None is no bound."""

WRITERS: Final = {
    "updates": "`generate`, or `skipfilter spark tables`,",
    "sessions": "`generate`, or `skipfilter spark tables`,",
    "fanout": "`match`",
}
"""The command that writes each table that a job needs."""

_ELSEWHERE: Final = (
    "SPARK_REMOTE", "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT",
)  # fmt: skip
"""The variables with which a path without a scheme may be on another machine."""


def local(path: str, conf: Iterable[str] | None) -> Path | None:
    """Return a path on this machine, or None if it may be on another one.

    `conf` has the settings of the command, each NAME=VALUE.
    """
    parts = urlsplit(path)
    if parts.scheme not in ("", "file") or parts.netloc or any(sign in path for sign in "*?[{"):
        return None
    settings = [setting.partition("=")[0] for setting in conf or ()]
    if any(name in os.environ for name in _ELSEWHERE) or any(
        name == "spark.remote" or name.startswith("spark.hadoop.fs.") for name in settings
    ):
        return None
    return Path(unquote(parts.path) if parts.scheme else path)


def missing_table(place: Path, tables: str, names: Sequence[str]) -> str:
    """Return a sentence about the first of `names` that is no table, or ""."""
    for name in names:
        if not (place / name).exists():
            return f"{tables}/{name}: the table does not exist: {WRITERS[name]} writes it"
    return ""


def missing_days(place: Path, tables: str, first: date | None, last: date | None) -> str:
    """Return a sentence if no update can be of the days `first` to `last`, or "".

    None is no bound.
    """
    days = sorted(path.name.removeprefix("dt=") for path in (place / "updates").glob("dt=????-??-??"))
    if (first, last) == (None, None) or any(
        str(first or date.min) <= day <= str(last or date.max) and any((place / "updates" / f"dt={day}").iterdir())
        for day in days
    ):
        return ""
    there = "it has no day"
    if days:
        there = f"its days are {days[0]} to {days[-1]}" if len(days) > 1 else f"its only day is {days[0]}"
    return f"{tables}/updates: {nothing_of(first, last)}: {there}"


def nothing_of(first: date | None, last: date | None) -> str:
    """Return the sentence that a table has no update of a period."""
    if first == last:
        return f"it has no update of {first}"
    if first is None:
        return f"it has no update up to {last}"
    return f"it has no update from {first} {f'to {last}' if last else 'on'}"


def not_a_log(place: Path, log: str) -> str:
    """Return a sentence if a directory is not an event log (hub.event_log), or ""."""
    for name in ("updates", "sessions"):
        if not (place / name).is_dir():
            return f"{log}/{name} does not exist: name the directory in HUB_EVENT_LOG"
    segments = (path for name in ("updates", "sessions") for path in (place / name).glob("*.*"))
    if any(path.suffix in (".jsonl", ".ndjson", ".part") for path in segments) or (place / "lock").exists():
        return ""
    return f"{log}: it has no segment of an event log: name the directory in HUB_EVENT_LOG"


def no_exports(place: Path, directory: str) -> str:
    """Return a sentence if a directory has no file that was exported, or ""."""
    if any(path.suffix in (".jsonl", ".ndjson") for path in place.glob("*.*")):
        return ""
    return f"{directory}: no update was found in files named .ndjson or .jsonl"


READ_BYTES: Final = 2**26
"""The maximum bytes of tables that are read for a look at topics."""
PATTERNS: Final = 5_000
"""The maximum number of patterns that are matched for it."""


def unknown_topic(place: Path, tables: str, topic: str) -> str:
    """Return a sentence if a topic is in no update and no selector matches it, or "".

    Looks at tables of up to READ_BYTES, with up to PATTERNS that are not exact.  Of
    larger ones, and of those with URL Patterns, it returns "".
    """
    # Their imports take a while.
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import dataset

    from skipfilter.topics.matchers import compile_matcher

    paths = [path for name in ("updates", "sessions") for path in (place / name).rglob("*.parquet")]
    if sum(path.stat().st_size for path in paths) > READ_BYTES:
        return ""
    try:
        topics, *lists = (
            pc.list_flatten(dataset.dataset(place / table, format="parquet").to_table([column]).column(column))
            for table, column in (("updates", "topics"), ("sessions", "selectors"), ("sessions", "authorised"))
        )
        if pc.any(pc.equal(topics, topic)).as_py():
            return ""
        names = ["type", "pattern"]
        every = [pa.table([pc.struct_field(some, name) for name in names], names) for some in lists]
        distinct = pa.concat_tables(every).group_by(names).aggregate([])
        selectors = list(zip(*(distinct.column(name).to_pylist() for name in names), strict=True))
        others = [selector for selector in selectors if selector[0] != "exact"]
        if ("exact", topic) in selectors or len(others) > PATTERNS or any(type == "urlpattern" for type, _ in others):
            return ""
        if any(compile_matcher(*selector).match(topic) for selector in others):
            return ""
    except (ValueError, KeyError, OSError):  # Spark reports what is wrong with a table
        return ""
    return nothing_about(tables, topic)


def nothing_about(tables: str, topic: str) -> str:
    """Return the sentence that an audit of a topic finds nothing."""
    return f"{tables}: no update is on {topic!r}, and no session could read it; a topic is compared exactly"
