"""Files with a secret: how a file becomes the text of a setting."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_bounded(path: str | Path, max_bytes: int) -> bytes:
    """Return the content of a file; ~ at the beginning of its path is a home directory.

    Raises ValueError if it is too large.
    """
    with open(os.path.expanduser(path), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content


def read_secret(path: str, max_bytes: int) -> str:
    """Return the text of a file, without a byte order mark and one line end at its end.

    Raises ValueError if it is too large, and UnicodeError if it is not UTF-8.
    """
    return read_bounded(path, max_bytes).decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
