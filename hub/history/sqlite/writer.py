"""Writer: the thread that owns the writing connection, and the queue of its work."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.stdlib.get_logger("hub")


class Writer:
    """A thread that does one piece of work after the other, in the order of the calls.

    It starts with the first work, and ends with `close`, or with the process: then the
    transaction that it runs is undone.  An executor would cost more, because it makes
    two futures for each commit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # held to start the thread

    def put(self, work: Callable[[], object]) -> None:
        """Do `work` after all earlier work; it must not raise."""
        self._work.put(work)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()

    def call(self, work: Callable[[], object]) -> None:
        """Do `work` after all earlier work, and wait for its end.

        Raises what it raises.  Must not be called in the thread itself.
        """
        ended, failure = threading.Event(), list[BaseException]()

        def noted() -> None:
            try:
                work()
            except BaseException as error:
                failure.append(error)
            finally:
                ended.set()

        self.put(noted)
        ended.wait()
        if failure:
            raise failure[0]

    def close(self) -> None:
        """Wait for the end of all work, and end the thread."""
        with self._lock:
            if self._thread is not None:
                self._work.put(None)
                self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the writer of the history failed")
            del work  # it may hold much, and the next may come late
