"""A checker: could a single thread have had the results of this concurrent history?

    thread 1   |── subscribe a = 0 ──|         |─ lookup a = {} ─|
    thread 2            |── unsubscribe 0 ──|
               0        1            2      3   4                5      one counter orders all ends

A history is linearizable if there is one moment for each operation, between its
invocation and its response, so that a sequential model gives the same results at these
moments.  The search takes one operation after the other.  An operation can be next if
it was invoked before the response of each remaining one.  A pair of (taken operations,
state of the model) that has failed once is not tried again.

    check   exponential in the operations that overlap at worst; these histories have a dozen

Source: J. Wing and C. Gong, Testing and Verifying Concurrent Objects, 1993; G. Lowe,
Testing for Linearizability, 2017, for the memory of failed pairs.
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
    """A call that has returned.

    `invoked` and `responded` are numbers of the history's counter.
    """

    name: str
    arguments: tuple[Any, ...]
    result: Any
    """The returned value, or the type of the raised error."""
    invoked: int
    responded: int


class History:
    """Records operations of any thread.

    Its mutable state is a counter and a list, which threads share under CPython's
    global lock.
    """

    def __init__(self) -> None:
        self._moments = count()
        self.operations: list[Operation] = []

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the operation, record it and return its result; an error is recorded and
        returned as its type.
        """
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
    """Return whether an order that respects real time gives every operation its result.

    `apply` is the model: it returns the state after an operation, or None if the
    operation could not have this result.  States are hashable.
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

    # Equal operations are distinguished by their moments.  Results are not hashed: they
    # may be sets or lists.
    return search(frozenset(map(_hashable, operations)), initial)


def _hashable(operation: Operation) -> Operation:
    result = operation.result
    if isinstance(result, set):
        result = frozenset(result)
    elif isinstance(result, list):
        result = tuple(result)
    return Operation(operation.name, operation.arguments, result, operation.invoked, operation.responded)


def run_threads(*works: Callable[[], object]) -> None:
    """Run each work in its own thread, all started together, and raise the error of one
    of them if there is one.
    """
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
    """Make the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
