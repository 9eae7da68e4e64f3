"""Private socket: a Unix socket that only its user can reach (R89).

It is made, with its mode, in a directory of its own, and only then gets its name: at no
time can anyone else connect to the name.
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from errno import ENAMETOOLONG
from stat import S_ISSOCK
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MODE: Final = 0o600
"""The permissions of the socket."""
MAX_PATH: Final = 100
"""Bytes of the path, at most; systems take 103 to 107."""
_BACKLOG: Final = 128
_CONNECT_SECONDS: Final = 1.0


class InUse(OSError):
    """Another process listens on a socket with this name."""


def listen_privately(path: str) -> tuple[socket.socket, Callable[[], None]]:
    """Return a socket that listens at a path, and a function that removes the path.

    A socket that nobody listens on any more is replaced.  Raises InUse if somebody
    does, FileExistsError if another kind of file is there, and OSError.
    """
    _require_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # By a relative path, as the path is: the kernel takes only short ones.
        with tempfile.TemporaryDirectory(prefix=".", dir=os.path.dirname(path) or os.curdir) as directory:
            made = os.path.join(os.path.relpath(directory) if not os.path.isabs(path) else directory, "s")
            listener.bind(made)
            os.chmod(made, MODE)
            listener.listen(_BACKLOG)
            own = os.stat(made)
            os.rename(made, path)
    except BaseException:
        listener.close()
        raise

    def remove() -> None:
        """Remove the path, unless another process has replaced it."""
        with suppress(OSError):
            if os.path.samestat(os.stat(path), own):
                os.unlink(path)

    return listener, remove


def _require_free(path: str) -> None:
    """Raise an error if something other than a forgotten socket is at a path, or if the
    path is too long for the kernel.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise OSError(ENAMETOOLONG, f"the path of a socket has at most {MAX_PATH} bytes")
    if not os.path.lexists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            if os.path.exists(path) and not S_ISSOCK(os.stat(path).st_mode):
                raise FileExistsError(f"{path} is not a socket") from None
            return
        except TimeoutError:
            pass
    raise InUse(f"another process listens at {path}")
