"""A hub as a source and a sink of Spark, and its event log as tables.

    register(spark)
    spark.readStream.format("mercure").option("url", URL).option("match", "*").load()      see hub.spark.source
    df.write.format("mercure").mode("append").option("url", URL).save()                    see hub.spark.sink

format      ─ the format "mercure": what Spark asks for a reader or a writer
  ├► source    ─ a hub's updates as rows
  │    └► reader       ─ the events of a hub after a cursor
  ├► sink      ─ rows as updates
  │    └► publisher    ─ updates to a hub
  │         └► retry · options · errors    ─ of both
  └  tables    ─ a hub's event log as tables

`pip install skipfilter[hub,spark]`, and a Java 17 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import skipfilter.spark  # noqa: F401  says what is missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Have the session know the format "mercure".  The package has to be where its tasks run, too."""
    from hub.spark.format import Mercure

    spark.dataSource.register(Mercure)
