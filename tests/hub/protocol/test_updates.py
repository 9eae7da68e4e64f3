"""Updates that are invalid, whatever the token; `test_publish` tests them over HTTP."""

from __future__ import annotations

import sys
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub.errors import InvalidRequest
from hub.node.matchers import MatcherCompiler
from hub.protocol.events import frame
from hub.protocol.topics import is_reserved
from hub.protocol.updates import Update, check_fields, check_topic, new_id

HUB = "/.well-known/mercure"
COMPILER = MatcherCompiler(f"https://hub.example{HUB}")


def check(update: Update, path: str = HUB) -> None:
    for topic in update.topics:
        check_topic(topic, path=path)
    check_fields(update)


@pytest.mark.parametrize(
    "update",
    [
        Update(("a",)),
        Update(("https://example.com/1", "urn:b"), "data", private=True, id="urn:x", type="message", retry=0),
        Update(("a",), id="é 1", type="é"),
        Update(("a",), id="Earliest", type="Mercure"),
        Update(("a",), id="earliest1", type="mercure1"),
        Update(("a",), id="a#", type=" mercure "),
        Update(("a",), id="-", type="#"),
        Update(("**", " *", "*/a"), "\0"),
        Update(("a",), id="\u2028", type="\xa0"),
    ],
)
def test_t20_n51_n52_valid_updates_are_accepted(update: Update) -> None:
    check(update)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (Update(()), 'missing "topic"'),  # N41
        (Update(("a\u200b",)), r"topic .* U\+200B"),  # N43
        (Update(("a", "b\0c")), r"topic .* U\+0000"),
        (Update(("a", "/.well-known/mercure/x")), "topic '/.well-known/mercure/x' is reserved"),  # N44, an alternate
        (Update(("",)), "topic '' is reserved"),
        (Update(("a", "*")), r"topic '\*' is reserved"),  # N48
        (Update(("*", "a")), r"topic '\*' is reserved"),
        (Update(("a",), id="#a"), "id '#a' is reserved"),  # N51
        (Update(("a",), id="#"), "id '#' is reserved"),
        (Update(("a",), id="earliest"), "id 'earliest' is reserved"),
        (Update(("a",), id=" a"), "id ' a' is empty, or begins or ends with a space"),
        (Update(("a",), id="a "), "id 'a ' is empty, or begins or ends with a space"),
        (Update(("a",), id=""), "id '' is empty"),
        (Update(("a",), type="mercure"), "type 'mercure' is reserved"),  # N52
        (Update(("a",), retry=-1), "retry -1"),  # N53
    ],
)
def test_n41_n43_n44_n48_n51_n52_t54_t21_invalid_updates_are_refused(update: Update, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check(update)


@pytest.mark.parametrize(
    "char", ["\0", "\n", "\r", "\x1f", "\x7f", "\x85", "\x9f", "\xad", "\u202e", "\ufeff", "\ud800"]
)
@pytest.mark.parametrize("name", ["topic", "id", "type"])
def test_n2_n29_n43_n51_n52_t20_t54_control_and_format_characters_are_refused_everywhere(name: str, char: str) -> None:
    for value in (char, char + "a", "a" + char, f"a{char}b"):
        fields = {"id": "i", "type": "t"} | ({} if name == "topic" else {name: value})
        update = Update((value if name == "topic" else "a",), id=fields["id"], type=fields["type"])
        with pytest.raises(InvalidRequest, match=rf"{name} .* U\+{ord(char):04X}"):
            check(update)


def test_n27_n51_r22_v55_ids_are_random_iris() -> None:
    ids = [new_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert {uuid.UUID(id.removeprefix("urn:uuid:")).version for id in ids} == {4}
    assert all(id.startswith("urn:uuid:") for id in ids)


def test_a_long_topic_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(Update(("\0" + "x" * 10_000,)))
    assert len(str(caught.value)) < 300


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n")),
)
def test_the_size_of_an_update_is_that_of_its_texts_plus_room_for_its_frame(topics: list[str], data: str) -> None:
    update = Update(tuple(topics), data, type="t")
    assert update.size >= sum(map(sys.getsizeof, (*topics, data)))
    assert sys.getsizeof(data) + len(frame(update)) <= update.size + 100


# -- the reserved namespace, beyond the vectors of N46


@pytest.mark.parametrize("digits", ["{:02X}", "{:02x}"])
def test_t35_n47_an_escape_of_an_unreserved_character_is_decoded(digits: str) -> None:
    for octet in range(256):
        escape = "%" + digits.format(octet)
        unreserved = octet < 128 and (chr(octet).isalnum() or chr(octet) in "-._~")
        assert is_reserved(f"/a{escape}b/x", f"/a{chr(octet)}b") is unreserved, escape
        assert not is_reserved(f"/a%25{escape[1:]}b/x", f"/a{chr(octet)}b")  # once


@given(st.data())
def test_n47_no_escaped_spelling_of_the_hub_path_is_allowed(data: st.DataObject) -> None:
    spelled = "".join(
        data.draw(st.sampled_from([char, f"%{ord(char):02x}", f"%{ord(char):02X}"])) if char != "/" else char
        for char in HUB
    )
    before = data.draw(
        st.sampled_from(["", "https://hub.example", "HTTP://x:1", "//x", "file://", "urn:", "/a/%2e%2E"])
    )
    after = data.draw(st.sampled_from(["", "/", "/x", "?x", "#x", "/x?y#z", "/../mercure"]))
    assert is_reserved(before + spelled + after, HUB)


PIECES = [
    "/", "\\", ".", "..", "%2e", "%2E", "%2F", ".well-known", "%2ewell-known", "mercure", "%6Dercure", "m", "ercure",
    "?", "#", "https:", "HTTP:", "http:", "//", "h", "@", ":", "x", " ", "é", "%", "*", "hub.example", "/.well-known/",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@example("https:mercure/x")
@example("https://h/.well-known/m\tercure")
@example("m\tercure")
@example("%2e/mercure")
def test_n47_a_topic_that_a_url_pattern_takes_for_the_hub_path_is_reserved(topic: str) -> None:
    for pattern in ("/.well-known/mercure", "/.well-known/mercure/*", "http{s}?://*:*/.well-known/mercure{/*}?"):
        if COMPILER.compile("urlpattern", pattern).match(topic):
            assert is_reserved(topic, HUB)


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_n45_any_text_is_reserved_or_not(topic: str) -> None:
    assert is_reserved(topic, HUB) in (True, False)


@pytest.mark.parametrize("topic", ["https://[", "https://a b", "http://x:99999", "//[", "https://", "http://%zz/"])
def test_n45_a_topic_that_is_not_a_url_reference_is_not_reserved(topic: str) -> None:
    check(Update((topic, f"{topic}/.well-known/mercure")))


@pytest.mark.parametrize("path", ["/hub", "/a/b.c/~hub"])
def test_n6_n44_another_hub_has_another_namespace(path: str) -> None:
    check(Update((HUB, f"{path}s", f"/x{path}")), path)
    for topic in (path, f"https://other.example{path}/x", path.rpartition("/")[2], "", f"/x/..{path}/"):
        with pytest.raises(InvalidRequest, match="is reserved"):
            check(Update((topic,)), path)


# -- updates as a program makes them


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", ""),
        ("a: é\n\0", "a: é\n\0"),
        ('{"a": 1}', '{"a": 1}'),
        ({}, "{}"),
        ([], "[]"),
        ({"é": [1, 2.5, None, True, {"a": "\n"}]}, '{"é":[1,2.5,null,true,{"a":"\\n"}]}'),
        (["a", "b"], '["a","b"]'),
    ],
)
def test_data_is_text_or_becomes_compact_json(data: Any, text: str) -> None:
    assert Update(("a",), data).data == text
    assert f"data: {text}".split("\n")[0] in frame(Update(("a",), data)).decode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"raw", "data is of type bytes: it must be a str, a dict or a list"),
        (None, "data is of type NoneType: "),
        (7, "data is of type int: "),
        (True, "data is of type bool: "),
        (("a",), "data is of type tuple: "),
        ({"a": {1, 2}}, "Object of type set is not JSON serializable"),
    ],
)
def test_data_of_another_type_is_refused_with_the_name_of_the_type(data: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"^{told}"):
        Update(("a",), data)


def test_numbers_that_json_lacks_are_refused() -> None:
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            Update(("a",), [number])


def test_a_text_as_topics_is_refused() -> None:
    with pytest.raises(TypeError) as caught:
        Update("abc", "data")
    assert str(caught.value) == "topics 'abc' is a text: give the topics as a tuple, as in ('abc',)"
    assert Update(["a", "b"], id="i").topics == Update(iter("ab"), id="i").topics == ("a", "b")


def test_an_update_is_a_value() -> None:
    update = Update(("a",), {"n": 1}, private=True, id="i", type="t", retry=5)
    assert replace(update) == update
    assert hash(replace(update)) == hash(update)
    assert replace(update, data="x") != update
    assert repr(update) == """Update(topics=('a',), data='{"n":1}', private=True, id='i', type='t', retry=5)"""
    assert Update(("a",)).id != Update(("a",)).id
