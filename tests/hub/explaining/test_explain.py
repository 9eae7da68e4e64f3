"""Explanations: who got an update, why one did not arrive, and in which words."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from hub import Grant
from hub.auth.grant import CompiledGrant
from hub.control.commands import Identity
from hub.delivery.seat import Ending, Seat
from hub.delivery.subscriber import Subscriber
from hub.development import DEVELOPMENT_KEY
from hub.errors import InvalidRequest, NotFound, NotRunning
from hub.http.embedding import create_app
from hub.node import control, fates
from hub.node.remembered import Departed, Remembered
from hub.settings import Settings
from tests.asgi import PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.commands import run
from tests.hub.control.test_kick import token
from tests.hub.control.test_nodes import KINDS, nodes
from tests.hub.control.test_operator import over
from tests.hub.signing import sign
from tests.hub.world import compiled
from tests.waiting import until
from tests.wire import subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hub.http.embedding import HubApplication
    from tests.asgi import Following
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

ANYTHING = token("publisher")
BOOKS = "https://example.com/books"


@asynccontextmanager
async def connected(app: HubApplication, *matchers: tuple[str, str], by: str | None = None) -> AsyncIterator[Following]:
    """Subscribe, with a token or without one."""
    async with follow(app, *matchers, headers=[] if by is None else [bearer(by)]) as stream:
        assert stream.status == 200
        yield stream


def granted(subject: str, *patterns: str | tuple[str, str], **more: Any) -> str:
    return current_token(subscribe=patterns, subject=subject, **more)


# -- ten mistakes, each with the question of an operator, and the answer

MISTAKES = {
    "the claim is misspelt": (
        sign({"mercur": {"subscribe": [f"{BOOKS}/1"]}, "sub": "42", "exp": 4_000_000_000}, key=DEVELOPMENT_KEY),
        ("match", f"{BOOKS}/1"),
        "The stream of the subject '42' wants the update, and may not read it: the update is private, and its token or "
        "session grants no topic to read; claim 'mercur' is unknown, and ignored: did you mean 'mercure'?",
        "it grants nothing: neither to publish, nor to read private updates",
    ),
    "a member of the claim is misspelt": (
        sign({"mercure": {"subscribes": ["*"]}, "sub": "42", "exp": 4_000_000_000}, key=DEVELOPMENT_KEY),
        ("match", f"{BOOKS}/1"),
        "The stream of the subject '42' wants the update, and may not read it: the update is private, and its token or "
        "session grants no topic to read; member 'subscribes' of the mercure claim is unknown, and ignored: did you mean "
        "'subscribe'?",
        "it grants nothing: neither to publish, nor to read private updates",
    ),
    "the grant has another word": (
        granted("42", "https://example.com/book/1"),
        ("match", f"{BOOKS}/1"),
        "The stream of the subject '42' wants the update, and may not read it: the update is private, and no pattern of "
        "its grant matches; exact 'https://example.com/book/1' would match 'https://example.com/books/1' with 'books' "
        "for 'book'.",
        "",
    ),
    "the grant has a template of the type exact": (
        granted("42", f"{BOOKS}/{{id}}"),
        ("match", f"{BOOKS}/1"),
        "The stream of the subject '42' wants the update, and may not read it: the update is private, and no pattern of "
        "its grant matches; exact 'https://example.com/books/{id}' would match 'https://example.com/books/1' with the "
        "matcher type uritemplate.",
        "the pattern 'https://example.com/books/{id}' is of the type exact, which takes braces as text: see uritemplate",
    ),
    "the scheme is another": (
        granted("42", "*"),
        ("match", "http://example.com/books/1"),
        "The stream of the subject '42' does not want the update: none of its matchers matches; exact "
        "'http://example.com/books/1' would match 'https://example.com/books/1' with 'https' for 'http'.",
        "",
    ),
    "a slash at the end": (
        granted("42", "*"),
        ("topic", f"{BOOKS}/1/"),
        "The stream of the subject '42' does not want the update: none of its matchers matches; topic "
        "'https://example.com/books/1/' would match 'https://example.com/books/1' without the slash at its end.",
        "",
    ),
    "curl has eaten the braces": (
        granted("42", "*"),
        ("topic", f"{BOOKS}/id"),
        "The stream of the subject '42' does not want the update: none of its matchers matches; topic "
        "'https://example.com/books/id' would match 'https://example.com/books/1' with {id} for id, as a URI "
        "template: shells, and curl without -g, take braces away.",
        "",
    ),
    "the topic is encoded twice": (
        granted("42", "*"),
        ("topic", "https%3A%2F%2Fexample.com%2Fbooks%2F1"),
        "The stream of the subject '42' does not want the update: none of its matchers matches; topic "
        "'https%3A%2F%2Fexample.com%2Fbooks%2F1' would match 'https://example.com/books/1' if it were decoded: it is "
        "encoded once too often.",
        "",
    ),
    "upper case": (
        granted("42", "*"),
        ("match_uritemplate", "https://example.com/Books/{id}"),
        "The stream of the subject '42' does not want the update: none of its matchers matches; uritemplate "
        "'https://example.com/Books/{id}' would match 'https://example.com/books/1' if the case of letters did not count.",
        "",
    ),
    "the subject is written differently": (
        granted("user/42", "*"),
        ("match", f"{BOOKS}/1"),
        "The subject '42' has no stream, and ended ones are not remembered; there is 'user/42'.",
        "",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_found_with_one_question(mistake: str) -> None:
    signed, matcher, sentence, hint = MISTAKES[mistake]
    async with application(subscriptions=False) as app, connected(app, matcher, by=signed):
        id = await publish(app, ANYTHING, ("topic", f"{BOOKS}/1"), ("private", "on"))
        found = await app.explain(update=id, subject="42")
        assert found.sentence == sentence
        if hint:
            assert hint in found.subscribers[0]["hints"]
        # The same for an update that might be published, and for a stream that might begin.
        imagined = await app.explain(
            f"{BOOKS}/1", private=True, stream=f"https://hub.example{PATH}?{urlencode([matcher])}", token=signed
        )
        if found.subscribers:
            assert imagined.sentence == sentence.replace("The stream of the subject '42'", "It")
            (row,) = imagined.subscribers
            assert (row["wants"], row["may_read"]) == (found.subscribers[0]["wants"], found.subscribers[0]["may_read"])
        else:
            assert imagined.sentence == "It would receive the update."


# -- who got it


async def test_the_answer_for_an_update_counts_all_and_names_some() -> None:
    async with application(subscriptions=False, remembered_connections=10) as app, AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(connected(app, ("match", "a"), by=granted("ann", "a"))),
            await stack.enter_async_context(connected(app, ("topic", "{x}"), by=granted("bob", "b"))),
            await stack.enter_async_context(connected(app, ("match", "b"))),
        ]
        async with connected(app, ("match", "a"), by=granted("gone", "a")) as gone:
            id = await publish(app, ANYTHING, ("topic", "a"), ("private", "on"), ("data", "x"))
            await gone.next_event()
        await until(lambda: app.hub.delivery.connection_count == 3)
        async with connected(app, ("match", "a"), by=granted("late", "a")):
            await streams[0].next_event()
            found = await app.explain(update=id)
        assert found.fates == {"unwanted": 1, "received": 2, "denied": 1, "late": 1}
        assert found.connected == 4
        assert found.update == {
            "topics": ["a"],
            "private": True,
            "id": id,
            "type": None,
            "published": found.update["published"],
        }
        assert {(row["subject"], row["fate"]) for row in found.subscribers} == {
            ("ann", "received"), ("gone", "received"), ("bob", "denied"), ("late", "late")
        }  # fmt: skip
        assert found.sentence == (
            "Streams: 2 were sent it; 1 began after it; 1 wants it, and may not read it; 1 does not want it."
        )
        (ended,) = [row for row in found.subscribers if "ended" in row]
        assert ended["ended_because"] == "the client went away"
        # Such an update, if it were published now.
        found = await app.explain("a", private=True)
        assert (found.fates, found.update) == (
            {"unwanted": 1, "receives": 1, "denied": 1},
            {"topics": ["a"], "private": True},
        )
        found = await app.explain("c/d")
        near = "topic '{x}' would match 'c/d' with {+…} for {…}, which takes slashes"
        assert found.sentence == f"No stream gets it: 3 do not want it; {near}."
    assert (found.silent, found.similar) == ([], [])


async def test_a_typing_error_of_the_publisher_is_found_without_a_name() -> None:
    async with application(subscriptions=False) as app, AsyncExitStack() as stack:
        for number in range(300):
            await stack.enter_async_context(connected(app, ("match", f"{BOOKS}/{number}")))
            await stack.enter_async_context(connected(app, ("match", "https://example.com/news")))
        for wrong, near in (
            ("http://example.com/books/42", "exact 'https://example.com/books/42' would match"),
            ("https://example.com/book/42", "exact 'https://example.com/books/42' would match"),
            ("https://example.com/Books/299", "exact 'https://example.com/books/299' would match"),
            ("https://example.com/news/", "exact 'https://example.com/news' would match"),
        ):
            found = await app.explain(wrong)
            assert found.fates == {"unwanted": 600}
            assert found.sentence.startswith(f"No stream gets it: 600 do not want it; {near} {wrong!r} ")
            assert 1 <= len(found.subscribers) <= fates.MAX_NEAR
            assert all(row["fate"] == "unwanted" for row in found.subscribers)
            assert all(row["wants"][0]["near_miss"] for row in found.subscribers)
        # If someone wants it, or nothing is like it, no stream is named that does not want it.
        assert (await app.explain(f"{BOOKS}/1")).fates == {"receives": 1, "unwanted": 599}
        assert [row["fate"] for row in (await app.explain(f"{BOOKS}/1")).subscribers] == ["receives"]
        found = await app.explain("urn:else")
        assert (found.sentence, found.subscribers) == ("No stream gets it: 600 do not want it.", [])


async def test_a_client_that_was_away_is_told_apart_from_one_that_came_late() -> None:
    async with application(subscriptions=False, remembered_connections=10) as app:
        signed = granted("42", "a")
        async with connected(app, ("match", "a"), by=signed):
            pass
        await until(lambda: app.hub.delivery.connection_count == 0)
        id = await publish(app, ANYTHING, ("topic", "a"), ("private", "on"))
        found = await app.explain(update=id, subject="42")
        assert (found.sentence, found.fates) == (
            "The stream of the subject '42' ended before it was sent the update.",
            {"left": 1},
        )
        async with connected(app, ("match", "a"), by=signed):
            found = await app.explain(update=id, subject="42")
            assert found.sentence == (
                "The 2 streams of the subject '42': 1 ended before it was sent it; 1 began after it."
            )
            assert [row["sentence"] for row in found.subscribers] == [
                "It began after the update: its cursor was there already, or it had none.",
                "It ended before it was sent the update.",
            ]
            # With a cursor, it would have got it.
            query = f"https://hub.example{PATH}?match=a&last_event_id=earliest"
            assert (await app.explain(update=id, stream=query, token=signed)).sentence == "It was sent the update."
            late = await app.explain(update=id, stream=f"https://hub.example{PATH}?match=a", token=signed)
            assert late.sentence == "It began after the update: its cursor was there already, or it had none."


async def test_only_so_many_ended_connections_are_remembered() -> None:
    async with application(subscriptions=False, remembered_connections=2) as app:
        for number in range(5):
            async with connected(app, ("match", "a"), by=granted(f"user {number}", "a")):
                pass
            await until(lambda: app.hub.delivery.connection_count == 0)
        id = await publish(app, ANYTHING, ("topic", "a"))
        counts = [sum((await app.explain(update=id, subject=f"user {number}")).fates.values()) for number in range(5)]
        assert counts == [0, 0, 0, 1, 1]
        async with connected(
            app, *[("match", f"{number}/{'x' * 400}") for number in range(10)], by=granted("large", "a")
        ):
            pass
        await until(lambda: app.hub.delivery.connection_count == 0)
        assert (await app.explain(update=id, subject="user 4")).fates == {}  # many patterns count for more


@pytest.mark.parametrize(
    ("start", "until", "more", "pattern", "fate"),
    [
        (1, 9, 0, "a", "received"),
        (1, 2, 0, "a", "received"),
        (1, 1, 0, "a", "left"),
        (0, 1, 1, "a", "received"),  # one more entry was sent, which is this one
        (0, 0, 1, "*", "left"),  # one more entry was sent, which is the one before
        (0, 0, 2, "*", "received"),
        (2, 9, 0, "a", "late"),
        (1, 9, 0, "b", "unwanted"),
    ],
)
async def test_the_window_of_an_ended_connection_decides(
    start: int, until: int, more: int, pattern: str, fate: str
) -> None:
    async with application(subscriptions=False, remembered_connections=10) as app:
        await publish(app, ANYTHING, ("topic", "b"))
        id = await publish(app, ANYTHING, ("topic", "a"))
        await publish(app, ANYTHING, ("topic", "a"))
        (remembered,) = [one for one in app.hub.observer.all if isinstance(one, Remembered)]
        identity = Identity("classic", "42")
        ended = Departed("x", identity, "", (("exact", pattern),), (), start, until, more, "it failed", 0.0)
        remembered._ended.append(ended)
        found = await app.explain(update=id, subject="42")
        assert found.fates == {fate: 1}
        assert found.subscribers[0]["ended_because"] == "it failed"
        # Of all, only those count that were there.
        assert (await app.explain(update=id)).fates == ({fate: 1} if fate == "received" else {})


async def test_an_ended_connection_begins_where_it_got_its_first_entry() -> None:
    remembered = Remembered(1, lambda: 5.0)
    seats = [Seat(Subscriber(compiled(["a"]), CompiledGrant(), -1), None) for _ in range(3)]
    for number, seat in enumerate(seats):
        seat.id = number
        remembered.seated(seat, 7 + number)
    for number, seat in enumerate(seats):
        remembered.left(seat, 20, 0, Ending.FAILED)
        (ended,) = remembered
        assert (ended.start, ended.until, ended.time) == (7 + number, 20, 5.0)
    assert (remembered._size, remembered._starts) == (ended.size, {})


async def test_of_many_matchers_the_nearest_ones_are_explained() -> None:
    far = [("match", f"https://e.com/x/y/{number}") for number in range(20)]
    near = [("match", "https://e.com/books/1/x"), ("match", "https://e.com/books/2")]
    query = "?" + urlencode([*far, *near])
    async with application() as app:
        (row,) = (await app.explain("https://e.com/books/1", stream=query)).subscribers
        patterns = [one["pattern"] for one in row["wants"]]
        assert (len(patterns), patterns[:2]) == (10, ["https://e.com/books/2", "https://e.com/books/1/x"])


async def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates, "MAX_SHOWN", 2)
    monkeypatch.setattr(fates, "MAX_NAMED", 1)
    async with application(subscriptions=False) as app, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(connected(app, ("match", "a"), by=granted("ann", "a")))
        found = await app.explain("a")
        assert (found.fates, len(found.subscribers)) == ({"receives": 3}, 2)
        found = await app.explain("a", subject="ann")
        assert (found.fates, len(found.subscribers)) == ({"receives": 3}, 1)
        assert found.sentence == "Each of the 3 streams of the subject 'ann' would receive the update."
        query = "?" + "&".join(f"match={number}" for number in range(30))
        (row,) = (await app.explain("29", "b", stream=query)).subscribers
        assert [one["pattern"] for one in row["wants"]][:1] == ["29"]
        assert len(row["wants"]) == 10


async def test_a_stream_that_is_behind_says_how_far() -> None:
    async with application(subscriptions=False) as app, connected(app, ("match", "a"), by=granted("42", "a")) as stream:
        (seat,) = app.hub.delivery.audience
        id = await publish(app, ANYTHING, ("topic", "a"))
        assert (await stream.next_event()).id == id
        assert (await app.explain(update=id, subject="42")).fates == {"received": 1}
        holder: Any = seat.holder
        holder._leave(0)  # as a write without room does
        holder._to("behind")
        found = await app.explain(update=id, subject="42")
        assert found.sentence == (
            "The stream of the subject '42' was not sent the update yet, because its client has not read what comes "
            "before: 1 entry of the history."
        )
        holder._to("catching_up")
        holder._connection.start(holder._catch_up)


async def test_questions_at_the_same_time_have_whole_answers() -> None:
    async with application(subscriptions=False) as app, connected(app, ("match", "a"), by=granted("42", "a")):
        found = await asyncio.gather(*(app.explain("a") for _ in range(120)))
        assert {(one.fates["receives"], len(one.subscribers), tuple(one.silent)) for one in found} == {(1, 1, ())}


async def test_a_process_that_cannot_answer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.01)

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with application() as app:
        app.hub.control._answers_of = {"explain": hang}
        found = await app.explain("a")
        assert (found.connected, found.silent) == (0, [app.hub.history.node])


async def test_an_update_with_many_topics_is_found_by_its_id() -> None:
    async with application(subscriptions=False) as app, connected(app, ("match", f"{'x' * 130}89")) as stream:
        id = await publish(app, ANYTHING, *[("topic", f"{'x' * 130}{number}") for number in range(90)])
        assert (await stream.next_event()).id == id
        assert (await app.explain(update=id)).fates == {"received": 1}


async def test_what_is_not_known_of_an_ended_connection_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with application(subscriptions=False, remembered_connections=10, history_updates=3) as app:
        ids = [await publish(app, ANYTHING, ("topic", "a")) for _ in range(6)]
        (remembered,) = [one for one in app.hub.observer.all if isinstance(one, Remembered)]
        about = Identity("classic", "42"), "", (("exact", "a"), ("exact", "b")), ()
        remembered._ended.append(Departed("x", *about, 0, 1, 5, "it failed", 0.0))  # what came then is forgotten
        for found in (await app.explain(update=ids[-1], subject="42"), await app.explain(update=ids[-1])):
            assert found.fates == {"unknown": 1}
        monkeypatch.setattr(fates, "MAX_COMPILED", 1)
        remembered._ended.append(Departed("y", *about, 0, 6, 0, "it failed", 0.0))
        found = await app.explain(update=ids[-1], subject="42")
        assert found.fates == {"unknown": 2}
        assert found.subscribers[0]["sentence"] == "It has ended, and it is not known whether it was sent the update."


async def test_an_update_that_waits_for_its_process_is_no_fault_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with application(subscriptions=False) as app, connected(app, ("match", "a"), by=granted("42", "a")):
        held = asyncio.Event()
        dispatch = app.hub.delivery._live.dispatch

        async def hold(entries: Any) -> Any:
            await held.wait()
            return await dispatch(entries)

        monkeypatch.setattr(app.hub.delivery._live, "dispatch", hold)
        id = await publish(app, ANYTHING, ("topic", "a"))
        found = await app.explain(update=id, subject="42")
        assert found.sentence == (
            "The stream of the subject '42' was not sent the update yet, because its process has not dispatched it yet."
        )
        held.set()


# -- a stream that would begin now


async def test_a_stream_that_the_hub_would_refuse_says_why() -> None:
    async with application(anonymous=False) as app:
        at = f"https://hub.example{PATH}"
        for query, signed, reason in [
            ("match=a", None, "it has no token, and anonymous clients may not subscribe"),
            ("match=a", "x.y", "its token is not valid: "),
            ("match=a", granted("42", "a", seconds=-60), "exp "),
            ("match=a", granted("42", "a", resource="https://other.example"), "lacks 'https://hub.example"),
            ("matches=a", granted("42", "a"), "the request breaks a rule: "),
            ("match_uritemplate={", granted("42", "a"), "the request breaks a rule: "),
            ("", granted("42", "a"), "the request breaks a rule: "),
        ]:
            found = await app.explain("a", stream=f"{at}?{query}", token=signed)
            assert found.sentence.startswith("The hub refuses the stream: ")
            assert reason in found.sentence
            assert [row["fate"] for row in found.subscribers] == [None]
        found = await app.explain("a", stream="https://hub.example/?match=a", token=granted("42", "a"))
        assert found.sentence.startswith(
            "The hub refuses the stream: its path '/' is not that of the hub, '/.well-known"
        )
        with pytest.raises(InvalidRequest, match="the stream is no URL"):
            await app.explain("a", stream="?match=\ud800")
        # The token may be in the URL, as an EventSource of the classic dialect has it.
        classic = classic_token(subscribe=["a"])
        found = await app.explain("a", private=True, stream=f"{at}?topic=a&authorization={classic}")
        assert found.sentence == "It would receive the update."
        assert found.subscribers[0]["hints"] == []
        await app.revoke(subject="42")
        found = await app.explain("a", stream=f"{at}?match=a", token=granted("42", "a", now=1.0, seconds=4e9))
        assert found.sentence == "The hub refuses the stream: its token is not valid: it is revoked."


async def test_a_stream_of_the_application_is_explained_by_its_grant() -> None:
    async with application(subscriptions=False) as app:
        found = await app.explain("a", private=True, stream="?match=a", grant=Grant(subscribe=["b"], subject="42"))
        assert found.sentence.endswith("exact 'b' would match 'a' with 'a' for 'b'.")
        found = await app.explain("a", private=True, stream="?match=a")
        assert found.sentence == (
            "It wants the update, and may not read it: the update is private, and it came without a token."
        )
        (row,) = (await app.explain("a", stream="?topics=a&match=b")).subscribers
        assert "parameter 'topics' is unknown, and ignored: did you mean 'topic'?" in row["hints"]
        for replays, place in ((True, "oldest"), (False, "next")):
            async with application(subscriptions=False, replay_unknown=replays) as other:
                await publish(other, ANYTHING, ("topic", "a"))
                (row,) = (await other.explain("a", stream="?match=a&last_event_id=x")).subscribers
                assert row["hints"] == [
                    f"the history does not have the cursor 'x': the stream begins with the {place} update"
                ]
        with pytest.raises(InvalidRequest, match="the stream is no URL"):
            await app.explain("a", stream="http://[?match=a")


async def test_a_question_that_cannot_be_answered_is_refused() -> None:
    async with application() as app:
        for topics, question in [
            ((), {}),
            (("a",), {"update": "b"}),
            (("a",), {"stream": "?match=a", "subject": "42"}),
            (("a",), {"token": "x"}),
            (("a",), {"subject": "42", "token_id": "x"}),
            (("a",), {"issuer": "x"}),
            (("a",) * 101, {}),
            (("a" * 9_000,), {}),
            ((), {"update": "x", "private": True}),
        ]:
            with pytest.raises(InvalidRequest):
                await app.explain(*topics, **question)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="the history has no update with the id 'x'"):
            await app.explain(update="x")
        with pytest.raises(TypeError, match="names no stream"):
            await app.explain("a", name="x")  # type: ignore[call-arg]
    with pytest.raises(NotRunning):
        await create_app(Settings(dev=True)).explain("a")


# -- over the socket, and on several processes


async def test_no_explanation_is_on_the_public_listener() -> None:
    async with application() as app:
        for path in ("/explain", f"{PATH}/explain"):
            assert (
                await ask(app, "POST", path, [("content-type", "application/json")], b'{"topics":["a"]}')
            ).status == 404


async def test_the_operator_asks_over_the_socket(tmp_path: Path) -> None:
    place = tmp_path / "hub.sock"
    async with (
        application(subscriptions=False, operator_socket=str(place)) as app,
        connected(app, ("match", "a")),
        over(place) as client,
    ):
        answer = (await client.post("/explain", json={"topics": ["a"], "private": True})).json()
        assert answer == json.loads(json.dumps((await app.explain("a", private=True))._asdict()))
        assert list(answer) == ["sentence", "update", "connected", "fates", "subscribers", "similar", "silent"]
        for body in (
            {"topics": "a"},
            {"topics": [1]},
            {"topics": ["a"], "private": 1},
            {"topics": ["a"], "x": "y"},
            {"stream": 1},
        ):
            assert (await client.post("/explain", json=body)).status_code == 400
        assert (await client.post("/explain", json={"update": "x"})).status_code == 404


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_all_processes_answer(kind: str, url_of: Callable[[str], str]) -> None:
    async with nodes(url_of(kind), 3, subscriptions=False, remembered_connections=5) as made, AsyncExitStack() as stack:
        for app in made:
            for name, pattern in (("ann", "a"), ("bob", "b")):
                await stack.enter_async_context(connected(app, ("match", "a"), by=granted(name, pattern)))
        async with connected(made[2], ("match", "a"), by=granted("gone", "a")):
            id = await publish(made[0], ANYTHING, ("topic", "a"), ("private", "on"))
            await until(lambda: all(app.hub.delivery.dispatched >= 1 for app in made))
        await until(lambda: made[2].hub.delivery.connection_count == 2)
        for app in made:
            found = await app.explain(update=id)
            assert (found.fates, found.connected, found.silent) == ({"received": 4, "denied": 3}, 6, [])
            assert len({row["process"] for row in found.subscribers if "process" in row}) == 3
        found = await made[1].explain(update=id, subject="bob")
        assert found.fates == {"denied": 3}
        assert found.sentence.startswith(
            "Each of the 3 streams of the subject 'bob' wants the update, and may not read it"
        )


@pytest.mark.processes
async def test_the_command_says_why(start_hub: type[HubProcess], tmp_path: Path) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub(
        "--workers",
        "2",
        HUB_OPERATOR_SOCKET=str(place),
        HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db",
        HUB_SUBSCRIPTIONS="0",
    )

    async def told(*arguments: str) -> tuple[int, str, str]:
        ended = await asyncio.to_thread(run, "explain", *arguments, "--socket", str(place))
        return ended.returncode, ended.stdout, ended.stderr

    async with await subscribe(hub, ("match", "http://e.com/1"), token=token("42", subscribe=("http://e.com/2",))):
        status, out, _ = await told("https://e.com/1", "--subject", "42")
        lines = out.splitlines()
        assert status == 0
        assert lines[0].startswith("The stream of the subject '42' does not want the update: ")
        assert lines[2].endswith("  42 (classic)  127.0.0.1: unwanted")
        assert re.fullmatch(r"  cursor       began after position \d+; sent what it wants up to position \d+", lines[4])
        assert lines[5] == (
            "  matcher      exact http://e.com/1  does not match https://e.com/1: character 5 is 's', not ':'; it would match "
            "with 'https' for 'http'"
        )
        status, out, _ = await told(
            "http://e.com/1", "--private", "--match", "http://e.com/{id}", "--token", token("42", subscribe=())
        )
        assert out.splitlines()[2:] == [
            "The stream: denied",
            "  matcher      uritemplate http://e.com/{id}  matches http://e.com/1",
            "  grant        none",
        ]
        status, out, _ = await told("http://e.com/1", "--json")
        assert json.loads(out)["fates"] == {"receives": 1}
        for arguments, reason in [
            ((), "give the topics of an update"),
            (("a", "--token", "x"), "a token needs --stream or --match"),
            (("a", "--stream", "?match=a", "--match", "b"), "give --stream, or --match"),
            (("a", "--subject", "a", "--token-id", "b"), "exactly one of"),
        ]:
            status, out, err = await told(*arguments)
            assert (status, out) == (2, "")
            assert reason in err
        status, out, err = await told("--update", "x")
        assert (status, out) == (1, "")
        assert "the history has no update with the id 'x'" in err
