"""How long does `skipfilter log` take to say who received what?

The log is made here, as a hub writes it: connections that come and go over a day, and
private and public updates.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.benchmark import Bars, Case
from bench.measure import summary
from hub.event_log.names import digest
from hub.protocol.data import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "How long does it take to say who received what, from an event log?"
WORKLOAD = (
    "The event log of one day, made with a seed: half of the updates are private, each on the topic of one user, the "
    "others are public, on 50 topics. A connection wants the private updates of all users, by a template, and one "
    "public topic; it may read those of its own user, whom the log names by a digest. It lasts a twentieth of the day "
    "on average. A day has 10,000 connections of 2,000 users and 1,000 updates; 10,000,000 lines are 200,000 "
    "connections of 20,000 users, and 9,600,000 updates. Times are the CPU time of all processes: there is one for "
    "each core, but only one for files of 16 MiB or less. Memory is the greatest sum of what the processes hold. "
    "Baseline: a loop that parses each line with Python's json, and does nothing with it."
)
PLOT = Bars()
UNIT = "s of CPU"
ROUNDS = 3, 1
SEED: Final = 20261128
HUB: Final = "https://hub.example/.well-known/mercure"
ISSUER: Final = "https://issuer.example"
KEY: Final = b"k" * 32
NOON: Final = 1_700_000_000_000
DAY: Final = 86_400_000
LINES_A_FILE: Final = 200_000
PARSE: Final = """
import json, sys
from pathlib import Path
for path in Path(sys.argv[1]).glob("*/*.jsonl"):
    with path.open("rb") as file:
        for line in file:
            json.loads(line)
"""


class Size(NamedTuple):
    """How much happened on the day."""

    connections: int
    users: int
    updates: int


SIZES = {
    "a day": Size(10_000, 2_000, 1_000),
    "10,000,000 lines": Size(200_000, 20_000, 9_600_000),
}


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the sizes; only the first one if `quick`."""
    for label, size in SIZES.items():
        yield Case(label, partial(measure, size))
        if quick:
            return


def measure(size: Size, rounds: int) -> dict[str, Figures]:
    """Measure each question on a new log."""
    with tempfile.TemporaryDirectory(prefix="event-log-") as directory:
        write(Path(directory), size)
        ask = [sys.executable, "-m", "hub", "log"]
        log = ["--log", directory]
        variants = {
            "parse each line": [sys.executable, "-c", PARSE, directory],
            "who --update": [*ask, "who", "--update", f"urn:{size.updates // 2}", *log],
            "of --subject": [*ask, "of", "--subject", "42", *log],
            "unread": [*ask, "unread", "--limit", "10", *log],
        }
        taken: dict[str, list[Figures]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, command in variants.items():
                taken[name].append(cost_of(command))
        return summary(taken, "cpu")


def cost_of(command: list[str]) -> Figures:
    """Run a command, and return what it costs."""
    began = monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    most, over = [0], threading.Event()
    watching = threading.Thread(target=_watch, args=(process.pid, most, over))
    watching.start()
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    over.set()
    watching.join()
    if process.returncode:
        raise RuntimeError(f"{command}: {told.decode()}")
    return {"cpu": used.ru_utime + used.ru_stime, "seconds": monotonic() - began, "MB": most[0] / 1_000}


def _watch(pid: int, most: list[int], over: threading.Event) -> None:
    """Note the greatest sum of KB that a process and its children hold."""
    while not over.wait(0.1):
        held = 0
        for one in _family(pid):
            with suppress(OSError):
                lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
                held += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        most[0] = max(most[0], held)


def _family(pid: int) -> list[int]:
    """Return a process, and all processes below it."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += below.get(one, [])
    return found


# -- the log


def write(directory: Path, size: Size) -> None:
    """Write the log of a day."""
    source = Random(SEED)
    for name in ("sessions", "updates"):
        (directory / name).mkdir()
    (directory / "key").write_bytes(KEY)
    _write(directory / "updates", (_update(source, size, position) for position in range(1, size.updates + 1)))
    _write(directory / "sessions", _sessions(source, size))


def _write(folder: Path, lines: Iterator[str]) -> None:
    for number in range(10**6):
        path = folder / f"{number:06}.jsonl"
        with path.open("w") as file:
            for _ in range(LINES_A_FILE):
                if (line := next(lines, None)) is None:
                    break
                file.write(line + "\n")
        if line is None:
            return


def _update(source: Random, size: Size, position: int) -> str:
    user, is_private = source.randrange(size.users), source.random() < 0.5
    topic = f"https://example.com/users/{user}" if is_private else f"https://example.com/books/{user % 50}"
    return (
        f'{{"hub":"{HUB}","epoch":"e","id":"urn:{position}","topics":["{topic}"],"private":{str(is_private).lower()},'
        f'"type":null,"retry":null,"time":{NOON + position * DAY // size.updates},"position":{position},'
        '"data_bytes":100,"presence":false}'
    )


def _sessions(source: Random, size: Size) -> Iterator[str]:
    """Yield the beginnings and ends of connections, in the order of their time."""
    events: list[tuple[int, int, int]] = []
    for number in range(size.connections):
        after = source.randrange(size.updates)
        until = min(size.updates, after + int(source.expovariate(20 / size.updates)))
        events += [(after, number, 0), (until, number, 1)]
    for position, number, is_end in sorted(events, key=lambda event: (event[0], event[2], event[1])):
        about = {"node": f"n{number % 2}", "number": number, "time": (NOON + position * DAY // size.updates) * 1_000}
        if is_end:
            yield to_json({"event": "disconnect", **about, "until": position, "clean": True, "reason": "client_left"})
            continue
        user = number % size.users
        yield to_json(
            {
                "event": "connect",
                "hub": HUB,
                "epoch": "e",
                "subscriber": f"urn:uuid:{number:032x}",
                "issuer": ISSUER,
                "subject": digest(KEY, "subject", ISSUER, str(user)),
                "token_id": None,
                "address": "192.0.2.1",
                **about,
                "after": position,
                "selectors": [
                    {"type": "uritemplate", "pattern": "https://example.com/users/{id}"},
                    {"type": "exact", "pattern": f"https://example.com/books/{user % 50}"},
                ],
                "authorised": [{"type": "exact", "pattern": f"https://example.com/users/{user}"}],
            }
        )
