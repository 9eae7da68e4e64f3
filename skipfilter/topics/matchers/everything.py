"""The pattern `*` matches every topic."""

from __future__ import annotations

from dataclasses import dataclass

from skipfilter.errors import PatternError


@dataclass(frozen=True, slots=True)
class Everything:
    """Matches every topic.  Raises PatternError if its pattern is not `*`."""

    pattern: str = "*"

    def __post_init__(self) -> None:
        if self.pattern != "*":
            raise PatternError("everything", self.pattern, "it can only be '*'")

    def match(self, topic: str) -> bool:
        """Return True.  Takes O(1)."""
        return True

    def why_not(self, topic: str) -> str:
        """Raise AssertionError: no topic fails to match.  Takes O(1)."""
        raise AssertionError("everything matches")
