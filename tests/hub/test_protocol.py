"""What a client sent -> values; and any bytes at all -> an answer."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import Settings
from hub.errors import InvalidRequest, TooLarge
from hub.protocol import parse_cookies, parse_form, parse_subscribe, parse_update

SETTINGS = Settings(dev=True, max_topic=10, max_topics=3, max_matchers=4, max_pattern=10)
FORM = b"application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (b"", []),
        (b"&&", []),
        (b"a", [("a", "")]),
        (b"a=", [("a", "")]),
        (b"=a", [("", "a")]),
        (b"a=b=c", [("a", "b=c")]),
        (b"a;b=1;c", [("a;b", "1;c")]),  # N14: a semicolon is data
        (b"a=b+c%20d%2B", [("a", "b c d+")]),
        (b"a=%", [("a", "%")]),
        (b"a=%4", [("a", "%4")]),
        (b"a=%zz%C3%A9", [("a", "%zzé")]),
        ("a=é".encode(), [("a", "é")]),  # raw UTF-8 too
        (b"a=1&a=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_n14_the_parser_is_the_whatwg_s(text: bytes, pairs: list[tuple[str, str]]) -> None:
    assert parse_form(text) == pairs


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_what_urlencode_writes_is_read_back(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name.replace("\ud800", ""), value) for name, value in pairs]
    assert parse_form(urlencode(pairs, errors="surrogatepass").encode()) == parse_qsl(
        urlencode(pairs), keep_blank_values=True
    )


@pytest.mark.parametrize("text", [b"a=%FF", b"%C3=1", b"a=\xff", b"a=%ED%A0%80", b"x=1&a=%C3%28"])
def test_n3_what_is_no_utf_8_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="is not valid UTF-8"):
        parse_form(text)


@given(st.binary())
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    for parse in (
        lambda: parse_form(text),
        lambda: parse_subscribe(text, [], SETTINGS),
        lambda: parse_subscribe(b"topic=a", [(b"last-event-id", text)], SETTINGS),
        lambda: parse_update(text, FORM, SETTINGS),
        lambda: parse_update(b"topic=" + text, FORM, SETTINGS),
        lambda: parse_update(b"topic=a", text, SETTINGS),
        lambda: list(parse_cookies([(b"cookie", text)])),
    ):
        try:
            parse()
        except (InvalidRequest, TooLarge) as error:
            assert len(str(error)) < 600


def matchers(query: bytes) -> list[tuple[str, str]]:
    return [(matcher.type, matcher.pattern) for matcher in parse_subscribe(query, [], SETTINGS).matchers]


def test_n15_v80_both_dialects_in_one_request() -> None:
    query = b"topic=%7Ba%7D&match=b&match_exact=c&match_uritemplate=%7Bd%7D"
    assert matchers(query) == [("topic", "{a}"), ("exact", "b"), ("exact", "c"), ("uritemplate", "{d}")]


def test_n19_the_same_matcher_twice_is_one() -> None:
    assert matchers(b"match=a&match_exact=a&match=b&match=a") == [("exact", "a"), ("exact", "b")]


def test_n20_v3_other_parameters_are_ignored() -> None:
    assert matchers(b"_=123&topic=a&Topic=b&topics=c&amatch=d") == [("topic", "a")]


NAMES = ["Match", "MATCH", "match_URITEMPLATE", "matchuritemplate", "match_", "match_regexp", "match_exactly", "matchmaking", "MATCH_exact", "match_urlpattern"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_n16_the_match_prefix_is_reserved(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"parameter '{name}' is none of match, match_exact"):
        matchers(f"topic=a&{name}=a".encode())


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (b"", 'missing "match" or "topic"'),
        (b"match=a%00", r"match .* U\+0000"),
        (b"topic=a%C2%AD", r"topic .* U\+00AD"),
        (b"match_uritemplate=%7B", "never closed"),
        (b"match=12345678901", "11 bytes is longer than 10"),
        ("match=éééééé".encode(), "12 bytes is longer than 10"),
        (b"match=1&match=2&match=3&match=4&match=5", "5 matchers are more than the 4"),
    ],
)
def test_n17_n18_what_is_no_subscription_is_named(query: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        matchers(query)


@pytest.mark.parametrize(
    ("query", "header", "cursor"),
    [
        (b"", None, None),
        (b"", b"", ""),  # N107: empty counts
        (b"last_event_id=", None, ""),
        (b"last_event_id=a&lastEventID=b", None, "a"),
        (b"lastEventId=c&lastEventID=b", None, "b"),
        (b"Last-Event-ID=d&lastEventId=c", None, "c"),
        (b"Last-Event-ID=d", None, "d"),
        (b"last_event_id=a", b"h", "h"),  # N13: the header beats all
        (b"last_event_id=a", b"", ""),
        (b"", "é".encode(), "é"),  # R77
        (b"", b"\xff", "\ufffd"),
    ],
)
def test_n13_v85_where_the_cursor_comes_from(query: bytes, header: bytes | None, cursor: str | None) -> None:
    headers = [] if header is None else [(b"last-event-id", header)]
    assert parse_subscribe(b"topic=a&" + query, headers, SETTINGS).last_event_id == cursor


def test_n42_n49_n50_n54_the_fields_of_an_update() -> None:
    update = parse_update(b"topic=a&topic=b&data=d&private=false&id=i&type=t&retry=5&unknown=x&data=e", FORM, SETTINGS)
    assert (update.topics, update.data, update.private) == (("a", "b"), "d", True)
    assert (update.id, update.type, update.retry) == ("i", "t", 5)
    bare = parse_update(b"topic=a&id=&type=&retry=", FORM + b"; charset=utf-8", SETTINGS)
    assert (bare.data, bare.private, bare.type, bare.retry) == ("", False, None, None)
    assert bare.id.startswith("urn:uuid:")


@pytest.mark.parametrize("retry", ["+5", "-1", " 5", "5.0", "٥", "5_0", "0x5", "1" * 16, "²"])
def test_n53_retry_is_ascii_digits(retry: str) -> None:
    with pytest.raises(InvalidRequest, match="retry"):
        parse_update(urlencode({"topic": "a", "retry": retry}).encode(), FORM, SETTINGS)


@pytest.mark.parametrize("name", ["topic", "id", "type"])
def test_n56_a_field_that_is_too_long(name: str) -> None:
    fields = {"topic": "a", name: "é" * 5}
    parse_update(urlencode(fields).encode(), FORM, SETTINGS)
    with pytest.raises(TooLarge, match=f"{name} .* is longer than 10 bytes"):
        parse_update(urlencode(fields | {name: "é" * 5 + "a"}).encode(), FORM, SETTINGS)


def test_the_limits_themselves_are_allowed() -> None:
    update = parse_update(b"topic=a&topic=b&topic=c&retry=" + b"9" * 15, FORM.upper(), SETTINGS)
    assert (len(update.topics), update.retry) == (3, int("9" * 15))
    assert len(matchers(b"match=1234567890&match=2&match=3&match=4")) == 4


def test_n56_too_many_topics() -> None:
    with pytest.raises(TooLarge, match="4 topics are more than the 3"):
        parse_update(b"topic=a&" * 4, FORM, SETTINGS)


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data; boundary=x", b"text/plain"])
def test_n41_another_content_type_is_named(content_type: bytes) -> None:
    with pytest.raises(InvalidRequest, match=f"not '{content_type.decode()}'"):
        parse_update(b"topic=a", content_type, SETTINGS)
