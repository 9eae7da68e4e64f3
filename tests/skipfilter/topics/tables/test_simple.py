"""The tables without structure: there is one posting list per selector, until it is
removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter import Everything, Exact, compile_matcher
from skipfilter.topics.tables import EverythingTable, ExactTable, LinearTable

if TYPE_CHECKING:
    from skipfilter import Matcher
    from skipfilter.topics.tables import Table


def test_an_exact_topic_costs_one_lookup_and_only_finds_itself() -> None:
    table: Table = ExactTable()
    posting_lists = {topic: table.declare(Exact(topic)) for topic in ("", "a", "b", "\ud800")}
    assert table.declare(table.compile("a")) is posting_lists["a"]
    table._check()
    for topic, postings in posting_lists.items():
        assert list(table.find(topic)) == [postings]
    assert list(table.find("A")) == []
    table.remove(posting_lists["a"])
    table._check()
    assert list(table.find("a")) == []
    assert set(table.posting_lists()) == set(posting_lists.values()) - {posting_lists["a"]}


def test_everything_has_one_entry() -> None:
    table: Table = EverythingTable()
    assert list(table.find("a")) == []
    postings = table.declare(table.compile("*"))
    assert table.declare(Everything()) is postings
    assert list(table.find("a")) == list(table.posting_lists()) == [postings]
    table._check()
    table.remove(postings)
    assert list(table.find("a")) == []


def test_a_linear_table_tests_each_matcher_once() -> None:
    asked: list[str] = []

    class Contains:
        def __init__(self, pattern: str) -> None:
            self.pattern = pattern

        def match(self, topic: str) -> bool:
            asked.append(self.pattern)
            return self.pattern in topic

        def why_not(self, topic: str) -> str:
            return f"{self.pattern} is not in it"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Contains) and other.pattern == self.pattern

        def __hash__(self) -> int:
            return hash(self.pattern)

    table: Table = LinearTable("own", Contains)
    posting_lists = {pattern: table.declare(table.compile(pattern)) for pattern in ("a", "b", "ab", "a")}
    assert len(list(table.posting_lists())) == 3
    assert set(table.find("ab")) == set(posting_lists.values())
    assert set(table.find("xbx")) == {posting_lists["b"]}
    assert sorted(asked) == ["a", "a", "ab", "ab", "b", "b"]
    table._check()
    table.remove(posting_lists["b"])
    assert list(table.find("b")) == []
    assert table.declare(table.compile("b")) is not posting_lists["b"]


def test_a_linear_table_accepts_the_matchers_of_the_library() -> None:
    def compile(pattern: str) -> Matcher:
        return compile_matcher("amqp", pattern)

    table: Table = LinearTable("own", compile)
    posting_lists = [table.declare(table.compile(pattern)) for pattern in ("a.*", "#.b", "*")]
    assert list(table.find("a.b")) == posting_lists[:2]
