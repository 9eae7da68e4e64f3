"""The program around a hub publishes and subscribes without HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hub import Settings, Update, create_app
from hub.errors import Closing, HistoryUnavailable, InvalidRequest, NotRunning, PositionExpired
from tests.asgi import PATH, application, ask, current_token, follow, publish
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hub.history.base import Page

pytestmark = pytest.mark.anyio


async def take(updates: AsyncIterator[Update], count: int) -> list[str]:
    """Return the data of the next updates."""
    return [(await asyncio.wait_for(anext(updates), HANG)).data for _ in range(count)]


# -- publish


async def test_publish_returns_the_id_and_subscribers_receive_the_update() -> None:
    async with application() as app, follow(app, ("topic", "a")) as stream:
        id = await app.publish("a", data={"n": 1}, type="t", retry=5)
        event = await stream.next_event()
        assert (event.id, event.data, event.type) == (id, '{"n":1}', "t")
        assert await app.publish("b", "a", id="i", private=False) == "i"
        assert (await stream.next_event()).id == "i"


async def test_many_updates_are_published_wholly_or_not_at_all() -> None:
    async with application() as app, follow(app, ("topic", "a")) as stream:
        ids = await app.publish_many([Update(("a",), "1"), Update(("a",), "2", id="i")])
        assert [(await stream.next_event()).id for _ in range(2)] == ids
        assert ids[1] == "i"
        with pytest.raises(InvalidRequest, match="update 2: topic"):
            await app.publish_many([Update(("a",), "3"), Update(("*",))])
        assert await app.publish_many([]) == []
        await app.hub.publish()
        await app.publish("a", data="4")
        assert (await stream.next_event()).data == "4"


@pytest.mark.parametrize(
    ("fields", "error"),
    [({}, "missing"), ({"topics": ["*"]}, "reserved"), ({"topics": ["a"], "id": "#"}, "reserved")],
)
async def test_the_program_publishes_under_the_rules_of_all(fields: dict[str, Any], error: str) -> None:
    async with application() as app:
        with pytest.raises(InvalidRequest, match=error):
            await app.publish(*fields.pop("topics", ()), **fields)


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.publish("a", {"x": 1}),
        lambda app: app.publish(["a", "b"], data="1"),
        lambda app: app.publish_many([{"topic": "a"}]),
        lambda app: app.publish("a", data=7),
        lambda app: anext(app.subscribe(["a"])),
    ],
)
async def test_a_value_of_a_wrong_type_is_an_error_that_names_it(call: Callable[[Any], Any]) -> None:
    async with application() as app:
        with pytest.raises(
            TypeError, match=r"^(topic .* is no text; topics are separate|.* is no Update|data is of type)"
        ):
            await call(app)


async def test_a_retry_is_a_whole_number() -> None:
    async with application() as app:
        with pytest.raises(InvalidRequest, match=r"retry 1\.5 is not a number of milliseconds"):
            await app.publish("a", retry=1.5)  # type: ignore[arg-type]


@pytest.mark.processes
def test_a_program_with_a_log_of_its_own_publishes() -> None:
    script = """
import asyncio, structlog
from hub import Settings, create_app
structlog.configure(processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.ReturnLoggerFactory())
async def main():
    app = create_app(Settings(anonymous=True))
    async with app.running():
        print(await app.publish("a", id="1"))
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "1\n"


async def test_a_publish_that_waits_for_room_ends_with_the_hub() -> None:
    app = create_app(Settings(dev=True, history_updates=2))  # one update may be in flight

    async def follow(after: int) -> AsyncIterator[Any]:
        await asyncio.Event().wait()  # nothing is dispatched
        yield

    app.hub.history.follow = follow  # type: ignore[method-assign]
    async with app.running():
        await app.publish("a")
        waiting = asyncio.ensure_future(app.publish("a"))
        await asyncio.sleep(0)
        assert not waiting.done()
    with pytest.raises(Closing):
        await asyncio.wait_for(waiting, HANG)


# -- publish from a thread


async def test_another_thread_publishes_and_gets_the_id() -> None:
    async with application() as app, follow(app, ("topic", "a")) as stream:
        id = await asyncio.to_thread(app.publish_sync, "a", data="1")
        event = await stream.next_event()
        assert (event.id, event.data) == (id, "1")
        with pytest.raises(InvalidRequest, match="reserved"):
            await asyncio.to_thread(app.publish_sync, "*")


async def test_the_thread_of_the_loop_must_not_wait_for_itself() -> None:
    async with application() as app:
        with pytest.raises(RuntimeError, match=r"would block the event loop of the hub: here, use `await publish"):
            app.publish_sync("a")


async def test_the_thread_of_another_loop_may_wait() -> None:
    async with application() as app:

        async def elsewhere() -> str:
            return app.publish_sync("a", id="i")

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == "i"


async def test_a_thread_cannot_publish_before_the_hub_runs_or_after_it() -> None:
    app = create_app(Settings(dev=True))
    with pytest.raises(NotRunning, match="the lifespan of the application around it must enter"):
        app.publish_sync("a")
    async with app.running():
        await asyncio.to_thread(app.publish_sync, "a")
    with pytest.raises(NotRunning):
        await asyncio.to_thread(app.publish_sync, "a")


def test_a_thread_that_waits_is_freed_if_the_loop_ends() -> None:
    # The hub's loop stops while the publish of another thread is under way.
    raised: list[BaseException] = []

    async def main() -> None:
        app = create_app(Settings(dev=True))
        began = asyncio.Event()

        async def never(*_: object) -> None:
            began.set()
            await asyncio.Event().wait()

        def publish() -> None:
            try:
                app.publish_sync("a")
            except BaseException as error:
                raised.append(error)

        async with app.running():
            app.hub.publish = never  # type: ignore[method-assign,assignment]
            thread = threading.Thread(target=publish)
            threads.append(thread)
            thread.start()
            await asyncio.wait_for(began.wait(), HANG)

    threads: list[threading.Thread] = []
    asyncio.run(main())
    threads[0].join(HANG)
    assert [type(error) for error in raised] == [Closing]


def test_a_thread_that_publishes_to_a_loop_that_has_just_stopped_is_freed() -> None:
    loop = asyncio.new_event_loop()
    app = create_app(Settings(dev=True))
    app._loop = loop  # as if the hub had run until now
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            app.publish_sync("a")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    thread.join(0.01)
    loop.close()
    thread.join(HANG)
    assert not thread.is_alive()
    assert isinstance(raised[0], Closing | NotRunning)


# -- subscribe


async def test_the_program_receives_each_update_that_matches_also_private_ones() -> None:
    async with application() as app:
        updates = app.subscribe("/books/{id}", match_mqtt=["news/#", "sport/+"])
        await publish(app, current_token(["*"]), ("topic", "/books/1"), ("data", "1"))
        await app.publish("other")
        await app.publish("news/a/b", "x", data="2", private=True, type="t")
        await app.publish("sport/x", data="3")
        async with aclosing(updates):
            assert await take(updates, 1) == ["1"]
            second = await anext(updates)
            assert (second.topics, second.private, second.type) == (("news/a/b", "x"), True, "t")
            assert await take(updates, 1) == ["3"]


async def test_an_iterator_begins_when_it_is_asked_for() -> None:
    async with application() as app:
        await app.publish("a", data="before")
        updates = app.subscribe("a")
        await app.publish("a", data="after")
        assert await take(updates, 1) == ["after"]


async def test_updates_arrive_while_the_program_waits() -> None:
    async with application() as app:
        updates = app.subscribe("a")
        waiting = asyncio.ensure_future(take(updates, 2))
        while not app.hub.delivery.connection_count:  # it has its seat
            await asyncio.sleep(0)
        await app.publish("a", data="1")
        await app.publish("b")
        await app.publish("a", data="2")
        assert await waiting == ["1", "2"]


async def test_a_cursor_says_where_to_begin() -> None:
    async with application() as app:
        ids = [await app.publish("a", data=str(number)) for number in range(300)]  # several pages
        read = [update.data async for update in app.subscribe("a", last_event_id=ids[9], wait=False)]
        assert read == [str(number) for number in range(10, 300)]
        read = [update.data async for update in app.subscribe(match="*", last_event_id="earliest", wait=False)]
        assert len(read) == 300
        assert [one async for one in app.subscribe("a", wait=False)] == []
        assert [one async for one in app.subscribe("b", last_event_id="earliest", wait=False)] == []


async def test_reading_what_there_is_includes_each_update_that_was_answered() -> None:
    async with application() as app:
        for number in range(20):
            id = await app.publish("a", data=str(number))
            assert [u.id async for u in app.subscribe("a", last_event_id="earliest", wait=False)][-1] == id


async def test_nothing_is_read_before_the_end_of_the_history_is_known() -> None:
    # Otherwise the program would get all that was published before.
    app = create_app(Settings(dev=True))
    app.hub.history.end = _unavailable  # type: ignore[method-assign]
    async with app.running():
        with pytest.raises(HistoryUnavailable):
            app.subscribe("a")


async def _unavailable() -> int:
    raise HistoryUnavailable("gone")


async def test_the_iteration_ends_when_the_hub_shuts_down() -> None:
    async with application() as app:
        waiting = asyncio.ensure_future(take(app.subscribe("a"), 1))
        while not app.hub.delivery.connection_count:
            await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_the_iteration_ends_at_a_shutdown_even_if_the_history_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = create_app(Settings(dev=True))
    asked = asyncio.Event()

    async def fails(after: int) -> Page:
        asked.set()
        raise HistoryUnavailable("gone")

    async with app.running():
        ids = [await app.publish("a") for _ in "ab"]
        while app.hub.delivery.dispatched < 2:
            await asyncio.sleep(0)
        monkeypatch.setattr(app.hub.history, "read", fails)
        waiting = asyncio.ensure_future(anext(app.subscribe("a", last_event_id=ids[0])))
        await asked.wait()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, HANG)


async def test_a_program_that_stops_reading_leaves_nothing_behind() -> None:
    async with application() as app:
        async for _ in app.subscribe("a", last_event_id=await app.publish("a"), wait=False):
            raise AssertionError
        await app.publish("a")
        async for _ in app.subscribe("a", last_event_id="earliest"):
            break
        while app.hub.delivery.connection_count:  # the event loop closes the iterator
            await asyncio.sleep(0)


async def test_a_program_that_is_too_slow_is_told() -> None:
    async with application(history_updates=200) as app:
        updates = app.subscribe("a")
        await app.publish("a", data="1")
        assert await take(updates, 1) == ["1"]
        for number in range(400):
            await app.publish("a", data=str(number))
        with pytest.raises(PositionExpired):
            await take(updates, 400)


async def test_the_program_is_announced_to_nobody_and_counts_toward_no_limit() -> None:
    async with application(subscriptions=True, max_connections=1) as app:
        waiting = asyncio.ensure_future(take(app.subscribe("a"), 1))
        while not app.hub.delivery.connection_count:
            await asyncio.sleep(0)
        async with follow(app, ("topic", "a")) as stream:
            assert stream.status == 200
        token = current_token(subscribe=["*"])
        listed = await ask(app, "GET", f"{PATH}/subscriptions", [("authorization", f"Bearer {token}")])
        assert json.loads(listed.body)["subscriptions"] == []
        await app.publish("a", data="1")
        assert await waiting == ["1"]


async def test_what_cannot_be_asked_for_is_an_error_at_once() -> None:
    async with application() as app:
        with pytest.raises(InvalidRequest, match="there is no topic and no matcher"):
            app.subscribe()
        with pytest.raises(TypeError, match="match_mqqt is not the name of a matcher: there are topic, match, match_"):
            app.subscribe(match_mqqt="a")  # type: ignore[call-arg]
        with pytest.raises(InvalidRequest, match="a#"):
            app.subscribe(match_amqp="a#")
    with pytest.raises(NotRunning, match="is not running"):
        app.subscribe("a")


# -- a wrong mount


async def test_a_mount_that_the_path_lacks_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Settings(dev=True))
    outer = Starlette(routes=[Mount("/live", app)])
    async with app.running():
        answers = [await ask(outer, "GET", f"/live{PATH}?match=a") for _ in range(2)]
        assert [answer.status for answer in answers] == [404, 404]
        told = f"its path must be the whole one: Settings(path='/live{PATH}')"
        assert told in answers[0].detail
        assert caplog.text.count(told) == 1
        assert "mounted" not in (await ask(outer, "GET", f"/live/live{PATH}?match=a")).detail
    right = create_app(Settings(dev=True, path=f"/live{PATH}"))
    outer = Starlette(routes=[Mount("/live", right)])
    async with right.running():
        assert (await ask(outer, "GET", f"/live{PATH}?match=a")).status == 200
        assert "mounted" not in (await ask(outer, "GET", f"/live/live{PATH}?match=a")).detail
