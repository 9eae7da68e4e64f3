"""The errors that the pipeline raises on purpose; each is a PipelineError."""

from __future__ import annotations

from skipfilter.errors import SkipFilterError


class PipelineError(SkipFilterError):
    """A job cannot be done.  It is also a SkipFilterError."""


class MissingJava(PipelineError, RuntimeError):
    """Spark has no Java to run on."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Spark needs Java 17 or newer, but {reason}: on Debian, run apt-get install default-jre-headless, or set "
            "JAVA_HOME to another Java"
        )


class MissingMaster(PipelineError, RuntimeError):
    """No master of Spark answers."""


class UnfitExecutors(PipelineError, RuntimeError):
    """The Python of the executors cannot run the jobs."""


class BadInput(PipelineError, ValueError):
    """A table or file is invalid; the message names file, column and row if they are
    known.
    """


class MissingTable(BadInput):
    """A table does not exist; the message names its path."""


class BroadcastLimit(PipelineError, ValueError):
    """A worker would have to hold too much, however the sessions are divided."""
