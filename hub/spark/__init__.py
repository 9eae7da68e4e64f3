"""A hub as a source and a sink of Spark, and its event log as tables.

    register(spark)
    spark.readStream.format("mercure").option("url", URL).option("match", "*").load()
    df.write.format("mercure").mode("append").option("url", URL).save()

format      ─ the format "mercure": gives Spark its readers and writers
  ├► source    ─ a hub's updates as rows; its docstring lists the options and columns
  │    └► pull     ─ the events of a hub after a cursor
  ├► sink      ─ rows as updates; its docstring lists the options and columns
  │    └► push     ─ updates to a hub
  │         └► retry · options · errors    ─ for both
  └  tables    ─ a hub's event log as tables

Belongs here: what is between a hub and tables.
Does not belong here: what is computed from tables (`skipfilter.spark`), and commands
(`hub.cli.spark`).
It needs the extras `hub` and `spark`, and Java 17 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.errors import names_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format "mercure" in a session.

    The package must also be installed where the session's tasks run.  Raises
    ImportError if a package of the extras `hub` and `spark` is missing.
    """
    with names_extra("hub.spark", "hub,spark"):
        from hub.spark.format import Mercure

    spark.dataSource.register(Mercure)
