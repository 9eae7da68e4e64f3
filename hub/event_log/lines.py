"""Lines: the files of an event log, read by several processes at once.

    DIR/sessions/*.jsonl[.part]  ─┐ parts of         ┌─► a result ─┐
    DIR/updates/*.jsonl[.part]   ─┴ some files each ─┴─► a result ─┴─► in their order

A file that a hub still writes is read as far as its lines are complete.

Belongs here: files, lines and processes.  Does not belong here: what lines mean
(`answers`).
"""

from __future__ import annotations

import json
import os
from collections import deque
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, TypeAlias, TypeVar

from pydantic_core import from_json

from hub.errors import ConfigurationError
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

Kind = Literal["sessions", "updates"]
Note: TypeAlias = "Callable[[float | None, int, str], None]"

SMALL: Final = 2**24
"""Bytes of files up to which this process reads them alone."""
PARTS: Final = 2
"""Parts of the files for each process, so that all are busy to the end."""
_ENDINGS: Final = (".jsonl", ".jsonl.part")


def files_of(directory: str, kind: Kind) -> list[Path]:
    """Return the files of a kind, in the order in which they were begun.

    Raises ConfigurationError if the directory is not an event log.
    """
    folder = Path(directory, kind)
    try:
        paths = [path for path in folder.iterdir() if path.name.endswith(_ENDINGS)]
    except OSError as error:
        raise ConfigurationError(f"{directory}: this is not an event log: {folder}: {error.strerror}") from None
    return sorted(paths, key=lambda path: path.name.removesuffix(".part"))


def lines_of(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the complete lines of files, without their ends.  Raises OSError."""
    for path in paths:
        yield from lines_in(path)


def lines_in(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, without their ends.  Raises OSError."""
    with opened(path) as file:
        for line in file:
            if not line.endswith(b"\n"):  # a hub writes it now
                return
            yield line[:-1]


def opened(path: Path) -> BinaryIO:
    """Open a file, which may just have got its final name.  Raises OSError."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        if path.suffix != ".part":
            raise
        return path.with_suffix("").open("rb")


def parsed(line: bytes) -> dict[str, Any]:
    """Return the object of a line.  Raises ValueError for anything else."""
    try:
        found = from_json(line)  # twice as fast as the one of Python
    except ValueError:
        found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"this is no object: {shown(line)}")
    return found


def over_parts(work: Callable[..., T], paths: Sequence[Path], note: Note, text: str, *arguments: Any) -> Iterator[T]:
    """Yield the results of `work(part, *arguments)` for parts of the files, in order.

    A part is a list of consecutive files.  Uses a process for each core if there is
    much to read.  `note` shows how far it is, and `text` what is read.  Raises the
    first error of the work.
    """
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]  # or it has just got its new name
    total, done = sum(sizes), 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = _parts(paths, sizes, PARTS * cores)
    with ExitStack() as stack:
        pool: Executor = _Alone()
        if total > SMALL and cores > 1:
            pool = stack.enter_context(ProcessPoolExecutor(min(cores, len(parts)), get_context("spawn")))
        waiting = deque((pool.submit(work, part, *arguments), size) for part, size in parts)
        try:
            while waiting:
                future, size = waiting.popleft()
                yield future.result()
                done += size
                note(done / total if total else 1.0, 0, text)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _parts(paths: Sequence[Path], sizes: Sequence[int], count: int) -> list[tuple[list[Path], int]]:
    """Return up to about `count` lists of consecutive files, with the bytes of each."""
    parts: list[tuple[list[Path], int]] = []
    most = sum(sizes) / count
    for path, size in zip(paths, sizes, strict=True):
        if not parts or parts[-1][1] + size > most:
            parts.append(([], 0))
        some, before = parts[-1]
        parts[-1] = ([*some, path], before + size)
    return parts


class _Alone(Executor):
    """Does the work at once, in this process."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **_: Any) -> Future[T]:
        """Return the result of the work."""
        future: Future[T] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future
