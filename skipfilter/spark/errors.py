"""The errors of the pipeline.

SkipFilterError
└── PipelineError          of skipfilter.bulk.errors
    ├── MissingJava        also RuntimeError
    ├── MissingMaster      also RuntimeError
    ├── MissingSpark       also RuntimeError
    ├── UnfitExecutors     also RuntimeError
    ├── BadInput           also ValueError; of skipfilter.bulk.errors
    │   ├── MissingTable
    │   └── Outdated       of skipfilter.spark.jobs.generations
    ├── BroadcastLimit     also ValueError; of skipfilter.bulk.errors
    └── TargetExists       of skipfilter.spark.tables.files
"""

from __future__ import annotations

from skipfilter.bulk.errors import BadInput, BroadcastLimit, PipelineError

__all__ = [
    "BadInput",
    "BroadcastLimit",
    "MissingJava",
    "MissingMaster",
    "MissingSpark",
    "MissingTable",
    "PipelineError",
    "UnfitExecutors",
]


class MissingJava(PipelineError, RuntimeError):
    """This machine has no Java that Spark can run on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or newer, but {reason}: on Debian, run apt-get install default-jre-headless, or set "
            "JAVA_HOME to another Java"
        )


class MissingMaster(PipelineError, RuntimeError):
    """No standalone master of Spark accepts connections."""


class MissingSpark(PipelineError, RuntimeError):
    """SPARK_HOME names no Spark, or one of another version than PySpark."""


class UnfitExecutors(PipelineError, RuntimeError):
    """The Python of the executors lacks a package that the jobs need."""


class MissingTable(BadInput):
    """A table does not exist.  The message names its path."""
