"""The errors that are raised on purpose.

PipelineError
├── BadInput           an option, a column or a row is wrong; also a ValueError
├── Refused            the hub refuses, with its reason
│   └── NotTaken       the hub refuses an update, or all of them
├── Unreachable        the hub could not be reached in all attempts
├── Silent             the hub is connected, but sends nothing
└── DataLoss           the hub no longer has the next event
"""

from __future__ import annotations

from skipfilter.spark.errors import PipelineError


class Refused(PipelineError):
    """The hub refuses a request; the message includes its reason."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"the hub answers {status}: {said}")
        self.status = status
        self.said = said


class Unreachable(PipelineError):
    """The hub could not be reached in all attempts."""


class Silent(PipelineError):
    """The hub is connected, but sends nothing."""


class DataLoss(PipelineError):
    """The hub no longer has the next event."""


class NotTaken(Refused):
    """The hub refuses an update; `index` is its index in the list to
    publish.
    """

    def __init__(self, status: int, said: str, index: int | None) -> None:
        super().__init__(status, said)
        self.index = index
        """None if the reason is not one update, but for example an invalid token."""
