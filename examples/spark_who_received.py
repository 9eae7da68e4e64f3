"""Find out which subscribers received which updates, with a local Spark.

    python examples/spark_who_received.py

The day is an invented one, with 500 subscribers and 5,000 updates.  The example
needs the extra `spark` and Java 17 or newer.
"""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812

from skipfilter.spark import Matching, Workload, generate_sessions, generate_updates, spark_session


def main() -> None:
    """Print the widest updates, and the subscribers that received the most."""
    spark = spark_session("who received what", {"spark.log.level": "ERROR"})
    day = Workload(subscribers=500, updates=5_000)
    updates, sessions = generate_updates(spark, day), generate_sessions(spark, day)

    # The number of receivers of each update.
    matching = Matching(updates, sessions)
    fanout = matching.output("fanout")
    fanout.agg(F.count("*").alias("updates"), F.sum("fanout").alias("deliveries"), F.max("fanout")).show()

    print("The updates with the most receivers:")
    widest = updates.join(fanout, "update_id").orderBy(F.desc("fanout"), "update_id")
    widest.select("topics", "private", "fanout").show(5, truncate=False)

    # The number of updates that each subscriber received.
    print("The subscribers that received the most:")
    received = matching.output("received").join(sessions, "subscriber_id")
    received.select("subscriber_id", "received", "connected_from", "disconnected_at").orderBy(
        F.desc("received"), "subscriber_id"
    ).show(5)


if __name__ == "__main__":
    main()
