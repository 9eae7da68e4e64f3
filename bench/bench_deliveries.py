"""Does a delivery cost more if the tables cover more days?

The step of `skipfilter.bulk` that finds the deliveries of a topic is compared with a
comparison of each update with each session.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.benchmark import Case, Lines
from bench.measure import compare
from bench.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from bench.measure import Figures
    from skipfilter.bulk.deliveries import Sessions

QUESTION = "Does a delivery cost more if the tables cover more days?"
WORKLOAD = (
    "One topic that every session wants, with 1,000 updates and 2,000 sessions a day. A session begins at any time and "
    "lasts 3.25 hours on average, exponentially. So some 270 sessions are connected at a time, and an update has "
    "as many deliveries, however many days there are. The variants find each delivery, as one row or in a bitmap for "
    "each update, in one process without Spark. The baseline compares each update with each session."
)
PLOT = Lines(x="days")
UNIT = "CPU ns a delivery"

DAYS = (1, 2, 4, 8, 16, 32)
UPDATES = 1_000
"""The number of updates a day."""
SESSIONS = 2_000
"""The number of sessions a day."""
DAY = 86_400_000_000
"""Microseconds."""
LASTS = 11_700_000_000
"""The mean length of a session, in microseconds."""
PAIRS_AT_ONCE = 2**22
"""The number of pairs that the baseline compares at once."""


def cases(quick: bool) -> Iterator[Case]:
    """Iterate over the cases: the numbers of DAYS, and a topic with few updates."""
    for days in DAYS[:4] if quick else DAYS:
        label = f"{days} day{'s' if days > 1 else ''}"
        yield Case(label, partial(measure, days, UPDATES * days, SESSIONS * days, 1), at={"days": days})
    yield Case("1 day, 300 topics with 3 updates each, 50,000 sessions", partial(measure, 1, 900, 50_000, 300))


def measure(days: int, updates: int, subscribers: int, topics: int, rounds: int) -> dict[str, Figures]:
    """Measure the outputs rows and bitmaps."""
    from pyroaring import BitMap

    from skipfilter.bulk.outputs import Output

    batches, sessions = workload(days, updates, subscribers, topics)

    def count(output: str) -> int:
        """Return the number of deliveries of an output."""
        found = Output.of(output).deliver(iter(batches), sessions)
        if output == "rows":
            return sum(len(batch) for batch in found)
        return sum(len(BitMap.deserialize(row)) for batch in found for row in batch["recipients"].to_pylist())

    def drain(output: str) -> None:
        for _ in Output.of(output).deliver(iter(batches), sessions):
            pass

    total = pairs(batches, sessions)
    assert total == count("rows") == count("bitmaps")
    found = compare(
        {
            "compare each pair": lambda: pairs(batches, sessions),
            "rows": lambda: drain("rows"),
            "bitmaps": lambda: drain("bitmaps"),
        },
        calls=dict.fromkeys(("compare each pair", "rows", "bitmaps"), 1),
        rounds=rounds,
    )
    # From microseconds a call to nanoseconds a delivery.
    return {
        name: {key: value if key == "ratio" else value * 1_000 / total for key, value in figures.items()}
        | {"deliveries": total}
        for name, figures in found.items()
    }


def workload(days: int, updates: int, subscribers: int, topics: int) -> tuple[list[pa.RecordBatch], Sessions]:
    """Return the rows of a worker, and the sessions."""
    import numpy as np
    import pyarrow as pa

    from skipfilter.bulk.bitmaps import bitmap, serialize
    from skipfilter.bulk.deliveries import Sessions

    rng = np.random.default_rng(SEED)
    begins = np.sort(rng.integers(0, days * DAY, subscribers))
    ends = begins + rng.exponential(LASTS, len(begins)).astype(np.int64)
    everybody = serialize(bitmap(np.arange(len(begins), dtype=np.uint32)))
    sessions = Sessions(0, begins, ends, [everybody], [None])
    # For each topic the row of the key, then its updates by time.
    at: list[int | None] = []
    for _ in range(topics):
        at += [None, *np.sort(rng.integers(0, days * DAY, updates // topics)).tolist()]
    moments = pa.array(at, pa.int64())
    ids = pa.array([None if one is None else f"urn:uuid:00000000-0000-0000-0000-{n:012}" for n, one in enumerate(at)])
    nothing: list[bytes] = []
    rows = pa.table(
        {
            "is_key": moments.is_null(),
            "private": pa.array([False] * len(at)),
            "at": moments,
            "update": pa.StructArray.from_arrays([ids, moments], ["update_id", "ts"]),
            "subscribed": pa.array([nothing if one is None else None for one in at], pa.list_(pa.binary())),
            "authorised": pa.array([nothing if one is None else None for one in at], pa.list_(pa.binary())),
            "wide": pa.array([[0] if one is None else None for one in at], pa.list_(pa.int32())),
        }
    )
    return rows.to_batches(max_chunksize=10_000), sessions


def pairs(batches: list[pa.RecordBatch], sessions: Sessions) -> int:
    """Return the number of deliveries: the baseline makes a row of each, too."""
    import numpy as np
    import pyarrow as pa

    count = 0
    step = max(1, PAIRS_AT_ONCE // len(sessions.begins))
    for batch in batches:
        batch = batch.filter(pa.compute.invert(batch["is_key"]))
        for start in range(0, len(batch), step):
            some = batch.slice(start, step)
            at = some["at"].to_numpy()[:, np.newaxis]
            rows, ids = np.nonzero((sessions.begins <= at) & (at < sessions.ends))
            made = pa.record_batch([some["update"].take(pa.array(rows)), pa.array(ids)], ["update", "subscriber_id"])
            count += len(made)
    return count
