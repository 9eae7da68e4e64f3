"""POST of JSON: an object or an array means the same as lines of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub import Settings
from hub.errors import InvalidRequest, TooLarge
from hub.protocol.hints import publish_hints
from hub.protocol.requests import JSON, NDJSON
from tests.asgi import PATH, Answer, ask, classic_token, current_token, follow
from tests.hub.publishing import Watched, both_dialects, each_hub, parse_updates, watched

SETTINGS = Settings(dev=True, max_batch=4, max_topics=3, max_topic=20)
HEADER = ("content-type", "application/json")

hub = each_hub  # the fixtures under the names of this file
classic_hub = both_dialects


async def post(hub: Watched, value: object, token: str | None = "") -> Answer:
    return await hub.post(value if isinstance(value, bytes) else json.dumps(value).encode(), HEADER, token)


# -- accepted


@pytest.mark.anyio
@pytest.mark.parametrize("type", [JSON, NDJSON])
async def test_a_byte_order_mark_before_json_is_left_out(hub: Watched, type: str) -> None:
    reply = await hub.post(b'\xef\xbb\xbf{"topic":"a","id":"urn:z"}', ("content-type", type))
    assert (reply.status, reply.text.strip()) == (200, "urn:z")


@pytest.mark.anyio
async def test_an_object_is_an_update_and_its_id_is_the_answer(hub: Watched) -> None:
    members = {"topic": ["a", "b"], "id": "urn:z", "data": "x", "type": "t", "retry": 5, "private": True}
    reply = await post(hub, members)
    assert (reply.status, reply.text) == (200, "urn:z\n")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    [event] = await hub.arrived()
    assert (event.id, event.type, event.data, event.retry) == ("urn:z", "t", "x", "5")


@pytest.mark.anyio
async def test_an_array_is_a_batch_and_the_ids_are_in_its_order(hub: Watched) -> None:
    reply = await post(hub, [{"topic": "a", "id": "1"}, {"topic": "b"}, {"topic": "a", "id": "é"}])
    first, second, third, rest = reply.text.split("\n")
    assert (reply.status, first, third, rest) == (200, "1", "é", "")
    assert [event.id for event in await hub.arrived()] == ["1", second, "é"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "type", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON;CHARSET=UTF-8"]
)
async def test_the_media_type_may_have_a_charset_of_utf_8(type: str) -> None:
    async with watched() as hub:
        assert (await hub.post(b'\r\n\t {"topic" : "a"}  \n', ("content-type", type))).status == 200
        assert (await hub.post(b' [ {"topic":"a"} , {"topic":"a"} ] ', ("content-type", type))).status == 200
        assert len(await hub.arrived()) == 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    "type",
    ["application/json; charset=latin-1", "application/json; x=y", "application/ld+json", "text/json",
     "text/plain; application/json", "text/plain"],
)  # fmt: skip
async def test_no_other_media_type_is_read_as_json(type: str) -> None:
    # A page may send text/plain to any origin without a preflight.
    async with watched() as hub:
        reply = await hub.post(b'{"topic":"a"}', ("content-type", type))
        assert reply.status == 400
        assert reply.detail.startswith(
            "the content type must be application/x-www-form-urlencoded, application/json or "
        )
        assert await hub.arrived() == []


@pytest.mark.anyio
async def test_n63_publishing_json_with_the_cookie_needs_an_allowed_origin() -> None:
    async with watched(publish_origins="https://shop.example", cookie="token") as hub:
        for origin, status in (("https://shop.example", 200), ("https://evil.example", 400), (None, 400)):
            headers = [HEADER, ("cookie", f"token={current_token(publish=['*'])}")]
            headers += [] if origin is None else [("origin", origin)]
            assert (await ask(hub.app, "POST", PATH, headers, b'{"topic":"a"}')).status == status
        assert len(await hub.arrived()) == 1


# -- refused


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "there is no update in the body"),
        (b" \r\n", "there is no update in the body"),
        (b" [ ] ", "there is no update in the body"),
        (b"nonsense", "it is not JSON: "),
        (b"null", "it is not a JSON object"),
        (b'"a"', "it is not a JSON object"),
        (b"{}", 'missing "topic" field'),
        (b'{"topic":"a"}{"topic":"a"}', "it is not JSON: Extra data"),
        (b'{"topic":"a"}\n{"topic":"a"}', "it is not JSON: Extra data"),
        (b"[", "update 1: it is not JSON: "),
        (b"[1]", "update 1: it is not a JSON object"),
        (b"[[]]", "update 1: it is not a JSON object"),
        (b'[{"topic":"a"}', "update 1: it is not JSON: there is no comma or bracket after it"),
        (b'[{"topic":"a"} {"topic":"a"}]', "update 1: it is not JSON: there is no comma or bracket after it"),
        (b'[{"topic":"a"},]', "update 2: it is not JSON: "),
        (b'[,{"topic":"a"}]', "update 1: it is not JSON: "),
        (b'[{"topic":"a"},', "update 2: it is not JSON: "),
        (b'[{"topic":"a"}]x', "it is not JSON: there is more after the array"),
        (b'[{"topic":"a"}][]', "it is not JSON: there is more after the array"),
        (b'[{"topic":"a"},{"topic":"a","topic":"b"}]', "update 2: an object has a member twice"),
        (b'[{"topic":"a"},{"topic":"a","private":"false"}]', "update 2: private \"'false'\" is neither true nor false"),
        (b'[{"topic":"\xff"}]', "the body is not UTF-8"),
        (b'{"topic":"\xff"}', "the body is not UTF-8"),
        (b"[" * 100_000, "update 1: it is not JSON: "),
        (b"[" + b"9" * 5_000 + b"]", "update 1: it is not JSON: "),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
async def test_what_is_not_an_object_or_an_array_of_objects_is_refused_whole(body: bytes, told: str) -> None:
    async with watched() as hub:
        reply = await post(hub, body)
        assert reply.status == 400
        assert reply.detail.startswith(told)
        assert len(reply.detail) < 400
        assert await hub.arrived() == []


@pytest.mark.anyio
async def test_the_bounds_are_those_of_lines() -> None:
    async with watched(max_batch=3, max_topics=3, max_topic=20, max_body=400) as hub:
        good = {"topic": "a"}
        assert (await post(hub, [good] * 3)).status == 200
        reply = await post(hub, [good] * 4)
        assert (reply.status, reply.detail) == (413, "the request has more than 3 updates")
        reply = await post(hub, json.dumps([good] * 3)[:-1].encode() + b", nonsense")  # which is not parsed
        assert reply.status == 413
        reply = await post(hub, [good, {"topic": ["a"] * 4}])
        assert (reply.status, reply.detail) == (413, "update 2: there are 4 topics; the limit is 3")
        assert (await post(hub, {"topic": "a", "id": "x" * 21})).status == 413
        assert (await post(hub, {"topic": "a", "data": "x" * 400})).status == 413
        reply = await post(hub, [good, {"topic": "b"}], token=current_token(publish=["a"]))
        assert reply.status == 403
        assert len(await hub.arrived()) == 3


# -- the same as lines


MEMBERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["topic", "data", "id", "type", "retry", "private", "x"]),
    st.sampled_from(
        ["a", "b" * 21, "*", "#", "", "\ud800", None, True, False, 0, 5, -1, 1.5, ["a"], ["a"] * 4, [], {}]
    ),
    max_size=5,
)


def read(body: bytes, type: str) -> object:
    try:
        return [
            (update.topics, update.data, update.private, update.type, update.retry)
            for update in parse_updates(body, type, SETTINGS)
        ]
    except (InvalidRequest, TooLarge) as error:
        return str(error)


@given(
    st.lists(
        st.builds(lambda members, topic: {"topic": topic} | members, MEMBERS, st.just("a")), min_size=1, max_size=6
    ),
    st.booleans(),
)
@example([{"topic": "a"}] * 5, True)
def test_an_array_means_the_same_as_lines(batch: list[dict[str, Any]], ascii: bool) -> None:
    lines = "".join(f"{json.dumps(members, ensure_ascii=True)}\n" for members in batch).encode()
    array = json.dumps(batch, indent=1 if ascii else None).encode()
    assert read(array, JSON) == read(lines, NDJSON)
    if len(batch) == 1:
        found, of_line = read(json.dumps(batch[0]).encode(), JSON), read(lines, NDJSON)
        assert found == (of_line.removeprefix("update 1: ") if isinstance(of_line, str) else of_line)


@given(st.binary(max_size=20) | st.text('[]{},:" \n1ea\\u', max_size=20).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for tried in (body, b"[" + body + b"]", b'[{"topic":"a"}' + body, b'{"topic":"a","x":' + body + b"}"):
        found = read(tried, JSON)
        try:
            value = json.loads(tried.decode("utf-8"))
        except (ValueError, RecursionError):
            assert isinstance(found, str)  # what is not JSON is never read
        else:
            assert isinstance(found, str) or isinstance(value, dict | list)


def test_unknown_members_cause_a_hint() -> None:
    told = ["member 'date' is unknown, and ignored: did you mean 'data'?"]
    assert publish_hints(b'{"topic": "a", "date": "x"}', JSON) == told
    assert publish_hints(b'[{"topic": "a"}, {"topic": "a", "date": "x"}]', JSON) == told


@pytest.mark.anyio
async def test_a_private_update_in_json_reaches_nobody_without_a_grant(classic_hub: Watched) -> None:
    async with follow(classic_hub.app, ("match", "a")) as anonymous:
        token = classic_token(publish=["*"])
        await post(classic_hub, [{"topic": "a", "id": "1"}, {"topic": "a", "id": "2", "private": True}], token=token)
        await post(classic_hub, {"topic": "a", "data": "end"}, token=token)
        assert [event.id for event in await anonymous.until("end")] == ["1"]
