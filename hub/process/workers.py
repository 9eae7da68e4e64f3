"""Workers: several processes that serve one hub.

The processes share a listening socket and a history, and nothing else.

    parent     waits, restarts workers that die, and forwards signals
    ├─ worker  accepts from the socket, which was opened before the fork
    └─ worker

If a worker is killed, its streams end; their clients reconnect to any worker and miss
nothing.  If the parent is killed, the workers end too, because nothing would restart
them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

log = structlog.stdlib.get_logger("hub")

STARTUP_FAILURE: Final = 3
"""Exit status of a server that could not start; the same as uvicorn's.

Another attempt would fail in the same way.
"""
_RESTART_SECONDS: Final = 1.0
"""Minimum time between two starts of a worker."""


def supervise(count: int, work: Callable[[], None]) -> int:
    """Run `work` in `count` processes until SIGINT or SIGTERM.

    Both signals are forwarded to the workers as SIGTERM.  A worker that dies is
    restarted.  But if a worker ends with STARTUP_FAILURE, and none has ever ended in
    another way, the hub cannot start: all workers are ended.

    Returns the exit status: 0 if the workers ended cleanly at the shutdown, otherwise
    the highest of their statuses and signal numbers.

    Must be called while the process has no other threads, because it forks.
    """
    workers: dict[int, float] = {}  # pid -> when it was started
    signals = 0  # how many were received
    has_served = False  # whether a worker did not fail to start: then a failure may be temporary
    alive, parent = os.pipe()  # only the parent holds `parent` open; nothing is written to it

    def forward(*_: object) -> None:
        """Send SIGTERM to all workers."""
        nonlocal signals
        signals += 1
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.kill(pid, signal.SIGTERM)

    handled = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}

    def start() -> None:
        """Fork a worker, unless a signal was received."""
        # Without the block, a signal could arrive before the new worker is listed.
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        if signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            return
        if (pid := os.fork()) == 0:
            os.close(parent)
            _work(work, alive, handled)
        workers[pid] = time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    status = 0
    try:
        for _ in range(count):
            start()
        while workers:
            pid, exit = os.waitpid(-1, 0)
            lived = time.monotonic() - workers.pop(pid)
            code = os.waitstatus_to_exitcode(exit)
            has_served = has_served or code != STARTUP_FAILURE
            # 1. The hub is shutting down.
            # 2. The hub cannot start: shut it down.
            # 3. A worker has died: restart it.
            if signals:
                status = max(status, 0 if code == -signal.SIGTERM else abs(code))
            elif code == STARTUP_FAILURE and not has_served:
                status = code
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                log.error("a worker died and is restarted", pid=pid, status=code)
                if lived < _RESTART_SECONDS:
                    time.sleep(_RESTART_SECONDS - lived)
                start()
    finally:
        os.close(parent)
        os.close(alive)
        for number, handler in handled.items():
            signal.signal(number, handler)
    return status


def _work(work: Callable[[], None], alive: int, signals: Iterable[signal.Signals]) -> NoReturn:
    """Run `work` in a forked process, and end the process."""
    status = 1
    try:
        # A process group of its own, so that Ctrl-C in a terminal reaches the worker
        # only through the parent, and so only once.
        os.setpgid(0, 0)
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        threading.Thread(target=_end_with_parent, args=[alive], daemon=True).start()
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _end_with_parent(alive: int) -> None:
    """Send SIGTERM to this process when the parent has ended."""
    os.read(alive, 1)  # nothing is ever written: this returns when the parent has ended
    os.kill(os.getpid(), signal.SIGTERM)
