"""The errors of the pipeline.

SkipFilterError
└── PipelineError
    ├── MissingJava        also RuntimeError
    ├── MissingMaster      also RuntimeError
    ├── UnfitExecutors     also RuntimeError
    ├── BadInput           also ValueError
    │   ├── MissingTable
    │   └── Outdated       of skipfilter.spark.generations
    ├── BroadcastLimit     also ValueError
    └── TargetExists       of skipfilter.spark.files
"""

from __future__ import annotations

from skipfilter.errors import SkipFilterError


class PipelineError(SkipFilterError):
    """A job failed, and the message says why."""


class MissingJava(PipelineError, RuntimeError):
    """This machine has no Java that Spark can run on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or newer, but {reason}: on Debian, run apt-get install default-jre-headless, or set "
            "JAVA_HOME to another Java"
        )


class MissingMaster(PipelineError, RuntimeError):
    """No standalone master of Spark accepts connections."""


class UnfitExecutors(PipelineError, RuntimeError):
    """The Python of the executors lacks a package that the jobs need."""


class BadInput(PipelineError, ValueError):
    """A table or file is invalid.

    The message names the file, the column and the row if they are known.
    """


class MissingTable(BadInput):
    """A table does not exist.  The message names its path."""


class BroadcastLimit(PipelineError, ValueError):
    """A single session needs more memory than a worker may hold."""
