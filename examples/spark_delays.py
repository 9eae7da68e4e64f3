"""Compute the delays of each airline with Spark, from the updates of a hub.

    make run                                       in one terminal
    python examples/flights.py --speed 1e6         in another terminal
    python examples/spark_delays.py

It prints the result, and publishes it to the same hub.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import functions as F  # noqa: N812

import hub.spark
from hub.development import DEVELOPMENT_TOKEN
from skipfilter.spark import spark_session


def main() -> None:
    """Read the flights of the hub, print the delays, and publish them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub", default="http://localhost:3000/.well-known/mercure", help="the URL of the hub")
    options = parser.parse_args()

    os.environ.setdefault("TOKEN", DEVELOPMENT_TOKEN)
    spark = spark_session("delays", {"spark.log.level": "ERROR"})
    hub.spark.register(spark)
    # Read all departures that the history of the hub has.
    departures = (
        spark.read.format("mercure")
        .option("url", options.hub)
        .option("match_uritemplate", "https://flights.example/{from}/{to}/{flight}")
        .load()
        .select(F.from_json("data", "airline string, delay long").alias("flight"))
        .select("flight.*")
    )
    delays = departures.groupBy("airline").agg(F.count("*").alias("flights"), F.median("delay").alias("median_delay"))
    delays = delays.orderBy(F.desc("flights"), "airline")
    delays.show(truncate=False)

    # Publish one update for each airline.
    rows = delays.select(F.lit("https://flights.example/delays").alias("topic"), F.to_json(F.struct("*")).alias("data"))
    # The token is not an option, because options appear in plans and logs.
    sink = rows.coalesce(1).write.format("mercure").mode("append")
    sink.option("url", options.hub).option("tokenEnv", "TOKEN").option("private", "false").save()


if __name__ == "__main__":
    main()
