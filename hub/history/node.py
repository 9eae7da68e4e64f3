"""A node of a hub: its name, and its clock."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def new_node() -> str:
    """The name of a node, which no other has."""
    return uuid.uuid4().hex


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 as the system had them when this was called, and from then on whatever it is set to.

    So a clock that is set while a hub is running does not make its whole log old at once, or new for ever.
    """
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
