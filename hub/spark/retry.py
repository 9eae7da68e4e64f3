"""Retry: for how long, and how often, a request is tried again."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from hub.spark.errors import Unreachable

if TYPE_CHECKING:
    import httpx2

LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts, at most; the first is a twentieth of that."""
PASSING: Final = (408, 429, 500, 502, 503, 504)
"""What may be otherwise in a moment."""


# -- attempts


class Attempts:
    """How often in a row something has failed, and how long to wait before the next time."""

    def __init__(self, url: str, most: int) -> None:
        self._url, self._most = url, most
        self._failed = 0

    def succeeded(self) -> None:
        self._failed = 0

    def failed(self, reason: str, after: float = 0.0) -> None:
        """Wait, at least `after` seconds.  Raises Unreachable where that was once too often."""
        self._failed += 1
        if self._failed > self._most:
            raise Unreachable(
                f"{self._url} has failed {self._failed} times in a row, the last time as follows: {reason}"
            )
        time.sleep(max(after, min(LONGEST_PAUSE, LONGEST_PAUSE / 20 * 2 ** (self._failed - 1))))


def retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isascii() and text.isdigit() else 0.0


def said(response: httpx2.Response) -> str:
    """What a refusal says: the detail of a problem document, or the text."""
    text = response.read().decode("utf-8", "replace")
    try:
        return str(json.loads(text)["detail"] or text)
    except (ValueError, LookupError, TypeError):
        return text.strip()[:500]


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
