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
from functools import partial
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


def supervise(
    count: int,
    work: Callable[[int], None],
    *,
    ended: Callable[[int], None] = lambda _: None,
    beside: Callable[[], None] | None = None,
) -> int:
    """Run `work` in `count` processes until SIGINT or SIGTERM.

    Each gets its number, from 0 on.  Both signals are forwarded to the workers as
    SIGTERM.  A worker that dies is restarted with the same number, after `ended` was
    called with that.  But if a worker ends with STARTUP_FAILURE, and none has ever
    ended in another way, the hub cannot start: all workers are ended.

    `beside` runs in one more process, which is restarted too, and is killed when all
    workers have ended.

    Returns the exit status: 0 if the workers ended cleanly at the shutdown, otherwise
    the highest of their statuses and signal numbers.

    Must be called while the process has no other threads, because it forks.
    """
    workers: dict[int, tuple[int, float]] = {}  # pid -> its number, and when it was started
    helper = 0  # the pid of the process beside the workers; 0 if there is none
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

    def fork(task: Callable[[], None]) -> int:
        """Return the pid of a new process that runs `task`."""
        if (pid := os.fork()) == 0:
            os.close(parent)
            _work(task, alive, handled)
        return pid

    def start(number: int) -> None:
        """Fork a worker, unless a signal was received."""
        # Without the block, a signal could arrive before the new worker is listed.
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        if not signals:
            workers[fork(partial(work, number))] = number, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    status = 0
    try:
        if beside is not None:
            helper = fork(beside)
        for number in range(count):
            start(number)
        while workers:
            pid, exit = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(exit)
            if pid == helper and beside is not None:
                log.error("the process that serves metrics died and is restarted", pid=pid, status=code)
                time.sleep(_RESTART_SECONDS)
                helper = fork(beside)
                continue
            number, started = workers.pop(pid)
            ended(number)
            lived = time.monotonic() - started
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
                start(number)
    finally:
        if helper:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
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
