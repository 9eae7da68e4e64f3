"""POST of a batch, one JSON object per line: all updates or none, one after another."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub import Settings, create_app
from hub.errors import InvalidRequest, TooLarge
from hub.history import base
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.protocol.requests import FORM, NDJSON
from hub.protocol.updates import Update
from tests.asgi import NDJSON as NDJSON_HEADER
from tests.asgi import PATH, ask, bearer, classic_token, current_token, follow
from tests.hub.publishing import Watched, both_dialects, each_hub, parse_updates, watched
from tests.wire import Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from hub.history.base import Entry

SETTINGS = Settings(dev=True)

hub = each_hub  # the fixtures under the names of this file
classic_hub = both_dialects


# -- accepted batches


@pytest.mark.anyio
async def test_n55_v22_ids_are_returned_in_order_one_per_line(hub: Watched) -> None:
    reply = await hub.post_lines('{"topic": "a", "id": "urn:z"}', '{"topic": "b"}', '{"topic": "a", "id": "é\u2028"}')
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    first, second, third, rest = reply.text.split("\n")
    assert (first, third, rest) == ("urn:z", "é\u2028", "")
    assert second.startswith("urn:uuid:")
    assert [event.id for event in await hub.arrived()] == [first, second, third]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [
        b'{"topic":"a","id":"1"}\n{"topic":"a","id":"2"}',  # no final line end
        b'{"topic":"a","id":"1"}\r\n{"topic":"a","id":"2"}\r\n',
        b'\n\n \t\n{"topic":"a","id":"1"}\n\r\n\n {"topic": "a", "id":"2" } \n\n',
        b'{"topic":"\\u0061","\\u0069d":"1"}\n{"id":"2","topic":["a"]}\n',
    ],
)
async def test_a_line_is_an_update_and_empty_lines_are_ignored(hub: Watched, body: bytes) -> None:
    assert (await hub.post(body, NDJSON_HEADER)).text == "1\n2\n"
    assert [event.id for event in await hub.arrived()] == ["1", "2"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"topic":"a","id":"1","data":"x","type":"t","retry":5}', Event("1", "t", "x", "5")),
        ('{"topic":"a","id":"1"}', Event("1", "message", "", None)),
        ('{"topic":"a","id":"1","data":null,"type":null,"retry":null}', Event("1", "message", "", None)),
        ('{"topic":"a","id":"1","data":"","type":"","retry":0}', Event("1", "message", "", "0")),
        ('{"topic":"a","id":"1","data":"x\\r\\ny\\rz\\u0000"}', Event("1", "message", "x\ny\nz\0", None)),
        ('{"topic":"a","id":"1","retry":999999999999999}', Event("1", "message", "", "86400000")),
        ('{"topic":"a","id":"1","Data":"x","datum":[{}],"private ":1,"match":"b"}', Event("1", "message", "", None)),
        ('{"topic":"a","id":"1","data":"\\ud83d\\ude00"}', Event("1", "message", "😀", None)),  # a pair of surrogates
        ('{"topic":"a","id":"1","private":true}', Event("1", "message", "", None)),
        ('{"topic":["b","a"],"id":"1","private":false}', Event("1", "message", "", None)),
    ],
)
async def test_n49_n52_n53_n54_members_are_the_fields(classic_hub: Watched, line: str, expected: Event) -> None:
    reply = await classic_hub.post_lines(line)
    assert (reply.status, reply.text) == (200, "1\n")
    assert await classic_hub.arrived() == [expected]


@pytest.mark.anyio
async def test_n50_private_is_for_one_update_of_a_batch(hub: Watched) -> None:
    async with follow(hub.app, ("match", "a")) as anonymous:
        await hub.post_lines(
            '{"topic":"a","id":"1"}', '{"topic":"a","id":"2","private":true}', '{"topic":"a","id":"3"}'
        )
        await hub.post_form(("topic", "a"), ("data", "end"))
        assert [event.id for event in await anonymous.until("end")] == ["1", "3"]
    assert [event.id for event in await hub.arrived()][:3] == ["1", "2", "3"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(
    st.lists(TEXTS, min_size=1, max_size=3),
    st.fixed_dictionaries(
        {"id": TEXTS.filter(bool)},
        optional={"data": TEXTS, "type": TEXTS, "retry": st.integers(0, 10**15 - 1), "x": TEXTS},
    ),
    st.booleans(),
    st.booleans(),
)
def test_n42_n50_n54_v20_a_line_means_the_same_as_a_form(
    topics: list[str], members: dict[str, Any], private: bool, ascii: bool
) -> None:
    fields = [("topic", topic) for topic in topics] + [(name, str(value)) for name, value in members.items()]
    form = urlencode(fields + [("private", "")] * private).encode()
    line = json.dumps({"topic": topics, "private": private} | members, ensure_ascii=ascii).encode()
    assert parse_updates(line, NDJSON, SETTINGS) == parse_updates(form, FORM, SETTINGS)


# -- refused batches: no update of them reaches a subscriber


LINES = [
    ("nonsense", "not JSON"),
    ("[]", "not a JSON object"),
    ("null", "not a JSON object"),
    ('"a"', "not a JSON object"),
    ('{"topic":"b"', "not JSON"),
    ('{"topic":"b"} {"topic":"b"}', "not JSON"),
    ('{"topic":"b"}\r{"topic":"b"}', "not JSON"),
    ('\ufeff{"topic":"b"}', "not JSON"),
    ("{}", 'missing "topic"'),
    ('{"Topic":"b"}', 'missing "topic"'),
    ('{"topic":[]}', 'missing "topic"'),
    ('{"topic":null}', "topic is neither"),
    ('{"topic":1}', "topic is neither"),
    ('{"topic":{"b":1}}', "topic is neither"),
    ('{"topic":["b",1]}', "topic is not a string"),
    ('{"topic":["b",null]}', "topic is not a string"),
    ('{"topic":["b",["b"]]}', "is not a string"),
    ('{"topic":["b","*"]}', "'*' is reserved"),
    ('{"topic":"/.well-known/mercure/x"}', "is reserved"),
    ('{"topic":"b\\u0000"}', "U+0000"),
    ('{"topic":"b","id":"#"}', "id '#' is reserved"),
    ('{"topic":"b","id":"earliest"}', "id 'earliest' is reserved"),
    ('{"topic":"b","id":"x\\n"}', "U+000A"),
    ('{"topic":"b","id":1}', "id is not a string"),
    ('{"topic":"b","data":1}', "data is not a string"),
    ('{"topic":"b","data":{}}', "data is not a string"),
    ('{"topic":"b","data":false}', "data is not a string"),
    ('{"topic":"b","type":[]}', "type is not a string"),
    ('{"topic":"b","type":"mercure"}', "type 'mercure' is reserved"),
    ('{"topic":"b","type":"\\u000d"}', "U+000D"),
    *[
        (f'{{"topic":"b","retry":{retry}}}', "retry")
        for retry in ("-1", "1.0", "1e3", '"5"', "true", "false", "[]", "1e400", "NaN", "Infinity")
    ],
    *[
        (f'{{"topic":"b","private":{private}}}', "neither true nor false")
        for private in ("null", "0", "1", '""', '"on"', '"false"', "[]", "{}", "1.0")
    ],
    (f'{{"topic":"b","retry":{"9" * 5_000}}}', "not JSON"),
    ('{"topic":"b","private":true,"private":false}', "member twice"),
    ('{"topic":"b","topic":"b"}', "member twice"),
    ('{"topic":"b","x":[{"y":1,"y":1}]}', "member twice"),
    ('{"topic":"\\ud800"}', "lone surrogate"),
    ('{"topic":["b","\\udfff"]}', "lone surrogate"),
    ('{"topic":"b","id":"x\\ud800"}', "lone surrogate"),
    ('{"topic":"b","type":"\\ude00\\ud83d"}', "lone surrogate"),
    ('{"topic":"b","data":"\\ud800x"}', "lone surrogate"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("line", "told"), LINES, ids=[line[:40] for line, _ in LINES])
async def test_n41_n43_n44_n48_n49_n50_n51_n52_n53_n96_t54_one_refused_line_refuses_the_batch(
    line: str, told: str
) -> None:
    good = ['{"topic":"a"}', '{"topic":"a","private":true}']
    async with watched() as hub:
        for place in range(line.startswith("\ufeff"), 3):  # a byte order mark before the first line is left out
            for token in ("", current_token(publish=["a"]), current_token()):  # the scope is checked last
                reply = await hub.post_lines(*good[:place], line, *good[place:], token=token)
                assert reply.status == 400
                assert reply.detail.startswith(f"update {place + 1}: ")
                assert told in reply.detail
                assert len(reply.detail) < 400
        assert await hub.arrived() == []


@pytest.mark.anyio
@pytest.mark.parametrize("body", [b"", b"\n", b" \r\n\t\n"])
async def test_n41_a_body_without_an_update_is_refused(classic_hub: Watched, body: bytes) -> None:
    reply = await classic_hub.post(body, NDJSON_HEADER)
    assert (reply.status, reply.detail) == (400, "there is no update in the body")


@pytest.mark.anyio
async def test_n3_n40_n49_bytes_that_are_not_utf_8_are_refused(classic_hub: Watched) -> None:
    for line in (
        b'{"topic":"\xff"}',
        b'{"topic":"a","data":"\xed\xa0\x80"}',
        b'{"topic":"a","\xc3":""}',
        b"\x00",
        b"\xff\xfe{\x00}\x00",
    ):
        reply = await classic_hub.post(b'{"topic":"a"}\n' + line, NDJSON_HEADER)
        assert reply.status == 400
        assert "update 2: " in reply.detail
    assert await classic_hub.arrived() == []


@pytest.mark.anyio
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("topics", ['"b"', '["a","b"]', '["b","a"]'])
async def test_n80_n92_t51_one_topic_without_a_grant_refuses_the_batch(hub: Watched, place: int, topics: str) -> None:
    lines = ['{"topic":"a"}', '{"topic":["a","a"],"private":true}']
    lines.insert(place, f'{{"topic":{topics}}}')
    tokens = [
        current_token(publish=["a"]),
        *([classic_token(publish=["a"])] if hub.app.state.hub.settings.classic else []),
    ]
    for token in tokens:
        reply = await hub.post_lines(*lines, token=token)
        assert reply.status == 403
        assert reply.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
    assert await hub.arrived() == []


# -- limits


@pytest.mark.anyio
async def test_r14_n56_the_number_of_updates_in_a_request_is_bounded(hub: Watched) -> None:
    lines = ['{"topic":"a"}'] * 1_000
    assert len((await hub.post_lines(*lines)).text.splitlines()) == 1_000
    reply = await hub.post_lines(*lines, '{"topic":"a"}')
    assert (reply.status, reply.detail) == (413, "the request has more than 1000 updates")
    reply = await hub.post_lines(*lines, "nonsense")  # this line is not parsed
    assert reply.status == 413
    assert len(await hub.arrived()) == 1_000


@pytest.mark.anyio
async def test_n56_the_limits_of_an_update_are_those_of_each_line() -> None:
    async with watched(max_batch=3, max_topics=3, max_topic=20) as hub:
        longest = json.dumps({"topic": ["é" * 10, "a" * 20, "a"], "id": "x" * 20, "type": "é" * 10})
        assert (await hub.post_lines(longest, longest, longest)).status == 200
        for members, told in (
            ({"topic": ["a"] * 4}, "update 2: there are 4 topics; the limit is 3"),
            ({"topic": ["a", "a" * 21]}, "update 2: topic"),
            ({"topic": "a", "id": "é" * 10 + "x"}, "update 2: id"),
            ({"topic": "a", "type": "x" * 21}, "update 2: type"),
        ):
            reply = await hub.post_lines('{"topic":"a"}', json.dumps(members), token=current_token(publish=["b"]))
            assert reply.status == 413
            assert reply.detail.startswith(told)
        assert len(await hub.arrived()) == 3


@pytest.mark.anyio
async def test_n56_t22_t24_the_limit_of_a_body_applies_to_lines_too() -> None:
    body = b'{"topic":"a"}\n'.ljust(100)
    for limit, statuses in ((100, [200, 413]), (0, [200, 200])):
        async with watched(max_body=limit) as hub:
            assert [(await hub.post(body + more, NDJSON_HEADER)).status for more in (b"", b" ")] == statuses


@pytest.mark.anyio
async def test_n56_a_batch_that_the_history_cannot_hold_until_it_is_dispatched_is_refused() -> None:
    async with watched(history_updates=8) as hub:
        assert (await hub.post_lines(*['{"topic":"a"}'] * 4)).status == 200
        assert (await hub.post_lines(*['{"topic":"a"}'] * 5)).status == 413
        assert len(await hub.arrived()) == 4
    size = Update(("a",), "x" * 1_000, id="1").size
    async with watched(history_bytes=2 * 3 * size) as hub:
        line = json.dumps({"topic": "a", "data": "x" * 1_000, "id": "1"})
        assert (await hub.post_lines(*[line] * 3)).status == 200
        assert (await hub.post_lines(*[line] * 4)).status == 413
        larger = json.dumps({"topic": "a", "data": "x" * 10_000, "id": "2"})
        assert (await hub.post_lines(larger)).status == 200  # a single update may be larger
        assert [event.id for event in await hub.arrived()] == ["1", "1", "1", "2"]


# -- any input


def answer_of(body: bytes) -> list[Update] | None:
    """Return the updates of a body, or None if it is refused.

    Any other exception is a bug of the hub.
    """
    try:
        return parse_updates(body, NDJSON, SETTINGS)
    except (InvalidRequest, TooLarge) as error:
        assert len(str(error)) < 600
        str(error).encode("utf-8")
        return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a", "\ud800", "x\udfff"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("\ud800"), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(["topic", "data", "id", "type", "retry", "private", "x", "\ud800"])


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    answer_of(body)
    answer_of(b'{"topic":"a","data":"' + body + b'"}')


@given(st.dictionaries(NAMES, JSON, max_size=5), st.booleans())
@example({"topic": ["a", "\ud800"]}, True)
@example({"topic": "a", "private": "\ud800"}, True)
def test_any_json_is_read_or_refused(members: dict[str, Any], with_topic: bool) -> None:
    updates = answer_of(json.dumps({"topic": "a"} | members if with_topic else members).encode())
    if updates is not None:
        (update,) = updates
        assert update.private is members.get("private", False)
        for text in (*update.topics, update.data, update.id, update.type or ""):
            text.encode("utf-8")


def nestings(depth: int) -> Iterator[bytes]:
    """Yield lines of nested JSON: the whole line, and each member."""
    for nested in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        yield nested.encode()
        yield f'{{"topic":{nested}}}'.encode()
        for member in ("data", "id", "type", "retry", "private", "x"):
            yield f'{{"topic":"a","{member}":{nested}}}'.encode()


def test_deep_json_is_read_or_refused() -> None:
    limit = sys.getrecursionlimit()
    for depth in (10, *range(limit - 150, limit + 5)):
        for line in nestings(depth):
            answer_of(line)


@pytest.mark.anyio
async def test_a_deeply_nested_line_is_not_a_server_error(classic_hub: Watched) -> None:
    for depth in (10, 900, 930, 960, 990, 100_000):
        for line in nestings(depth):
            assert (await classic_hub.post(line, NDJSON_HEADER)).status in ((200, 400) if b'"x"' in line else (400,))
    assert (await classic_hub.post_lines('{"topic":"a","data":"x","x":[[[]]]}')).status == 200


# -- batches in the history


@pytest.mark.anyio
async def test_n4_r43_a_batch_is_contiguous_in_the_history_despite_other_publishers(hub: Watched) -> None:
    async def batch(name: str) -> None:
        reply = await hub.post_lines(*(f'{{"topic":"{name}","data":"{n}"}}' for n in range(50)))
        assert reply.status == 200

    async def single(n: int) -> None:
        assert (await hub.post_form(("topic", "single"))).status == 200

    requests = [batch(f"batch {n}") if n % 2 else single(n) for n in range(40)]
    await asyncio.wait_for(asyncio.gather(*requests), 30)
    history = hub.app.state.hub.history
    entries: list[Entry] = []
    while page := await history.read(entries[-1].position if entries else 0):
        entries += page
    assert len(entries) == 20 * 50 + 20
    ended = set()
    start = 0
    while start < len(entries):
        (topic,) = entries[start].update.topics
        if topic == "single":
            start += 1
        else:
            run = entries[start : start + 50]
            assert [(entry.update.topics, entry.update.data) for entry in run] == [
                ((topic,), str(n)) for n in range(50)
            ]
            assert topic not in ended
            ended.add(topic)
            start += 50
    assert [event.id for event in await hub.arrived()] == [entry.update.id for entry in entries]


class Slow(MemoryHistory):
    """A history that yields before it appends, and counts the appends."""

    appends = 0

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        self.appends += 1
        await asyncio.sleep(0)
        return await super().append(updates, **options)


@pytest.mark.anyio
async def test_n112_n115_batches_wait_for_room_in_the_backlog_and_lose_nothing() -> None:
    history = Slow(Retention(max_updates=8, max_bytes=10**6))
    app = create_app(
        Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False, history_updates=8), history=history
    )
    async with app.running(), follow(app, ("match", "a")) as reader:
        headers = [NDJSON_HEADER, bearer(classic_token(publish=["*"]))]

        async def post(n: int) -> list[str]:
            body = "".join(f'{{"topic":"a","id":"{n} {m}"}}\n' for m in range(1 + n % 4))
            return (await ask(app, "POST", PATH, headers, body.encode())).text.splitlines()

        batches = await asyncio.wait_for(asyncio.gather(*map(post, range(40))), 30)
        assert history.appends == 40
        got = [(await reader.next_event()).id for _ in range(sum(map(len, batches)))]
    assert sorted(got) == sorted(id for batch in batches for id in batch)
    for batch in batches:
        start = got.index(batch[0])
        assert got[start : start + len(batch)] == batch


@pytest.mark.anyio
async def test_a_large_batch_is_one_append_and_few_writes_per_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAGE_ENTRIES", 100)
    history = Slow(Retention(max_updates=10_000, max_bytes=2**26))
    app = create_app(Settings(dev=True, retry=0, max_lifetime=0, subscriptions=False), history=history)
    writes = 0

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            nonlocal writes
            writes += message["type"] == "http.response.body"
            await send(message)

        await app(scope, receive, counting)

    async with app.running(), follow(counted, ("match", "a")) as one, follow(counted, ("match", "a")) as other:
        writes = 0
        body = b'{"topic":"a","data":"x"}\n' * 999 + b'{"topic":"a","data":"end"}\n'
        reply = await ask(app, "POST", PATH, [NDJSON_HEADER, bearer(classic_token(publish=["*"]))], body)
        assert reply.status == 200
        for reader in (one, other):
            assert len(await reader.until("end")) == 999
        assert history.appends == 1
        assert writes == 2 * 10  # a page of the history at a time


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, 3))
def test_n80_a_batch_is_published_wholly_or_not_at_all(sizes: list[int], bad: int) -> None:
    """If a batch is long enough, the token does not allow its update number `bad`."""

    async def run() -> list[str]:
        async with watched(history_updates=8) as hub:
            token = current_token(publish=["a"])
            await asyncio.gather(
                *(
                    hub.post_lines(
                        *(json.dumps({"topic": "b" if m == bad else "a", "id": f"{n} {m}"}) for m in range(size)),
                        token=token,
                    )
                    for n, size in enumerate(sizes)
                )
            )
            return [event.id for event in await hub.arrived()]

    assert asyncio.run(run()) == [f"{n} {m}" for n, size in enumerate(sizes) if size <= bad for m in range(size)]
