"""Messages: the fields that are asked for, as a slow reader of everything has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipfilter import LimitError
from skipfilter.fields.messages import MAX_NAMES, Plan, has_hash

NAMES = ["a", "b", "c"]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join) | st.sampled_from(["5", "a.5"])
KEYS = st.sampled_from([*NAMES, "a.b", "b.c", "a.b.c", "d", "", ".", 5])
LEAVES: st.SearchStrategy[Any] = st.sampled_from([0, 1, "x", None, b"x", (1,), ([],), bytearray(b"x")])
MESSAGES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3), max_leaves=8
    ),
    max_size=5,
)


def everything(message: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Return the values of each field of a message."""
    fields: dict[str, list[Any]] = {}

    def read(path: str, value: Any) -> None:
        values = fields.setdefault(path, [])
        if isinstance(value, Mapping):
            for name, inner in value.items():
                read(f"{path}.{name}", inner)
        elif isinstance(value, list):
            for one in value:
                read(path, one)
        else:
            values.append(value)

    for name, value in message.items():
        read(f"{name}", value)
    return fields


def in_any_order(fields: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    return {path: sorted(map(repr, values)) for path, values in fields.items()}


@given(MESSAGES, st.lists(PATHS, max_size=6), st.booleans())
def test_a_plan_reads_what_is_asked_for_and_nothing_else(
    message: dict[Any, Any], paths: list[str], proxy: bool
) -> None:
    expected = {path: values for path, values in everything(message).items() if path in paths}
    its = Plan(paths).read(MappingProxyType(message) if proxy else message)
    assert in_any_order(its.fields) == in_any_order({path: values for path, values in expected.items() if values})
    rows = {(path, value) for path, values in expected.items() for value in values if has_hash(value)}
    assert its.rows == {(path,) for path in expected} | rows
    assert not its.is_plain or all(len(values) <= 1 for values in expected.values())


@given(MESSAGES, st.lists(PATHS, min_size=1, max_size=6), st.data())
def test_a_field_that_is_no_longer_asked_for_is_not_read(
    message: dict[Any, Any], paths: list[str], data: st.DataObject
) -> None:
    plan = Plan(paths)
    left = list(paths)
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=6)):
        if path in left:
            plan.remove(path)
            left.remove(path)
    plan._check(left)
    read = plan.read(message)
    assert {row for row in read.rows if len(row) == 1} == {(path,) for path in everything(message).keys() & set(left)}


def test_only_the_names_that_are_asked_for_are_looked_up() -> None:
    asked: list[str] = []

    class Counting(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.append(name)
            return super().get(name, default)

        def items(self) -> Any:
            raise AssertionError("all of it was read")

    message = Counting({f"f{n}": n for n in range(1_000)})
    assert Plan(["f1", "f2", "gone"]).read(message).fields == {"f1": [1], "f2": [2]}
    assert asked == ["f1", "f2", "gone"]


def test_depth_and_lists_are_bounded() -> None:
    message: Any = 1
    for _ in range(100):
        message = {"f": message}
    assert Plan([".".join(["f"] * MAX_NAMES)]).read(message).rows
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert Plan(["f"]).read({"f": cyclic}).rows == {("f",)}
    shared: Any = ["x"]
    for _ in range(15):
        shared = [shared] * 10
    with pytest.raises(LimitError, match=r"^the message has more than 1,000,000 values$"):
        Plan(["f"]).read({"f": shared})
    assert Plan(["g"]).read({"f": shared}).rows == set()  # nobody asks for it


def test_a_path_in_two_spellings_has_two_values() -> None:
    its = Plan(["a.b"]).read({"a.b": 1, "a": {"b": 2}})
    assert sorted(map(str, its.fields["a.b"])) == ["1", "2"]
    assert not its.is_plain
