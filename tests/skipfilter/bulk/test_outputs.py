"""skipfilter.bulk.outputs: what a match returns is what the list says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from skipfilter.bulk import match
from skipfilter.bulk.columns import SESSIONS, UPDATES, types
from skipfilter.bulk.outputs import IDENTITY, Output
from tests.skipfilter.worlds import Session, Update, World

if TYPE_CHECKING:
    from skipfilter.bulk.matching import By

WORLD = World([Update("u", ["/a"], private=False, at=7)], [Session(0, [("exact", "/a")], [], 3, 9)])


@pytest.mark.parametrize("by", ["time", "position"])
@pytest.mark.parametrize("output", Output)
def test_a_match_returns_the_columns_of_the_list_and_no_others(output: Output, by: By) -> None:
    found = match(*WORLD.arrow(), output, by=by)
    update = [column for column in IDENTITY if column.name != "position" or by == "position"]
    assert found.schema == pa.schema(types([*update, *output.columns] if output.of_updates else output.columns))
    assert len(found) == 1


def test_an_output_is_a_name_that_stands_for_itself() -> None:
    assert [Output.of(output) for output in ("fanout", "bitmaps", "rows", "received")] == list(Output)
    assert f"{Output.ROWS}" == "rows"


def test_tables_in_arrow_have_columns_that_a_match_takes() -> None:
    updates, sessions = WORLD.arrow()
    assert set(updates.column_names) <= {column.name for column in UPDATES}
    assert set(sessions.column_names) <= {column.name for column in SESSIONS}
