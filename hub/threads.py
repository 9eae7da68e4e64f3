"""From a thread to the event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function in the thread of an event loop, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
