"""An exact topic matches itself: no normalisation, no case folding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exact:
    """Matches the topic `pattern` and no other."""

    pattern: str

    def match(self, topic: str) -> bool:
        """Return whether `topic` equals the pattern.  Takes O(|topic|)."""
        return topic == self.pattern

    def why_not(self, topic: str) -> str:
        """Return the number of leading characters that are equal.  Takes O(|topic|)."""
        same = next((n for n, (a, b) in enumerate(zip(topic, self.pattern, strict=False)) if a != b), None)
        if same is None:
            same = min(len(topic), len(self.pattern))
        return f"they are the same up to character {same} of the topic's {len(topic)}"
