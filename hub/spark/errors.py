"""What is raised on purpose:

PipelineError
├── BadInput           an option, a column or a row; also ValueError
├── Refused            by the hub, which says why
│   └── NotTaken       of updates: one of them, if it says which
├── Unreachable        for as long as is tried
├── Silent             it is there, and what is to come does not come
└── DataLoss           it no longer has what comes next
"""

from __future__ import annotations

from skipfilter.spark.errors import PipelineError


class Refused(PipelineError):
    """The hub does not do it; the message repeats what it says."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the hub answers {status}: {said}")
        self.status = status
        self.said = said


class Unreachable(PipelineError):
    """The hub was tried as often as it may be."""


class Silent(PipelineError):
    """The hub is there, and says nothing."""


class DataLoss(PipelineError):
    """The hub no longer has what comes next."""


class NotTaken(Refused):
    """The hub does not take an update; `index` says which one of those that were to be published."""

    def __init__(self, status: int, said: str, index: int | None) -> None:
        super().__init__(status, said)
        self.index = index
        """None where it is none of them in particular, as with a token that is not valid."""
