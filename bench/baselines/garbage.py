"""`python -m hub`, with a record of the pauses of the garbage collector.

    python -m bench.baselines.garbage FILE ours serve --dev      the hub's collections
    python -m bench.baselines.garbage FILE python serve --dev    Python's defaults

If the process gets SIGUSR1, it writes the longest pause, the sum of all pauses, and the
number of full collections to FILE, as JSON.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import time
from pathlib import Path

from hub.__main__ import main
from hub.process import server

_pauses: list[float] = []  # seconds of each collection
_full_pauses: list[float] = []  # seconds of each collection of the oldest generation
_pause_began = 0.0


def _watch(phase: str, info: dict[str, int]) -> None:
    """Record a pause; called by the collector before and after each collection."""
    global _pause_began
    if phase == "start":
        _pause_began = time.perf_counter()
    else:
        _pauses.append(time.perf_counter() - _pause_began)
        if info["generation"] == 2:
            _full_pauses.append(_pauses[-1])


def _write() -> None:
    """Write the figures to `path`; the file appears when it is complete."""
    found = {"longest, ms": max(_pauses) * 1e3, "ms in all": sum(_pauses) * 1e3, "full collections": len(_full_pauses)}
    written = path.with_suffix(".new")
    written.write_text(json.dumps(found))
    written.rename(path)


async def _begin(collector: server._Collector) -> None:
    """Start the hub's collections if they are wanted, and forget all pauses so far.

    Replaces `_Collector.__call__`, which uvicorn calls at the start of the hub, and
    then regularly.
    """
    if whose == "ours":
        await _collect(collector)
    _pauses.clear()
    _full_pauses.clear()


_collect = server._Collector.__call__

if __name__ == "__main__":
    path, whose = Path(sys.argv.pop(1)), sys.argv.pop(1)
    server._Collector.__call__ = _begin  # type: ignore[method-assign, assignment]
    gc.callbacks.append(_watch)
    signal.signal(signal.SIGUSR1, lambda *_: _write())
    main()
