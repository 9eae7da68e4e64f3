"""An exact topic matches itself: no normalisation, no case folding."""

from __future__ import annotations

from dataclasses import dataclass

from skipfilter.text import shown


@dataclass(frozen=True, slots=True)
class Exact:
    """Matches the topic `pattern` and no other."""

    pattern: str

    def match(self, topic: str) -> bool:
        """Return whether `topic` equals the pattern.  Takes O(|topic|)."""
        return topic == self.pattern

    def why_not(self, topic: str) -> str:
        """Return the first character that differs.  Takes O(|topic|)."""
        for n, (has, wanted) in enumerate(zip(topic, self.pattern, strict=False), 1):
            if has != wanted:
                return f"character {n} is {has!r}, not {wanted!r}"
        if len(topic) < len(self.pattern):
            return f"the topic ends before {shown(self.pattern[len(topic) :])}"
        return f"the topic goes on with {shown(topic[len(self.pattern) :])}"
