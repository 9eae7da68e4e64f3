"""A node of a hub: its name."""

from __future__ import annotations

import uuid


def new_node() -> str:
    """Return a new, unique name of a node."""
    return uuid.uuid4().hex
