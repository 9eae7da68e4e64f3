"""Match a table of updates with a table of sessions on Spark.

The result is which session received which update, or would have received it.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

    __main__       the commands
      ├► page/         a report as one HTML file
      ├► report        what happened on a day
      ├► audit         which sessions could read a topic
      │    └► fanout · gaps · files     sessions per update; lost records; tables
      ├► inputs        how the tables of updates and sessions can be matched
      ├► generations   whether a result belongs to the present updates and sessions
      └► matching      from updates and sessions to the four outputs
           └► partition       the sessions, one range of ids at a time
                └► indexing       the ids that declare each selector

skipfilter.bulk has what the workers do, batch by batch, and needs no Spark.
The package needs the extra `spark`, and Java 17 or newer.
"""

from __future__ import annotations

from skipfilter.text import missing

try:
    from skipfilter.spark.errors import BadInput, BroadcastLimit, MissingJava, PipelineError
    from skipfilter.spark.generate import Workload, generate_sessions, generate_updates
    from skipfilter.spark.indexing import postings
    from skipfilter.spark.matching import Matching, match
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
