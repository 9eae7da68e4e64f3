"""Parsing of requests: any bytes become values, or an error that reveals no secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import Settings
from hub.errors import InvalidRequest, NotFound, TooLarge
from hub.protocol.requests import (
    FORM,
    JSON,
    NDJSON,
    SubscribeRequest,
    content_type,
    parse_cookies,
    parse_form,
    parse_subscribe,
    parse_subscription_path,
    take_tokens,
)
from tests.hub.publishing import parse_updates

SETTINGS = Settings(dev=True, max_topic=10, max_topics=3, max_matchers=4, max_pattern=10, max_batch=3)
CURRENT_ONLY = Settings(dev=True, classic=False, max_topic=10, max_topics=3, max_matchers=4, max_pattern=10)


def subscription(
    query: bytes, body: bytes = b"", last_event_id: bytes | None = None, settings: Settings = SETTINGS
) -> SubscribeRequest:
    headers = [] if last_event_id is None else [(b"last-event-id", last_event_id)]
    return parse_subscribe(query, body, headers, settings)


# -- forms


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (b"", []),
        (b"&&", []),
        (b"a", [("a", "")]),
        (b"a=", [("a", "")]),
        (b"=a", [("", "a")]),
        (b"=", [("", "")]),
        (b"a=b=c", [("a", "b=c")]),
        (b"a;b=1;c", [("a;b", "1;c")]),
        (b"a=b+c%20d%2B", [("a", "b c d+")]),
        (b"a+b%3D=c", [("a b=", "c")]),
        (b"a=%", [("a", "%")]),
        (b"a=%4", [("a", "%4")]),
        (b"a=%zz%C3%A9", [("a", "%zzé")]),
        (b"a=%+4", [("a", "% 4")]),
        (b"a=%u0041", [("a", "%u0041")]),
        (b"a=%2541", [("a", "%41")]),
        ("a=é".encode(), [("a", "é")]),
        (b"a=%EF%BB%BFb", [("a", "\ufeffb")]),
        (b"a=1&a=2", [("a", "1"), ("a", "2")]),
        (b"a=1\r\n", [("a", "1\r\n")]),
    ],
)
def test_n14_r70_the_parser_agrees_with_the_whatwg(text: bytes, pairs: list[tuple[str, str]]) -> None:
    assert parse_form(text, ()) == pairs == parse_form(text, {name for name, _ in pairs})


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_n14_the_output_of_urlencode_is_parsed_back(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name.replace("\ud800", ""), value) for name, value in pairs]
    assert parse_form(urlencode(pairs, errors="surrogatepass").encode(), ()) == parse_qsl(
        urlencode(pairs), keep_blank_values=True
    )


@pytest.mark.parametrize(
    ("text", "lenient"),
    [
        (b"a=%FF", [("a", "\ufffd")]),
        (b"a=\xff", [("a", "\ufffd")]),
        (b"a=%ED%A0%80", [("a", "\ufffd" * 3)]),
        (b"x=1&a=%C3%28", [("x", "1"), ("a", "\ufffd(")]),
        (b"a=%C0%80", [("a", "\ufffd" * 2)]),
        (b"a=%F4%90%80%80", [("a", "\ufffd" * 4)]),
        (b"a=%C3&b=%A9", [("a", "\ufffd"), ("b", "\ufffd")]),
    ],
)
def test_n3_r70_values_of_strict_names_that_are_not_utf_8_are_refused(
    text: bytes, lenient: list[tuple[str, str]]
) -> None:
    with pytest.raises(InvalidRequest, match=r"'a' is not valid UTF-8: .* at byte"):
        parse_form(text, {"a"})
    assert parse_form(text, {"c", "\ufffd"}) == lenient
    assert parse_form(b"%C3=1&a%FF=2", {"a"}) == [("\ufffd", "1"), ("a\ufffd", "2")]


def test_n3_n14_n54_unknown_parameters_and_fields_need_not_be_utf_8() -> None:
    assert matchers(b"match=a&x=%FF&%FF=b&%FFmatch=c&topic%FF=d") == [("exact", "a")]
    [update] = parse_updates(b"topic=a&x=%FF&%FF=b&topic%FF=c&id%FF=d", FORM, SETTINGS)
    assert update.topics == ("a",)
    assert not update.id.startswith("d")
    for name in ("match", "match_exact", "match_mqtt", "topic"):
        with pytest.raises(InvalidRequest, match=f"'{name}' is not valid UTF-8"):
            matchers(f"match=a&{name}=%FF".encode())
    for name in ("topic", "data", "private", "id", "type", "retry"):
        with pytest.raises(InvalidRequest, match=f"'{name}' is not valid UTF-8"):
            parse_updates(f"topic=a&{name}=%FF".encode(), FORM, SETTINGS)
    with pytest.raises(InvalidRequest, match="none of match"):  # N16: it begins with "match"
        matchers(b"match=a&match%FF=b")


def test_n163_a_value_that_is_not_utf_8_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidRequest, match="'data' is not valid UTF-8") as caught:
        parse_updates(b"topic=a&data=secret%FF", FORM, SETTINGS)
    assert "secret" not in str(caught.value)


# -- tokens in a query


@pytest.mark.parametrize(
    ("query", "rest", "tokens"),
    [
        (b"", b"", ()),
        (b"topic=a&topic=b", b"topic=a&topic=b", ()),
        (b"authorization=t", b"", ("t",)),
        (b"topic=a&authorization=t&topic=b", b"topic=a&topic=b", ("t",)),
        (b"authorization=t&authorization=", b"", ("t", "")),
        (b"authorization", b"", ("",)),
        (b"%61uthorizatio%6E=t%2Eu+v", b"", ("t.u v",)),
        (b"access_token=t&a=b", b"a=b", ()),
        (b"access%5Ftoken=t", b"", ()),
        (b"authorization=%FF", b"", ("\ufffd",)),
        (b"authorizations=t&xauthorization=t", b"authorizations=t&xauthorization=t", ()),
        (b"a=%&&b;authorization=t&c=+", b"a=%&&b;authorization=t&c=+", ()),
    ],
)
def test_v42_n60_only_tokens_are_removed_from_a_query(query: bytes, rest: bytes, tokens: tuple[str, ...]) -> None:
    assert take_tokens(query) == (rest, tokens)


@given(
    st.lists(
        st.sampled_from([b"authorization=s3cret", b"%61uthorization=s3cret", b"access_token=s3cret", b"a=1", b"b", b""])
    )
)
def test_v42_n163_no_token_is_left_in_any_query(parts: list[bytes]) -> None:
    rest, tokens = take_tokens(b"&".join(parts))
    assert b"s3cret" not in rest
    assert len(tokens) == sum(b"uthorization" in part for part in parts)
    assert parse_form(rest, ()) == parse_form(b"&".join(part for part in parts if b"s3cret" not in part), ())


# -- subscribe


def matchers(query: bytes, settings: Settings = SETTINGS) -> list[tuple[str, str]]:
    return list(subscription(query, settings=settings).selectors)


def test_n15_v80_both_dialects_in_one_request() -> None:
    query = b"topic=%7Ba%7D&match=b&match_exact=c&match_uritemplate=%7Bd%7D"
    assert matchers(query) == [("topic", "{a}"), ("exact", "b"), ("exact", "c"), ("uritemplate", "{d}")]


def is_reserved(name: str) -> bool:
    try:
        matchers(urlencode({"topic": "a", name: "a"}).encode())
    except InvalidRequest as error:
        assert " is none of match, match_exact, match_urlpattern, match_uritemplate" in str(error)
        return True
    return False


@given(st.text("mMaAtTcChH\u212a\u0131ſｍ_ext", max_size=8))
def test_n16_names_are_compared_without_the_case_of_ascii_letters(name: str) -> None:
    own = re.fullmatch("match(_exact)?", name)
    assert is_reserved(name) == (own is None and re.match("match", name, re.IGNORECASE | re.ASCII) is not None)


def test_n16_no_other_character_folds_into_the_prefix() -> None:
    folding = [c for c in map(chr, range(0x80, 0x10000)) if set(c.casefold() + c.upper()) & set("mMaAtTcChH")]
    assert folding
    for char in folding:
        assert not any(is_reserved(f"match{char}"[:at] + char + "match"[at + 1 :]) for at in range(5))


@pytest.mark.parametrize(
    ("query", "header", "cursor"),
    [
        (b"", None, None),
        (b"", b"", ""),  # N107: empty counts
        (b"last_event_id=", None, ""),
        (b"last_event_id=a&last_event_id=b", None, "a"),
        (b"last_event_id=a&lastEventID=b", None, "a"),
        (b"lastEventId=c&lastEventID=b", None, "b"),
        (b"Last-Event-ID=d&lastEventId=c", None, "c"),
        (b"Last-Event-ID=d", None, "d"),
        (b"last-event-id=a&LastEventID=b&last_event_ID=c", None, None),
        (b"last_event_id=a", b"h", "h"),
        (b"last_event_id=a", b"", "a"),
        (b"last_event_id=&lastEventID=b", b"", "b"),
        (b"last_event_id=&lastEventID=", None, ""),
        (b"", "é\u0661".encode(), "é\u0661"),  # R77
        (b"", b"\xff", "\ufffd"),
        (b"last_event_id=%FF", None, "\ufffd"),  # unknown, as that of a header
        (b"lastEventID=a%C3", None, "a\ufffd"),
    ],
)
def test_n13_v85_r77_the_sources_of_the_cursor(query: bytes, header: bytes | None, cursor: str | None) -> None:
    assert subscription(b"match=a&" + query, last_event_id=header).last_event_id == cursor


def test_v85_the_spellings_of_polyfills_belong_to_the_classic_dialect() -> None:
    query = b"match=a&lastEventId=a&Last-Event-ID=b"
    assert subscription(query, settings=CURRENT_ONLY).last_event_id is None
    assert subscription(query + b"&lastEventID=c", settings=CURRENT_ONLY).last_event_id == "c"


@given(st.lists(st.sampled_from(["last_event_id", "lastEventID", "lastEventId", "Last-Event-ID"])), st.integers(0, 9))
def test_n13_n12_the_preferred_name_counts_and_the_query_before_the_body(names: list[str], cut: int) -> None:
    pairs = [(name, str(number)) for number, name in enumerate(names)]
    found = subscription(b"match=a&" + urlencode(pairs[:cut]).encode(), urlencode(pairs[cut:]).encode())
    order = ["last_event_id", "lastEventID", "lastEventId", "Last-Event-ID"]
    assert found.last_event_id == (
        str(min(range(len(names)), key=lambda n: (order.index(names[n]), n))) if names else None
    )


# -- publish


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (b"application/x-www-form-urlencoded", FORM),
        (b"Application/X-WWW-Form-URLencoded ; charset=utf-8", FORM),
        (b" application/x-ndjson;", NDJSON),
        (b"application/json", JSON),
        (b"Application/JSON ; Charset=UTF-8", JSON),
        (b'application/json;charset="utf-8"', JSON),
        (b"application/json;", JSON),
        (b"application/json; charset=latin-1", "application/json; charset=latin-1"),
        (b"application/json; charset=utf-8; text/plain", "application/json; charset=utf-8; text/plain"),
        (b"application/json, text/plain", "application/json, text/plain"),
        (b"text/plain; application/json", "text/plain"),
        (b"", ""),
        (b"\xe9", "é"),
    ],
)
def test_n11_n40_a_media_type_is_compared_without_case_and_parameters(value: bytes, type: str) -> None:
    assert content_type([(b"content-type", value)]) == type


def test_n42_n49_n50_n54_the_fields_of_an_update() -> None:
    body = b"topic=a&topic=b&data=d&private=false&id=i&type=t&retry=5&unknown=x&data=e"
    [update] = parse_updates(body, FORM, SETTINGS)
    assert (update.topics, update.data, update.private) == (("a", "b"), "d", True)
    assert (update.id, update.type, update.retry) == ("i", "t", 5)
    [bare] = parse_updates(b"topic=a&id=&type=&retry=", FORM, SETTINGS)
    assert (bare.data, bare.private, bare.type, bare.retry) == ("", False, None, None)
    assert bare.id.startswith("urn:uuid:")


@pytest.mark.parametrize("retry", ["+5", "-1", " 5", "5.0", "٥", "5_0", "0x5", "1" * 16 + "x", "²"])
def test_n53_r75_retry_is_ascii_digits(retry: str) -> None:
    with pytest.raises(InvalidRequest, match="retry"):
        parse_updates(urlencode({"topic": "a", "retry": retry}).encode(), FORM, SETTINGS)


@pytest.mark.parametrize("name", ["topic", "id", "type"])
def test_n56_a_field_that_is_too_long_is_refused(name: str) -> None:
    fields = {"topic": "a", name: "é" * 5}
    parse_updates(urlencode(fields).encode(), FORM, SETTINGS)
    with pytest.raises(TooLarge, match=f"{name} .* is longer than 10 bytes"):
        parse_updates(urlencode(fields | {name: "é" * 5 + "a"}).encode(), FORM, SETTINGS)


def test_n56_n53_values_at_the_limits_are_allowed() -> None:
    [update] = parse_updates(b"topic=a&topic=b&topic=c&retry=86400000", FORM, SETTINGS)
    assert (len(update.topics), update.retry) == (3, 86_400_000)


@pytest.mark.parametrize(
    ("digits", "milliseconds"),
    [
        ("86399999", 86_399_999), ("86400001", 86_400_000), ("9" * 15, 86_400_000), ("9" * 16, 86_400_000),
        ("9" * 50_000, 86_400_000), ("0" * 50_000 + "7", 7), ("0" * 20, 0),
    ],
)  # fmt: skip
def test_n53_a_retry_of_more_than_a_day_is_a_day(digits: str, milliseconds: int) -> None:
    [update] = parse_updates(f"topic=a&retry={digits}".encode(), FORM, SETTINGS)
    assert update.retry == milliseconds
    if not digits.startswith("0") and len(digits) < 4_000:
        [update] = parse_updates(f'{{"topic":"a","retry":{digits}}}'.encode(), NDJSON, SETTINGS)
        assert update.retry == milliseconds


def test_n56_too_many_topics_are_refused() -> None:
    with pytest.raises(TooLarge, match="there are 4 topics; the limit is 3"):
        parse_updates(b"topic=a&" * 4, FORM, SETTINGS)


@pytest.mark.parametrize("type", ["", "application/jsonp", "multipart/form-data", "text/plain"])
def test_n41_another_content_type_is_named(type: str) -> None:
    with pytest.raises(InvalidRequest, match=f"not '{type}'"):
        parse_updates(b"topic=a", type, SETTINGS)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"topic": "a", "data": "secret', "it is not JSON: Unterminated string"),
        (b'"secret"', "it is not a JSON object"),
        (b'{"topic": "a", "data": {"a": "secret"}}', "data is not a string"),
        (b'{"topic": "a", "data": "secret\\ud800"}', "data is not Unicode"),
        (b'{"topic": "a", "data": "secret\xff"}', "it is not JSON: not UTF-8"),
    ],
)
def test_n163_a_refused_line_of_json_is_not_repeated_in_the_error(line: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^update 2: {told}") as caught:
        parse_updates(b'{"topic": "a"}\n' + line, NDJSON, SETTINGS)
    assert "secret" not in str(caught.value)


# -- anything


@given(st.binary())
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    path = f"{SETTINGS.path}/subscriptions/"
    for parse in (
        lambda: parse_form(text, ()),
        lambda: parse_form(text, {"a", ""}),
        lambda: take_tokens(text),
        lambda: subscription(text),
        lambda: subscription(b"topic=a", text),
        lambda: subscription(b"topic=a", last_event_id=text),
        lambda: parse_updates(text, FORM, SETTINGS),
        lambda: parse_updates(b"topic=" + text, FORM, SETTINGS),
        lambda: parse_updates(text, NDJSON, SETTINGS),
        lambda: parse_updates(b"topic=a", content_type([(b"content-type", text)]), SETTINGS),
        lambda: list(parse_cookies([(b"cookie", text)])),
        lambda: parse_subscription_path(path + text.decode("latin-1"), SETTINGS),
        lambda: parse_subscription_path(path + quote(text), SETTINGS),
    ):
        try:
            parse()
        except (InvalidRequest, NotFound, TooLarge) as error:
            assert len(str(error)) < 600
