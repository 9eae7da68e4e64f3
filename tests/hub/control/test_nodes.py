"""Commands on several nodes: all carry them out, in the order of the history, also after
the history was away.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hub.control.commands import Command, Target
from hub.errors import HistoryUnavailable, InvalidToken, ListFull
from hub.node import control
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, application, ask, bearer, follow
from tests.hub.control.test_kick import token
from tests.waiting import HANG, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hub.http.embedding import HubApplication
    from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio

KINDS = ("sqlite", "redis")


class Later(Command):
    """An inquiry of a later version."""

    def to_json(self) -> str:
        return super().to_json().replace("?top", "?dream")


@asynccontextmanager
async def nodes(url: str, count: int = 2, **settings: Any) -> AsyncIterator[list[HubApplication]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(application(history_url=url, **settings)) for _ in range(count)]


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_r80_the_streams_of_a_user_end_on_all_nodes(kind: str, url_of: Callable[[str], str]) -> None:
    async with nodes(url_of(kind), 3) as made, AsyncExitStack() as stack:
        for app in made:
            for name, count in (("alice", 2), ("bob", 1)):
                for _ in range(count):
                    await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token(name))]))
        outcome = await made[1].disconnect(subject="alice")
        assert outcome == control.Outcome({"classic": 6}, [], True)
        await until(lambda: [app.hub.delivery.connection_count for app in made] == [1, 1, 1])


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_an_inquiry_of_a_later_version_ends_nothing_and_has_no_answer(
    kind: str, url_of: Callable[[str], str]
) -> None:
    async with nodes(url_of(kind)) as (one, other), follow(other, ("topic", "a")) as stream:
        taken = await one.hub.history.command(Later("top", None))
        listed = await one.connections()  # which comes after it
        assert len(listed.connections) == 1
        assert other.hub.history.node not in await one.hub.history.answers(taken.number)
        await other.publish("a", data="still here")
        assert (await stream.next_event()).data == "still here"


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_a_revocation_is_in_force_everywhere_when_the_call_returns(
    kind: str, url_of: Callable[[str], str]
) -> None:
    async with nodes(url_of(kind)) as (one, other):
        for app in (one, other):  # the token is cached
            assert (await ask(app, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 200
        assert (await one.revoke(subject="alice")).silent == []
        for app in (one, other):
            assert (await ask(app, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 401
            assert (await ask(app, "GET", f"{PATH}?topic=a", [bearer(token("alice"))])).status == 401
        async with nodes(url_of(kind), 1) as (late,):
            assert (await ask(late, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 401
            await late.lift(subject="alice")
        for app in (one, other):
            assert (await ask(app, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 200


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_r83_a_publisher_on_another_node_is_overtaken_by_a_revocation(
    kind: str, url_of: Callable[[str], str]
) -> None:
    async with nodes(url_of(kind)) as (one, other):
        for n in range(20):
            name = f"user {n}"
            grant = await other.hub.authorizer.verify("publish", token(name), resource="")
            # At once, before the other node hears of it: its append must learn it.
            taken = await one.hub.history.command(Command("revoke", Target("subject", name), 1e10))
            with pytest.raises(InvalidToken):
                await other.hub.publishing.publish([Update(("a",), "late")], grant)
            assert await one.hub.history.end() == taken.place == 0


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_no_stream_gets_an_update_that_was_published_after_the_call(
    kind: str, url_of: Callable[[str], str]
) -> None:
    async with nodes(url_of(kind)) as (one, other):
        for n in range(15):
            name = f"user {n}"
            async with (
                follow(one, ("topic", "a"), headers=[bearer(token(name))]) as here,
                follow(other, ("topic", "a"), headers=[bearer(token(name))]) as there,
                follow(other, ("topic", "a"), headers=[bearer(token("bob"))]) as bob,
            ):
                publishing = asyncio.ensure_future(publish_all(one, other, f"{n} before"))
                outcome = await (one, other)[n % 2].disconnect(subject=name)
                assert outcome.ended == {"classic": 2}
                await publish_all(one, other, f"{n} after")
                await publishing
                await other.publish("a", data="end", private=True)
                got = [event.data for event in await bob.until("end")]
                assert sum("before" in data for data in got) == sum("after" in data for data in got) == 6
                for stream in (here, there):
                    assert b"after" not in stream.body
        await until(lambda: one.hub.delivery.connection_count + other.hub.delivery.connection_count == 0)


async def publish_all(one: HubApplication, other: HubApplication, data: str) -> None:
    for app in (one, other) * 3:
        await app.publish("a", data=data, private=True)


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_two_operators_at_once(kind: str, url_of: Callable[[str], str]) -> None:
    async with nodes(url_of(kind)) as made, AsyncExitStack() as stack:
        names = [f"user {n}" for n in range(10)]
        for name in names:
            for app in made:
                await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token(name))]))
        commands = [made[n % 2].disconnect(subject=name) for n, name in enumerate(names)]
        commands += [made[1 - n % 2].revoke(subject=name) for n, name in enumerate(names)]
        outcomes = await asyncio.gather(*commands)
        for kicked, revoked in zip(outcomes[:10], outcomes[10:], strict=True):
            assert kicked.ended.get("classic", 0) + revoked.ended.get("classic", 0) == 2
            assert [*kicked.silent, *revoked.silent] == []
        await until(lambda: [app.hub.delivery.connection_count for app in made] == [0, 0])


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_does_not_answer_is_named(
    kind: str, url_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.2)
    async with nodes(url_of(kind)) as (one, other):
        never = asyncio.Event()

        async def hang(*_: object) -> None:
            await never.wait()

        monkeypatch.setattr(other.hub.control, "_end", hang)
        outcome = await one.disconnect(subject="alice")
        assert outcome.silent == [other.hub.history.node]
        assert outcome.is_stored


async def test_r86_a_full_list_refuses_the_next_command(tmp_path: Path) -> None:
    async with nodes(f"sqlite:///{tmp_path}/log.db", 1, max_revocations=1) as (app,):
        await app.revoke(subject="alice")
        with pytest.raises(ListFull, match="max_revocations"):
            await app.revoke(subject="bob")
        assert (await ask(app, "POST", PATH, [FORM, bearer(token("bob"))], b"topic=a")).status == 200
        await app.disconnect(subject="bob")


# -- the history is away


@pytest.mark.processes
async def test_r87_while_redis_is_away_the_process_that_was_asked_ends_its_own_streams(
    redis_server: RedisServer,
) -> None:
    async with nodes(redis_server.url) as (one, other), AsyncExitStack() as stack:
        for app in (one, other):
            await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token("alice"))]))
        await until(lambda: one.hub.history.ledger.others == [other.hub.history.node])
        await until(lambda: other.hub.history.ledger.others == [one.hub.history.node])
        redis_server.stop()
        outcome = await one.revoke(subject="alice")
        assert outcome == control.Outcome({"classic": 1}, [other.hub.history.node], False)
        await until(lambda: one.hub.delivery.connection_count == 0)
        assert other.hub.delivery.connection_count == 1
        # Nobody gets 401, publishers get 503, and new streams end at once.
        await until(lambda: not (one.hub.history.ledger.is_current or other.hub.history.ledger.is_current))
        for app in (one, other):
            assert (await ask(app, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 503
            assert (await ask(app, "GET", f"{PATH}?topic=a", [bearer(token("alice"))])).is_ended_stream
            assert (await ask(app, "GET", f"{PATH}?topic=a")).is_ended_stream
        redis_server.start()
        async with asyncio.timeout(HANG):
            while True:  # the first update that is accepted again, from the other node
                with contextlib.suppress(HistoryUnavailable):
                    await other.publish("a", data="later", private=True)
                    break
                await asyncio.sleep(0.001)
        await until(lambda: other.hub.delivery.connection_count == 0)
        for app in (one, other):
            assert (await ask(app, "POST", PATH, [FORM, bearer(token("alice"))], b"topic=a")).status == 401


@pytest.mark.processes
async def test_r81_when_redis_is_back_nothing_later_comes_before_the_commands_of_meanwhile(
    redis_server: RedisServer,
) -> None:
    async with nodes(redis_server.url, 3) as made:
        one, *others = made
        await until(lambda: all(len(app.hub.history.ledger.others) == 2 for app in made))
        for turn in range(4):
            name = f"user {turn}"
            async with AsyncExitStack() as stack:
                streams = [
                    await stack.enter_async_context(follow(app, ("topic", "a"), headers=[bearer(token(name))]))
                    for app in others
                ]
                redis_server.stop()
                await until(lambda: not any(app.hub.history.ledger.is_current for app in made))
                outcome = await one.disconnect(subject=name)
                assert set(outcome.silent) == {app.hub.history.node for app in others}
                redis_server.start()
                async with asyncio.timeout(HANG):
                    for app in others * 3:
                        while True:
                            with contextlib.suppress(HistoryUnavailable):
                                await app.publish("a", data="later", private=True)
                                break
                            await asyncio.sleep(0.001)
                await until(lambda: all(app.hub.delivery.connection_count == 0 for app in others))
                for stream in streams:
                    assert b"later" not in stream.body


@pytest.mark.processes
async def test_the_program_publishes_after_the_commands_that_could_not_be_stored(redis_server: RedisServer) -> None:
    async with (
        nodes(redis_server.url) as (one, other),
        follow(other, ("topic", "a"), headers=[bearer(token("alice"))]) as stream,
    ):
        await until(lambda: other.hub.delivery.live_count == 1)
        redis_server.ask("CONFIG", "SET", "maxmemory", "1")
        assert not (await one.disconnect(subject="alice")).is_stored
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")
        await one.publish("a", data="later", private=True)
        await until(lambda: other.hub.delivery.connection_count == 0)
        assert b"later" not in stream.body


@pytest.mark.processes
async def test_a_process_that_has_died_is_not_waited_for_for_long(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CALL_SECONDS", 0.2)
    async with nodes(redis_server.url) as (one, other):
        await until(lambda: one.hub.history.ledger.others == [other.hub.history.node])
        monkeypatch.setattr(other.hub.control, "_answer", asyncio.Event().wait)  # as if it had died
        async with follow(one, ("topic", "a")) as stream:
            redis_server.stop()
            await until(lambda: not one.hub.history.ledger.is_current)
            redis_server.start()
            async with asyncio.timeout(HANG):
                while True:
                    with contextlib.suppress(HistoryUnavailable):
                        await one.publish("a", data="later")
                        break
                    await asyncio.sleep(0.001)
            assert (await stream.next_event()).data == "later"


@pytest.mark.processes
async def test_too_many_commands_for_a_history_that_is_away_are_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_COMMANDS", 2)
    async with nodes(redis_server.url, 1, max_revocations=1) as (app,):
        redis_server.stop()
        await app.revoke(subject="alice")
        with pytest.raises(ListFull):
            await app.revoke(subject="bob")
        await app.disconnect(subject="bob")
        with pytest.raises(HistoryUnavailable):
            await app.disconnect(subject="carol")
        redis_server.start()
        await until(lambda: app.hub.history.ledger.is_current and not app.hub.control.pending)
        (stored,) = app.hub.history.ledger.revoked.values()
        assert stored.target == Target("subject", "alice")
