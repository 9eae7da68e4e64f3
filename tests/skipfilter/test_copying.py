"""Objects with state cannot be copied or pickled; immutable ones can."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest

from skipfilter import FieldFilter, SelectorIndex, SkipFilter
from skipfilter.engines import ENGINES, InvertedBitmap, SnapshotTrie
from skipfilter.topics.words import AMQP

if TYPE_CHECKING:
    from collections.abc import Callable

COPIES: dict[str, Callable[[object], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}
STATEFUL: list[object] = [
    SkipFilter(print),
    SelectorIndex(),
    FieldFilter(),
    InvertedBitmap(AMQP, []),
    *(make(AMQP) for make in ENGINES.values()),
]


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("one", STATEFUL, ids=lambda one: type(one).__name__)
def test_objects_with_state_cannot_be_copied(one: object, way: str) -> None:
    with pytest.raises(TypeError, match=rf"^{type(one).__name__} cannot be copied or pickled: "):
        COPIES[way](one)


def test_a_snapshot_can_be_copied() -> None:
    engine: SnapshotTrie[str] = SnapshotTrie(AMQP)
    engine.subscribe("a.*", "x")
    snapshot = engine.snapshot()
    for made in (copy.copy(snapshot), copy.deepcopy(snapshot), pickle.loads(pickle.dumps(snapshot))):
        assert made.lookup("a.b") == {"x"}
        assert made.subscriptions() == [("a.*", "x")]
