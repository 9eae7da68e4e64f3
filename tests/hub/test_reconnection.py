"""Reconnecting with a cursor: its source, the answer to it, and the replay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.protocol.topics import FORBIDDEN
from tests.asgi import FORM, NDJSON, PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.waiting import HANG
from tests.wire import parse_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp


pytestmark = pytest.mark.anyio

WRITER = current_token(["*"])
READER = current_token(subscribe=["*"])
CLASSIC = pytest.mark.parametrize("classic", [False, True])
CURSOR_HEADERS = (b"mercure-last-event-id", b"last-event-id")


@contextlib.asynccontextmanager
async def hub(*ids: str, **chosen: Any) -> AsyncIterator[ASGIApp]:
    """A hub without presence updates, whose history has an update for each id.

    Updates whose ids begin with p are private.
    """
    async with application(**{"subscriptions": False} | chosen) as app:
        for id in ids:
            await publish_id(app, id)
        yield app


async def publish_id(app: ASGIApp, id: str, topic: str = "a", data: str = "") -> None:
    private = [("private", "on")] if id.startswith("p") else []
    assert await publish(app, WRITER, ("topic", topic), ("id", id), ("data", data), *private) == id


async def replayed(app: ASGIApp, *parameters: tuple[str, str], **options: Any) -> tuple[list[bytes], list[str]]:
    """Return the answer to a cursor and the replayed ids, by default of all topics."""
    wanted = [] if "target" in options or "match" in dict(parameters) else [("match", "*")]
    async with follow(app, *wanted, *parameters, **options) as stream:
        assert stream.status == 200, stream.body
        await caught_up(app)
        cursors = [(name, value) for name, value in stream.raw_headers if name in CURSOR_HEADERS]
        assert [name for name, _ in cursors] in ([], list(CURSOR_HEADERS))
        return sorted({value for _, value in cursors}), ids_in(stream.body)


async def caught_up(app: Any) -> None:
    """Wait until all streams are live."""
    delivery = app.state.hub.delivery
    async with asyncio.timeout(HANG):
        while delivery.live_count < delivery.connection_count:
            await asyncio.sleep(0)


def ids_in(body: bytes) -> list[str]:
    return [event.id for block in body.decode("utf-8").split("\n\n") if (event := parse_event(block))]


# -- the source of a cursor


@pytest.mark.parametrize("name", ["last_event_id", "lastEventID"])
@CLASSIC
async def test_n105_v51_v85_n106_t63_the_cursor_is_taken_from_the_query(name: str, classic: bool) -> None:
    async with hub("1", "2", "3", classic=classic) as app:
        assert await replayed(app, (name, "1")) == ([b"1"], ["2", "3"])


@pytest.mark.parametrize("name", ["lastEventId", "Last-Event-ID"])
@CLASSIC
async def test_v51_v85_v88_names_of_old_clients_belong_to_the_classic_dialect(name: str, classic: bool) -> None:
    async with hub("1", "2", "3", classic=classic) as app:
        assert await replayed(app, (name, "1")) == (([b"1"], ["2", "3"]) if classic else ([], []))


@pytest.mark.parametrize("name", ["last_event_ID", "lasteventid", "Last_Event_Id", "last-event-id", "last_event_id "])
async def test_n105_other_names_are_not_a_cursor(name: str) -> None:
    async with hub("1", "2") as app:
        assert await replayed(app, (name, "1")) == ([], [])


@CLASSIC
async def test_n105_n106_v51_t63_the_cursor_is_taken_from_the_header(classic: bool) -> None:
    async with hub("1", "2", "3", classic=classic) as app:
        assert await replayed(app, headers=[("Last-Event-ID", "1")]) == ([b"1"], ["2", "3"])


@pytest.mark.parametrize("first", range(5))
async def test_v85_n13_n105_the_sources_of_a_cursor_have_this_order(first: int) -> None:
    names = ["last_event_id", "lastEventID", "lastEventId", "Last-Event-ID"]
    headers = [("Last-Event-ID", "1")] if first == 0 else []
    parameters = [(name, "1" if place == first else "2") for place, name in enumerate(names, 1) if place >= first]
    async with hub("1", "2", "3") as app:
        assert await replayed(app, *reversed(parameters), headers=headers) == ([b"1"], ["2", "3"])


async def test_n105_if_a_cursor_is_given_twice_the_first_counts() -> None:
    async with hub("1", "2", "3") as app:
        expected = ([b"1"], ["2", "3"])
        assert await replayed(app, ("last_event_id", "1"), ("last_event_id", "2")) == expected
        assert await replayed(app, headers=[("Last-Event-ID", "1"), ("Last-Event-ID", "2")]) == expected


@CLASSIC
async def test_n12_n13_n105_t61_a_query_has_its_cursor_in_body_query_or_header(classic: bool) -> None:
    def query(body: str, target: str = "", header: str | None = None) -> dict[str, Any]:
        headers = [FORM] if header is None else [FORM, ("Last-Event-ID", header)]
        return {"method": "QUERY", "target": f"{PATH}?{target}", "body": body.encode(), "headers": headers}

    async with hub("1", "2", "3", classic=classic) as app:
        expected = ([b"1"], ["2", "3"])
        assert await replayed(app, **query("match=a&last_event_id=1")) == expected
        assert await replayed(app, **query("match=a", "last_event_id=1")) == expected
        assert await replayed(app, **query("last_event_id=1", "match=a")) == expected
        assert await replayed(app, **query("match=a&last_event_id=2", "last_event_id=1")) == expected
        assert await replayed(app, **query("match=a&last_event_id=2", "last_event_id=3", "1")) == expected
        assert await replayed(app, **query("match=a")) == ([], [])


async def test_n13_n107_an_empty_header_hides_no_other_cursor() -> None:
    async with hub("1", "2") as app:
        expected = ([b"1"], ["2"])
        assert await replayed(app, ("last_event_id", "1"), headers=[("Last-Event-ID", "")]) == expected


# -- the answer to a cursor


@CLASSIC
async def test_n107_v52_without_a_cursor_the_response_has_none(classic: bool) -> None:
    async with hub("1", classic=classic) as app:
        assert await replayed(app) == ([], [])


@pytest.mark.parametrize(
    ("given", "answered", "expected"),
    [
        ("1", "1", ["p2", "3"]),
        ("p2", "p2", ["3"]),
        ("3", "3", []),
        ("earliest", "earliest", ["1", "p2", "3"]),
        ("unknown", "earliest", ["1", "p2", "3"]),
        ("", "earliest", []),
        ("EARLIEST", "earliest", ["1", "p2", "3"]),
        ("#x", "earliest", ["1", "p2", "3"]),
    ],
)
@pytest.mark.parametrize("where", ["header", "last_event_id", "lastEventID"])
@CLASSIC
async def test_n107_n108_n109_n110_v52_v53_t63_the_answer_is_the_id_before_the_first_event(
    given: str, answered: str, expected: list[str], where: str, classic: bool
) -> None:
    async with hub("1", "p2", "3", classic=classic) as app:
        headers = [bearer(READER)]
        if where == "header":
            found = await replayed(app, headers=[*headers, ("Last-Event-ID", given)])
        else:
            found = await replayed(app, (where, given), headers=headers)
        assert found == ([answered.encode()], expected)


@pytest.mark.parametrize("given", ["", "earliest", "1", "unknown"])
@pytest.mark.parametrize("replay_unknown", [False, True])
async def test_n107_n108_t63_the_answer_of_an_empty_history_is_earliest(given: str, replay_unknown: bool) -> None:
    async with hub(replay_unknown=replay_unknown) as app:
        assert await replayed(app, ("last_event_id", given)) == ([b"earliest"], [])


@pytest.mark.parametrize("given", ["", "unknown", "0"])
async def test_n109_v53_an_unknown_cursor_may_replay_nothing_and_gets_the_same_answer(given: str) -> None:
    async with hub("1", "2", replay_unknown=False) as app:
        assert await replayed(app, ("last_event_id", given)) == ([b"earliest"], [])


async def test_n110_earliest_replays_regardless_of_the_setting_for_unknown_cursors() -> None:
    async with hub("1", "2", replay_unknown=False) as app:
        assert await replayed(app, ("last_event_id", "earliest")) == ([b"earliest"], ["1", "2"])
        assert await replayed(app, ("last_event_id", "1")) == ([b"1"], ["2"])


@CLASSIC
async def test_n112_n108_v53_a_trimmed_id_is_unknown(classic: bool) -> None:
    async with hub(*"123456", history_updates=4, classic=classic) as app:
        assert await replayed(app, ("last_event_id", "2")) == ([b"earliest"], ["3", "4", "5", "6"])
    async with hub(*"123456", history_updates=4, classic=classic) as app:
        assert await replayed(app, ("last_event_id", "earliest")) == ([b"earliest"], ["3", "4", "5", "6"])
    async with hub(*"123456", history_updates=4, classic=classic) as app:
        assert await replayed(app, ("last_event_id", "3")) == ([b"3"], ["4", "5", "6"])


async def test_n108_the_answer_is_the_cursor_even_if_later_updates_do_not_match() -> None:
    async with hub("1") as app:
        await publish_id(app, "2", topic="b")
        await publish_id(app, "3")
        assert await replayed(app, ("match", "a"), ("last_event_id", "1")) == ([b"1"], ["3"])
        assert await replayed(app, ("match", "a"), ("last_event_id", "2")) == ([b"2"], ["3"])


async def test_n29_n108_only_cursors_of_the_history_get_into_the_headers() -> None:
    async with hub("1") as app:
        for given in ("x\r\nset-cookie: a=b", "x\0", "1\r\n", " 1", "1\n"):
            assert (await replayed(app, ("last_event_id", given)))[0] == [b"earliest"]


@pytest.mark.parametrize("id", ["earliest", "#", "#x", "%23x"])
@pytest.mark.parametrize("classic", [False, True])
async def test_n116_reserved_ids_cannot_be_published(id: str, classic: bool) -> None:
    async with hub(classic=classic) as app:
        token = classic_token(["*"]) if classic else WRITER
        body = urlencode([("topic", "a"), ("id", id)]).encode()
        answer = await ask(app, "POST", PATH, [FORM, bearer(token)], body)
        assert answer.status == (200 if id == "%23x" else 400)


# -- repeated ids


async def test_n115_a_repeated_id_is_a_cursor_for_its_earliest_event() -> None:
    async with hub("1", "x", "2", "x", "3") as app:
        assert await replayed(app, ("last_event_id", "x")) == ([b"x"], ["2", "x", "3"])


async def test_n115_n112_after_trimming_a_repeated_id_means_the_next_event() -> None:
    async with hub("x", "1", "x", "2", "x", "3", history_updates=5) as app:
        assert await replayed(app, ("last_event_id", "x")) == ([b"x"], ["2", "x", "3"])


# -- private updates


@CLASSIC
async def test_n83_n84_n111_t62_t63_a_replay_obeys_the_current_token(classic: bool) -> None:
    async with hub(classic=classic) as app:
        for id, topic in [("1", "a"), ("p2", "a"), ("p3", "b"), ("4", "b")]:
            await publish_id(app, id, topic)
        expected = {
            None: ["1", "4"],
            current_token(subscribe=["a"]): ["1", "p2", "4"],
            current_token(subscribe=["b"]): ["1", "p3", "4"],
            current_token(subscribe=["c"]): ["1", "4"],
            current_token(["a", "b"]): ["1", "4"],  # a grant to publish is no grant to read
            READER: ["1", "p2", "p3", "4"],
        }
        if classic:
            expected |= {
                classic_token(subscribe=["a"]): ["1", "p2", "4"],
                classic_token(["*"], []): ["1", "4"],
                classic_token([], ["*"]): ["1", "p2", "p3", "4"],
            }
        for token, ids in expected.items():
            headers = [] if token is None else [bearer(token)]
            assert (await replayed(app, ("last_event_id", "earliest"), headers=headers))[1] == ids


async def test_n83_n82_a_cursor_can_be_used_with_another_token() -> None:
    async with hub("1") as app:
        for id, topic in [("p2", "a"), ("p3", "b"), ("p4", "a"), ("p5", "b")]:
            await publish_id(app, id, topic)
        first, second = ([bearer(current_token(subscribe=[topic]))] for topic in "ab")
        assert await replayed(app, ("last_event_id", "1"), headers=first) == ([b"1"], ["p2", "p4"])
        assert await replayed(app, ("last_event_id", "p2"), headers=second) == ([b"p2"], ["p3", "p5"])


@pytest.mark.parametrize("given", ["", "earliest", "unknown", "1", "p4"])
@pytest.mark.parametrize("replay_unknown", [False, True])
@CLASSIC
async def test_n111_n84_t63_the_id_of_a_private_update_is_only_returned_to_a_client_that_sent_it(
    given: str, replay_unknown: bool, classic: bool
) -> None:
    async with (
        hub("p0", "1", "p2", "p3", "p4", replay_unknown=replay_unknown, classic=classic) as app,
        follow(app, ("match", "*"), ("last_event_id", given)) as stream,
    ):
        await caught_up(app)
        await publish_id(app, "p5")
        await publish_id(app, "6", data="end")
        assert [event.id for event in await stream.until("end")] in ([], ["1"])
        told = repr(stream.raw_headers) + stream.body.decode()
        assert [id for id in ("p0", "p2", "p3", "p4", "p5") if id in told] == [given] * (given == "p4")


@pytest.mark.parametrize(("replay_unknown", "unknown"), [(True, ["1", "3"]), (False, [])])
async def test_n111_n108_the_id_of_a_private_update_is_a_cursor_for_all_clients(
    replay_unknown: bool, unknown: list[str]
) -> None:
    """`earliest` would hide nothing: the replay shows whether an id is known."""
    async with hub("1", "private-2", "3", replay_unknown=replay_unknown) as app:
        assert await replayed(app, ("last_event_id", "private-2")) == ([b"private-2"], ["3"])
        assert await replayed(app, ("last_event_id", "private-4")) == ([b"earliest"], unknown)
        # A client whose token no longer grants its last update continues after it.
        for token in (READER, current_token(subscribe=["b"])):
            assert await replayed(app, ("last_event_id", "private-2"), headers=[bearer(token)]) == (
                [b"private-2"],
                ["3"],
            )


@pytest.mark.parametrize("when", ["live", "again"])
async def test_v50_n81_n22_t62_v82_a_grant_may_be_for_another_topic_of_the_update(when: str) -> None:
    """The recipe of the specification: an alternate topic names the update's user."""
    book = "https://example.com/books/1"
    user = f"https://example.com/users/foo/?{urlencode([('topic', book)])}"
    mine, yours = "https://example.com/users/foo/{?topic}", "https://example.com/users/bar/{?topic}"
    every_book = ("topic", "https://example.com/books/{id}")
    readers = [
        (every_book, [], []),
        (every_book, [bearer(classic_token([], [mine]))], ["secret"]),
        (every_book, [bearer(classic_token([], [yours]))], []),
        (every_book, [bearer(current_token(subscribe=[("uritemplate", mine)]))], ["secret"]),
        (every_book, [bearer(current_token(subscribe=[user]))], ["secret"]),
        (("match", book), [bearer(classic_token([], [mine]))], ["secret"]),
        (("match", user), [bearer(classic_token([], [book]))], ["secret"]),
        (("topic", mine), [], []),  # a request is not a grant (N22)
        (("match", "*"), [], []),
        (("match", "https://example.com/films/1"), [bearer(classic_token([], ["*"]))], []),
    ]

    async def publish_secret(app: ASGIApp) -> None:
        await publish(app, WRITER, ("topic", book), ("topic", user), ("private", ""), ("id", "secret"))

    async with hub() as app, contextlib.AsyncExitStack() as stack:
        if when == "again":
            await publish_secret(app)
        streams = [
            await stack.enter_async_context(follow(app, wanted, ("last_event_id", "earliest"), headers=headers))
            for wanted, headers, _ in readers
        ]
        await caught_up(app)
        if when == "live":
            await publish_secret(app)
            await dispatched(app)
        assert [ids_in(stream.body) for stream in streams] == [expected for _, _, expected in readers]


async def dispatched(app: Any) -> None:
    """Wait until the whole history is dispatched."""
    hub = app.state.hub
    newest = await hub.history.newest()
    async with asyncio.timeout(HANG):
        while hub.delivery.position < newest.position or hub.delivery._live.turn.locked():
            await asyncio.sleep(0)


@CLASSIC
async def test_n24_without_a_token_a_client_reads_public_updates_or_nothing(classic: bool) -> None:
    async with hub("1", "p2", classic=classic) as app:
        assert await replayed(app, ("last_event_id", "earliest")) == ([b"earliest"], ["1"])
    async with hub("1", "p2", anonymous=False, classic=classic) as app:
        assert (await ask(app, "GET", f"{PATH}?match=a&last_event_id=earliest")).status == 401
        headers = [bearer(current_token(subscribe=["b"]))]
        assert await replayed(app, ("last_event_id", "earliest"), headers=headers) == ([b"earliest"], ["1"])


async def test_n22_matchers_of_a_request_select_and_never_grant() -> None:
    async with hub("p1", "2") as app:
        for name, pattern in [("match", "a"), ("match", "*"), ("topic", "{a}"), ("topic", "*"), ("match_mqtt", "#")]:
            assert (await replayed(app, (name, pattern), ("last_event_id", "earliest")))[1] == ["2"]
        headers = [bearer(READER)]
        assert (await replayed(app, ("match", "b"), ("last_event_id", "earliest"), headers=headers))[1] == []


# -- ids of any Unicode

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters=sorted(FORBIDDEN))
IDS = st.text(CHARACTERS | st.sampled_from('é\u0661\U0001f600"%+&=;,\\ '), min_size=1, max_size=40).filter(
    lambda text: text == text.strip(" ") and not text.startswith("#") and text != "earliest"
)


@settings(max_examples=60, deadline=None)
@given(st.lists(IDS, min_size=2, max_size=4, unique=True), st.sampled_from(["header", "last_event_id", "lastEventID"]))
def test_r77_n107_v52_a_cursor_of_any_unicode_is_returned_unchanged(ids: list[str], where: str) -> None:
    async def play() -> None:
        async with hub() as app:
            for id in ids:
                await publish(app, WRITER, ("topic", "a"), ("id", id))
            options: dict[str, Any] = {"headers": [("Last-Event-ID", ids[0])]} if where == "header" else {}
            parameters = [] if where == "header" else [(where, ids[0])]
            assert await replayed(app, *parameters, **options) == ([ids[0].encode("utf-8")], ids[1:])

    asyncio.run(play())


async def test_r77_a_header_that_is_not_utf_8_is_an_unknown_cursor() -> None:
    async with hub("é", "2") as app:
        assert await replayed(app, headers=[(b"Last-Event-ID", "é".encode("latin-1"))]) == ([b"earliest"], ["é", "2"])


# -- from the replay to live updates


@CLASSIC
async def test_n106_r31_t71_updates_published_during_a_replay_follow_it(classic: bool) -> None:
    async with (
        hub(*map(str, range(300)), classic=classic) as app,
        follow(app, ("match", "*"), ("last_event_id", "0")) as stream,
    ):
        await asyncio.gather(*(publish_id(app, str(n), data="end" * (n == 399)) for n in range(300, 400)))
        assert [event.id for event in await stream.until("end")] == [str(n) for n in range(1, 399)]


async def test_n106_a_replay_may_start_within_a_batch() -> None:
    async with hub() as app:
        lines = b"".join(b'{"topic":"a","id":"%d"}\n' % n for n in range(5))
        answer = await ask(app, "POST", PATH, [NDJSON, bearer(WRITER)], lines)
        assert answer.text.split() == ["0", "1", "2", "3", "4"]
        assert await replayed(app, ("last_event_id", "2")) == ([b"2"], ["3", "4"])


async def test_r53_only_an_unknown_cursor_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with application() as app:
        await publish(app, current_token(["a"]), ("topic", "a"), ("id", "known"))
        for cursor, count in (("known", 0), ("earliest", 0), ("x" * 100, 1)):
            async with follow(app, ("match", "a"), ("last_event_id", cursor)):
                pass
            said = [record.message for record in caplog.records if "cursor not found" in record.message]
            assert len(said) == count
    assert f"last_event_id={'x' * 80}" in said[0]
    assert "x" * 81 not in said[0]
