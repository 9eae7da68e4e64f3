"""Ending streams on one process, seen from the clients' side of real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hub import Grant, Settings, create_app
from hub.auth.signing import sign_classic_token
from hub.control.commands import Command, News, Numbered, Taken, Target
from hub.development import DEVELOPMENT_KEY
from hub.errors import HistoryUnavailable, InvalidRequest, InvalidToken, NotRunning
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.node.control import Outcome
from hub.server import HubProtocol
from hub.server.http1 import AttachedProtocol
from tests.asgi import application, classic_token
from tests.hub.serving import served
from tests.waiting import HANG, until
from tests.wire import FORM, PATH, Reply, bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from hub.history.base import Entry
    from hub.http.embedding import HubApplication
    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio


def token(subject: str | None, *, subscribe: tuple[str, ...] = ("*",), now: float | None = None) -> str:
    """Sign a classic token; by default, it was issued long before any revocation."""
    issued = time.time() - 3_600 if now is None else now
    return sign_classic_token(
        DEVELOPMENT_KEY, publish=["*"], subscribe=subscribe, subject=subject, seconds=86_400, now=issued
    )


@pytest.fixture(params=[HubProtocol, AttachedProtocol, HttpToolsProtocol], ids=["detached", "attached", "uvicorn"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextlib.asynccontextmanager
async def serving(
    protocol: Any = HubProtocol, authorize: Any = None, **settings: Any
) -> AsyncIterator[tuple[HubApplication, Served]]:
    chosen = Settings(**{"dev": True, "retry": 0, "max_lifetime": 0, "drain": 0} | settings)
    app = create_app(chosen, authorize=authorize)
    async with served(app, http=protocol) as server:
        await until(lambda: app.hub.is_running)
        yield app, server


async def rest(stream: Reply) -> list[str]:
    """Return the data of all events that are still to come; the stream must be cut."""
    found: list[str] = []

    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(HANG):
            async for event in stream.events():
                found.append(event.data)  # noqa: PERF401 - so that those before the cut count
    assert not stream.ended  # no end was sent
    await stream.close()
    return found


async def is_reset(reply: Reply) -> bool:
    """Return whether the connection of a response is reset, and not closed."""
    try:
        async with asyncio.timeout(HANG):
            while await reply.reader.read(2**20):
                pass
    except ConnectionResetError:
        return True
    finally:
        await reply.close()
    return False


async def test_only_the_streams_of_the_user_end_and_at_once(protocol: Any) -> None:
    async with serving(protocol) as (app, server):
        alice = [await subscribe(server, ("topic", "a"), token=token("alice")) for _ in range(3)]
        others = [await subscribe(server, ("topic", "a"), token=token(one)) for one in ("bob", None)]
        others.append(await subscribe(server, ("topic", "a")))
        await until(lambda: app.hub.delivery.live_count == 6)
        await app.publish("a", data="before")
        outcome = await app.disconnect(subject="alice")
        await app.publish("a", data="after")
        assert outcome == Outcome({"classic": 3}, [], True)
        assert outcome.not_revoked == 0
        for stream in alice:
            assert await rest(stream) in ([], ["before"])
        for stream in others:
            assert [(await stream.next_event()).data for _ in range(2)] == ["before", "after"]
            await stream.close()
        # It was ended, and not revoked: it may come back.
        again = await subscribe(server, ("topic", "a"), token=token("alice"))
        await app.publish("a", data="again")
        assert (await again.next_event()).data == "again"
        await again.close()


async def test_r82_a_client_that_does_not_read_ends_at_once_and_gets_nothing_that_was_buffered(protocol: Any) -> None:
    async with serving(protocol, send_buffer=2**16) as (app, server):
        slow = await subscribe(server, ("topic", "a"), token=token("alice"), receive_buffer=2**12)
        await until(lambda: app.hub.delivery.live_count == 1)
        body = "x" * 50_000
        for _ in range(40):
            await app.publish("a", data=body)
        await until(lambda: app.hub.delivery.live_count == 0)  # it is behind
        assert (await app.disconnect(subject="alice")).ended == {"classic": 1}
        await until(lambda: app.hub.delivery.connection_count == 0)
        assert await is_reset(slow)  # so the kernel has dropped what it had


async def test_a_reader_that_does_not_wait_ends_too(protocol: Any) -> None:
    async with serving(protocol, send_buffer=2**16) as (app, server):
        for _ in range(100):
            await app.publish("a", data="x" * 50_000)
        target, headers = f"{PATH}?topic=a&last_event_id=earliest", [bearer(token("alice")), ("prefer", "wait=0")]
        slow = await request(server, "GET", target, headers, receive_buffer=2**12)
        await until(lambda: app.hub.delivery.connection_count == 1)
        assert (await app.disconnect(subject="alice")).ended == {"classic": 1}
        await until(lambda: app.hub.delivery.connection_count == 0)
        assert await is_reset(slow)


async def test_a_stream_that_catches_up_ends_too() -> None:
    async with serving(send_buffer=2**16) as (app, server):
        for _ in range(100):
            await app.publish("a", data="x" * 50_000)
        target = f"{PATH}?topic=a&last_event_id=earliest"
        slow = await request(server, "GET", target, [bearer(token("alice"))], receive_buffer=2**12)
        await until(lambda: app.hub.delivery.connection_count == 1)
        assert (await app.disconnect(subject="alice")).ended == {"classic": 1}
        await until(lambda: app.hub.delivery.connection_count == 0)
        assert await is_reset(slow)


async def test_r80_each_way_to_name_a_stream() -> None:
    async with serving(subscriptions=True) as (app, server):
        streams = {one: await subscribe(server, ("topic", "a"), token=token(one)) for one in ("alice", "bob")}
        ids = {seat.subscriber.grant.identity.subject: seat.subscriber.id for seat in app.hub.delivery.audience}
        assert (await app.disconnect(subscriber=ids["alice"])).ended == {"classic": 1}
        assert await rest(streams["alice"]) == []
        assert (await app.disconnect(token_id="unknown")).ended == {}
        assert (await app.disconnect(key_id="unknown")).ended == {}
        assert (await app.disconnect(subject="bob", issuer="https://other")).ended == {}
        assert (await app.disconnect(subject="bob", issuer="classic")).ended == {"classic": 1}
        assert await rest(streams["bob"]) == []


async def test_what_is_ended_is_named_in_one_way_and_with_text() -> None:
    async with application() as app:
        for wrong in ({}, {"subject": "a", "token_id": "b"}, {"issuer": "a"}):
            with pytest.raises(InvalidRequest, match="give exactly one of subject, subscriber, token_id, key_id"):
                await app.disconnect(**wrong)
        with pytest.raises(TypeError, match="subject 42 is no text"):
            await app.disconnect(subject=42)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="give exactly one of"):
            await app.revoke()
    with pytest.raises(NotRunning):
        await app.disconnect(subject="alice")


async def test_a_thread_may_end_streams_and_the_event_loop_must_not_wait_for_it() -> None:
    async with application() as app:
        assert await asyncio.to_thread(app.disconnect_sync, subject="alice") == Outcome({}, [], True)
        assert await asyncio.to_thread(app.revoke_sync, subject="alice") == Outcome({}, [], True)
        with pytest.raises(RuntimeError, match=r"here, use `await disconnect\(…\)`"):
            app.disconnect_sync(subject="alice")
    with pytest.raises(NotRunning):
        await asyncio.to_thread(app.disconnect_sync, subject="alice")


# -- requests that are on their way


class Session:
    """The sessions of an application, whose `authorize` waits until it may go on."""

    def __init__(self) -> None:
        self.users = {"alice", "bob"}
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def authorize(self, request: Request) -> Grant | None:
        user = request.headers.get("x-user", "")
        if user not in self.users:
            return None
        self.asked.set()
        await self.may_answer.wait()
        return Grant(publish=["*"], subscribe=["*"], subject=user)


@pytest.mark.parametrize("prefer", [[], [("prefer", "wait=0")]], ids=["stream", "reader"])
async def test_r83_authorize_is_overtaken_by_the_end_of_its_session(
    protocol: Any, prefer: list[tuple[str, str]]
) -> None:
    session = Session()
    async with serving(protocol, session.authorize, anonymous=False) as (app, server):
        await app.publish("a", data="old", private=True)
        target, headers = f"{PATH}?match=a&last_event_id=earliest", [("x-user", "alice"), *prefer]
        asking = asyncio.ensure_future(request(server, "GET", target, headers))
        await session.asked.wait()
        session.users.remove("alice")
        assert (await app.disconnect(subject="alice")).ended == {}
        session.may_answer.set()
        await app.publish("a", data="new", private=True)
        with contextlib.suppress(ConnectionResetError, asyncio.IncompleteReadError):  # its head may be lost, too
            reply = await asking
            assert reply.status == 200
            with contextlib.suppress(ConnectionResetError):
                assert b"data" not in await asyncio.wait_for(reply.reader.read(2**20), HANG)
            await reply.close()
        await until(lambda: app.hub.delivery.connection_count == 0)
        # The next request is authorized anew.
        refused = await request(server, "GET", target, headers)
        assert refused.status == 401
        await refused.close()


async def test_another_user_is_not_met_on_the_way() -> None:
    session = Session()
    async with serving(HubProtocol, session.authorize) as (app, server):
        asking = asyncio.ensure_future(request(server, "GET", f"{PATH}?match=a", [("x-user", "bob")]))
        await session.asked.wait()
        await app.disconnect(subject="alice")
        session.may_answer.set()
        stream = await asking
        await app.publish("a", data="new")
        assert (await stream.next_event()).data == "new"
        await stream.close()


async def test_a_publisher_is_overtaken_by_the_end_of_its_session() -> None:
    session = Session()
    async with serving(HubProtocol, session.authorize) as (app, server):
        headers = [("x-user", "alice"), ("authorization", "Session 1"), FORM]
        asking = asyncio.ensure_future(request(server, "POST", PATH, headers, b"topic=a"))
        await session.asked.wait()
        session.users.remove("alice")
        await app.disconnect(subject="alice")
        session.may_answer.set()
        reply = await asking
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        await reply.close()
        assert await app.hub.history.newest() is None
        refused = await request(server, "POST", PATH, headers, b"topic=a")
        assert refused.status == 400  # the session is unknown, and the header is no token
        await refused.close()


class Halting(MemoryHistory):
    """A history whose look-up of a cursor waits."""

    def __init__(self) -> None:
        super().__init__(Retention(100, 2**20))
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        found = await super().find(id, presence=presence)
        self.asked.set()
        await self.may_answer.wait()
        return found


async def test_r83_a_token_is_asked_again_when_its_stream_gets_a_seat() -> None:
    history = Halting()
    app = create_app(Settings(dev=True, max_lifetime=0, drain=0), history=history)
    async with served(app, http=HubProtocol) as server:
        await until(lambda: app.hub.is_running)
        first = await app.publish("a", data="1", private=True)
        await app.publish("a", data="2", private=True)
        target = f"{PATH}?topic=a&last_event_id={first}"
        asking = asyncio.ensure_future(request(server, "GET", target, [bearer(token("alice"))]))
        await history.asked.wait()  # its token is verified
        await app.revoke(subject="alice")
        history.may_answer.set()
        with contextlib.suppress(ConnectionResetError, asyncio.IncompleteReadError):
            reply = await asking
            with contextlib.suppress(ConnectionResetError):
                assert b"data" not in await asyncio.wait_for(reply.reader.read(2**20), HANG)
            await reply.close()
        refused = await request(server, "GET", target, [bearer(token("alice"))])
        assert refused.status == 401
        await refused.close()


async def test_r83_a_token_is_asked_again_when_its_update_is_appended() -> None:
    async with serving() as (app, server):
        # Its body comes late.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = [f"POST {PATH} HTTP/1.1", "host: x", "content-length: 7", ": ".join(FORM)]
        writer.write("\r\n".join([*head, ": ".join(bearer(token("alice"))), "", ""]).encode())
        await until(lambda: app.hub.authorizer.cached[0] == 1)  # it is verified
        await app.revoke(subject="alice")
        writer.write(b"topic=a")
        assert b" 401 " in await asyncio.wait_for(reader.readline(), HANG)
        writer.close()
        assert await app.hub.history.newest() is None


# -- revocation


async def test_r84_a_revoked_token_is_refused_until_it_is_lifted(protocol: Any) -> None:
    async with serving(protocol) as (app, server):
        old, new = token("alice"), token("alice", now=time.time() + 3_600)
        streams = {one: await subscribe(server, ("topic", "a"), token=one) for one in (old, new)}
        for one in (old, new):
            await publish(server, ("topic", "b"), token=one)
        assert (await app.revoke(subject="alice")).ended == {"classic": 1}
        assert await rest(streams[old]) == []

        async def status(method: str, one: str) -> int:
            body = b"topic=b" if method == "POST" else b""
            reply = await request(server, method, f"{PATH}?topic=a", [bearer(one), FORM], body)
            await reply.close()
            return reply.status

        assert [await status(method, old) for method in ("POST", "GET", "HEAD")] == [401, 401, 401]
        assert [await status(method, new) for method in ("POST", "GET")] == [200, 200]
        await app.publish("a", data="new")
        assert (await streams[new].next_event()).data == "new"
        await streams[new].close()
        await app.lift(subject="alice")
        assert [await status(method, old) for method in ("POST", "GET")] == [200, 200]


async def test_r84_a_login_in_the_same_second_waits_for_the_leeway() -> None:
    async with application(leeway=10) as app:
        verify = app.hub.authorizer.verify
        now = time.time()
        await app.revoke(subject="alice")
        for issued, good in ((now, False), (now + 5, False), (now + 30, True)):
            if good:
                assert (await verify("subscribe", token("alice", now=issued), resource="")).classic
            else:
                with pytest.raises(InvalidToken) as refused:
                    await verify("subscribe", token("alice", now=issued), resource="")
                assert refused.value.reason == "it is revoked"


async def test_r83_a_token_that_was_verified_while_the_list_could_not_be_read_is_asked_again() -> None:
    async with serving() as (app, server):
        await app.revoke(subject="alice")
        app.hub.history.ledger.lose()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        heads = ("host: x", "content-length: 7", ": ".join(FORM), ": ".join(bearer(token("alice"))), "", "")
        writer.write("\r\n".join([f"QUERY {PATH} HTTP/1.1", *heads]).encode())
        await until(lambda: app.hub.authorizer.cached[0] == 1)
        await app.hub.history.hear()  # it can be read again
        writer.write(b"topic=a")
        stream = Reply(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await stream.read_head()
        await app.publish("a", data="secret", private=True)
        assert await rest(stream) == []
        await stream.close()


async def test_r84_a_token_without_iat_is_met() -> None:
    async with application() as app:
        endless = classic_token()
        grant = await app.hub.authorizer.verify("subscribe", endless, resource="")
        assert grant.identity.issued is not None
        assert app.hub.control.require_good(grant, 0) == 0


async def test_the_answer_says_what_cannot_be_revoked() -> None:
    session = Session()
    session.may_answer.set()
    async with serving(HubProtocol, session.authorize) as (app, server):
        theirs = await request(server, "GET", f"{PATH}?match=a", [("x-user", "alice")])
        tokens = await subscribe(server, ("topic", "a"), token=token("alice"))
        await until(lambda: app.hub.delivery.connection_count == 2)
        outcome = await app.revoke(subject="alice")
        assert outcome.ended == {"application": 1, "classic": 1}
        assert outcome.not_revoked == 1
        assert (await rest(theirs), await rest(tokens)) == ([], [])
        again = await request(server, "GET", f"{PATH}?match=a", [("x-user", "alice")])
        assert again.status == 200  # the application decides, not the list
        await again.close()
        headers = [("x-user", "alice"), ("authorization", "Session 1"), FORM]
        async with await request(server, "POST", PATH, headers, b"topic=a") as published:
            assert published.status == 200


async def test_r85_with_a_longest_life_revocations_end_by_themselves() -> None:
    async with application(max_token_life=60, leeway=10) as app:
        now = time.time()
        await app.revoke(subject="alice")
        (one,) = app.hub.history.ledger.revoked.values()
        assert one.until is not None
        assert now + 79 < one.until < time.time() + 81
    async with application() as app:
        await app.revoke(subject="alice")
        (one,) = app.hub.history.ledger.revoked.values()
        assert one.until is None


async def test_each_command_has_a_line_in_the_log() -> None:
    with structlog.testing.capture_logs() as lines:
        async with application() as app:
            await app.disconnect(subject="alice")
            await app.revoke(token_id="t1", issuer="classic")
    told = [line for line in lines if str(line["event"]).startswith("command: ")]
    for line in told:
        del line["log_level"]
    assert told == [
        {"event": "command: kick", "by": "subject", "subject": "alice", "issuer": None, "ended": 0, "silent": []},
        {"event": "command: revoke", "by": "token_id", "token_id": "t1", "issuer": "classic", "ended": 0, "silent": []},
    ]


async def test_a_process_that_missed_commands_ends_all_streams() -> None:
    async with serving() as (app, server):
        streams = [await subscribe(server, ("topic", "a"), token=token(one)) for one in ("alice", "bob")]
        await until(lambda: app.hub.delivery.live_count == 2)
        app.hub.history.ledger.miss()
        await app.publish("a", data="later")
        assert [await rest(stream) for stream in streams] == [[], []]


async def test_r81_an_update_waits_until_the_commands_before_it_are_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with application() as app:
        ended = asyncio.Event()
        carrying = asyncio.Event()

        async def end(due: Any) -> Any:
            carrying.set()
            await ended.wait()
            return await original(due)

        original = app.hub.control._end
        monkeypatch.setattr(app.hub.control, "_end", end)
        kicking = asyncio.ensure_future(app.disconnect(subject="alice"))
        await carrying.wait()
        before = app.hub.delivery.position
        await app.publish("a", data="later")
        for _ in range(50):
            await asyncio.sleep(0)
        assert app.hub.delivery.position == before
        ended.set()
        await kicking
        await until(lambda: app.hub.delivery.dispatched == before + 1)


async def test_a_failure_while_a_command_is_carried_out_ends_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.delivery.follower.RETRY_SECONDS", 0.0)
    async with serving() as (app, server):
        stream = await subscribe(server, ("topic", "a"), token=token("bob"))
        await until(lambda: app.hub.delivery.live_count == 1)

        async def fail(*_: object) -> Any:
            raise RuntimeError("planted")

        monkeypatch.setattr(app.hub.control, "_end", fail)
        with contextlib.suppress(RuntimeError):  # or the follower of the history has it
            await app.disconnect(subject="alice")
        assert await rest(stream) == []


async def test_a_command_that_comes_between_two_followings_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (app, server):
        alice = await subscribe(server, ("topic", "a"), token=token("alice"))
        await until(lambda: app.hub.delivery.live_count == 1)
        history = app.hub.history
        assert isinstance(history, MemoryHistory)

        async def fail(after: int) -> Any:
            raise HistoryUnavailable("it failed")

        with monkeypatch.context() as failing:
            failing.setattr(history, "read", fail)
            history._wake()
            await until(lambda: not history.ledger.is_current)
        await history.command(Command("kick", Target("subject", "alice")))  # nobody follows now
        assert await rest(alice) == []


async def test_no_position_is_taken_before_the_commands_before_it_are_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(subscriptions=False) as (app, server):  # so that nothing is published meanwhile
        alice = await subscribe(server, ("topic", "a"), token=token("alice"))
        await until(lambda: app.hub.delivery.live_count == 1)
        history, follower = app.hub.history, app.hub.delivery._follower
        found, hear, taken = history.newest, history.hear, list[Any]()
        kick = Numbered(history.ledger.number + 1, Command("kick", Target("subject", "alice")))

        async def newest() -> Entry | None:
            history.hear = heard  # type: ignore[method-assign]
            return await found()

        async def heard() -> None:
            history.ledger.learn(News(kick.number, [kick]))
            await hear()

        monkeypatch.setattr(history, "newest", newest)
        monkeypatch.setattr(history, "hear", hear)
        monkeypatch.setattr(follower._live, "move_to", lambda _: taken.append(app.hub.control._done.get(kick.number)))
        await follower._find_end()
        assert taken == [{"classic": 1}]
        assert await rest(alice) == []


async def test_a_caller_that_does_not_wait_ends_no_other_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (app, server):
        alice = await subscribe(server, ("topic", "a"), token=token("alice"))
        bob = await subscribe(server, ("topic", "a"), token=token("bob"))
        await until(lambda: app.hub.delivery.live_count == 2)
        original, never = app.hub.control._end, asyncio.Event()
        carrying = asyncio.Event()

        async def hang(due: Any) -> Any:
            carrying.set()
            await never.wait()
            return await original(due)

        monkeypatch.setattr(app.hub.control, "_end", hang)
        kick = Numbered(app.hub.history.ledger.number + 1, Command("kick", Target("subject", "alice")))
        app.hub.history.ledger.learn(News(kick.number, [kick]))
        carried = asyncio.ensure_future(app.hub.control.carry_out())
        await carrying.wait()
        carried.cancel()
        await asyncio.wait([carried])
        monkeypatch.setattr(app.hub.control, "_end", original)
        never.set()
        await app.publish("a", data="later")
        assert await rest(alice) == []
        assert (await bob.next_event()).data == "later"
        await bob.close()


async def test_a_stream_is_counted_by_the_first_command_that_ends_it() -> None:
    async with serving() as (app, server):
        stream = await subscribe(server, ("topic", "a"), token=token("alice"))
        await until(lambda: app.hub.delivery.live_count == 1)
        # The second comes before the end of the first has had its turn.
        first, second = await asyncio.gather(app.disconnect(subject="alice"), app.revoke(subject="alice"))
        assert (first.ended, second.ended) == ({"classic": 1}, {})
        assert await rest(stream) == []


class Away(MemoryHistory):
    """A history that is away, and notes what is written into it."""

    def __init__(self) -> None:
        super().__init__(Retention(100, 2**20))
        self.is_away = False
        self.written: list[str] = []

    async def command(self, command: Command) -> Taken:
        if self.is_away:
            raise HistoryUnavailable("planted")
        self.written.append(command.action)
        return await super().command(command)

    async def answer(self, number: int, text: str) -> None:
        self.written.append("answer")


async def test_a_process_answers_when_it_has_stored_what_it_alone_knows() -> None:
    history = Away()
    app = create_app(Settings(dev=True), history=history)
    async with app.running():
        history.is_away = True
        assert not (await app.disconnect(subject="alice")).is_stored
        history.is_away = False
        called = Numbered(history.ledger.number + 1, Command("call", None))
        history.ledger.learn(News(called.number, [called]))
        await app.hub.control.carry_out()
        await until(lambda: "answer" in history.written)
        assert history.written[:2] == ["kick", "answer"]


class Hanging(Away):
    """A history that does not answer a command until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def command(self, command: Command) -> Taken:
        await self.may_answer.wait()
        return await super().command(command)


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_history_that_hangs_does_not_delay_the_end_of_the_streams_here(
    is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.node.control.ALONE_SECONDS", 0.0)
    history = Hanging()
    app = create_app(Settings(dev=True, max_lifetime=0, drain=0), history=history)
    async with served(app, http=HubProtocol) as server:
        await until(lambda: app.hub.is_running)
        streams = [await subscribe(server, ("topic", "a"), token=token("alice")) for _ in range(2)]
        await until(lambda: app.hub.delivery.live_count == 2)
        ending = [asyncio.ensure_future(app.disconnect(subject=name)) for name in ("alice", "bob")]
        for stream in streams:
            assert await rest(stream) == []
        assert not any(one.done() for one in ending)
        history.is_away = is_away
        history.may_answer.set()
        outcomes = await asyncio.gather(*ending)
        assert [outcome.ended for outcome in outcomes] == [{"classic": 2}, {}]
        assert [outcome.is_stored for outcome in outcomes] == [not is_away] * 2
        history.is_away = False
