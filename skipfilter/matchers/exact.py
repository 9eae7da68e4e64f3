"""A topic matches the string that is equal to it, byte for byte: no normalisation, no case folding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exact:
    """Matches the topic `pattern` and no other."""

    pattern: str

    def match(self, topic: str) -> bool:
        return topic == self.pattern
