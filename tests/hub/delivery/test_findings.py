"""hub.delivery.findings: which of many matchers nearly match, and what a look at them takes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from hub.delivery import findings
from hub.delivery.findings import near_misses
from hub.turns import TimeSlices
from tests.hub.world import COMPILER, compiled

if TYPE_CHECKING:
    from hub.protocol.topics import TopicMatcher

pytestmark = pytest.mark.anyio

WORDS = ["https:", "http:", "", "example.com", "users", "user", "Users", "42", "43", "{id}"]
BASE = "https://hub.example/.well-known/mercure"


async def nearest(matchers: list[TopicMatcher], topics: list[str], most: int = 3) -> list[TopicMatcher]:
    async with (slices := TimeSlices()):
        return await near_misses(matchers, topics, slices, base_url=BASE, most=most)


@pytest.mark.parametrize("seed", range(10))
async def test_what_is_found_would_match_with_a_change_and_what_matches_with_one_is_found(seed: int) -> None:
    source = Random(seed)
    patterns = {"/".join(source.choices(WORDS, k=source.randint(1, 4))) for _ in range(60)}
    patterns.add("http://example.com/users/42")
    topics = ["https://example.com/users/42", "/".join(source.choices(WORDS[:-1], k=3))]
    matchers = [
        COMPILER.compile(type, pattern) for pattern in sorted(patterns) for type in ("exact", "uritemplate") if pattern
    ]
    matchers = [matcher for matcher in matchers if not any(map(matcher.match, topics))]
    found = await nearest(matchers, topics, most=1_000)
    async with (slices := TimeSlices()):
        every = [
            matcher
            for matcher in matchers
            if (await findings.findings([matcher], topics, slices, base_url=BASE))[0].near_miss is not None
        ]
    assert set(found) <= set(every)
    if len(matchers) <= findings.MAX_LOOKED:
        assert set(found) == set(every)
    assert "http://example.com/users/42" in [matcher.pattern for matcher in found]


async def test_only_the_most_similar_ones_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    original = findings._why_not

    async def why_not(*given: object) -> findings.Finding:
        nonlocal looked
        looked += 1
        return await original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(findings, "_why_not", why_not)
    matchers = compiled([("exact", f"https://example.com/users/{n}") for n in range(5_000)])
    assert await nearest(matchers, ["https://example.com/rooms/1/2/3"]) == []
    assert looked == findings.MAX_LOOKED
    looked = 0
    [found, *_] = await nearest(matchers, ["http://example.com/users/4321"])
    assert found.pattern == "https://example.com/users/4321"
    assert looked <= findings.MAX_LOOKED


@pytest.mark.parametrize(
    ("pattern", "topic", "count"),
    [
        ("", "", 0),
        ("a", "", 0),
        ("abc", "abc", 3),
        ("abc", "abxc", 3),
        ("aa", "aaa", 2),
        ("http", "https", 4),
        ("x", "y", 0),
    ],
)
def test_texts_are_alike_by_both_ends(pattern: str, topic: str, count: int) -> None:
    assert findings._alike(pattern, topic) == findings._alike(topic, pattern) == count
