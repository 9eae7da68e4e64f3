"""Find out who received what on an invented day: 2,000 sessions and 20,000 updates, on
a local Spark.

It needs `pip install skipfilter[spark]` and Java 17 or newer.
"""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark import Matching, Workload, generate_sessions, generate_updates, spark_session


def main() -> None:
    spark = spark_session("who received what", {"spark.log.level": "ERROR"})
    day = Workload(subscribers=2_000, updates=20_000)
    updates, sessions = generate_updates(spark, day), generate_sessions(spark, day)

    matching = Matching(updates, sessions)
    fanout = matching.output("fanout")
    fanout.agg(F.count("*").alias("updates"), F.sum("fanout").alias("deliveries"), F.max("fanout")).show()

    print("The updates with the most receivers:")
    widest = updates.join(fanout, "update_id").orderBy(F.desc("fanout"), "update_id")
    widest.select("topics", "private", "fanout").show(5, truncate=False)

    print("The subscribers that received the most:")
    received = matching.output("received").join(sessions, "subscriber_id")
    received.select("subscriber_id", "received", "connected_from", "disconnected_at").orderBy(
        F.desc("received"), "subscriber_id"
    ).show(5)


if __name__ == "__main__":
    main()
