"""Match a table of updates with a table of sessions on Spark.

The result is which session received which update, or would have received it.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

    cli            the commands of `skipfilter spark`
      ├► page/         a report as one HTML file
      ├► jobs/         what the commands compute
      └► tables/       where the tables are, and their columns
           └► console · session     progress and one-line errors; the session of Spark

Belongs here: plans of Spark, and tables in files.
Does not belong here: what a worker does with a batch, which needs no Spark
(`skipfilter.bulk`), and what is particular to a hub (`hub.spark`).
The package needs the extra `spark`, and Java 17 or newer.
"""

from __future__ import annotations

from skipfilter.text import missing

try:
    from skipfilter.spark.errors import BadInput, BroadcastLimit, MissingJava, PipelineError
    from skipfilter.spark.jobs.generate import Workload, generate_sessions, generate_updates
    from skipfilter.spark.jobs.indexing import postings
    from skipfilter.spark.jobs.matching import Matching, match
    from skipfilter.spark.session import spark_session
except ImportError as error:
    if error.name is None or error.name.startswith("skipfilter"):
        raise
    raise ImportError(missing("skipfilter.spark", error.name, "spark"), name=error.name) from None

__all__ = [
    "BadInput",
    "BroadcastLimit",
    "Matching",
    "MissingJava",
    "PipelineError",
    "Workload",
    "generate_sessions",
    "generate_updates",
    "match",
    "postings",
    "spark_session",
]
