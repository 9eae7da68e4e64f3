"""Match a table of updates with a table of sessions on Spark.

The result is which session received which update, or would have received it.

    sessions ──► postings ──┐
                            ├──► match ──► fanout, bitmaps, rows, received
    updates  ──► topics  ───┘

    cli            the options of `skipfilter spark`, which need no Spark
      └► commands     what the commands do
           ├► page/     a report as one HTML file
           ├► jobs/     what the commands compute
           └► tables/   where the tables are, and their columns
                └► console · session   progress and errors; the session of Spark

Belongs here: plans of Spark, and tables in files.
Does not belong here: what a worker does with a batch, which needs no Spark
(`skipfilter.bulk`), and what is particular to a hub (`hub.spark`).
The package needs the extra `spark`, and Java 17 or newer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from skipfilter.errors import names_extra

if TYPE_CHECKING:
    from skipfilter.spark.errors import BadInput, BroadcastLimit, MissingJava, PipelineError
    from skipfilter.spark.jobs.generate import Workload, generate_sessions, generate_updates
    from skipfilter.spark.jobs.indexing import postings
    from skipfilter.spark.jobs.matching import Matching, as_if_online, match
    from skipfilter.spark.session import spark_session

__all__ = [
    "BadInput",
    "BroadcastLimit",
    "Matching",
    "MissingJava",
    "PipelineError",
    "Workload",
    "as_if_online",
    "generate_sessions",
    "generate_updates",
    "match",
    "postings",
    "spark_session",
]

_MODULES: Final = {
    **dict.fromkeys(("BadInput", "BroadcastLimit", "MissingJava", "PipelineError"), "errors"),
    **dict.fromkeys(("Workload", "generate_sessions", "generate_updates"), "jobs.generate"),
    **dict.fromkeys(("Matching", "as_if_online", "match"), "jobs.matching"),
    "postings": "jobs.indexing",
    "spark_session": "session",
}
"""The module that defines each name.

A module is imported when its name is first used (PEP 562), so the import of the package
needs no PySpark.
"""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with names_extra("skipfilter.spark", "spark"):
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
