"""Signals: what a stream says of itself, as bytes on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hub.auth.grant import CompiledGrant, Grant
from hub.auth.signing import sign_classic_token
from hub.control.commands import Identity
from hub.development import DEVELOPMENT_KEY
from hub.errors import HistoryUnavailable, PositionExpired
from hub.history.base import Retention
from hub.history.cursor import Start
from hub.history.memory import MemoryHistory
from hub.protocol.events import SIGNALS
from hub.server import HubProtocol
from hub.server.http1 import AttachedProtocol
from hub.testing import MemoryHub
from tests.asgi import PATH, application, ask, current_token, follow
from tests.hub.control.test_kick import is_reset
from tests.hub.serving import served
from tests.waiting import HANG, until
from tests.wire import Event, Reply, bearer, request, subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hub.http.embedding import HubApplication
    from tests.hub.serving import Served

pytestmark = pytest.mark.anyio

DIALECTS = pytest.mark.parametrize("name", ["match", "topic"])
CURSOR = "#[A-Za-z0-9_-]{70}"
READER = current_token(subscribe=["*"])


@pytest.fixture(params=[HubProtocol, AttachedProtocol, HttpToolsProtocol], ids=["detached", "attached", "uvicorn"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextlib.asynccontextmanager
async def serving(protocol: Any, **settings: Any) -> AsyncIterator[tuple[MemoryHub, Served]]:
    hub = MemoryHub(**{"subscriptions": False, "drain": 0} | settings)
    async with served(hub.app, http=protocol) as server:
        await until(lambda: hub.app.hub.is_running)
        yield hub, server


def token_of_alice(seconds: float = 10_000) -> str:
    return sign_classic_token(
        DEVELOPMENT_KEY, publish=[], subscribe=["*"], subject="alice", seconds=seconds, now=time.time()
    )


class Client:
    """A client that wants signals, over a real socket; `body` has all its bytes."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.body = b""

    @classmethod
    async def of(cls, server: Served, name: str = "match", cursor: str | None = None, **more: Any) -> Client:
        wanted = [(name, "a"), ("signals", "1"), *([] if cursor is None else [("last_event_id", cursor)])]
        headers = [bearer(more["token"])] if "token" in more else []
        return cls(await request(server, "GET", f"{PATH}?{urlencode(wanted)}", headers))

    async def until(self, pattern: str) -> bytes:
        """Read until the body matches a pattern, and return it."""
        async with asyncio.timeout(HANG):
            while not re.fullmatch(pattern.encode(), self.body, re.DOTALL):
                chunk = await anext(self.reply.chunks(), None)
                assert chunk is not None, self.body
                self.body += chunk
        return self.body

    async def rest(self) -> str:
        """Return what comes up to the end of the response, which must have one."""
        had = len(self.body)
        async with asyncio.timeout(HANG):
            async for chunk in self.reply.chunks():
                self.body += chunk
        assert self.reply.ended
        await self.reply.close()
        return self.body[had:].decode()


def frame(id: str, data: str, retry: str = "") -> str:
    """The pattern of a signal."""
    return f"id: {id}\nevent: mercure\ndata: {re.escape(data)}\n{retry}\n"


def identity(id: str) -> str:
    """The pattern of the first signal."""
    return f'id: {id}\nevent: mercure\ndata: {{"type":"identity","identity":"[a-z0-9]+"}}\n\n'


def members(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.data)
    return found


FIRST = ":\n" + identity(CURSOR)
LIVE = frame(CURSOR, '{"type":"position","heartbeat":15000}')


# -- each signal


@DIALECTS
async def test_r91_without_the_parameter_a_stream_has_no_signal(protocol: Any, name: str) -> None:
    async with serving(protocol) as (hub, server):
        await hub.app.publish("a", id="1")
        await hub.app.publish("a", id="2")
        async with await request(server, "GET", f"{PATH}?{name}=a&last_event_id=1") as reply:
            first = await anext(reply.chunks())
            if len(first) == 2:
                first += await anext(reply.chunks())
            assert first == b":\nid: 2\ndata: \n\n"
            await until(lambda: hub.app.hub.delivery.live_count == 1)
            hub.clock.advance(15)
            assert await anext(reply.chunks()) == b":\n"
            hub.app.hub.shutdown.begin()
            assert await reply.body() == b""


@pytest.mark.parametrize("value", ["", "0", "true", "11"])
async def test_r91_another_value_of_the_parameter_is_refused(value: str) -> None:
    async with application() as app:
        answer = await ask(app, "GET", f"{PATH}?match=a&signals={value}")
        assert (answer.status, answer.detail) == (400, f"signals must be 1, not {value!r}")
        assert (await ask(app, "GET", f"{PATH}?match=a&signals=1&signals={value}")).status == 400


@DIALECTS
async def test_r92_r93_r95_a_cursor_that_the_history_has_loses_nothing(protocol: Any, name: str) -> None:
    async with serving(protocol) as (hub, server):
        for id in "12":
            await hub.app.publish("a", id=id)
        client = await Client.of(server, name, "1")
        gap = frame("1", '{"type":"gap","asked":"1","lost":"nothing","last_event_id":"1"}')
        await client.until(f":\n{identity('1')}{gap}id: 2\ndata: \n\n{LIVE}")
        assert client.reply.headers["mercure-last-event-id"] == "1"
        # It continues with the cursor of the position, and with no other.
        cursor = re.findall(CURSOR, client.body.decode())[-1]
        await client.reply.close()
        await hub.app.publish("a", id="3")
        client = await Client.of(server, name, cursor)
        gap = frame(cursor, f'{{"type":"gap","asked":"{cursor}","lost":"nothing","last_event_id":"{cursor}"}}')
        await client.until(f":\n{identity(cursor)}{gap}id: 3\ndata: \n\n{LIVE}")
        await client.reply.close()


@DIALECTS
@pytest.mark.parametrize("replays", [True, False])
async def test_r92_n108_n109_a_cursor_that_the_history_does_not_have(protocol: Any, name: str, replays: bool) -> None:
    async with serving(protocol, replay_unknown=replays) as (hub, server):
        await hub.app.publish("a", id="2")
        client = await Client.of(server, name, "1")
        lost = "some" if replays else "all"
        gap = frame("1", f'{{"type":"gap","asked":"1","lost":"{lost}","reason":"unknown","last_event_id":"earliest"}}')
        replayed = "id: 2\ndata: \n\n" if replays else ""
        await client.until(f":\n{identity('1')}{gap}{replayed}{LIVE}")
        assert client.reply.headers["mercure-last-event-id"] == "earliest"
        await client.reply.close()


@DIALECTS
async def test_r92_n110_all_that_the_history_has(protocol: Any, name: str) -> None:
    async with serving(protocol) as (hub, server):
        await hub.app.publish("a", id="1")
        client = await Client.of(server, name, "earliest")
        gap = frame("earliest", '{"type":"gap","asked":"earliest","lost":"nothing","last_event_id":"earliest"}')
        await client.until(f":\n{identity('earliest')}{gap}id: 1\ndata: \n\n{LIVE}")
        await client.reply.close()


@DIALECTS
async def test_r92_r93_without_a_cursor_there_is_no_gap(protocol: Any, name: str) -> None:
    async with serving(protocol, heartbeat=0) as (hub, server):
        await hub.app.publish("a", id="1")
        for cursor in (None, ""):
            client = await Client.of(server, name, cursor)
            await client.until(FIRST + frame(CURSOR, '{"type":"position"}'))
            await client.reply.close()


async def test_r92_r95_too_old_and_a_new_epoch_are_told_apart() -> None:
    history = MemoryHistory(Retention(2, 10**6))
    async with in_process(history) as app:
        await app.publish("a", id="1")
        cursor = history.cursor(1, "1")
        for id in ("2", "3"):
            await app.publish("b", id=id)
        assert await gap_of(app, cursor) == {"lost": "nothing", "last_event_id": cursor}
        await app.publish("b", id="4")
        assert await gap_of(app, cursor) == {"lost": "some", "reason": "too_old", "last_event_id": "earliest"}
        history._epoch = "another"
        assert await gap_of(app, cursor) == {"lost": "some", "reason": "new_epoch", "last_event_id": "earliest"}
        assert await gap_of(app, cursor + "x") == {"lost": "some", "reason": "unknown", "last_event_id": "earliest"}


@pytest.mark.parametrize("cursor", ["a\nb", "\0", "\x85", "x" * 4_097])
async def test_r92_n29_a_cursor_that_can_be_no_id_is_not_made_one(cursor: str) -> None:
    async with application() as app:
        await app.publish("a")
        async with follow(app, ("match", "a"), ("signals", "1"), ("last_event_id", cursor)) as stream:
            whose, gap = await stream.next_event(), await stream.next_event()
            assert members(whose) == {"type": "identity", "identity": "anonymous"}
            assert (whose.id, gap.id, members(gap)["asked"]) == ("", "", cursor)
            assert stream.body.startswith(b":\nevent: mercure\n")


@contextlib.asynccontextmanager
async def in_process(history: Any, **settings: Any) -> AsyncIterator[HubApplication]:
    from hub import Settings, create_app

    chosen = Settings(**{"dev": True, "retry": 0, "max_lifetime": 0, "subscriptions": False} | settings)
    app = create_app(chosen, history=history)
    async with app.running():
        yield app


async def gap_of(app: HubApplication, cursor: str) -> dict[str, Any]:
    async with follow(app, ("match", "a"), ("signals", "1"), ("last_event_id", cursor)) as stream:
        await stream.next_event()
        event = await stream.next_event()
        gap = members(event)
        assert event.type == "mercure"
        assert event.id == gap.pop("asked") == cursor
        assert gap.pop("type") == "gap"
        return gap


@DIALECTS
async def test_r94_r95_a_heartbeat_is_an_event_whose_cursor_moves_on(protocol: Any, name: str) -> None:
    async with serving(protocol, history_updates=2) as (hub, server):
        client = await Client.of(server, name)
        beat = frame(CURSOR, '{"type":"heartbeat"}')
        await client.until(f"{FIRST}{LIVE}")
        hub.clock.advance(15)
        await client.until(f"{FIRST}{LIVE}{beat}")
        for _ in range(5):
            await hub.app.publish("b")
        hub.clock.advance(15)
        await client.until(f"{FIRST}{LIVE}{beat}{beat}")
        await client.reply.close()
        cursors = re.findall(CURSOR, client.body.decode())
        assert len(set(cursors)) == 4
        found = [await hub.app.hub.history.locate(cursor) for cursor in cursors]
        assert found == ["too_old", "too_old", "too_old", 5]


async def test_r94_all_streams_share_the_bytes_of_a_round() -> None:
    """So that a heartbeat costs no more than a comment."""
    hub = MemoryHub(subscriptions=False)
    async with hub.app.running(), contextlib.AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(follow(hub.app, ("match", "a"), ("signals", "1"))) for _ in range(20)
        ]
        beats = []
        for _ in range(2):
            hub.clock.advance(15)
            for stream in streams:
                while (event := await stream.next_event()).data != '{"type":"heartbeat"}':
                    pass
                beats.append(event.id)
        assert len(set(beats)) == 2
        assert len(set(beats[:20])) == 1


async def test_r94_r34_a_heartbeat_comes_in_each_interval_also_beside_updates(protocol: Any) -> None:
    async with serving(protocol) as (hub, server):
        client = await Client.of(server)
        await client.until(f"{FIRST}{LIVE}")
        await until(lambda: hub.app.hub.delivery.live_count == 1)
        for n in range(3):  # a comment would never be due
            hub.clock.advance(8)
            await hub.app.publish("a", id=str(n))
            await client.until(f".*id: {n}\ndata: \n\n.*")
            await hub.app.hub.delivery._heartbeats.tick()
        await hub.app.publish("a", id="last")
        body = await client.until(".*id: last\ndata: \n\n.*")
        assert re.search(frame(CURSOR, '{"type":"heartbeat"}').encode(), body)
        await client.reply.close()


async def test_r95_a_cursor_of_a_live_stream_knows_the_entry_at_its_place(protocol: Any) -> None:
    """So that a history which has lost the entry without noticing refuses the cursor."""
    async with serving(protocol) as (hub, server):
        history = hub.app.hub.history
        for n in range(2):
            await hub.app.publish("a", id=f"{n}")
            await until(lambda: hub.app.hub.delivery.dispatched == hub.app.hub.delivery.position)
            client = await Client.of(server)
            await client.until(f"{FIRST}{LIVE}")
            *_, cursor = re.findall(CURSOR, client.body.decode())
            place = cast("Any", history)._seal.place(cursor)
            assert (place.number, place.entry) == (n + 1, blake2b(f"{n}".encode(), digest_size=8).digest())
            await client.reply.close()


@DIALECTS
async def test_r94_a_long_replay_without_a_match_has_heartbeats_whose_cursors_move_on(
    protocol: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(protocol) as (hub, server):
        for n in range(1_000):
            await hub.app.publish("b", id=str(n))
        await until(lambda: hub.app.hub.delivery.dispatched == hub.app.hub.delivery.position)
        follower = hub.app.hub.delivery._follower
        read = follower.read

        async def slowly(after: int) -> Any:
            hub.clock.advance(10)
            return await read(after)

        monkeypatch.setattr(follower, "read", slowly)
        client = await Client.of(server, name, "earliest")
        await client.until(f".*{LIVE}")
        signals = [json.loads(data)["type"] for data in re.findall(r"data: (.*)\n", client.body.decode())]
        assert signals[:2] == ["identity", "gap"]
        assert signals[-1] == "position"
        assert signals.count("heartbeat") == len(signals) - 3 >= 3
        history = hub.app.hub.history
        found = [await history.locate(cursor) for cursor in re.findall(CURSOR, client.body.decode())]
        assert found == sorted(map(int, found))
        await client.reply.close()


async def test_r97_what_may_be_lost_does_not_depend_on_what_the_history_has() -> None:
    for replays, lost in ((True, "some"), (False, "all")):
        async with in_process(MemoryHistory(Retention(9, 10**6)), replay_unknown=replays) as app:
            gaps = [await gap_of(app, "unknown")]
            await app.publish("a", private=True)
            gaps.append(await gap_of(app, "unknown"))
            assert gaps == [{"lost": lost, "reason": "unknown", "last_event_id": "earliest"}] * 2


@pytest.mark.parametrize("end", ["==\r\nSet-Cookie: a=b", "==\r\n", "!" * 100, "\0"])
async def test_r95_what_only_begins_with_a_cursor_is_unknown(protocol: Any, end: str) -> None:
    async with serving(protocol) as (hub, server):
        await hub.app.publish("a", id="1")
        cursor = hub.app.hub.history.cursor(1, "1") + end
        for prefer in ([], [("prefer", "wait=0")]):
            query = urlencode({"match": "a", "last_event_id": cursor})
            async with await request(server, "GET", f"{PATH}?{query}", prefer) as reply:
                assert (reply.status, reply.headers["mercure-last-event-id"]) == (200, "earliest")
                assert "set-cookie" not in reply.headers
                assert (await reply.next_event()).id == "1"


# -- goodbye


def goodbye(reason: str) -> str:
    return frame(CURSOR, f'{{"type":"goodbye","reason":"{reason}"}}')


async def expire(hub: MemoryHub) -> None:
    hub.clock.advance(100)


async def shut_down(hub: MemoryHub) -> None:
    hub.app.hub.shutdown.begin()


async def kick(hub: MemoryHub) -> None:
    streams = [seat.holder for seat in hub.app.hub.delivery.audience]
    # The kernel may delay the acknowledgement of what the client has read.
    await until(lambda: all(cast("Any", stream)._connection.is_flushed() for stream in streams))
    await hub.app.disconnect(subject="alice")


@DIALECTS
@pytest.mark.parametrize(
    ("reason", "ends"), [("expired", expire), ("max_lifetime", expire), ("shutdown", shut_down), ("kicked", kick)]
)
async def test_r96_a_stream_says_why_it_ends(
    protocol: Any, name: str, reason: str, ends: Callable[[MemoryHub], Any]
) -> None:
    async with serving(protocol, max_lifetime=90 if reason == "max_lifetime" else 0) as (hub, server):
        seconds = 50 if reason == "expired" else 10_000
        token = token_of_alice(seconds)
        client = await Client.of(server, name, token=token)
        await client.until(f"{FIRST}{LIVE}")
        await until(lambda: hub.app.hub.delivery.live_count == 1)
        await hub.app.publish("a", id="1")
        await client.until(f"{FIRST}{LIVE}id: 1\ndata: \n\n")
        await ends(hub)
        last = await client.rest()
        assert re.fullmatch(goodbye(reason), last), last
        if reason != "shutdown":
            # Its cursor is that of the last update.
            await hub.app.publish("a", id="2")
            [cursor] = re.findall(CURSOR, last)
            client = await Client.of(server, name, cursor)
            await client.until(f".*\n\nid: 2\ndata: \n\n{LIVE}")
            await client.reply.close()


async def test_r96_r82_a_kicked_client_that_has_not_read_all_is_reset_without_a_word(protocol: Any) -> None:
    async with serving(protocol, send_buffer=2**16) as (hub, server):
        token = token_of_alice()
        target = f"{PATH}?match=a&signals=1"
        slow = await request(server, "GET", target, [bearer(token)], receive_buffer=2**12)
        await until(lambda: hub.app.hub.delivery.live_count == 1)
        for _ in range(40):
            await hub.app.publish("a", data="x" * 50_000)
        await until(lambda: hub.app.hub.delivery.live_count == 0)
        await hub.app.disconnect(subject="alice")
        assert await is_reset(slow)


async def test_r96_r82_a_live_stream_whose_client_has_not_taken_all_is_reset_too(protocol: Any) -> None:
    async with serving(protocol, send_buffer=2**18) as (hub, server):
        token = token_of_alice()
        target = f"{PATH}?match=a&signals=1"
        slow = await request(server, "GET", target, [bearer(token)], receive_buffer=2**12)
        await until(lambda: hub.app.hub.delivery.live_count == 1)
        await hub.app.publish("a", data="x" * 50_000)
        assert hub.app.hub.delivery.live_count == 1  # the kernel has the rest of it
        await hub.app.disconnect(subject="alice")
        assert await is_reset(slow)


async def test_r96_when_to_come_back_is_a_member_and_the_field_of_the_stream() -> None:
    async with application(retry=2) as app:
        async with follow(app, ("match", "a"), ("signals", "1")) as stream:
            while members(await stream.next_event())["type"] != "position":
                pass
            app.hub.shutdown.begin(at_once=True)
            event = await stream.next_event()
            assert event.retry is not None
            assert members(event) == {"type": "goodbye", "reason": "shutdown", "retry": int(event.retry)}
            assert 1_000 <= int(event.retry) <= 3_000
            await stream.end()
        # A stream that comes during the shutdown ends at once, and says so.
        async with follow(app, ("match", "a"), ("signals", "1"), ("last_event_id", "x")) as stream:
            assert [members(await stream.next_event())["type"] for _ in range(3)] == ["identity", "gap", "goodbye"]
            await stream.end()
            retries = re.findall(rb"retry: (\d+)\n", stream.body)
            assert len(retries) == 2
            assert retries[0] == retries[1]


async def test_r96_a_stream_that_has_fallen_behind_the_history() -> None:
    async with serving(HubProtocol, send_buffer=2**16, history_updates=10) as (hub, server):
        target = f"{PATH}?match=a&signals=1"
        slow = await request(server, "GET", target, receive_buffer=2**12)
        await until(lambda: hub.app.hub.delivery.live_count == 1)
        for n in range(60):
            await hub.app.publish("a", data="x" * 50_000, id=str(n))
        received = [event async for event in slow.events()]
        assert slow.ended
        *updates, last = received
        assert members(last) == {"type": "goodbye", "reason": "too_far_behind"}
        # Its cursor is too old, and the next stream says so.
        client = await Client.of(server, cursor=last.id)
        await client.until(".*id: 59\ndata: x*\n\n" + LIVE)
        assert '"reason":"too_old"' in client.body.decode()
        await client.reply.close()
        await slow.close()
        assert [event.id for event in updates[2:]] == [str(n) for n in range(len(updates) - 2)]


async def test_r96_a_hub_without_its_history_says_that_it_is_unavailable() -> None:
    class Failing(MemoryHistory):
        is_down = False

        async def find(self, id: str, *, presence: bool = False) -> int | None:
            if self.is_down:
                raise HistoryUnavailable("planted")
            return await super().find(id, presence=presence)

    history = Failing(Retention(10, 10**6))
    async with in_process(history, retry=2) as app:
        history.is_down = True
        for cursor, id in (("x", "x"), ("a\nb", "")):
            parameters = ("match", "a"), ("signals", "1"), ("last_event_id", cursor)
            async with follow(app, *parameters) as stream:
                await stream.end()
                found = re.fullmatch(
                    rb":\nretry: (\d+)\n((?:id: .*\n)?)event: mercure\ndata: (.*)\nretry: (\d+)\n\n", stream.body
                )
                assert found is not None, stream.body
                assert found[1] == found[4]
                assert found[2].decode() == (f"id: {id}\n" if id else "")
                assert json.loads(found[3]) == {"type": "goodbye", "reason": "unavailable", "retry": int(found[1])}


# -- a response that ends


@DIALECTS
async def test_r91_a_response_with_wait_0_has_signals_too(name: str) -> None:
    async with in_process(MemoryHistory(Retention(10, 10**6))) as app:
        for id in "12":
            await app.publish("a", id=id)
        prefer = [("prefer", "wait=0")]
        async with follow(app, (name, "a"), ("signals", "1"), ("last_event_id", "1"), headers=prefer) as stream:
            await stream.end()
            gap = frame("1", '{"type":"gap","asked":"1","lost":"nothing","last_event_id":"1"}')
            assert re.fullmatch(f"{identity('1')}{gap}id: 2\ndata: \n\n{LIVE}: all\n", stream.body.decode())
        # So the present position can be asked for.
        async with follow(app, (name, "a"), ("signals", "1"), headers=prefer) as stream:
            await stream.end()
            assert re.fullmatch(f"{identity(CURSOR)}{LIVE}: all\n", stream.body.decode())
            *_, cursor = re.findall(CURSOR, stream.body.decode())
        await app.publish("a", id="3")
        async with follow(app, (name, "a"), ("last_event_id", cursor), headers=prefer) as stream:
            await stream.end()
            assert stream.body == b"id: 3\ndata: \n\n: all\n"


async def test_r96_a_response_that_is_cut_short_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(MemoryHistory(Retention(1_000, 10**6))) as app:
        for n in range(300):
            await app.publish("a", id=str(n))
        await until(lambda: app.hub.delivery.dispatched == app.hub.delivery.position)
        follower = app.hub.delivery._follower
        read, pages = follower.read, 0

        async def forgetful(after: int) -> Any:
            nonlocal pages
            pages += 1
            if pages == 2:
                raise PositionExpired("planted")
            return await read(after)

        monkeypatch.setattr(follower, "read", forgetful)
        parameters = ("match", "a"), ("signals", "1"), ("last_event_id", "0")
        async with follow(app, *parameters, headers=[("prefer", "wait=0")]) as stream:
            await stream.end()
        body = stream.body.decode()
        received = re.findall(r"id: (\d+)\ndata: \n", body)
        assert [members(await stream.next_event())["type"] for _ in range(2)] == ["identity", "gap"]
        assert re.search(goodbye("too_far_behind") + "$", body)
        assert ": all" not in body
        cursor = re.findall(CURSOR, body)[-1]
        assert await app.hub.history.locate(cursor) == int(received[-1]) + 1
        assert 0 < len(received) < 299


# -- what a signal does not show


async def test_r97_n111_updates_that_a_stream_does_not_receive_change_no_byte() -> None:
    """The same stream, beside updates of others and without them."""

    async def bodies(beside: Callable[[HubApplication], Any]) -> list[bytes]:
        hub, found = MemoryHub(subscriptions=False), []
        async with hub.app.running():
            await hub.app.publish("a", id="1")
            await beside(hub.app)
            for cursor in ("1", "earliest", "unknown", None):
                parameters = [("match", "a"), ("signals", "1")]
                parameters += [] if cursor is None else [("last_event_id", cursor)]
                async with follow(hub.app, *parameters) as stream:
                    while '"position"' not in (await stream.next_event()).data:
                        pass
                    await beside(hub.app)
                    await hub.app.publish("a", id=f"2{cursor}")
                    await beside(hub.app)
                    await stream.next_event()
                    await until(lambda: hub.app.hub.delivery.dispatched == hub.app.hub.delivery.position)
                    hub.clock.advance(15)
                    await stream.next_event()
                    await beside(hub.app)
                    hub.clock.advance(15)
                    await stream.next_event()
                    if cursor is None:
                        hub.app.hub.shutdown.begin(at_once=True)
                        await stream.end()
                    found.append(re.sub(CURSOR.encode(), b"#", stream.body))
        return found

    async def nothing(app: HubApplication) -> None:
        pass

    async def private(app: HubApplication) -> None:
        for n in range(150):
            await app.publish("a", data="secret", private=True, id=f"private {n} {time.monotonic_ns()}")

    async def others(app: HubApplication) -> None:
        for _ in range(3):
            await app.publish("b", data="x" * 100)

    alone = await bodies(nothing)
    assert alone == await bodies(private) == await bodies(others)
    assert sum(body.count(b'heartbeat"}') for body in alone) == 8


async def test_r98_all_listed_signals_are_those_of_streams() -> None:
    hub = MemoryHub(subscriptions=False)
    async with hub.app.running(), follow(hub.app, ("match", "a"), ("signals", "1"), ("last_event_id", "x")) as stream:
        types = [members(await stream.next_event())["type"] for _ in range(3)]
        hub.clock.advance(15)
        types.append(members(await stream.next_event())["type"])
        hub.app.hub.shutdown.begin(at_once=True)
        types.append(members(await stream.next_event())["type"])
        assert types == list(SIGNALS)


# -- whose stream it is


async def identity_of(app: Any, token: str | None = None, *, prefer: str = "", cursor: str = "") -> str:
    headers = [*([bearer(token)] if token else []), *([("prefer", prefer)] if prefer else [])]
    parameters = [("match", "a"), ("signals", "1"), *([("last_event_id", cursor)] if cursor else [])]
    async with follow(app, *parameters, headers=headers) as stream:
        found = members(await stream.next_event())
    assert found["type"] == "identity"
    return str(found["identity"])


async def test_r99_the_identity_is_the_same_for_one_user_and_differs_for_each_other() -> None:
    now = time.time()

    def classic(subject: str | None, subscribe: list[str], **more: Any) -> str:
        chosen = {"publish": [], "subscribe": subscribe, "subject": subject, "seconds": 900, "now": now} | more
        return sign_classic_token(DEVELOPMENT_KEY, **chosen)

    alice = classic("alice", ["a", "b"])
    same = [
        classic("alice", ["b", "a", "a"]),
        classic("alice", ["a", "b"], seconds=None, now=now - 9),
        classic("alice", ["a", "b"], publish=["a"], payload={"name": "Alice"}),
    ]
    others = [
        classic("bob", ["a", "b"]),
        classic("alice", ["a"]),
        classic("alice", ["a", "b", "c"]),
        classic("alice", ["*"]),
        classic(None, ["a", "b"]),
        classic(None, []),
        current_token(subscribe=["a", "b"], subject="alice"),
        current_token(subscribe=["a", "b"]),
        current_token(subscribe=["a", ("uritemplate", "b")], subject="alice"),
        current_token(subscribe=[("urlpattern", "/b"), ("urlpattern", "/a")], subject="alice"),
        current_token(subscribe=['a", "b'], subject="alice"),
    ]
    async with application() as app:
        whose = await identity_of(app, alice)
        assert re.fullmatch("[0-9a-f]{32}", whose)
        assert {await identity_of(app, token) for token in same} == {whose}
        assert await identity_of(app, alice, prefer="wait=0") == whose
        assert await identity_of(app, alice, cursor="earliest") == whose
        found = [whose, await identity_of(app), *[await identity_of(app, token) for token in others]]
        assert len(set(found)) == len(found) == 13
        assert found[1] == "anonymous"


def test_r99_two_issuers_may_have_a_user_of_the_same_name() -> None:
    signals = MemoryHub().app.hub.delivery.signals
    users = [Identity(issuer, subject) for issuer in ("https://a", "https://b") for subject in ("alice", None)]
    found = [signals.first(Start(0, None, "1"), CompiledGrant(identity=user)) for user in users]
    assert len(set(found)) == 4


async def test_r99_an_application_that_decides_gives_identities_too() -> None:
    def authorize(request: Any) -> Any:
        name = request.headers.get("x-user")
        return None if name is None else Grant(subscribe=[f"/users/{name}"], subject=name)

    hub = MemoryHub(subscriptions=False, authorize=authorize)
    async with hub.app.running():
        found = []
        for headers in ([("x-user", "alice")], [("x-user", "bob")], [], [("x-user", "alice")]):
            async with follow(hub.app, ("match", "a"), ("signals", "1"), headers=headers) as stream:
                found.append(members(await stream.next_event())["identity"])
        assert found[0] == found[3] != found[1]
        assert found[2] == "anonymous"


async def test_r99_the_identity_is_before_updates_also_of_a_stream_without_a_cursor(protocol: Any) -> None:
    """Its client may have to close the stream before any update is handed on."""
    async with serving(protocol) as (hub, server):
        history, delivery = hub.app.hub.history, hub.app.hub.delivery
        take_seat = delivery.take_seat

        async def slowly(*given: Any) -> Any:
            await hub.app.publish("a", id="meanwhile")
            await until(lambda: delivery.dispatched == 1)
            return await take_seat(*given)

        cast("Any", delivery).take_seat = slowly
        client = await Client.of(server, token=token_of_alice())
        update = "id: meanwhile\ndata: \n\n"
        body = await client.until(f"{FIRST}({update}{LIVE}|{LIVE}{update})")
        assert await history.locate(re.findall(CURSOR, body.decode())[0]) == 0, "it begins before the update"
        await client.reply.close()


async def test_r95_a_plain_client_may_send_an_opaque_cursor(protocol: Any) -> None:
    async with serving(protocol) as (hub, server):
        await hub.app.publish("a", id="1")
        cursor = hub.app.hub.history.cursor(1)
        await hub.app.publish("a", id="2")
        async with await subscribe(server, ("topic", "a"), last_event_id=cursor) as reply:
            assert (await reply.next_event()).id == "2"
            assert reply.headers["mercure-last-event-id"] == reply.headers["last-event-id"] == cursor
