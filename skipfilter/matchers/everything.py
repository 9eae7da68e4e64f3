"""Every topic matches `*`."""

from __future__ import annotations

from dataclasses import dataclass

from skipfilter.errors import PatternError


@dataclass(frozen=True, slots=True)
class Everything:
    """Matches every topic.  Its pattern is `*`; PatternError for any other."""

    pattern: str = "*"

    def __post_init__(self) -> None:
        if self.pattern != "*":
            raise PatternError("everything", self.pattern, "it can only be '*'")

    def match(self, topic: str) -> bool:
        return True

    def why_not(self, topic: str) -> str:
        raise AssertionError("everything matches")
