"""The same matching over tables: who received what, and who would have, on Spark.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

`pip install skipfilter[spark]`, and a Java 17 or newer.
"""

from __future__ import annotations

try:
    from skipfilter.spark.errors import BadInput, BroadcastLimit, MissingJava, PipelineError
    from skipfilter.spark.generate import Workload, generate_sessions, generate_updates
    from skipfilter.spark.match import Matching, match
    from skipfilter.spark.postings import postings
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
