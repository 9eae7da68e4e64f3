"""An application decides what its clients may do, with a function of its own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import math
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from itsdangerous import TimestampSigner
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.routing import Mount

from hub import ConfigurationError, Grant, Settings, create_app
from hub.delivery.subscriber import payer_at
from hub.errors import Undecided
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.http import authorization
from hub.http.embedding import HubApplication
from hub.hub import Hub
from hub.protocol.events import HEARTBEAT
from hub.testing import MemoryHub
from skipfilter import PatternError
from tests.asgi import FORM, PATH, Answer, ask, bearer, classic_token, follow
from tests.hub.presence import BELOW
from tests.hub.serving import served
from tests.waiting import HANG
from tests.wire import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from hub.http.authorization import Authorize

pytestmark = pytest.mark.anyio

EVERYTHING = Grant(publish=["*"], subscribe=["*"])
HEADER = ("authorization", "Session 1")


@asynccontextmanager
async def hub_with(authorize: Authorize, **settings: Any) -> AsyncIterator[HubApplication]:
    app = create_app(Settings(**{"retry": 0, "max_lifetime": 0} | settings), authorize=authorize)
    async with app.running():
        yield app


async def subscribe(app: Any, *headers: tuple[str, str], query: str = "match=a", **scope: Any) -> Answer:
    return await ask(app, "GET", f"{PATH}?{query}", headers, **scope)


async def publish(app: Any, *headers: tuple[str, str], body: bytes = b"topic=a") -> Answer:
    return await ask(app, "POST", PATH, [FORM, *headers], body)


# -- the kinds of functions


class Instance:
    async def __call__(self, request: Request) -> Grant:
        return EVERYTHING

    async def method(self, request: Request) -> Grant:
        return EVERYTHING


async def with_more(more: str, request: Request) -> Grant:
    return EVERYTHING


def plain(request: Request) -> Grant:
    time.sleep(0)
    return EVERYTHING


FUNCTIONS: dict[str, Authorize] = {
    "async": Instance().method,
    "object": Instance(),
    "partial": partial(with_more, "x"),
    "lambda": lambda request: with_more("x", request),
    "plain": plain,
    "plain partial": partial(plain),
}


@pytest.mark.parametrize("authorize", FUNCTIONS.values(), ids=FUNCTIONS)
async def test_a_function_of_any_kind_decides(authorize: Authorize) -> None:
    async with hub_with(authorize) as app:
        async with follow(app, ("topic", "a")) as stream:
            assert (await publish(app, HEADER, body=b"topic=a&private=on&data=1")).status == 200
            assert (await stream.next_event()).data == "1"
        listed = await ask(app, "GET", f"{PATH}/nothing")
        assert listed.status == 404


async def test_a_plain_function_runs_in_a_thread_with_the_context_of_the_request() -> None:
    where: list[tuple[threading.Thread, str]] = []
    variable = contextvars.ContextVar("variable", default="none")

    def authorize(request: Request) -> Grant:
        where.append((threading.current_thread(), variable.get()))
        return Grant()

    async with hub_with(authorize) as app:
        variable.set("set")
        assert (await subscribe(app)).status == 200
    assert [(thread is threading.main_thread(), value) for thread, value in where] == [(False, "set")]
    where[0][0].join(HANG)
    assert not where[0][0].is_alive()  # threads end with the hub


# -- what a grant allows


async def test_a_grant_allows_its_topics_and_no_others() -> None:
    async def authorize(request: Request) -> Grant:
        user = request.headers["user"]
        return Grant(publish=[f"/users/{user}"], subscribe=[f"/users/{user}", ("mqtt", "open/#")])

    async with hub_with(authorize) as app, follow(app, ("match", "*"), headers=[("user", "1")]) as stream:
        for topic in ("/users/2", "open/x", "/users/1"):
            await app.publish(topic, data=topic, private=True)
        await app.publish("/public", data="/public")
        assert [(await stream.next_event()).data for _ in range(3)] == ["open/x", "/users/1", "/public"]
        own, other = ("user", "1"), ("user", "2")
        assert (await publish(app, HEADER, own, body=b"topic=/users/1")).status == 200
        refused = await publish(app, HEADER, other, body=b"topic=/users/1")
        assert (refused.status, "does not allow publishing to '/users/1'" in refused.detail) == (403, True)


async def test_an_empty_grant_reads_public_updates_although_nobody_is_anonymous() -> None:
    async with hub_with(lambda _: Grant()) as app, follow(app, ("match", "a")) as stream:
        await app.publish("a", data="private", private=True)
        await app.publish("a", data="public")
        assert (await stream.next_event()).data == "public"
        assert (await publish(app, HEADER)).status == 403


async def test_the_subscription_api_asks_too() -> None:
    path = f"{PATH}/subscriptions"

    async def authorize(request: Request) -> Grant | None:
        return Grant(subscribe=[path]) if "user" in request.headers else None

    async with hub_with(authorize, subscriptions=True, anonymous=True) as app:
        assert (await ask(app, "GET", path, [("user", "1")])).status == 200
        assert (await ask(app, "GET", path)).status == 401
        assert (await ask(app, "HEAD", f"{PATH}?match=a")).status == 200


# -- None


@pytest.mark.parametrize(
    ("settings", "status"),
    [({}, 401), ({"anonymous": True}, 200), ({"publisher_key": "k" * 32}, 401), ({"subscriber_key": "k" * 32}, 401)],
)
async def test_none_leaves_the_decision_to_the_settings(settings: dict[str, Any], status: int) -> None:
    async with hub_with(lambda _: None, **settings) as app:
        answer = await subscribe(app)
        assert answer.status == status
        refused = await publish(app)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        if not settings:
            assert "the application does not know this client" in answer.detail


async def test_tokens_count_only_if_there_are_keys_for_them() -> None:
    token = bearer(classic_token(["*"], ["*"]))
    async with hub_with(lambda _: None, dev=True, anonymous=False) as app:
        assert (await publish(app, token)).status == 200
        assert (await subscribe(app, token)).status == 200
    async with hub_with(lambda _: None, anonymous=True) as app:
        assert (await publish(app, token)).status == 401
        # The header is for the application alone, so it may have any form.
        assert (await subscribe(app, ("authorization", "Basic eDp5"), query="match=a&authorization=x")).status == 200


async def test_the_decision_of_the_application_comes_before_a_token() -> None:
    async with hub_with(lambda _: Grant(), dev=True) as app:
        assert (await publish(app, bearer(classic_token(["*"])))).status == 403


# -- faults of the function


def fails(_: Request) -> Grant:
    raise LookupError("no database")


async def times_out(_: Request) -> Grant:
    raise TimeoutError("of the database")


def stops(_: Request) -> Grant:
    raise StopIteration


async def refuses(_: Request) -> Grant:
    raise HTTPException(403)


async def says_true(_: Request) -> Any:
    return True


async def has_a_wrong_pattern(_: Request) -> Grant:
    return Grant(publish=[("amqp", "a#")], subscribe=[("amqp", "a#")])


@pytest.mark.parametrize(
    ("authorize", "error"),
    [
        (fails, LookupError),
        (times_out, TimeoutError),
        (stops, RuntimeError),
        (refuses, RuntimeError),
        (says_true, TypeError),
        (has_a_wrong_pattern, PatternError),
    ],
)
async def test_an_error_is_a_500_and_never_anonymous(authorize: Authorize, error: type[Exception]) -> None:
    async with hub_with(authorize, anonymous=True, subscriptions=True) as app:
        for method, path in (
            ("GET", f"{PATH}?match=a"),
            ("HEAD", f"{PATH}?match=a"),
            ("QUERY", f"{PATH}?match=a"),
            ("POST", PATH),
            ("GET", f"{PATH}/subscriptions"),
        ):
            with pytest.raises(error):
                await ask(app, method, path, [FORM, HEADER], b"topic=a")


async def test_a_function_can_say_that_its_fault_will_pass() -> None:
    async def authorize(_: Request) -> Grant:
        raise Undecided("the database is down")

    async with hub_with(authorize, anonymous=True, retry=3) as app:
        answer = await subscribe(app)
        assert answer.is_ended_stream
        assert (await publish(app, HEADER)).status == 503


async def test_a_client_is_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(Settings(anonymous=True), authorize=fails)
    async with served(app) as server:
        for path in (f"{PATH}?match=a", f"{PATH}?match=a&match=b"):
            async with await request(server, "GET", path) as reply:
                assert (reply.status, b"database" in await reply.body()) == (500, False)
    assert "no database" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_decision_has_a_time_limit(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    freed = threading.Event()

    async def forever(_: Request) -> Grant:
        await asyncio.Event().wait()
        return EVERYTHING

    def blocks(_: Request) -> Grant:
        assert freed.wait(HANG)
        return EVERYTHING

    try:
        async with hub_with(forever if is_async else blocks, anonymous=True, authorize_timeout=0.05, retry=3) as app:
            # A stream ends at once, because EventSource then returns.
            answer = await subscribe(app)
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert answer.is_ended_stream
            assert app.hub.delivery.connection_count == 0
            batch = await subscribe(app, ("prefer", "wait=0"))
            told = "the application does not decide in time; try again in a moment"
            assert (batch.status, batch.detail, batch.headers["retry-after"]) == (503, told, "2")
            assert (await publish(app, HEADER)).status == 503
        assert "authorize has not returned within 0.05 s (authorize_timeout)" in caplog.text
    finally:
        freed.set()


async def test_functions_that_hang_take_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "THREADS", 2)
    freed, called = threading.Event(), []

    def blocks(_: Request) -> Grant:
        called.append(1)
        assert freed.wait(HANG)
        return EVERYTHING

    try:
        async with hub_with(blocks, authorize_timeout=0.05) as app:
            answers = await asyncio.gather(*(subscribe(app) for _ in range(10)))
            assert [answer.text[:2] for answer in answers] == [":\n"] * 10
            assert len(called) == 2
            assert app._authorization._threads._work_queue.qsize() == 0  # nothing waits there either
    finally:
        freed.set()


async def test_a_thread_serves_one_call_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "THREADS", 2)
    async with hub_with(plain) as app:
        assert [(await subscribe(app)).status for _ in range(5)] == [200] * 5
        assert {(await publish(app, HEADER)).status for _ in range(5)} == {200}


# -- limits


async def test_the_function_is_called_once_the_address_is_within_its_rate() -> None:
    called = []

    async def authorize(request: Request) -> Grant:
        called.append(request)
        return Grant(subject="alice")

    async with hub_with(authorize, connection_rate_per_client=1e-6) as app:
        first = [(await subscribe(app)).status for _ in range(3)]
        assert (first, len(called)) == ([200, 429, 429], 1)
        # Its subject has a rate of its own, whatever the address.
        assert (await subscribe(app, client=("10.0.0.1", 1))).status == 429
        assert len(called) == 2


async def test_no_kind_of_request_goes_around_the_rate() -> None:
    called = []

    async def authorize(request: Request) -> Grant:
        called.append(request)
        return EVERYTHING

    for method, path in (("HEAD", f"{PATH}?match=a"), ("QUERY", f"{PATH}?match=a"), ("GET", f"{PATH}/subscriptions")):
        async with hub_with(authorize, connection_rate_per_client=1e-6, subscriptions=True) as app:
            assert [(await ask(app, method, path)).status for _ in range(2)] == [200, 429]
    assert len(called) == 3


async def test_an_address_without_a_subject_uses_its_rate_once() -> None:
    async with hub_with(lambda _: Grant(), connection_rate_per_client=2) as app:
        assert [(await subscribe(app)).status for _ in range(3)] == [200, 200, 429]


async def test_connections_count_for_the_subject() -> None:
    async def authorize(request: Request) -> Grant:
        return Grant(subject=request.headers.get("user"))

    async with hub_with(authorize, max_connections_per_client=1) as app:
        alice, bob = [("user", "alice")], [("user", "bob")]
        async with (
            follow(app, ("match", "a"), headers=alice) as one,
            follow(app, ("match", "a"), headers=bob) as other,
            follow(app, ("match", "a")) as address,
        ):
            assert [stream.status for stream in (one, other, address)] == [200, 200, 200]
            assert (await subscribe(app, *alice, client=("10.0.0.1", 1))).status == 429
            assert (await subscribe(app)).status == 429
            assert (await subscribe(app, client=("10.0.0.1", 1))).status == 200


async def test_one_address_cannot_have_too_many_decisions_at_a_time() -> None:
    decided = asyncio.Event()
    called = []

    async def authorize(request: Request) -> Grant:
        called.append(request)
        await decided.wait()
        return Grant()

    async with hub_with(authorize, max_requests=10, client_share=0.1) as app:
        waiting = [asyncio.ensure_future(subscribe(app, ("prefer", "wait=0"))) for _ in range(10)]
        while len(refused := [task for task in waiting if task.done()]) < 5:
            await asyncio.sleep(0)
        assert ([task.result().status for task in refused], len(called)) == ([503] * 5, 5)
        answer = await subscribe(app)
        assert (answer.status, answer.body) == (200, HEARTBEAT)  # no outage, so no hint: `retry` is 0
        decided.set()
        assert {(await task).status for task in waiting} == {200, 503}
        assert app.hub.shares.requests.used == 0


async def test_addresses_that_wait_for_a_decision_do_not_use_what_is_kept_for_known_clients() -> None:
    decided = asyncio.Event()

    async def authorize(request: Request) -> Grant:
        await decided.wait()
        return Grant()

    async with hub_with(authorize, max_requests=32) as app:
        addresses = [(f"192.0.2.{number}", 1) for number in range(40)]
        waiting = [asyncio.ensure_future(subscribe(app, ("prefer", "wait=0"), client=one)) for one in addresses]
        while sum(task.done() for task in waiting) < 10:
            await asyncio.sleep(0)
        assert app.hub.shares.requests.used == 30
        answer = await subscribe(app)
        assert answer.is_ended_stream  # the hub is full, so there is a hint
        decided.set()
        assert [(await task).status for task in waiting] == [200] * 30 + [503] * 10


async def test_a_query_that_waits_for_a_decision_counts_once() -> None:
    used: list[int] = []

    async def authorize(request: Request) -> Grant:
        used.append(app.hub.shares.requests.used)
        return Grant(subject="ann")

    async with hub_with(authorize, max_requests=4, client_share=0.25) as app:
        for _ in range(2):  # half is in use, so the share of one counts
            app.hub.shares.requests.take(payer_at("192.0.2.1"))
        answer = await ask(app, "QUERY", PATH, [FORM, ("prefer", "wait=0")], b"match=a")
        assert (answer.status, used) == (200, [3])


async def test_a_publisher_that_is_refused_while_others_wait_leaves_nothing() -> None:
    decided = asyncio.Event()

    async def authorize(request: Request) -> Grant:
        await decided.wait()
        return Grant(publish=["*"])

    async with hub_with(authorize, max_requests=4, client_share=1) as app:
        asked = [asyncio.ensure_future(ask(app, "POST", PATH, [FORM], b"topic=a")) for _ in range(8)]
        while sum(task.done() for task in asked) < 4:
            await asyncio.sleep(0)
        gc.collect()  # a coroutine that nobody awaits is a warning, which is an error
        decided.set()
        assert sorted([(await task).status for task in asked])[-4:] == [429] * 4


async def test_r6_a_request_to_another_host_uses_the_rate_of_its_address() -> None:
    async with hub_with(lambda _: Grant(), connection_rate_per_client=1, public_urls=("https://hub.example",)) as app:
        assert [(await subscribe(app, ("host", "other.example"))).status for _ in range(2)] == [421, 429]


# -- pages of other origins


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 400),
        ([("origin", "https://evil.example")], 400),
        ([("referer", "https://evil.example/page")], 400),
        ([("origin", "https://hub.example")], 200),
        ([("referer", "https://hub.example/page")], 200),
        ([("origin", "https://app.example")], 200),
        ([("authorization", "Bearer x")], 200),
        ([("authorization", "Session x"), ("origin", "https://app.example")], 200),
        # A page that may read, and so send the header, is not one that may publish.
        ([("authorization", "Session x"), ("origin", "https://reader.example")], 400),
        ([("authorization", ""), ("cookie", "a=b")], 400),
        # A browser adds these itself.
        ([("authorization", "Basic eDp5"), ("origin", "https://evil.example")], 400),
        ([("authorization", "Negotiate x")], 400),
    ],
)
async def test_n63_a_page_of_another_origin_cannot_publish(headers: list[tuple[str, str]], status: int) -> None:
    async with hub_with(
        lambda _: EVERYTHING, publish_origins="https://app.example", cors_origins="https://reader.example"
    ) as app:
        answer = await publish(app, ("cookie", "session=1"), *headers)
        assert answer.status == status
        if status == 400:
            assert "with a session" in answer.detail
        assert (await subscribe(app, *headers)).status == 200  # reading is for CORS


# -- time


class Time:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


async def test_a_grant_ends_its_stream_and_the_application_is_asked_again() -> None:
    clock, called = Time(), []

    async def authorize(request: Request) -> Grant:
        called.append(request)
        return Grant(expires=clock.now + 60 if request.headers.get("user") else None)

    settings = Settings(max_lifetime=600, retry=0, heartbeat=0)
    hub = Hub(settings, MemoryHistory(Retention(100, 10**6)), clock=clock, wall_clock=clock)
    app = HubApplication(hub, authorize)
    async with app.running():
        async with (
            follow(app, ("match", "a"), headers=[("user", "1")]) as short,
            follow(app, ("match", "a")) as long,
        ):
            clock.now += 100
            await asyncio.wait_for(short.end(), HANG)
            assert not long.ended
            clock.now += 500
            await asyncio.wait_for(long.end(), HANG)
        assert len(called) == 2
        async with follow(app, ("match", "a")) as again:
            assert (again.status, len(called)) == (200, 3)


async def test_a_grant_that_has_expired_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hub")
    async with hub_with(lambda _: Grant(publish=["*"], expires=time.time() - 1), anonymous=True) as app:
        assert (await subscribe(app)).status == 401
        assert (await publish(app, HEADER)).status == 401
    assert "the grant of the application has expired" in caplog.text


# -- the request


async def test_the_function_gets_the_session_of_the_application_around_it() -> None:
    secret = "s" * 32

    async def authorize(request: Request) -> Grant | None:
        user = request.session.get("user")
        return Grant(subscribe=[f"/users/{user}"], subject=user) if user else None

    path = f"/live{PATH}"
    hub = create_app(Settings(path=path, retry=0), authorize=authorize)
    app = Starlette(routes=[Mount("/live", hub)], middleware=[Middleware(SessionMiddleware, secret_key=secret)])
    session = TimestampSigner(secret).sign(b"eyJ1c2VyIjogIjQyIn0=").decode()  # {"user": "42"}
    async with hub.running():
        assert (await ask(app, "GET", f"{path}?match=a")).status == 401
        async with follow(app, target=f"{path}?match=*", headers=[("cookie", f"session={session}")]) as stream:
            await hub.publish("/users/41", data="other", private=True)
            await hub.publish("/users/42", data="own", private=True)
            assert (await stream.next_event()).data == "own"


async def test_the_function_cannot_read_the_body_or_a_token() -> None:
    seen: list[Request] = []

    async def authorize(request: Request) -> Grant:
        seen.append(request)
        with pytest.raises(RuntimeError):
            await request.body()
        return EVERYTHING

    async with hub_with(authorize) as app:
        target = f"{PATH}?match=a&authorization=s3cret"
        async with follow(app, target=target, headers=[("x", "1")]) as stream:
            assert (await publish(app, HEADER, body=b"topic=a&data=1")).status == 200
            assert (await stream.next_event()).data == "1"
    assert (seen[0].headers["x"], seen[0].method, seen[0].client) == ("1", "GET", ("127.0.0.1", 1234))
    assert "s3cret" not in str(seen[0].scope["query_string"]) + str(seen[0].url)


# -- settings and grants


async def test_with_a_function_the_settings_need_no_keys() -> None:
    with pytest.raises(ConfigurationError, match="no subscriber is allowed: set `subscriber_key`"):
        create_app(Settings())
    async with hub_with(lambda _: EVERYTHING) as app:
        assert (await publish(app, HEADER)).status == 200


async def test_without_keys_and_function_only_the_program_publishes() -> None:
    app = create_app(Settings(anonymous=True))
    async with app.running():
        answer = await publish(app)
        assert answer.status == 405
        assert answer.detail.endswith("without keys for publishers, only the program around the hub publishes")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Grant(publish="/a"), "publish '/a' is a text: give a list of patterns, as in \\['/a'\\]"),
        (
            lambda: Grant(subscribe=[("template", "a")]),
            "subscribe: matcher type 'template' is none of exact, urlpattern",
        ),
        (lambda: Grant(subscribe=[("topic", "a")]), "matcher type 'topic' is none of"),
        (lambda: Grant(subscribe=[["exact", "a"]]), "is no pattern: give a topic, or a tuple"),  # type: ignore[list-item]
        (lambda: Grant(subscribe=[("a", "b", "c")]), "is no pattern"),  # type: ignore[list-item]
        (lambda: Grant(publish=[None]), "None is no pattern"),  # type: ignore[list-item]
        (lambda: Grant(expires="soon"), "expires 'soon' is no datetime with a time zone, or seconds"),  # type: ignore[arg-type]
        (lambda: Grant(expires=datetime(2030, 1, 1)), "is no datetime with a time zone"),  # noqa: DTZ001
        (lambda: Grant(expires=3_600), "expires 3600 is long past: it is a time, as time.time"),
        (lambda: Grant(expires=math.nan), "expires nan is long past"),
        (lambda: Grant(subject=7), "subject 7 is no text"),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_grant_is_an_error_where_it_is_made(make: Callable[[], Grant], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        make()


async def test_a_grant_takes_any_iterable_and_a_datetime() -> None:
    grant = Grant(publish=(topic for topic in "ab"), expires=datetime(2030, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]
    assert grant.selectors("publish") == [("exact", "a"), ("exact", "b")]
    assert grant.expires == datetime(2030, 1, 1, tzinfo=UTC).timestamp()


async def test_what_is_no_function_is_an_error_at_once() -> None:
    with pytest.raises(TypeError, match="authorize='x' is no function"):
        create_app(Settings(), authorize="x")  # type: ignore[arg-type]


async def test_a_topic_of_a_grant_is_no_template() -> None:
    async with (
        hub_with(lambda _: Grant(subscribe=["/users/{id}"])) as app,
        follow(app, ("match", "*")) as stream,
    ):
        await app.publish("/users/1", data="other", private=True)
        await app.publish("/users/{id}", data="own", private=True)
        assert (await stream.next_event()).data == "own"


async def test_n126_the_payload_of_a_grant_is_that_of_all_subscriptions_of_its_client() -> None:
    async def authorize(request: object) -> Grant:
        return Grant(subscribe=["a", ("uritemplate", BELOW + "{/type,match,subscriber}")], payload={"user": "ann"})

    hub = MemoryHub(authorize=authorize, subscriptions=True)
    async with hub.app.running(), follow(hub.app, ("match_uritemplate", BELOW + "{/type,match,subscriber}")) as stream:
        await stream.next_event()
        async with follow(hub.app, ("match", "anything")):
            assert '"payload":{"user":"ann"}' in (await stream.next_event()).data


@pytest.mark.parametrize("payload", ["ann", ["ann"], {"a": {1}}, {"a": float("nan")}])
def test_a_payload_that_is_no_object_of_json_is_refused(payload: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        Grant(payload=payload)  # type: ignore[arg-type]
