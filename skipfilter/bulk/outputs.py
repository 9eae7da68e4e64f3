"""Outputs: what can be asked of a match, and the columns of the answers.

This is the one list of outputs.  The choices of the command and its help, the schemas
of Spark and Arrow, and the table in the README come from it.  To add an output, add its
function to `skipfilter.bulk.deliveries`, and a member here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skipfilter.bulk import deliveries
from skipfilter.bulk.columns import NUMBER, UPDATES, Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self, TypeAlias

    from skipfilter.bulk.deliveries import Sessions

    Deliver: TypeAlias = Callable[[Iterable[pa.RecordBatch], Sessions], Iterator[pa.RecordBatch]]

IDENTITY: Final = tuple(column for column in UPDATES if column.name in ("update_id", "ts", "position"))
"""The columns that identify an update; by time, without the position."""

_ID: Final = Column("subscriber_id", NUMBER, "the session")


class Output(StrEnum):
    """What a match returns.  A member is also a str: its name."""

    FANOUT = (
        "fanout",
        "each update, also if no session received it",
        deliveries.count_fanout,
        (Column("fanout", NUMBER, "the number of sessions that received it"),),
    )
    BITMAPS = (
        "bitmaps",
        "each update and shard with a session that received it",
        deliveries.make_bitmaps,
        (
            Column("shard", pa.int32(), "subscriber_id >> 23"),
            Column("recipients", pa.binary(), "subscriber_id - (shard << 23) of these sessions, as a roaring bitmap"),
        ),
    )
    ROWS = ("rows", "each delivery", deliveries.list_rows, (_ID,))
    RECEIVED = (
        "received",
        "each session that received an update",
        deliveries.count_received,
        (_ID, Column("received", NUMBER, "the number of updates that it received")),
    )

    row: str
    """What a row stands for."""
    deliver: Deliver
    """The function of a worker, from batches and sessions to batches of `columns`."""
    columns: tuple[Column, ...]
    """The columns of a row; the update comes before them, if it is `of_updates`."""

    def __new__(cls, name: str, row: str, deliver: Deliver, columns: tuple[Column, ...]) -> Self:
        """Return a member."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.row, member.deliver, member.columns = row, deliver, columns
        return member

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the output with this name.  Raises ValueError if there is none."""
        for output in cls:
            if output == name:
                return output
        raise ValueError(f"output must be one of {', '.join(cls)}, not {name!r}")

    @property
    def of_updates(self) -> bool:
        """Whether a row is of one update, which then comes before `columns`."""
        return self is not Output.RECEIVED
