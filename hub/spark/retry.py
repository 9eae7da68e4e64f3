"""Retry: how often a request is tried again, and the pauses between attempts.

Packages for retries, such as tenacity, count the attempts of one call.  A stream counts
those since the last event, and a hub says how long to wait.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from hub.spark.errors import Unreachable

if TYPE_CHECKING:
    from hub.client.messages import Answer

LONGEST_PAUSE: Final = 5.0
"""The longest pause between two attempts, in seconds; the first is a twentieth
of it."""
PASSING: Final = (408, 429, 500, 502, 503, 504)
"""Statuses that may be temporary."""


# -- attempts


class Attempts:
    """Counts consecutive failures, and waits between attempts."""

    def __init__(self, url: str, most: int) -> None:
        self._url, self._most = url, most
        self._failed = 0

    def succeeded(self) -> None:
        """Start counting again."""
        self._failed = 0

    def failed(self, reason: str, after: float = 0.0) -> None:
        """Wait, at least `after` seconds.

        Raises Unreachable after the last attempt.
        """
        self._failed += 1
        if self._failed > self._most:
            raise Unreachable(f"{self._url} has failed {self._failed} times in a row; the last reason: {reason}")
        time.sleep(max(after, min(LONGEST_PAUSE, LONGEST_PAUSE / 20 * 2 ** (self._failed - 1))))


def said(answer: Answer) -> str:
    """Return the reason of a refusal: the detail of a problem document, or the text."""
    text = answer.text
    try:
        return str(json.loads(text)["detail"] or text)
    except (ValueError, LookupError, TypeError, RecursionError):
        return text.strip()[:500]


def reason_of(error: Exception) -> str:
    """Return an error as text."""
    return f"{type(error).__name__}: {error}"
