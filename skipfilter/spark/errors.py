"""What the Spark pipeline raises on purpose: all of it is a PipelineError, and so a SkipFilterError."""

from __future__ import annotations

from skipfilter.errors import SkipFilterError


class PipelineError(SkipFilterError):
    """A job cannot be done."""


class MissingJava(PipelineError, RuntimeError):
    """There is no Java for Spark."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or newer, and {reason}: on Debian, apt-get install default-jre-headless, or set "
            "JAVA_HOME to another one"
        )


class MissingMaster(PipelineError, RuntimeError):
    """No master of Spark answers."""


class UnfitExecutors(PipelineError, RuntimeError):
    """The Python of the executors cannot run the jobs."""


class BadInput(PipelineError, ValueError):
    """A table or file is not what a job takes; the message names file, column and row as far as they are known."""


class MissingTable(BadInput):
    """A table does not exist; the message names its path."""


class BroadcastLimit(PipelineError, ValueError):
    """What every worker must hold is too large, however it is cut."""
