"""`python -m hub` with a record of the pauses of the garbage collector.

At SIGUSR1 it writes the pauses to a file.

    python -m bench.baselines.garbage FILE ours serve --dev      the hub's collections
    python -m bench.baselines.garbage FILE python serve --dev    Python's defaults
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from pathlib import Path

from hub.cli import main
from hub.process import server

_pauses: list[float] = []
_full: list[float] = []
_began = 0.0


def _watch(phase: str, info: dict[str, int]) -> None:
    global _began
    if phase == "start":
        _began = time.perf_counter()
    else:
        _pauses.append(time.perf_counter() - _began)
        if info["generation"] == 2:
            _full.append(_pauses[-1])


def _write() -> None:
    found = {"longest, ms": max(_pauses) * 1e3, "ms in all": sum(_pauses) * 1e3, "full collections": len(_full)}
    written = path.with_suffix(".new")
    written.write_text(json.dumps(found))
    written.rename(path)


async def _begin(collector: server._Collector) -> None:
    """Start the hub's own collections if they are wanted, and forget the pauses of the
    start.
    """
    if whose == "ours":
        await _collect(collector)
    _pauses.clear()
    _full.clear()


_collect = server._Collector.__call__

if __name__ == "__main__":
    path, whose = Path(sys.argv.pop(1)), sys.argv.pop(1)
    server._Collector.__call__ = _begin  # type: ignore[method-assign, assignment]
    gc.callbacks.append(_watch)
    signal.signal(signal.SIGUSR1, lambda *_: _write())
    main()
