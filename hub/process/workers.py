"""Several processes that serve one hub: they share a listening socket and a log, and nothing else.

    parent     waits; starts again who dies, hands signals on
    ├─ worker  accepts from the socket that was opened before it was forked
    └─ worker

A worker that is killed takes its streams with it; their clients come back, to any worker, and miss nothing.  If it is
the parent that is killed, the workers end, as nobody would start them again.
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
"""The exit status, as uvicorn has it, of a server that has not started and would not if it was tried again."""
_PAUSE: Final = 1.0
"""Seconds that are between two starts of a worker at least."""


def supervise(count: int, work: Callable[[], None]) -> int:
    """Run `work` in `count` processes until SIGINT or SIGTERM, which they get as SIGTERM; the exit status.

    To be called where there are no threads, as it forks.  Whoever dies is started again, unless it could not start.
    """
    workers: dict[int, float] = {}
    signals = 0
    has_served = False  # so it can be started, and who cannot is to be tried again
    alive, parent = os.pipe()

    def hand_on(*_: object) -> None:
        nonlocal signals
        signals += 1
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which is yet to be heard
                os.kill(pid, signal.SIGTERM)

    handled = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)  # or a signal would find a worker that is not listed yet
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
            if signals:
                status = max(status, 0 if code == -signal.SIGTERM else abs(code))
            elif code == STARTUP_FAILURE and not has_served:
                status = code
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                log.error("a worker died, and is started again", pid=pid, status=code)
                if lived < _PAUSE:
                    time.sleep(_PAUSE - lived)
                start()
    finally:
        os.close(parent)
        os.close(alive)
        for number, handler in handled.items():
            signal.signal(number, handler)
    return status


def _work(work: Callable[[], None], alive: int, signals: Iterable[signal.Signals]) -> NoReturn:
    """What a process does that was forked."""
    status = 1
    try:
        os.setpgid(0, 0)  # so a terminal's Ctrl-C comes by the parent, and once
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
    os.read(alive, 1)  # nobody writes: it ends when the parent does
    os.kill(os.getpid(), signal.SIGTERM)
