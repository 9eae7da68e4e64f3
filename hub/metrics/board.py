"""Board: the numbers of all processes of a hub, in memory that they share.

    slot 0   │ cell 0 │ cell 1 │ …      the first worker, and all that replace it
    slot 1   │ cell 0 │ cell 1 │ …

Each cell is a float64.  A worker writes to the cells of its own slot only, and the
process that serves metrics reads all.  A killed worker leaves its counts, exact to the
last one; its supervisor clears its gauges.

A gauge is written when a reader asks for it, because it would be wrong a moment later:

    reader ── b"?" ──► worker: writes its gauges ── b"." ──► reader: reads all slots

The board must be made before the processes are forked.
"""

from __future__ import annotations

import contextlib
import mmap
import select
import socket
import time
from typing import TYPE_CHECKING, Final

from hub.metrics.catalogue import CELLS, DEATHS, ENDED_BY_DEATH, GAUGES, OPEN, PROCESSES, READY

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_SECONDS: Final = 1.0
"""Seconds that a reader waits for current gauges; then it gets earlier ones."""
_SLOT_BYTES: Final = -(-CELLS * 8 // mmap.PAGESIZE) * mmap.PAGESIZE  # a page has the cells of one process only


class Slot:
    """The cells of one worker."""

    def __init__(self, cells: memoryview[float], asked: socket.socket) -> None:
        self.cells = cells
        """CELLS numbers."""
        self.asked = asked
        """The socket on which readers ask for gauges, and get answers."""

    def answer(self) -> None:
        """Tell readers that the gauges are current."""
        with contextlib.suppress(OSError):  # nothing reads the answers
            self.asked.send(b".")


def drain(connection: socket.socket) -> None:
    """Read and drop all that has arrived at a socket, without waiting."""
    with contextlib.suppress(OSError):  # nothing is left
        while connection.recv(4_096):
            pass


class Board:
    """The slots of a hub with `workers` processes."""

    def __init__(self, workers: int = 1) -> None:
        memory = memoryview(mmap.mmap(-1, workers * _SLOT_BYTES)).cast("d")
        step = _SLOT_BYTES // 8
        self._cells = [memory[start : start + CELLS] for start in range(0, workers * step, step)]
        self._asking: list[socket.socket] = []
        self.slots: list[Slot] = []
        for cells in self._cells:
            asking, asked = socket.socketpair()
            asking.setblocking(False)
            asked.setblocking(False)
            self._asking.append(asking)
            self.slots.append(Slot(cells, asked))

    def note_death(self, number: int) -> None:
        """Count that the process of a slot has ended, and clear its gauges.

        If it was killed, its open streams have ended with it.
        """
        cells = self._cells[number]
        if cells[PROCESSES]:  # it has not ended by itself
            cells[DEATHS] += 1
            cells[ENDED_BY_DEATH] += cells[OPEN]
        for cell in GAUGES:
            cells[cell] = 0.0

    def read(self) -> Sequence[Sequence[float]]:
        """Return the cells of each slot, with current gauges.

        Waits for busy workers, but no longer than ANSWER_SECONDS; one that does not
        answer is not ready, and has its earlier gauges.  Must not be called in the
        event loop of a worker.
        """
        waiting = set()
        for cells, asking in zip(self._cells, self._asking, strict=True):
            drain(asking)  # late answers to earlier questions
            if cells[PROCESSES]:
                with contextlib.suppress(OSError):
                    asking.send(b"?")
                    waiting.add(asking)
        ends = time.monotonic() + ANSWER_SECONDS
        while waiting and (left := ends - time.monotonic()) > 0:
            waiting.difference_update(select.select(list(waiting), [], [], left)[0])
        slots = [list(cells) for cells in self._cells]
        for numbers, asking in zip(slots, self._asking, strict=True):
            if asking in waiting:  # the process hangs
                numbers[READY] = 0.0
        return slots

    def close(self) -> None:
        """Close the sockets.  The memory is freed with the board."""
        for asking, slot in zip(self._asking, self.slots, strict=True):
            asking.close()
            slot.asked.close()
