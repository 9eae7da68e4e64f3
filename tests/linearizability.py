"""Was this concurrent history one that a single thread could have had?

    thread 1   |── subscribe a = 0 ──|         |─ lookup a = {} ─|
    thread 2            |── unsubscribe 0 ──|
               0        1            2      3   4                5      one counter orders all ends

A history is linearizable if each operation can be given one moment between its invocation and its response, so
that the answers are those of a sequential model at these moments.  The search takes, one after the other, an
operation that no other one had to precede: one that was invoked before any of those left had responded.  A pair
of (what was taken, state of the model) that has failed once is not tried again.

    check   exponential in the operations that overlap at worst; these histories have a dozen

Source: J. Wing and C. Gong, Testing and Verifying Concurrent Objects, 1993; G. Lowe, Testing for
Linearizability, 2017, for remembering what has failed.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that has returned.  `invoked` and `responded` are numbers of the history's counter."""

    name: str
    arguments: tuple[Any, ...]
    result: Any
    """What it returned, or the type of what it raised."""
    invoked: int
    responded: int


class History:
    """Records operations of any thread.

    Its mutable state is a counter and a list, which threads share under CPython's global lock.
    """

    def __init__(self) -> None:
        self._moments = count()
        self.operations: list[Operation] = []

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call, record, and return what came back; what is raised is recorded and returned as its type."""
        invoked = next(self._moments)
        try:
            result = function(*arguments)
        except Exception as error:
            result = type(error)
        self.operations.append(Operation(name, arguments, result, invoked, next(self._moments)))
        return result


def is_linearizable(
    operations: Sequence[Operation], initial: State, apply: Callable[[State, Operation], State | None]
) -> bool:
    """Whether some order that respects real time gives every operation the answer that it got.

    `apply` is the model: the state after an operation, or None where it could not have answered so.  States
    are hashable.
    """
    failed: set[tuple[frozenset[Operation], State]] = set()

    def search(left: frozenset[Operation], state: State) -> bool:
        if not left:
            return True
        if (left, state) in failed:
            return False
        first_response = min(operation.responded for operation in left)
        for operation in left:
            if operation.invoked < first_response:
                after = apply(state, operation)
                if after is not None and search(left - {operation}, after):
                    return True
        failed.add((left, state))
        return False

    # An operation is told from its like by its moments; a result may be a set or a list, which have no hash.
    return search(frozenset(map(_hashable, operations)), initial)


def _hashable(operation: Operation) -> Operation:
    result = operation.result
    if isinstance(result, set):
        result = frozenset(result)
    elif isinstance(result, list):
        result = tuple(result)
    return Operation(operation.name, operation.arguments, result, operation.invoked, operation.responded)


def run_threads(*works: Callable[[], object]) -> None:
    """Run every work in a thread of its own, all begun at once, and raise what one of them raised."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def busy_switching() -> Iterator[None]:
    """Make the interpreter change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
