"""A node of a hub: its name and its clock."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def new_node() -> str:
    """Return a new, unique name of a node."""
    return uuid.uuid4().hex


def steady_clock() -> Callable[[], float]:
    """Return a clock that ignores later changes of the system clock.

    It returns seconds since 1970.  If the system clock is changed, the history neither
    expires at once nor stays forever.
    """
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
