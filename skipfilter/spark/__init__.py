"""The same matching over tables: who received what, and who would have, on Spark.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

__main__       ─ the commands
  ├► page/         ─ a report as one file of HTML
  ├► report        ─ what happened on a day; audit ─ which sessions could read what
  │    └► fanout · gaps · files    ─ how many an update reached; what may be missing; tables on disk
  └► matching      ─ updates and sessions to the four outputs
       ├► partition     ─ the sessions, a range of ids at a time
       ├► wide_selectors ─ the wide ones, and the index that a worker makes of them
       └► deliveries    ─ who gets an update of some topics
            └► posting_lists · bitmaps    ─ the ids that want each selector

`pip install skipfilter[spark]`, and a Java 17 or newer.
"""

from __future__ import annotations

try:
    from skipfilter.spark.errors import BadInput, BroadcastLimit, MissingJava, PipelineError
    from skipfilter.spark.generate import Workload, generate_sessions, generate_updates
    from skipfilter.spark.matching import Matching, match
    from skipfilter.spark.posting_lists import postings
    from skipfilter.spark.session import spark_session
except ImportError as error:
    if error.name is None or error.name.startswith("skipfilter"):
        raise
    raise ImportError(f"skipfilter.spark needs {error.name}: pip install skipfilter[spark]", name=error.name) from None

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
