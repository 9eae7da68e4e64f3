"""Everything matches every topic, and has one spelling."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipfilter import Everything, PatternError


@settings(deadline=None)
@given(st.text())
def test_n32_every_topic_matches(topic: str) -> None:
    assert Everything("*").match(topic)


def test_the_pattern_may_be_left_out() -> None:
    assert Everything() == Everything("*")
    assert len({Everything(), Everything("*")}) == 1


@pytest.mark.parametrize("pattern", ["", "**", "#", "a", " *"])
def test_any_other_pattern_is_named(pattern: str) -> None:
    with pytest.raises(PatternError, match=f"everything pattern {pattern!r}: it can only be".replace("*", r"\*")):
        Everything(pattern)
