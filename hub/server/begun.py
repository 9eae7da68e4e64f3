"""Begun: a coroutine whose first part has run, without a task.

    begun = Begun(work())         runs until the work ends, or waits for something

    if begun.has_ended:           most work has nothing to wait for
        begun.result
    else:
        await begun               in a task: runs the rest

A task costs time, and begins only in the next turn of the event loop.  The first part
has no current task, which `asyncio.timeout` needs, for example.

The standard library has eager tasks for this from Python 3.12 on; the hub also runs on
3.11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine whose first part has run; await it once if it has not ended.

    Raises what the first part raises.
    """

    __slots__ = ("_coroutine", "_waits_for", "has_ended", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.has_ended = False
        """Whether the coroutine has returned."""
        self.result: T
        """What it has returned, if it has ended."""
        self._step(coroutine.send, None)

    def _step(self, resume: Callable[[Any], Any], value: object) -> None:
        """Run the coroutine until it waits for something or ends."""
        try:
            self._waits_for = resume(value)
        except StopIteration as end:
            self.has_ended, self.result = True, end.value
        finally:
            del value  # an error refers to this frame, so without this they would be a cycle

    def __await__(self) -> Generator[Any, Any, T]:
        while not self.has_ended:
            try:
                value = yield self._waits_for
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                self._step(self._coroutine.throw, error)
            else:
                self._step(self._coroutine.send, value)
        return self.result
