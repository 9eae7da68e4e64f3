"""Strings: allowed characters, topics that stay unchanged, and reserved topics."""

from __future__ import annotations

import sys
import unicodedata
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.development import DEVELOPMENT_TOKEN
from hub.errors import InvalidRequest
from hub.protocol.topics import FORBIDDEN, MATCHER_TYPES, check_text, is_reserved
from hub.protocol.updates import Update
from skipfilter import UrlPattern
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token, follow, publish

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication

pytestmark = pytest.mark.anyio
both_dialects = pytest.mark.parametrize("classic", [True, False])

ALL = bearer(DEVELOPMENT_TOKEN)
SURROGATES = frozenset(map(chr, range(0xD800, 0xE000)))

# The ends of each range, and some characters between.
REFUSED = [
    0x00, 0x09, 0x0A, 0x0D, 0x1F, 0x7F, 0x80, 0x85, 0x9F, 0xAD, 0x600, 0x605, 0x61C, 0x6DD, 0x70F, 0x890, 0x891,
    0x8E2, 0x180E, 0x200B, 0x200D, 0x200E, 0x200F, 0x202A, 0x202E, 0x2060, 0x2064, 0x2066, 0x206A, 0x206F, 0xFEFF,
    0xFFF9, 0xFFFB, 0x110BD, 0x110CD, 0x13430, 0x13438, 0x13439, 0x1343F, 0x1BCA0, 0x1BCA3, 0x1D173, 0x1D17A, 0xE0001,
    0xE0020, 0xE007F,
]  # fmt: skip
FINE = [
    "مرحبا", "שלום", "é", "e\u0301", "\xa0", "\xac", "\xae", "\u0606", "\u061b", "\u061d", "\u08e1", "\u180d", "\u180f",
    "\u200a", "\u2010", "\u2028", "\u2029", "\u202f", "\u205f", "\u2065", "\u2070", "\ufe0f", "\ufffc", "\ufffd", "\uffff",
    "\U0001342f", "\U00013440", "\U0001f600", "\U000e0000", "\U000e0002", "\U000e001f", "\U000e0080", "\U000e0100",
    "\U0010ffff",
]  # fmt: skip


def test_n1_the_table_agrees_with_the_categories_of_this_python() -> None:
    known = {chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cf")}
    assert known <= FORBIDDEN
    assert {unicodedata.category(char) for char in FORBIDDEN - known - SURROGATES} <= {"Cn"}


def test_n1_the_table_is_that_of_unicode_17() -> None:
    # The standard counts 65 control characters and, since 15.0, 170 format characters.
    # Unicode 14.0 lacks some of them.
    assert len(FORBIDDEN - SURROGATES) == 65 + 170
    assert set(map(chr, range(0x13430, 0x13440))) <= FORBIDDEN


@pytest.mark.parametrize("code", [*REFUSED, 0xD800, 0xDFFF], ids=hex)
def test_n1_t34_control_and_format_characters_are_refused_by_name(code: int) -> None:
    char = chr(code)
    for text in (char, f"a{char}b", f"é{char}"):
        with pytest.raises(InvalidRequest, match=f"^topic '.*' contains .* U\\+{code:04X}$"):
            check_text("topic", text)


@pytest.mark.parametrize("text", ["", " ", "https://example.com/é", *FINE], ids=ascii)
def test_n1_t34_letters_of_any_script_are_fine(text: str) -> None:
    check_text("topic", text)


@settings(deadline=None)
@given(st.text())
def test_n1_the_categories_decide(text: str) -> None:
    refused = [char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs")]
    try:
        check_text("topic", text)
    except InvalidRequest as error:
        assert f"U+{next(ord(char) for char in text if char in FORBIDDEN):04X}" in str(error)
    else:
        assert not refused


# -- all text of requests and tokens


@both_dialects
@pytest.mark.parametrize("char", ["\0", "\x7f", "\x85", "\xad", "\u200b", "\u202e", "\ufeff", "\U00013439"], ids=ascii)
async def test_n1_n2_t20_t21_t34_such_characters_are_refused_in_all_text_of_a_request(char: str, classic: bool) -> None:
    text = f"a{char}b"
    matchers = ["match", *(f"match_{type}" for type in MATCHER_TYPES), *(["topic"] if classic else [])]
    token = bearer(current_token(["*"]))
    async with application(classic=classic) as app:
        for name in matchers:
            asked = urlencode([("match", "fine"), (name, text)])
            for answer in (
                await ask(app, "GET", f"{PATH}?{asked}"),
                await ask(app, "QUERY", PATH, [FORM], asked.encode()),
                await ask(app, "QUERY", f"{PATH}?match=fine", [FORM], urlencode([(name, text)]).encode()),
            ):
                assert answer.status == 400
                assert f"{name} " in answer.detail
                assert f"U+{ord(char):04X}" in answer.detail
        for name in ("topic", "id", "type"):
            fields = urlencode([("topic", "a"), (name, text)])
            answer = await ask(app, "POST", PATH, [FORM, token], fields.encode())
            assert (answer.status, f"{name} " in answer.detail) == (400, True)
            assert f"U+{ord(char):04X}" in answer.detail


@both_dialects
@pytest.mark.parametrize("char", ["\0", "\x9f", "\u2066"], ids=ascii)
async def test_n2_t21_a_token_with_such_a_character_in_a_pattern_is_invalid(char: str, classic: bool) -> None:
    pattern = f"a{char}b"
    tokens = [current_token([(type, pattern), "*"]) for type in MATCHER_TYPES]
    tokens += [current_token(["*"], [pattern])]
    tokens += [classic_token([pattern, "*"]), classic_token(["*"], [pattern])] if classic else []
    async with application(classic=classic) as app:
        for token in tokens:
            answer = await ask(app, "POST", PATH, [FORM, bearer(token)], b"topic=a")
            assert answer.status == 401
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]
            assert (await ask(app, "GET", f"{PATH}?match=a", [bearer(token)])).status == 401
        assert (await ask(app, "POST", PATH, [FORM, bearer(current_token(["*"]))], b"topic=a")).status == 200


async def test_n1_strings_of_the_program_are_checked_too() -> None:
    async with application() as app, follow(app, ("match", "a")) as stream:
        for update in (
            Update(("a", "\ud800")),
            Update(("a",), id="\udfff"),
            Update(("a",), type="\ud800"),
            Update(("\0",)),
        ):
            with pytest.raises(InvalidRequest, match=r"U\+(D800|DFFF|0000)"):
                await app.state.hub.publish(update)
        await app.state.hub.publish(Update(("a",), data="end"))
        assert (await stream.next_event()).data == "end"


# -- UTF-8

NO_UTF_8 = [
    b"\xff", b"\xfe", b"\x80", b"\xc3", b"\xc3(", b"a\xc0\x80", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xf0\x9f\x98", b"\xc3\xa9\xe9",
]  # fmt: skip


@both_dialects
@pytest.mark.parametrize("raw", NO_UTF_8)
async def test_n3_t20_bytes_that_are_not_utf_8_are_refused_in_known_fields(raw: bytes, classic: bool) -> None:
    token = bearer(current_token(["*"]))
    async with application(classic=classic) as app:
        for value in (raw, quote_from_bytes(raw, safe="").encode()):
            for pairs, status in (
                (b"match=" + value, 400),
                (b"match=a&match_mqtt=" + value, 400),
                (b"match=a&match" + value + b"=1", 400),  # N16
                (b"match=a&other=" + value, 200),
                (value + b"=1&match=a", 200),
                (b"match=a&last_event_id=" + value, 200),
            ):
                assert (await ask(app, "GET", PATH.encode() + b"?" + pairs)).status == status
                assert (await ask(app, "QUERY", PATH, [FORM], pairs)).status == status
            for pairs in (
                b"topic=" + value,
                *(b"topic=a&" + name + b"=" + value for name in (b"id", b"type", b"data", b"private", b"retry")),
            ):
                answer = await ask(app, "POST", PATH, [FORM, token], pairs)
                assert (answer.status, "is not valid UTF-8" in answer.detail) == (400, True)
            for pairs in (b"topic=a&" + value + b"=1", b"topic=a&other=" + value):
                assert (await ask(app, "POST", PATH, [FORM, token], pairs)).status == 200


async def test_n3_a_replacement_character_in_a_request_is_accepted() -> None:
    async with application() as app, follow(app, ("match", "\ufffd")) as stream:
        await publish(app, DEVELOPMENT_TOKEN, ("topic", "\ufffd"), ("data", "\ufffd"))
        assert (await stream.next_event()).data == "\ufffd"


# -- the topics of an update


@both_dialects
async def test_n4_any_topic_of_an_update_may_match_and_it_is_delivered_once(classic: bool) -> None:
    async with (
        application(classic=classic) as app,
        follow(app, ("match", "first")) as first,
        follow(app, ("match", "last")) as last,
        follow(app, ("match", "first"), ("match_mqtt", "mid/#"), ("match", "last")) as every,
        follow(app, ("match", "other"), ("match", "")) as none,
    ):
        topics = [("topic", "first"), ("topic", "mid/dle"), ("topic", "last")]
        await publish(app, current_token(["*"]), *topics, ("data", "x"))
        await app.state.hub.publish(Update(("first",), "end"), Update(("last",), "end"), Update(("other",), "end"))
        for stream in (first, last, every):
            assert [event.data for event in await stream.until("end")] == ["x"]
        assert [event.data for event in await none.until("end")] == []


# Different topics, though some software treats them as equal.
ALIKE = [
    "https://example.com/é", "https://example.com/e\u0301", "https://example.com/%C3%A9", "https://example.com/%c3%a9",
    "https://EXAMPLE.com/é", "https://example.com:443/é", "https://example.com/x/../é", "https://example.com/é#",
    "https://example.com/é ", " https://example.com/é", "HTTPS://example.com/é", "https://example.com/É",
    "https://example.com/%65\u0301", "https:\\\\example.com\\é", "https://example.com//é",
]  # fmt: skip


@both_dialects
async def test_n5_n33_a_topic_is_kept_and_compared_unchanged(classic: bool) -> None:
    assert len(set(ALIKE)) == len(ALIKE)
    names = ["match", "match_exact", *(["topic"] if classic else [])]
    async with application(classic=classic) as app:
        for topic in ALIKE:
            await publish(app, current_token([topic]), ("topic", topic), ("data", topic))
            answer = await ask(
                app,
                "POST",
                PATH,
                [FORM, bearer(current_token(set(ALIKE) - {topic}))],
                urlencode({"topic": topic}).encode(),
            )
            assert answer.status == 403
        await publish(app, current_token(["*"]), ("topic", "end"), ("data", "end"))
        for topic in ALIKE:
            for name in names:  # replayed, and then live
                async with follow(app, (name, topic), ("match", "end"), ("last_event_id", "earliest")) as stream:
                    assert [event.data for event in await stream.until("end")] == [topic]
        for name in names:
            async with follow(app, (name, ALIKE[0]), ("match", "end")) as stream:
                for topic in [*ALIKE, "end"]:
                    await publish(app, current_token(["*"]), ("topic", topic), ("data", topic))
                assert [event.data for event in await stream.until("end")] == [ALIKE[0]]


# -- reserved topics

RESERVED = [
    "", "#x", "?x", "/.well-known/mercure", "https://example.com/.well-known/mercure",
    "http://other.example/.well-known/mercure/x", "/.well-known/mercure/subscriptions/foo", "mercure/subscriptions/foo",
    "https://example.com/.well-known/%6Dercure/subscriptions/x", "https://example.com/.well-known/%6dercure",
    "/.well-known/me%72cure/x", "/.well-known/mercure/../mercure/x",
    "https://example.com\\.well-known\\mercure\\subscriptions\\x", "/%2Ewell-known/mercure", "//x/./.well-known/mercure/",
    "mercure", "mercure?x", "./mercure#x", " /.well-known/mercure ", "  mercure/x", "/.well-known/mercure//x",
    "/a/%2e%2E/.well-known/mercure", "/.well-known/mercure\\x", "\\.well-known\\mercure", "/.well-known/mercure/%2F",
    "HTTPS://EXAMPLE.COM:443/.well-known/mercure", "https://u:p@example.com/.well-known/mercure?x#y",
    "file:///.well-known/mercure", "urn:/.well-known/mercure", "x://y/.well-known/mercure/z", "/.well-known/mercure/é",
    # Relative to a hub with the same scheme; those with a host, to one with the other.
    "http:mercure/x", "https:mercure/x", "HTTP:mercure", " https:/.well-known/mercure", "http:", "https:?x", "http:#",
    "http:example.com/.well-known/mercure/x", "https:example.com/.well-known/mercure",
    "HTTP:/example.com/.well-known/mercure", " https:\\example.com\\.well-known\\mercure\\x",
]  # fmt: skip
FREE = [
    "https://example.com/.well-known/mercureXXX", "https://example.com/.well-known/mercure-dashboard",
    "https://example.com/foo/.well-known/mercure/bar", "subscriptions/foo", "bar", "../mercure/x", "urn:example:mercure",
    "a topic with spaces", "/.well-known/mercure%2Fx", "/.well-known/mercure%", "https://[", "/.well-known/mercure/..",
    "/.well-known/Mercure", "/.well-known/%4Dercure", "/.well-known/mercure%20", "/.well-known/%256Dercure",
    "/.well-known/%%36Dercure", "/.well-known/%6mercure", "/.well-known%2Fmercure", "//.well-known/mercure", "//",
    "https://example.com?/.well-known/mercure", "urn:x\\.well-known\\mercure", "x:\\.well-known\\mercure",
    "data:/.well-known/mercure".replace("/", "", 1), "\u3000/.well-known/mercure", "/.well-known/mercure;x",
    "http:x", "https:x/.well-known/mercures", "http://mercure/x", "https://[/.well-known/mercure",
]  # fmt: skip


@pytest.mark.parametrize("topic", RESERVED)
def test_n44_n46_n47_t35_reserved(topic: str) -> None:
    assert is_reserved(topic, PATH)


@pytest.mark.parametrize("topic", FREE)
def test_n44_n45_n46_t35_not_reserved(topic: str) -> None:
    assert not is_reserved(topic, PATH)


def test_n44_t35_escapes_of_unreserved_characters_are_decoded() -> None:
    for char in map(chr, range(0x21, 0x7F)):
        unreserved = char.isalnum() or char in "-._~"
        for digits in (f"{ord(char):02x}", f"{ord(char):02X}"):
            assert is_reserved(f"/a%{digits}b/x", f"/a{char}b") is unreserved
            assert not is_reserved(f"/a%25{digits}b", f"/a{char}b")


PIECES = [
    "/", ".", "..", "\\", "%2e", ".well-known", "mercure", "mercur%65", "m", "http:", "https:", "HTTPS:", "urn:", "ws:",
    "e.com", "//", "?", "#", "x", " ", "@", ":", "%", "%2F", "é", "[", "]", "ß", "0x", "^", "|", "\u3002", "1.2.3",
]  # fmt: skip
TOPICS = st.builds(
    lambda pieces, end: "".join(pieces) + end,
    st.lists(st.sampled_from(PIECES), max_size=6),
    st.sampled_from(["", PATH, PATH + "/", PATH + "/x"]),
)
HUBS = [f"http://mercure.invalid{PATH}", f"https://hub.example{PATH}"]
OWN = [UrlPattern(f"*://*:*{PATH}{{/*}}?", hub) for hub in HUBS] + [UrlPattern(PATH + "{/*}?", hub) for hub in HUBS]


@settings(deadline=None)
@given(TOPICS)
def test_n47_topics_that_a_url_pattern_of_the_hub_path_matches_are_reserved(topic: str) -> None:
    assert is_reserved(topic, PATH) or not any(pattern.match(topic) for pattern in OWN)


@both_dialects
async def test_n44_n45_reserved_topics_are_refused_for_every_token_and_others_arrive(classic: bool) -> None:
    tokens = [current_token(["*"]), current_token(["x"]), *([classic_token(["*"])] if classic else [])]
    async with application(classic=classic) as app, follow(app, ("match", "*")) as stream:
        for token in tokens:
            for topic in RESERVED:
                for topics in ([topic], ["x", topic], [topic, "x"]):
                    fields = urlencode([("topic", one) for one in topics]).encode()
                    answer = await ask(app, "POST", PATH, [FORM, bearer(token)], fields)
                    assert (answer.status, "is reserved" in answer.detail) == (400, True), topic
        for topic in FREE:
            await publish(app, tokens[0], ("topic", topic), ("data", topic))
        await publish(app, tokens[0], ("topic", "x"), ("data", "end"))
        assert [event.data for event in await stream.until("end")] == FREE


OTHER_PATHS = ["/hub", "/chat/hub", "/a.b~c_d-e/hub"]


@pytest.mark.parametrize("path", OTHER_PATHS)
def test_n6_n44_the_reserved_namespace_moves_with_the_hub(path: str) -> None:
    for topic in (path, path + "/x", f"https://example.com{path}", path.rpartition("/")[2] + "/subscriptions/x", ""):
        assert is_reserved(topic, path)
    for topic in (PATH, PATH + "/subscriptions/x", path + "x", f"/x{path}", path.upper()):
        assert not is_reserved(topic, path)


@pytest.mark.parametrize("path", OTHER_PATHS)
async def test_n6_a_hub_at_another_path_only_reserves_that_path(path: str) -> None:
    async with application(path=path) as app, follow(app, target=f"{path}?match=*") as stream:
        assert await refuses(app, path, f"https://example.com{path}/subscriptions/x")
        assert await refuses(app, path, path)
        await publish(app, DEVELOPMENT_TOKEN, ("topic", PATH), ("data", "end"), path=path)
        assert await stream.until("end") == []


async def refuses(app: HubApplication, path: str, topic: str) -> bool:
    answer = await ask(app, "POST", path, [FORM, ALL], urlencode({"topic": topic}).encode())
    return answer.status == 400 and f"it resolves to {path}, which is the hub's own" in answer.detail
