"""Topics: forbidden characters, matchers of both dialects, the reserved namespace."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from hub.errors import InvalidRequest
from hub.topics import FORBIDDEN, check_text, compile_topic_matcher, is_reserved
from skipfilter import PatternError

HUB = "/.well-known/mercure"


def test_n1_the_table_has_all_that_this_python_knows_and_nothing_that_it_knows_otherwise() -> None:
    known = {chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cf")}
    assert known <= FORBIDDEN
    assert all(unicodedata.category(char) == "Cn" for char in FORBIDDEN - known)
    assert len(FORBIDDEN) == 65 + 170


@pytest.mark.parametrize(
    "text", ["a\0b", "a\nb", "\x7f", "\x85", "\xad", "a\u202eb", "\ufeff", "\U000e0041", "\U0001343f"]
)
def test_n1_control_and_format_characters_are_refused_by_name(text: str) -> None:
    code = next(ord(char) for char in text if char in FORBIDDEN)
    with pytest.raises(InvalidRequest, match=f"topic .* U\\+{code:04X}"):
        check_text("topic", text)


@pytest.mark.parametrize("text", ["", "https://example.com/é", "مرحبا", "שלום", "a b", "😀", "\u2028", "\xa0"])
def test_n1_letters_of_any_script_are_fine(text: str) -> None:
    check_text("topic", text)


@pytest.mark.parametrize(
    ("type", "pattern", "topic", "expected"),
    [
        ("topic", "*", "anything", True),
        ("exact", "*", "anything", True),
        ("uritemplate", "*", "anything", True),
        ("topic", "https://e.com/{id}", "https://e.com/1", True),
        ("topic", "https://e.com/{id}", "https://e.com/{id}", True),  # V10 (2): its own text
        ("uritemplate", "https://e.com/{id}", "https://e.com/{id}", False),  # V83: no fallback
        ("topic", "{broken", "{broken", True),  # V10 (4): a raw string
        ("topic", "{broken", "x", False),
        ("topic", "a b{c}", "a b1", False),
        ("topic", "a b{c}", "a b{c}", True),
        ("exact", "https://e.com/{id}", "https://e.com/1", False),
        ("exact", "https://e.com/{id}", "https://e.com/{id}", True),
    ],
)
def test_v10_n32_the_matchers(type: str, pattern: str, topic: str, expected: bool) -> None:
    assert compile_topic_matcher(type, pattern).match(topic) is expected


def test_n37_a_type_that_does_not_exist_or_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(LookupError, match="'regexp' is none of exact, uritemplate"):
        compile_topic_matcher("regexp", "a")
    with pytest.raises(PatternError, match="never closed"):
        compile_topic_matcher("uritemplate", "{a")


def test_matchers_are_equal_by_type_and_pattern() -> None:
    assert compile_topic_matcher("topic", "{a}") == compile_topic_matcher("topic", "{a}")
    assert compile_topic_matcher("topic", "{a}") != compile_topic_matcher("uritemplate", "{a}")
    assert len({compile_topic_matcher("exact", "a"), compile_topic_matcher("exact", "a")}) == 1


RESERVED = [
    "", "#x", "?x", "/.well-known/mercure", "https://example.com/.well-known/mercure",
    "http://other.example/.well-known/mercure/x", "/.well-known/mercure/subscriptions/foo", "mercure/subscriptions/foo",
    "https://example.com/.well-known/%6Dercure/subscriptions/x", "https://example.com/.well-known/%6dercure",
    "/.well-known/me%72cure/x", "/.well-known/mercure/../mercure/x",
    "https://example.com\\.well-known\\mercure\\subscriptions\\x", "/%2Ewell-known/mercure", "//x/./.well-known/mercure/",
]  # fmt: skip
FREE = [
    "https://example.com/.well-known/mercureXXX", "https://example.com/.well-known/mercure-dashboard",
    "https://example.com/foo/.well-known/mercure/bar", "subscriptions/foo", "bar", "../mercure/x", "urn:example:mercure",
    "a topic with spaces", "/.well-known/mercure%2Fx", "/.well-known/mercure%", "https://[", "/.well-known/mercure/..",
]  # fmt: skip


@pytest.mark.parametrize("topic", RESERVED)
def test_n46_reserved(topic: str) -> None:
    assert is_reserved(topic, HUB)


@pytest.mark.parametrize("topic", FREE)
def test_n46_not_reserved(topic: str) -> None:
    assert not is_reserved(topic, HUB)


def test_n6_the_reserved_namespace_moves_with_the_hub() -> None:
    assert is_reserved("/chat/hub/x", "/chat/hub")
    assert not is_reserved("/.well-known/mercure", "/chat/hub")
