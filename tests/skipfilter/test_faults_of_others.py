"""What belongs to the caller may fail at any moment, and the filter is as it was before.

Matchers, values, contents and functions of groups are the caller's own code.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from skipfilter import FieldFilter, SelectorIndex, SkipFilter
from skipfilter.fields import not_, one_of, present

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ROUNDS = 2_000


class OfItsOwn:
    """A matcher that compares itself with nothing else."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def match(self, topic: str) -> bool:
        return topic.startswith(self.pattern)

    def why_not(self, topic: str) -> str:
        return "it begins otherwise"

    def __eq__(self, other: object) -> bool:
        return bool(self.pattern == other.pattern)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.pattern)


@pytest.mark.parametrize(
    "declare",
    [
        lambda readers, selectors: readers.add("new", selectors),
        lambda readers, selectors: readers.add_many({"new": selectors}),
        lambda readers, selectors: readers.replace("old", selectors),
    ],
)
def test_a_matcher_that_compares_itself_with_nothing_else(declare: Callable[[Any, Any], None]) -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(matchers={"begins": OfItsOwn}))
    readers.add("old", [("exact", "q")])
    declare(readers, [("begins", "a")])
    assert readers.match_any("a1") == [[*readers][-1]]
    readers._check()


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (lambda topic: True, "pattern"),
        (type("NoMatch", (), {"pattern": "a"})(), "match"),
        (type("NoReason", (), {"pattern": "a", "match": len})(), "why_not"),
    ],
)
def test_what_is_no_matcher_is_refused_before_anything_is_changed(made: Any, missing: str) -> None:
    readers: SkipFilter[str, str] = SkipFilter(SelectorIndex(matchers={"begins": lambda pattern: made}))
    readers.add("old", [("exact", "q")])
    for declare in (readers.add, lambda value, selectors: readers.add_many({value: selectors})):
        with pytest.raises(TypeError, match=rf"(?m)^matcher type begins made .*, which has no {missing}$"):
            declare("new", [("begins", "a")])
    with pytest.raises(TypeError, match=f"which has no {missing}$"):
        readers.replace("old", [("begins", "a")])
    readers.add("next", [("mqtt", "a/+")])
    assert readers.match_any("a/1") == ["next"]
    readers._check()


class Flaky:
    """A value whose hash fails once, after some calls."""

    left = 0

    def __hash__(self) -> int:
        self.left -= 1
        if self.left == -1:
            raise ZeroDivisionError
        return 1


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize(
    ("source", "options", "selectors"),
    [
        (lambda value, key: True, {}, None),
        (lambda value, key: True, {"group": str}, None),
        (SelectorIndex, {}, [("mqtt", "a/+"), ("exact", "a/1")]),
    ],
)
def test_a_hash_that_fails_once_adds_nothing(count: int, source: Any, options: Any, selectors: Any) -> None:
    readers: SkipFilter[Any, str] = SkipFilter(SelectorIndex() if source is SelectorIndex else source, **options)
    value = Flaky()
    value.left = count
    try:
        readers.add(value, selectors)
    except ZeroDivisionError:
        assert readers.match_any("a/1") == []
    else:
        value.left = 100
        assert readers.match_any("a/1") == [value]
    readers._check()


class Unlike:
    """A content that may not be compared."""

    def __hash__(self) -> int:
        return hash(5)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        raise TypeError("not comparable")


def test_a_content_that_cannot_be_compared_leaves_nothing_behind() -> None:
    readers: FieldFilter[str] = FieldFilter()
    readers.add("five", not_(one_of("a", 5, 6)))
    readers.add("v", not_(present("q")))
    for change in (readers.replace, lambda _, rule: readers.add("other", rule)):
        with pytest.raises(TypeError, match="not comparable"):
            change("v", not_(one_of("a", 1, Unlike())))
        readers._check()
    readers.add("w", not_(present("w")))
    assert readers.match_all({"a": 1}) == ["five", "v", "w"]


def test_a_group_that_adds_a_value_does_not_lose_it() -> None:
    def group(value: str) -> Hashable:
        if value == "second" and "x" not in readers:
            readers.add("x")
        return "g"

    readers: SkipFilter[str, int] = SkipFilter(lambda value, key: True, group=group)
    with pytest.raises(RuntimeError, match="another value was added"):
        readers.add_many(["first", "second"])
    assert (list(readers), readers.match_any(1)) == (["x"], ["x"])
    readers._check()


@pytest.mark.parametrize("kind", [SkipFilter, FieldFilter])
def test_no_thread_sees_a_value_missing_while_it_is_replaced(kind: type) -> None:
    readers: Any = SkipFilter(SelectorIndex()) if kind is SkipFilter else FieldFilter()
    declared = [[("mqtt", "a/+")], [("exact", "a/1")]] if kind is SkipFilter else [["a"], ["b"]]
    topic: Any = "a/1" if kind is SkipFilter else {"a": 1, "b": 1}
    readers.add("v", declared[0])
    seen: list[object] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask() -> None:
        try:
            while not done.is_set():
                if "v" not in readers or len(readers) != 1 or not readers.explain(topic, "v"):
                    seen.append("missing")
                if kind is SkipFilter:
                    readers.id_of("v")
        except BaseException as error:
            seen.append(error)

    done = threading.Event()
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for n in range(ROUNDS):
            readers.replace("v", declared[n % 2])
    finally:
        done.set()
        asking.join()
        sys.setswitchinterval(interval)
    assert seen == []
