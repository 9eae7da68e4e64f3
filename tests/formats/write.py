"""Write every durable format with today's code: python -m tests.formats.write
tests/formats/VERSION

    log.db      the history in SQLite: UPDATES, and a subscriber whose node was killed
    dump.rdb    the same in Redis
    events/     the event log of a hub: the same updates, and its connections
    tables/     the tables of `hub.spark` from the event log, its state, and a `fanout`

test_formats.py reads what each version wrote.  A version that changes a format adds its
own directory and keeps the others: their files are never written again.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hub.history import open_history
from hub.history.base import Change, Retention
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update
from hub.spark.tables import tables
from skipfilter.spark.jobs.matching import match
from skipfilter.spark.session import spark_session
from tests.asgi import application, bearer, current_token, follow
from tests.hub.spark.hubs import updates_and_sessions
from tests.redis_server import RedisServer
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOK: Final = "https://example.com/books/1"
UPDATES: Final = [
    Update((BOOK,), "plain", id="urn:plain"),
    Update((BOOK, "é/2"), "two\nlines\r\n\u2028 é \U0001f600", private=True, id="urn:é", type="kind", retry=5),
    Update(("a.b.c",), "", id="urn:empty"),
    Update((BOOK,), "x" * 3_000, private=True, id="urn:long", retry=10**12),
]
SUBSCRIBER: Final = Present("urn:subscriber", (("exact", BOOK, None), ("amqp", "a.#", '{"name":"é"}')))
ARRIVAL: Final = Update(("/subscriptions/1",), '{"active":true}', private=True, id="urn:arrival")
SESSIONS_OF: Final[list[tuple[tuple[str, str], list[str]]]] = [
    (("match_uritemplate", "https://example.com/books/{id}"), []),
    (("match", BOOK), [BOOK]),
    (("match_amqp", "a.#"), ["é/2"]),
]
"""The selectors and the grant of each subscriber of the event log."""
FANOUT: Final = {"urn:plain": 2, "urn:é": 1, "urn:empty": 1, "urn:long": 1}
BASE_URL: Final = "https://hub.example/.well-known/mercure"
PLACEHOLDER: Final = "file:///written/by/write.py"
"""A placeholder in `tables` for their directory, because Spark stores absolute
paths."""


async def fill_history(url: str) -> None:
    """Append UPDATES in two parts, and leave a subscriber present, as a killed node
    does.
    """
    history: Any = open_history(url, Retention(max_updates=1_000, max_bytes=2**24, max_age=math.inf))
    await history.append(UPDATES[:3])
    await history.announce([Change(SUBSCRIBER, True, [ARRIVAL])])
    await history.append(UPDATES[3:])
    await history.aclose()


async def fill_event_log(directory: Path) -> None:
    async with application(
        event_log=str(directory), event_log_data=True, subscriptions=False, public_urls=["https://hub.example"]
    ) as app:
        streams = []
        for parameter, granted in SESSIONS_OF:
            headers = [bearer(current_token(subscribe=granted))] if granted else []
            streams.append(follow(app, parameter, headers=headers))
        async with streams[0], streams[1], streams[2]:
            await app.state.hub.publish(*UPDATES)
            await until(lambda: app.state.hub.delivery.position >= len(UPDATES))


def make_tables(spark: SparkSession, events: Path, out: Path) -> None:
    """Read the updates in two batches, so that the state after the first one is
    used.
    """
    [segment] = (events / "updates").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:2]))
    tables(spark, str(events), str(out))
    segment.with_stem(f"{segment.stem}-2").write_bytes(b"".join(lines[2:]))
    tables(spark, str(events), str(out))
    fanout = match(*updates_and_sessions(spark, out), "fanout", by="position", base_url=BASE_URL)
    fanout.coalesce(1).write.parquet(str(out / "fanout"))


def moved(directory: Path, old: str, new: str) -> None:
    """Have the files in which Spark notes paths name another directory; their checksums
    are left out.
    """
    for file in directory.rglob("*"):
        if file.name.endswith(".crc"):
            file.unlink()
        elif file.is_file() and {"_spark_metadata", "_checkpoints"} & set(file.parts):
            file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")


def write(directory: Path) -> None:
    directory.mkdir(parents=True)
    asyncio.run(fill_history(f"sqlite:///{directory}/log.db"))
    with RedisServer() as server:
        asyncio.run(fill_history(server.url))
        server.ask("SAVE")
        shutil.copy(server.directory / "dump.rdb", directory)
    with tempfile.TemporaryDirectory() as place:
        events = Path(place) / "events"
        asyncio.run(fill_event_log(events))
        spark = spark_session("formats", {"spark.master": "local[1]"})
        make_tables(spark, events, Path(place) / "tables")
        spark.stop()
        for name in ("events", "tables"):
            shutil.copytree(Path(place) / name, directory / name)
        moved(directory / "tables", Path(place).as_uri(), PLACEHOLDER)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
