"""Bags: no pattern is missed, and the only false candidates are patterns with the same
piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skipfilter.topics.tables import ExactTable
from skipfilter.topics.tables.base import SelectorPostings
from skipfilter.topics.tables.residual import FEW, LONGEST, TRIED, WINDOWS, Residual, Texts

if TYPE_CHECKING:
    from collections.abc import Iterable

NOTHING = Texts(b"", b"", ())


def at(path: int) -> SelectorPostings:
    return SelectorPostings(ExactTable(), str(path))


def filled(texts: Iterable[Texts]) -> Residual[int]:
    residual: Residual[int] = Residual()
    for pattern, its_texts in enumerate(texts):
        residual.add(pattern, at(pattern), its_texts)
        residual._check()
    return residual


def asks_for(texts: Texts, text: bytes) -> bool:
    """Return whether `text` has all pieces of `texts`."""
    return text.startswith(texts.start) and text.endswith(texts.end) and all(inside in text for inside in texts.inside)


def has(text: bytes, kind: int, piece: bytes) -> bool:
    """Whether `text` has a piece of this kind: start, end, inside, always."""
    return (text.startswith(piece), text.endswith(piece), piece in text, True)[kind]


SHORT = st.text(st.sampled_from("ab"), max_size=3).map(str.encode)
PIECES = SHORT | st.sampled_from([b"a" * n for n in (1, 2, 4, 8, 16, 17, 40, 70)] + [b"ab" * 9, b"b" + b"a" * LONGEST])
TEXTS = st.builds(
    lambda start, end, inside: Texts(start, end, (*filter(None, (start, end)), *filter(None, inside))),
    PIECES,
    PIECES,
    st.lists(PIECES, max_size=2),
)
TOPICS = st.lists(PIECES, max_size=4).map(b"".join)


class AgainstOneByOne(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.residual: Residual[int] = Residual()
        self.texts: dict[int, Texts] = {}
        self.next = 0

    @rule(texts=TEXTS)
    def add(self, texts: Texts) -> None:
        self.residual.add(self.next, at(self.next), texts)
        self.texts[self.next] = texts
        self.next += 1

    @rule(count=st.integers(4, 9), texts=TEXTS)
    def add_many_of_a_kind(self, count: int, texts: Texts) -> None:
        for n in range(count):
            self.add(Texts(texts.start, texts.end, (*texts.inside, b"%d" % n)))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.texts:
            pattern = data.draw(st.sampled_from(list(self.texts)))
            self.residual.remove(pattern)
            del self.texts[pattern]

    @rule()
    def remove_all_but_one(self) -> None:
        for pattern in list(self.texts)[1:]:
            self.residual.remove(pattern)
            del self.texts[pattern]

    @rule(before=SHORT, text=TOPICS)
    def find(self, before: bytes, text: bytes) -> None:
        found = dict(self.residual.find(before + text, len(before)))
        assert found.keys() >= {pattern for pattern, texts in self.texts.items() if asks_for(texts, text)}
        assert all(postings.declared == str(pattern) for pattern, postings in found.items())
        if self.residual._piece_of is not None:
            # The end of a text may be longer than its rest; the pattern is a candidate
            # nevertheless.
            wholes = {True: before + text, False: text}
            assert all(
                has(wholes[kind == 1], kind, piece) for p in found for kind, piece in [self.residual._piece_of[p]]
            )
            assert found.keys() >= {p for p, piece in self.residual._piece_of.items() if has(text, *piece)}

    @invariant()
    def holds(self) -> None:
        self.residual._check()
        assert len(self.residual) == len(self.texts)
        assert {postings.declared for postings in self.residual.posting_lists()} == set(map(str, self.texts))
        for pattern in self.texts:
            postings = self.residual.get(pattern)
            assert postings is not None
            assert postings.declared == str(pattern)
        assert self.residual.get(-1) is None

    def teardown(self) -> None:
        for pattern in self.texts:
            self.residual.remove(pattern)
        self.residual._check()
        assert not self.residual._patterns
        assert not self.residual._piece_of
        assert not any(self.residual._under)


TestAgainstOneByOne = AgainstOneByOne.TestCase
TestAgainstOneByOne.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@settings(deadline=None)
@given(TEXTS)
@example(Texts(b"a" * (LONGEST + 1), b"", ()))
@example(Texts(b"", b"a" * (LONGEST + 1), ()))
@example(NOTHING)
def test_every_piece_occurs_in_every_matching_text(texts: Texts) -> None:
    text = texts.start + b"-".join(texts.inside) + texts.end
    for kind, piece in texts.pieces():
        assert has(text, kind, piece)
        assert len(piece) <= LONGEST if kind < 2 else len(piece) in WINDOWS


def test_the_pieces_of_a_text_are_its_start_its_end_and_each_window_inside() -> None:
    assert list(Texts(b"ab", b"c", (b"ab", b"abc")).pieces()) == [
        (0, b"ab"),
        (1, b"c"),
        (2, b"ab"),
        (2, b"ab"),
        (2, b"bc"),
    ]
    assert list(NOTHING.pieces()) == []


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: Texts(b"/%d" % n, b"", (b"/%d" % n,)),
        lambda n: Texts(b"", b"/x%d" % n, (b"/x%d" % n,)),
        lambda n: Texts(b"/same", b"/x%d" % n, (b"/same", b"/x%d" % n)),
        lambda n: Texts(b"/x%d" % n, b"/same", (b"/x%d" % n, b"/same")),
        lambda n: Texts(b"/same", b"/same", (b"/same", b"-%05d-" % n, b"/same")),
        lambda n: Texts(b"a" * 70 + b"%05d" % n, b"%05d" % n + b"a" * 70, (b"a" * 70 + b"%05d" % n,)),
    ],
)
def test_a_pattern_is_found_by_its_rarest_piece(shape: object) -> None:
    assert callable(shape)
    texts = [shape(n) for n in range(1000)]
    residual = filled([])
    for pattern, its_texts in enumerate(texts):
        residual.add(pattern, at(pattern), its_texts)
    residual._check()
    for n in range(0, 1000, 37):
        found = dict(residual.find(texts[n].start + b"".join(texts[n].inside) + texts[n].end))
        assert n in found
        assert len(found) <= 20


def test_a_small_bag_uses_no_pieces() -> None:
    residual = filled([Texts(b"a", b"%d" % n, ()) for n in range(FEW)])
    assert residual._piece_of is None
    assert set(dict(residual.find(b"a2"))) == {2}
    assert set(dict(residual.find(b"b2"))) == set()
    residual.add(FEW, at(FEW), Texts(b"a", b"4", ()))
    assert residual._piece_of is not None
    assert set(dict(residual.find(b"a4"))) >= {4}


def test_a_pattern_without_pieces_is_always_a_candidate() -> None:
    residual = filled([NOTHING] * 10)
    assert set(dict(residual.find(b""))) == set(dict(residual.find(b"abc", 1))) == set(range(10))
    for pattern in range(10):
        residual.remove(pattern)
    assert dict(residual.find(b"")) == {}


def test_a_start_piece_is_at_the_start_of_the_text() -> None:
    for count in (1, FEW + 5):
        residual = filled([Texts(b"b", b"", (b"b",))] + [Texts(b"x%d" % n, b"", ()) for n in range(count - 1)])
        assert set(dict(residual.find(b"/ab/b", 4))) == {0}
        assert set(dict(residual.find(b"bab", 1))) == set()
        assert set(dict(residual.find(b"bx1b", 1))) == ({2} if count > 1 else set())


def test_a_long_text_is_not_tried_at_every_position() -> None:
    assert len(list(Texts(b"", b"", (b"a" * 4_000,)).pieces())) <= TRIED + 1
    assert len(list(Texts(b"a" * 100, b"b" * 100, tuple([b"a" * 40] * 99)).pieces())) <= 2 * TRIED
