"""Workers: several processes that serve one hub.

The processes share a port and a history, and nothing else.

    parent     waits, restarts workers that die, and forwards signals
    ├─ worker  accepts from its listener, which the parent has opened and keeps
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
    from collections.abc import Callable, Iterable, Iterator
    from typing import NoReturn

    from hub.process.hang_up import HangUp

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
    hang_up: HangUp | None = None,
    take_keys: Callable[[], bool] = lambda: True,
    ended: Callable[[int], None] | None = None,
    beside: Callable[[], None] | None = None,
) -> int:
    """Run `work` in `count` processes until SIGINT or SIGTERM.

    Each gets its number, from 0 on.  Both signals are forwarded to the workers as
    SIGTERM.  SIGHUP is forwarded as it is if `hang_up` passes it on, and if `take_keys`
    returns true, which takes the keys of workers that start later.

    A worker that dies is restarted with the same number, after `ended` was called with
    that.  But if a worker ends with STARTUP_FAILURE, and none has ever ended in another
    way, the hub cannot start: all workers are ended.

    `beside` runs in one more process, which is restarted too, and is killed when all
    workers have ended.

    Returns the exit status: 0 if the workers ended cleanly at the shutdown, otherwise
    the highest of their statuses and signal numbers.

    Must be called while the process has no other threads, because it forks.
    """
    processes = _Processes(work, beside, hang_up, take_keys)
    try:
        processes.start_beside()
        for number in range(count):
            processes.start(number)
        return processes.watch(ended or (lambda _: None))
    finally:
        processes.close()


class _Processes:
    """The workers, the process beside them, and the signals that they get."""

    def __init__(
        self,
        work: Callable[[int], None],
        beside: Callable[[], None] | None,
        hang_up: HangUp | None,
        take_keys: Callable[[], bool],
    ) -> None:
        self._work = work
        self._beside = beside
        self._hang_up = hang_up
        self._take_keys = take_keys
        self._workers: dict[int, tuple[int, float]] = {}  # pid -> its number, and when it was started
        self._helper = 0, 0.0  # the same of the process beside them; pid 0 if there is none
        self._signals = 0  # how many were received to end the workers
        # Only this process holds `_parent` open; nothing is written to it.
        self._alive, self._parent = os.pipe()
        self._handled = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._blocked = {*self._handled, signal.SIGHUP}  # while a process is forked
        if hang_up is not None:
            hang_up.then(self._read_keys)

    # -- signals

    def _forward(self, number: int) -> None:
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                os.kill(pid, number)

    def _stop(self, *_: object) -> None:
        """End all workers."""
        self._signals += 1
        self._forward(signal.SIGTERM)

    def _read_keys(self) -> None:
        """Take the present keys, and have the workers take them."""
        if self._take_keys():
            self._forward(signal.SIGHUP)

    # -- processes

    def start(self, number: int) -> None:
        """Fork a worker, unless a signal was received."""
        # Without the block, a signal could arrive before the new worker is listed.
        with self._signals_blocked():
            if not self._signals:
                self._workers[self._fork(partial(self._work, number))] = number, time.monotonic()

    def start_beside(self) -> None:
        """Fork the process beside the workers, if there is one."""
        with self._signals_blocked():
            if self._beside is not None and not self._signals:
                self._helper = self._fork(self._beside), time.monotonic()

    @contextlib.contextmanager
    def _signals_blocked(self) -> Iterator[None]:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked)

    def _fork(self, task: Callable[[], None]) -> int:
        """Return the pid of a new process that runs `task`; the signals are blocked."""
        if (pid := os.fork()) == 0:
            os.close(self._parent)
            if self._hang_up is not None:
                self._hang_up.forget()
            _work(task, self._alive, self._handled, self._blocked)
        return pid

    def watch(self, ended: Callable[[int], None]) -> int:
        """Restart what dies until the workers have ended; return the exit status."""
        status, has_served = 0, False  # whether a worker did not fail to start: then a failure may be temporary
        while self._workers:
            pid, exit = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(exit)
            if pid == self._helper[0]:
                log.error("the process that serves metrics died and is restarted", pid=pid, status=code)
                started, self._helper = self._helper[1], (0, 0.0)
                _wait_to_restart(started)
                self.start_beside()
                continue
            if pid not in self._workers:  # a process that this one has inherited
                continue
            number, started = self._workers.pop(pid)
            ended(number)
            has_served = has_served or code != STARTUP_FAILURE
            # 1. The hub is shutting down.
            # 2. The hub cannot start: shut it down.
            # 3. A worker has died: restart it.
            if self._signals:
                status = max(status, 0 if code == -signal.SIGTERM else abs(code))
            elif code == STARTUP_FAILURE and not has_served:
                status = code
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                log.error("a worker died and is restarted", pid=pid, status=code)
                _wait_to_restart(started)
                self.start(number)
        return status

    def close(self) -> None:
        """End the process beside the workers, and restore the signals."""
        if pid := self._helper[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._parent)
        os.close(self._alive)
        for number, handler in self._handled.items():
            signal.signal(number, handler)


def _wait_to_restart(started: float) -> None:
    """Wait if a process has ended soon after it was started."""
    time.sleep(max(0.0, _RESTART_SECONDS - (time.monotonic() - started)))


def _work(
    work: Callable[[], None], alive: int, signals: Iterable[signal.Signals], blocked: Iterable[signal.Signals]
) -> NoReturn:
    """Run `work` in a forked process, and end the process."""
    status = 1
    try:
        # A process group of its own, so that Ctrl-C in a terminal reaches the worker
        # only through the parent, and so only once.
        os.setpgid(0, 0)
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
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
