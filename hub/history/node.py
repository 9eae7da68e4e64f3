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
    """Return a clock of seconds since 1970 that ignores later changes of the system
    clock.

    So changing the system clock neither expires the whole history nor keeps it forever.
    """
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
