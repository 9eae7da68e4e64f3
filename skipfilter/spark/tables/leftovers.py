"""Leftovers: which hidden directories belong to a process that has ended.

A job writes beside its table, to .TABLE.new-ID, and moves old rows to .TABLE.old-ID.
If it is killed, they stay.  The ID names its process, so that the next job can tell
them from those of a job that is still running:

    KERNEL-PID-RANDOM     KERNEL stands for this start of the kernel, and the numbering
                          of its processes, which a container has for itself

A process on another machine, or from before a restart of this one, counts as running.
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import sha256
from pathlib import Path
from uuid import uuid4


def new_id() -> str:
    """Return an ID of this process, different at each call."""
    return f"{_kernel()}-{os.getpid()}-{uuid4().hex}"


def has_ended(id: str) -> bool:
    """Return whether the process of an ID is known to have ended."""
    kernel, _, rest = id.partition("-")
    pid = rest.partition("-")[0]
    if kernel != _kernel() or not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # a process of another user, or no number of one
        pass
    return False


@cache
def _kernel() -> str:
    """Return a short name of this start of the kernel and its numbering of processes.

    Where the kernel does not tell them, it is different for each process.
    """
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        numbering = os.readlink("/proc/self/ns/pid")
    except OSError:
        return uuid4().hex[:8]
    return sha256(f"{start} {numbering}".encode()).hexdigest()[:8]
