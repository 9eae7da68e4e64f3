"""The errors of matching in bulk.

SkipFilterError
└── PipelineError          the pipeline on Spark has more: skipfilter.spark.errors
    ├── BadInput           also ValueError
    └── BroadcastLimit     also ValueError
"""

from __future__ import annotations

from skipfilter.errors import SkipFilterError


class PipelineError(SkipFilterError):
    """A job failed, and the message says why."""


class BadInput(PipelineError, ValueError):
    """A table or file is invalid.

    The message names the file, the column and the row if they are known.
    """


class BroadcastLimit(PipelineError, ValueError):
    """A single session needs more memory than a worker may hold."""
