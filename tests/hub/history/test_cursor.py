"""Where a subscriber begins, if the history fails or changes meanwhile."""

from __future__ import annotations

import pytest

from hub.errors import HistoryUnavailable
from hub.history.base import EARLIEST, Retention
from hub.history.cursor import Start, find_start
from hub.history.memory import MemoryHistory
from hub.history.opaque import Loss
from hub.protocol.updates import Update

pytestmark = pytest.mark.anyio


class FailingHistory(MemoryHistory):
    """A history whose end cannot be read; meanwhile, the live streams move on."""

    live = 5

    async def end(self) -> int:
        self.live = 9
        raise HistoryUnavailable("planted")


@pytest.mark.parametrize(
    ("cursor", "replay_unknown", "preceding"), [(None, True, None), ("", True, "earliest"), ("x", False, "earliest")]
)
async def test_without_the_history_a_subscriber_starts_where_the_live_streams_are_then(
    cursor: str | None, replay_unknown: bool, preceding: str | None
) -> None:
    history = FailingHistory(Retention(10, 10**6))
    start = await find_start(history, cursor, presence=False, replay_unknown=replay_unknown, live=lambda: history.live)
    assert start[:2] == (9, preceding)


@pytest.mark.parametrize("cursor", ["earliest", "x"])
async def test_a_replay_needs_the_history(cursor: str) -> None:
    with pytest.raises(HistoryUnavailable):
        await find_start(
            FailingHistory(Retention(10, 10**6)), cursor, presence=False, replay_unknown=True, live=lambda: 5
        )


@pytest.mark.parametrize(
    ("cursor", "replay_unknown", "expected"),
    [
        (None, True, Start(2, None)),
        ("", True, Start(2, "earliest")),
        ("earliest", False, Start(EARLIEST, "earliest", "earliest")),
        ("a", True, Start(1, "a", "a")),
        ("unknown", True, Start(EARLIEST, "earliest", "unknown", "some", Loss.UNKNOWN)),
        ("unknown", False, Start(2, "earliest", "unknown", "all", Loss.UNKNOWN)),
        ("#unknown", True, Start(EARLIEST, "earliest", "#unknown", "some", Loss.UNKNOWN)),
    ],
)
async def test_n107_n108_n109_n115_each_kind_of_cursor_has_a_start(
    cursor: str | None, replay_unknown: bool, expected: Start
) -> None:
    history = MemoryHistory(Retention(10, 10**6))
    await history.append([Update(("t",), id="a"), Update(("t",), id="b")])
    found = await find_start(history, cursor, presence=False, replay_unknown=replay_unknown, live=lambda: 99)
    assert found == expected
