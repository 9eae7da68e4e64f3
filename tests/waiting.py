"""How long tests wait: for an event if there is one, otherwise for a condition, never
for a fixed time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

HANG: Final = 120.0
"""Seconds after which a test counts as hung.  No step takes that long, even on a very
busy machine."""


async def until(holds: Callable[[], object], pause: float = 0.01) -> None:
    """Return once `holds()` is true: for a condition outside the event loop, which sets
    no event.
    """
    async with asyncio.timeout(HANG):
        while not holds():
            await asyncio.sleep(pause)


def wait_until(holds: Callable[[], T], pause: float = 0.01) -> T:
    """Return what `holds()` returns once that is true, in a test without an event loop."""
    deadline = time.monotonic() + HANG
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(pause)
    return found
