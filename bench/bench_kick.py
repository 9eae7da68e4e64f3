"""How long until the streams of a user have ended, on all processes of a hub?

The clients also say whether anything followed, as `crowd` describes.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.benchmark import Bars, Case
from bench.crowd import Crowd, send_away
from bench.servers import hub, log_versions, new_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.measure import Figures

QUESTION = "How long until the streams of a user have ended?"
WORKLOAD = (
    "10,000 streams, each with a token. Within a minute, an operator ends the streams of 100 users, one after the "
    "other, by kick and revoke in turn. Each user has 30 streams, on all processes; two of them do not read, and have "
    "a megabyte to come. All the while, 50 private updates a second go to 200 streams each, and at once after each "
    "command, its user is sent one more on each node. A time is that from the start of the command to the end of the "
    "last of the 30 streams, as their clients see it; a call is the request to the operator's socket. There is a "
    "result only if no client has received an update that was published after a command about it had returned, and if "
    "the 7,000 other streams have stayed, and have received everything once. Baseline: kick. All servers share one "
    "processor."
)
PLOT = Bars()
UNIT = "ms until the last of 30 streams has ended"
ROUNDS = 50, 5
"""Users whose streams are ended by each command."""

SETUPS = {
    "one process": ("memory", 1, 1),
    "4 workers, SQLite": ("sqlite", 1, 4),
    "2 nodes, Redis": ("redis", 2, 1),
}
"""The kind of history of each case, its nodes, and the workers of each node."""
FEW = Crowd(streams=6, deaf=1, others=60, groups=5, seconds=2)


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the kinds of hubs."""
    for label, setup in SETUPS.items():
        yield Case(label, partial(measure, FEW if quick else Crowd(), *setup))


def measure(crowd: Crowd, log: str, nodes: int, workers: int, rounds: int) -> dict[str, Figures]:
    """Measure the commands on a new hub.  The minimum, median and maximum are those of
    the users.
    """
    with ExitStack() as stack:
        url, _ = stack.enter_context(new_log(log))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kick-"))
        sockets = [str(Path(directory, f"node{n}.sock")) for n in range(nodes)]
        # Without HUB_CLIENT_TIMEOUT, which would end the streams that are not read.
        one = partial(hub, workers=workers, HUB_HISTORY_URL=url, HUB_CLIENT_TIMEOUT="0")
        targets = [stack.enter_context(one(HUB_OPERATOR_SOCKET=path)) for path in sockets]
        return send_away(replace(crowd, leaving=2 * rounds), targets, sockets)


def versions() -> dict[str, str]:
    """Return those of the servers, the histories and the disk."""
    return log_versions()
