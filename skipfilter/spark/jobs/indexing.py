"""Indexing: the posting lists of a table of sessions.

sessions ──► combine ──► shuffle by selector ──► merge ──► POSTINGS
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.bulk.posting_lists import KEY, combine, merge
from skipfilter.spark.tables.schemas import POSTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def postings(sessions: DataFrame) -> DataFrame:
    """Return POSTINGS of SESSIONS: a row for each shard and distinct selector in use.

    Selectors that no session declares or is granted have no row.  Costs one shuffle, of
    the postings and not of the sessions.
    """
    declared = sessions.select("subscriber_id", "selectors", "authorised")
    return declared.mapInArrow(combine, POSTINGS).repartition(*KEY).mapInArrow(merge, POSTINGS)
