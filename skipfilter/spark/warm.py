"""The warm index: the topics that are asked most, with who passes them, for a SkipFilter or a hub that starts.

    updates ──► topics by hits ──► the first of them ─┐
    sessions ─► postings ─────────────────────────────┴─► topic, cursor, bitmaps

`skipfilter.warm` reads it, without Spark.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark.bitmaps import serialize, union
from skipfilter.spark.errors import BadInput
from skipfilter.spark.match import found_by, parts_of
from skipfilter.spark.schemas import WARM_INDEX
from skipfilter.warm import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from skipfilter.spark.deliveries import Sessions

TOP = 100_000


def warm_index(
    updates: DataFrame, sessions: DataFrame, epoch: str, *, top: int = TOP, base_url: str | None = None
) -> DataFrame:
    """WARM_INDEX of the `top` topics of UPDATES, those with the most updates, and all SESSIONS, whenever they were.

    `epoch` names what the ids mean, as `SkipFilter.load` has it.  Raises BadInput for ids that have more than 32 bits,
    and what `match` does.
    """
    topics = updates.select(F.explode(F.array_distinct("topics")).alias("topic")).groupBy("topic")
    hot = topics.agg(F.count("*").alias("hits")).orderBy(F.desc("hits"), "topic").limit(top).localCheckpoint()
    last = sessions.agg(F.max("subscriber_id")).first()
    cursor = 0 if last is None or last[0] is None else last[0] + 1
    if cursor > 2**32:
        raise BadInput(f"sessions: subscriber_id {cursor - 1} has more than 32 bits")
    always = sessions.select("*", F.lit(0).cast("long").alias("begins"), F.lit(None).cast("long").alias("ends"))
    united = "topic string, subscribed binary, authorised binary"
    found = [
        found_by(hot.select("topic"), part).mapInArrow(partial(_unite, sessions=part.sessions), united)
        for part in parts_of(always, base_url=base_url)
    ]
    rows = reduce(lambda one, other: one.unionAll(other), found)
    if len(found) > 1:
        lists = [F.collect_list(role).alias(role) for role in ("subscribed", "authorised")]
        rows = rows.groupBy("topic").agg(*lists).mapInArrow(_merge, united)
    return (
        rows.join(hot, "topic")
        .withColumns(
            {
                "hub": F.lit(None).cast("string"),
                "epoch": F.lit(epoch),
                "cursor": F.lit(cursor).cast("long"),
                "format_version": F.lit(FORMAT_VERSION),
            }
        )
        .select(WARM_INDEX.names)
    )


def _unite(batches: Iterable[pa.RecordBatch], sessions: Sessions) -> Iterator[pa.RecordBatch]:
    """The bitmaps of each topic, of its narrow and its wide selectors, with ids as they are."""
    shift = sessions.first - int(sessions.offset)

    def whole(narrow: bytes | None, wide: list[int], held: list[bytes | None]) -> bytes:
        parts = (narrow, *(held[number] for number in wide))
        return serialize(union(part for part in parts if part is not None).shift(shift))

    for batch in batches:
        topics, subscribed, authorised, wide = (column.to_pylist() for column in batch.columns)
        yield _rows(
            topics,
            [whole(*row, sessions.subscribed) for row in zip(subscribed, wide, strict=True)],
            [whole(*row, sessions.authorised) for row in zip(authorised, wide, strict=True)],
        )


def _merge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        topics, *roles = (column.to_pylist() for column in batch.columns)
        yield _rows(topics, *([serialize(union(parts)) for parts in role] for role in roles))


def _rows(topics: list[str], subscribed: list[bytes], authorised: list[bytes]) -> pa.RecordBatch:
    binary = pa.binary()
    columns = [pa.array(topics, pa.string()), pa.array(subscribed, binary), pa.array(authorised, binary)]
    return pa.record_batch(columns, ["topic", "subscribed", "authorised"])
