"""Turns: how long work holds the event loop before other tasks may run.

All work that may take long gives turns away here, and nowhere else, in these ways:

    a portion       so much work, by its measured cost (the table      Portion, in_turns
                    below); then other tasks run
    a time slice    1 ms for all readers together; then all of         TimeSlices
                    them pause
    fair turns      one request, or one page, of each client at a      FairTurns
                    time

A portion suits work that happens once: a dispatch, a request.  A loop in which each
nanosecond counts may count its portion itself, and call `other_tasks`.  Time is shared
by readers, because there may be thousands of them.  They match old updates and compile
patterns, for as long as a client wants:

    readers   ▇▇▇▇▇ 1 ms                         ▇▇▇▇▇ 1 ms
    others               turn  turn  turn  turn              turn  turn …

1. If the slice is used up, all readers pause, and every other task gets a few turns of
   the event loop.
2. Then a new slice begins.  The readers that waited come first, and the one that used
   up the last slice comes after them.

So any other task waits for about one slice, however many clients read.

Fair turns are for clients that want the same, and each as much as it can get:

    alice   a1  a2  a3 … a64  ─┐
    bob     b1                ─┴─►  a1  b1 │ a2 │ a3 │ …

A client waits for its own requests, and not for those of another, however many
connections the other has.
"""

from __future__ import annotations

import asyncio
import math
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

T = TypeVar("T")

# Portions: how much is done before other tasks run.  A portion takes some 2 ms, at the
# cost on the right; 6 ms if each test of a topic takes the longest time.
WRITES: Final = 256  #                8 µs: write to a live stream
BYTES_PER_WRITE: Final = 2**12  #     0.002 µs: write one byte more, to each
JOINS_PER_WRITE: Final = 32  #        0.25 µs: join one more frame, for each
FOUND_TOPICS: Final = 16  #           up to 125 µs: find the receivers of a topic
GROUPED_IDS: Final = 2**13  #         0.25 µs: put an id into a group
COMPARED_IDS: Final = 8  #             up to 400 µs: compare the receivers of a topic with others
GROUPS: Final = 2**9  #               2 µs: make the bitmap of a group
ENDED_STREAMS: Final = 16  #          85 µs: end a stream
ASKED_STREAMS: Final = 2_000  #       1 µs: ask if a command ends a stream
WATCHED_STREAMS: Final = 500  #       4 µs: count a stream for its client
CHECKED_TOPICS: Final = 64  #         up to 40 µs: check a topic; a very long one 200 µs
TESTED_MATCHERS: Final = 1_000  #     up to 6 µs: test a topic against a matcher
PARSED_BYTES: Final = 2**14  #        0.12 µs: parse a byte of a batch; 0.3 µs in short lines
PARSED_IN_TURN: Final = 2**11  #      the same while other publishers are active
LISTED_SUBSCRIPTIONS: Final = 100  #  22 µs: write a subscription as JSON
COMPILED_PATTERNS: Final = 8  #       20 to 100 µs: compile a pattern that is no URL Pattern;
#                                     more of them share the time of readers

SLICE_SECONDS: Final = 0.001
"""Seconds that all readers together may work between two pauses."""
ALONE_SECONDS: Final = 1.0
"""A client is alone if no other one has wanted a turn for this time."""
TURNS: Final = 4
"""Turns of the event loop in a pause: about what a publish needs."""


async def other_tasks() -> None:
    """Let every other task that can run do so once."""
    await asyncio.sleep(0)


async def in_turns(items: Iterable[T], portion: int) -> AsyncIterator[list[T]]:
    """Yield lists of up to `portion` items; other tasks run after each full list."""
    iterator = iter(items)
    while some := list(islice(iterator, portion)):
        yield some
        if len(some) == portion:
            await other_tasks()


class Pace(Protocol):
    """How often some work lets other tasks run: before each step, it asks `is_over`."""

    def is_over(self) -> bool:
        """Return whether it is time to pause."""
        ...

    async def pause(self) -> None:
        """Let other tasks run."""
        ...


class Portion:
    """The pace of work that lets other tasks run after each `size` steps.

    Ask before each step:

        for step in steps:
            if portion.is_over():
                await portion.pause()
            do(step)
    """

    def __init__(self, size: int) -> None:
        self._size = self._left = size
        self._cost = 0  # of the step that waits

    def is_over(self, cost: int = 1) -> bool:
        """Return whether the portion is used up; if not, count a step of it.

        A step with a `cost` counts as so many steps.
        """
        if self._left <= 0:
            self._cost = cost
            return True
        self._left -= cost
        return False

    async def pause(self) -> None:
        """Let other tasks run, and begin the next portion with the step that waits."""
        self._left = self._size - self._cost
        await other_tasks()


class TimeSlices:
    """The slice that all readers of one hub share.

    A reader works inside of `async with`, which waits for the end of a pause.  There,
    it must await nothing but `pause`, because the clock runs:

        async with slices:
            for one in work:
                do(one)
                if slices.is_over():
                    await slices.pause()

    `clock` returns seconds.  Must be used from one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = SLICE_SECONDS  # seconds that were left when the present reader began
        self._began = 0.0  # when it began
        self._paused: asyncio.Event | None = None  # set at the end of the pause; None without one

    async def __aenter__(self) -> None:
        await self._begin()

    async def __aexit__(self, *_: object) -> None:
        self._left -= self._clock() - self._began

    def is_over(self) -> bool:
        """Return whether the slice is used up, so that the reader must pause."""
        return self._clock() - self._began >= self._left

    async def pause(self) -> None:
        """Wait until the other tasks have had their turns, and begin a new slice.

        Readers that wait meanwhile go first.  Call it only inside of `async with`.  If
        it is cancelled, the pause ends, and the other readers go on.
        """
        # 1. Other readers now wait in `_begin`, so these turns go to other tasks.
        self._paused = ended = asyncio.Event()
        try:
            for _ in range(TURNS):
                await other_tasks()
        finally:
            self._paused, self._left = None, SLICE_SECONDS
            ended.set()
        # 2. Let the readers that waited go first.  They may use up the new slice, and
        #    then this reader waits for the next one.
        await other_tasks()
        await self._begin()

    async def _begin(self) -> None:
        """Wait until there is no pause, and start the clock of this reader."""
        while self._paused is not None:
            await self._paused.wait()
        self._began = self._clock()


class FairTurns:
    """The turns of clients, each of which has one at a time, unless it is alone.

    A client that is alone does as much at a time as it likes, and waits for nothing.
    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: str | None = None  # the client that came last
        self._alone_at = -math.inf  # when it is alone, if no other comes
        # The turn of each client that has one or waits for one.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, client: str) -> asyncio.Lock | None:
        """Return the lock of a client's turns, or None if it is alone."""
        now = self._clock()
        if client != self._last:
            if self._last is not None:
                self._alone_at = now + ALONE_SECONDS
            self._last = client
        if now >= self._alone_at:
            return None
        turn = self._turns.get(client)
        if turn is None:
            turn = self._turns[client] = asyncio.Lock()
        return turn

    def end(self, turn: asyncio.Lock) -> None:
        """Release a lock after a turn of the event loop.

        For short work: otherwise, all of a client would be done in one turn.
        """
        asyncio.get_running_loop().call_soon(turn.release)
