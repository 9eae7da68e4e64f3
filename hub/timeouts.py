"""Timeouts: how work is interrupted that waits inside of `asyncio.timeout`.

A cancellation of its task could not be told from one by the server or the program.
"""

from __future__ import annotations

import asyncio


def expire(timeout: asyncio.Timeout | None) -> None:
    """Let a timeout expire now.

    Does nothing if there is none, or if it has expired already.
    """
    if timeout is not None and not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time())
