"""Several nodes of a hub, in one process and in several; and a history that fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from hub.auth.grant import CompiledGrant
from hub.development import DEVELOPMENT_TOKEN
from hub.errors import HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.history.sqlite.file import files_of
from hub.node import health as health_module
from hub.node import presence
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, ask, bearer, classic_token, current_token, follow, publish
from tests.asgi import application as started
from tests.conftest import suspend
from tests.hub.presence import BELOW, EVERYTHING
from tests.hub.seats import Recorder
from tests.hub.test_subscription_events import application_on, said
from tests.waiting import HANG, until
from tests.wire import publish as publish_to
from tests.wire import request
from tests.wire import subscribe as subscribe_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from hub.delivery.reading import Reading
    from hub.history.base import Beat, Change, Entry, Page
    from hub.http.embedding import HubApplication
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def two_nodes(path: Path, **settings: Any) -> AsyncIterator[tuple[HubApplication, HubApplication]]:
    url = f"sqlite:///{path}/log.db?synchronous=normal"
    async with (
        started(**{"history_url": url} | settings) as one,
        started(**{"history_url": url} | settings) as other,
    ):
        yield one, other


# -- nodes


async def test_r76_updates_of_one_node_reach_the_subscribers_of_all_nodes(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, subscriptions=False) as nodes:
        async with (
            follow(nodes[0], ("match", "a")) as here,
            follow(nodes[1], ("match", "a")) as there,
            follow(nodes[1], ("match", "a"), headers=[bearer(EVERYTHING)]) as granted,
        ):
            ids = [await publish(nodes[n % 2], EVERYTHING, ("topic", "a"), ("data", str(n))) for n in range(20)]
            ids.append(await publish(nodes[0], EVERYTHING, ("topic", "a"), ("private", ""), ("data", "secret")))
            await publish(nodes[1], EVERYTHING, ("topic", "a"), ("data", "end"))
            for stream in (here, there):
                assert [event.id for event in await stream.until("end")] == ids[:-1]
            assert [event.id for event in await granted.until("end")] == ids
        # A cursor of one node is valid at the other.
        for node in nodes:
            async with follow(node, ("match", "a"), ("last_event_id", ids[15])) as stream:
                assert stream.headers["mercure-last-event-id"] == ids[15]
                assert [event.id for event in await stream.until("end")] == ids[16:-1]


async def test_n130_n120_all_nodes_list_the_subscribers_of_each(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, other):
        async with follow(one, ("match_urlpattern", BELOW + "/*"), headers=[bearer(EVERYTHING)]) as watcher:
            assert json.loads((await watcher.next_event()).data)["active"]  # its own arrival
            async with follow(other, ("match", "b"), ("match", "c"), headers=[bearer(EVERYTHING)]):
                came = [json.loads((await watcher.next_event()).data) for _ in range(2)]
                lists = [(await ask(node, "GET", BELOW, [bearer(EVERYTHING)])).json() for node in (one, other)]
                single = await ask(one, "GET", came[0]["id"], [bearer(EVERYTHING)])
            went = [json.loads((await watcher.next_event()).data) for _ in range(2)]
        key = lambda document: document["id"]  # noqa: E731
        assert sorted(lists[0]["subscriptions"], key=key) == sorted(lists[1]["subscriptions"], key=key)
        assert [one for one in lists[0]["subscriptions"] if one["match"] in "bc"] == came
        assert single.json() == came[0]
        assert [(one["id"], one["active"]) for one in went] == [(one["id"], False) for one in came]


async def active_of(stream: Any, match: str) -> bool:
    """Wait for the next event about `match`; return whether it is active."""
    while True:
        document = json.loads((await stream.next_event()).data)
        if document["match"] == match:
            return bool(document["active"])


async def announced(stream: Any, match: str, *, active: bool) -> None:
    """Wait until `match` is announced as active or not.

    If the beats of a node are late, it may be announced as gone and back before that.
    """
    while await active_of(stream, match) is not active:
        pass


async def listed(hub: HubProcess) -> list[str]:
    """Return the patterns of all subscriptions."""
    async with await request(hub, "GET", BELOW, [bearer(DEVELOPMENT_TOKEN), ("accept", "application/json")]) as answer:
        return [one["match"] for one in json.loads(await answer.body())["subscriptions"]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_n120_the_subscribers_of_a_node_that_is_killed_or_stopped_are_announced_as_gone(
    number: signal.Signals, tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    environment = {"HUB_HISTORY_URL": f"sqlite:///{tmp_path}/log.db?synchronous=normal", "HUB_NODE_TIMEOUT": "1"}
    one, other = (start_hub(**environment) for _ in range(2))
    pattern = ("match_urlpattern", BELOW + "/*")
    async with (
        await subscribe_to(one, pattern, token=DEVELOPMENT_TOKEN) as watcher,
        await subscribe_to(other, ("match", "of the other")) as stream,
    ):
        await announced(watcher, "of the other", active=True)
        if number == signal.SIGSTOP:
            suspend(other.process.pid, tmp_path / "log.db")
        else:
            other.process.send_signal(number)
        await announced(watcher, "of the other", active=False)
        async with asyncio.timeout(HANG):
            while await listed(one) != [BELOW + "/*"]:
                await asyncio.sleep(0.05)
        if number == signal.SIGSTOP:
            # The node was only stopped: its subscriber comes back and misses nothing.
            id = await publish_to(one, ("topic", "of the other"), ("data", "meanwhile"))
            other.process.send_signal(signal.SIGCONT)
            await announced(watcher, "of the other", active=True)
            assert (await stream.next_event()).id == id


async def test_n120_after_all_nodes_were_killed_the_next_node_announces_their_subscribers_as_gone(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    environment = {"HUB_HISTORY_URL": f"sqlite:///{tmp_path}/log.db?synchronous=normal", "HUB_NODE_TIMEOUT": "1"}
    first = start_hub(**environment)
    async with await subscribe_to(first, ("match", "a")):
        first.stop(signal.SIGKILL)
    second = start_hub(**environment)
    pattern = ("match_urlpattern", BELOW + "/*")
    async with await subscribe_to(second, pattern, token=DEVELOPMENT_TOKEN, last_event_id="earliest") as watcher:
        assert [await active_of(watcher, "a") for _ in range(2)] == [True, False]


# -- workers


async def test_workers_are_one_hub_and_a_killed_worker_is_restarted(
    tmp_path: Path, start_hub: Callable[..., HubProcess]
) -> None:
    hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_SUBSCRIPTIONS="0")
    hub.may_fail = True
    sent: list[str] = []

    async def send() -> None:
        sent.append(await publish_to(hub, ("topic", "a"), ("data", str(len(sent)))))

    async def follow_to_the_end(seen: list[str]) -> None:
        while True:
            with suppress(OSError, EOFError):
                async with await subscribe_to(hub, ("match", "a"), last_event_id=seen[-1]) as stream:
                    assert stream.headers["mercure-last-event-id"] == seen[-1]
                    async for event in stream.events():
                        seen.append(event.id)
                        if event.data == "end":
                            return

    await send()
    seen = [[sent[0]] for _ in range(8)]
    following = [asyncio.create_task(follow_to_the_end(one)) for one in seen]
    for _ in range(3):
        for _ in range(20):
            with suppress(OSError, EOFError):  # a worker that is being killed
                await send()
        await hub.kill_worker(hub.workers[0])
    await publish_to(hub, ("topic", "a"), ("data", "end"))
    await asyncio.wait_for(asyncio.gather(*following), HANG)
    assert len(sent) > 30
    for one in seen:
        assert one == seen[0]
        assert [id for id in one if id in set(sent)] == sent
    deaths = [line for line in hub.log().splitlines() if "a worker died" in line]
    assert len(deaths) == 3
    assert all(f" {hub.process.pid} " in line for line in deaths)  # each line has its process


async def test_workers_end_with_their_parent(tmp_path: Path, start_hub: Callable[..., HubProcess]) -> None:
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)):
        hub = start_hub("--workers", "2", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db", HUB_SUBSCRIPTIONS="0")
        async with await subscribe_to(hub, ("match", "a")) as stream:
            workers = hub.workers
            assert len(workers) == 2
            assert hub.stop(number) == status
            async with asyncio.timeout(HANG):
                assert [event async for event in stream.events()] == []  # the stream has ended cleanly
                await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))  # noqa: B023


def supervised(program: str) -> subprocess.CompletedProcess[str]:
    lines = "import os, signal, sys, time\nfrom hub.process import workers\n" + program
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=HANG)


@pytest.mark.processes
def test_a_signal_while_workers_are_started_ends_them_all() -> None:
    done = supervised("""
fork = os.fork
def fork_and_signal():
    os.kill(os.getpid(), signal.SIGTERM)  # which comes when it is let through
    return fork()
os.fork = fork_and_signal
sys.exit(workers.supervise(4, lambda number: time.sleep(600)))
""")
    assert done.returncode == 0


@pytest.mark.processes
def test_a_worker_is_restarted_until_it_can_start(tmp_path: Path) -> None:
    done = supervised(f"""
workers._RESTART_SECONDS = 0
starts = {str(tmp_path / "starts")!r}
def work(number):
    with open(starts, "a") as file:
        file.write("x")
    match os.path.getsize(starts):
        case 1: os._exit(1)
        case 2 | 3: sys.exit(workers.STARTUP_FAILURE)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)
sys.exit(workers.supervise(1, work))
""")
    assert done.returncode == 0
    assert (tmp_path / "starts").read_text() == "xxxx"


@pytest.mark.processes
async def test_a_hub_that_cannot_open_its_history_does_not_start(tmp_path: Path) -> None:
    for arguments in ([], ["--workers", "2"]):
        done = subprocess.run(
            [sys.executable, "-m", "hub", "serve", "--dev", "--port", "0", *arguments],
            env=os.environ | {"HUB_HISTORY_URL": f"sqlite:///{tmp_path}/none/log.db"},
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(
            f"skipfilter: HUB_HISTORY_URL: {tmp_path}/none/log.db: there is no such directory\n"
        )
        assert "Traceback" not in done.stderr


@pytest.mark.processes
async def test_several_workers_need_a_history_that_they_can_share() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hub", "serve", "--dev", "--port", "0", "--workers", "2"],
        env=os.environ | {"HUB_HISTORY_URL": "memory://"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 2
    assert "HUB_HISTORY_URL" in done.stderr


# -- another epoch


async def test_n108_clients_of_a_lost_epoch_are_informed(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, subscriptions=False) as nodes:
        async with follow(nodes[0], ("match", "a")) as here, follow(nodes[1], ("match", "a")) as there:
            last = await publish(nodes[0], EVERYTHING, ("topic", "a"), ("data", "lost"))
            # Once both nodes have dispatched it, both notice that it is lost, and end
            # their streams once.
            for stream in (here, there):
                assert (await stream.next_event()).data == "lost"
            # The file itself comes last: a node may notice its loss at once, and make
            # all of them again.
            for file in reversed(files_of(str(tmp_path / "log.db"))):
                os.rename(file, file + ".gone")
            for stream in (here, there):
                await stream.end()  # because updates are lost
        await publish(nodes[0], EVERYTHING, ("topic", "a"), ("data", "new"))
        for node in nodes:
            async with follow(node, ("match", "a"), ("last_event_id", last)) as stream:
                assert stream.headers["mercure-last-event-id"] == "earliest"
                assert (await stream.next_event()).data == "new"
                await publish(node, EVERYTHING, ("topic", "a"), ("data", "end"))
                assert await stream.until("end") == []


# -- a history that fails


class FailingLog(MemoryHistory):
    """A history that can be made unavailable."""

    def __init__(self) -> None:
        super().__init__(Retention(max_updates=1_000, max_bytes=10**6))
        self.works = True

    def _require(self) -> None:
        if not self.works:
            raise HistoryUnavailable("the host secret.example is on fire")

    async def append(self, updates: Sequence[Update], **options: Any) -> list[Entry]:
        self._require()
        return await super().append(updates, **options)

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        self._require()
        return await super().announce(changes)

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        self._require()
        return await super().find(id, presence=presence)

    async def read(self, after: int) -> Page:
        self._require()
        return await super().read(after)

    async def beat(self) -> Beat:
        self._require()
        return await super().beat()

    async def check(self) -> None:
        self._require()

    async def end(self) -> int:
        self._require()
        return await super().end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "RETRY", (0.001, 0.01))
    monkeypatch.setattr(health_module, "HEALTH_CACHE_SECONDS", 0)


async def test_an_unavailable_history_is_503_with_retry_after(quick: None) -> None:
    log = FailingLog()
    async with application_on(log) as app:
        log.works = False
        for answer in (
            await ask(app, "POST", PATH, [FORM, bearer(EVERYTHING)], b"topic=a"),
            await ask(app, "GET", PATH + "?match=a&last_event_id=x", [("Prefer", "wait=0")]),
            await ask(app, "HEAD", PATH + "?match=a&last_event_id=x"),
        ):
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            assert "secret" not in answer.text
        assert app.state.hub.delivery.connection_count == 0
        assert app.state.hub.shares.connections.clients == {}
        log.works = True
        assert (await ask(app, "POST", PATH, [FORM, bearer(EVERYTHING)], b"topic=a")).status == 200
        assert len(log._entries) == 1


async def test_n107_a_stream_whose_cursor_cannot_be_looked_up_ends_and_keeps_its_cursor(quick: None) -> None:
    """EventSource reconnects after the end of a stream, but not after a 503."""
    log = FailingLog()
    async with application_on(log, retry=3) as app:
        log.works = False
        answer = await ask(app, "GET", PATH + "?match=a", [("Last-Event-ID", "x")])
        assert (answer.status, answer.headers["mercure-last-event-id"]) == (200, "x")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert re.fullmatch(r":\nretry: [0-9]+\n", answer.text)
        assert app.state.hub.shares.connections.clients == {}


async def test_n120_n127_a_stream_without_a_cursor_begins_while_the_history_is_unavailable_and_is_announced_later(
    quick: None,
) -> None:
    log = FailingLog()
    async with application_on(log) as app:
        log.works = False
        async with follow(app, ("match", "a")) as stream:
            assert stream.status == 200
            assert await log.present() == []
            log.works = True
            async with asyncio.timeout(HANG):
                while not await log.present():
                    await asyncio.sleep(0)
            await publish(app, EVERYTHING, ("topic", "a"), ("data", "x"))
            assert (await stream.next_event()).data == "x"
        async with asyncio.timeout(HANG):
            while await log.present():
                await asyncio.sleep(0)
        announced = [entry.update for entry in log._entries.values() if entry.update.type == "mercure"]
        assert ['"active":true' in update.data for update in announced] == [True, False]


async def test_n120_n127_a_stream_does_not_wait_for_a_slow_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "ANNOUNCE_TIMEOUT", 0.001)
    log = FailingLog()
    announce, locked = log.announce, asyncio.Event()

    async def slow(changes: Sequence[Change]) -> list[Entry]:
        await locked.wait()
        return await announce(changes)

    monkeypatch.setattr(log, "announce", slow)
    async with application_on(log) as app, follow(app, ("match", "a")) as stream:
        assert stream.status == 200
        assert await log.present() == []
        await publish(app, EVERYTHING, ("topic", "a"), ("data", "x"))
        assert (await stream.next_event()).data == "x"
        locked.set()
        async with asyncio.timeout(HANG):
            while not await log.present():
                await asyncio.sleep(0)


async def test_n120_a_failed_announcement_of_a_running_stream_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(presence, "ANNOUNCE_TIMEOUT", 0.001)
    log, locked = FailingLog(), asyncio.Event()

    async def slow(changes: Sequence[Change]) -> list[Entry]:
        await locked.wait()
        raise OSError("planted")

    monkeypatch.setattr(log, "announce", slow)
    async with application_on(log) as app, follow(app, ("match", "a")) as stream:
        locked.set()
        await publish(app, EVERYTHING, ("topic", "a"), ("data", "x"))
        assert (await stream.next_event()).data == "x"
        async with asyncio.timeout(HANG):
            while "planted" not in caplog.text:
                await asyncio.sleep(0)


async def test_a_hub_starts_while_its_history_is_unavailable_and_serves_when_it_is_available(quick: None) -> None:
    log = FailingLog()
    await log.append([Update(("a",), "old")])
    log.works = False
    async with application_on(log, subscriptions=False) as app:
        for answer in (
            await ask(app, "POST", PATH, [FORM, bearer(EVERYTHING)], b"topic=a"),
            await ask(app, "GET", PATH + "/health/ready"),
        ):
            assert answer.status == 503
        answer = await ask(app, "GET", PATH + "?match=a")
        assert (answer.status, answer.body[:1]) == (200, b":")  # the stream has ended
        log.works = True
        async with asyncio.timeout(HANG):
            while not app.state.hub.delivery._follower.is_ready:
                await asyncio.sleep(0)
        async with follow(app, ("match", "a")) as stream:
            await publish(app, EVERYTHING, ("topic", "a"), ("data", "new"))
            assert (await stream.next_event()).data == "new"


async def test_r51_readiness_fails_at_once_and_liveness_after_a_while(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FailingLog()
    async with application_on(log) as app:

        async def health() -> list[int]:
            answers = [await ask(app, "GET", f"{PATH}/health/{what}") for what in ("ready", "live")]
            assert not any("secret" in answer.text for answer in answers)
            return [answer.status for answer in answers]

        assert await health() == [200, 200]
        log.works = False
        assert await health() == [503, 200]
        monkeypatch.setattr(health_module, "PATIENCE_SECONDS", 0)
        assert await health() == [503, 503]
        log.works = True
        assert await health() == [200, 200]
        monkeypatch.setattr(health_module, "PATIENCE_SECONDS", 60)
        log.works = False
        assert await health() == [503, 200]


async def test_r51_a_hub_whose_history_does_not_respond_is_not_ready(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(MemoryHistory):
        async def check(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(health_module, "CHECK_TIMEOUT", 0.01)
    async with application_on(Silent(Retention(max_updates=9, max_bytes=999))) as app:
        assert (await ask(app, "GET", f"{PATH}/health/ready")).status == 503


async def test_n120_a_subscriber_that_leaves_while_the_history_is_unavailable_is_announced_later(quick: None) -> None:
    log = FailingLog()
    async with application_on(log) as app:
        async with follow(app, ("match", "a")), follow(app, ("match", "b")):
            log.works = False
        async with follow(app, ("match", "c")) as stream:
            assert stream.status == 200
        log.works = True
        async with follow(app, ("match", "d")):
            await asyncio.wait_for(app.state.hub.presence._queue.join(), HANG)
            left = [("b", False), ("a", False), ("c", True), ("c", False)]
            assert said(await log.read(0)) == [("a", True), ("b", True), *left, ("d", True)]
            assert [one.matchers[0][1] for one in await log.present()] == ["d"]


async def test_a_stream_that_catches_up_waits_for_an_unavailable_history(quick: None) -> None:
    log = FailingLog()
    async with application_on(log, subscriptions=False) as app:
        for data in "12":
            await publish(app, EVERYTHING, ("topic", "a"), ("data", data))
        real, asked = log.read, asyncio.Event()

        async def read(after: int) -> Page:
            log.works = log.works and asked.is_set()  # fails at the first read
            asked.set()
            return await real(after)

        log.read = read  # type: ignore[method-assign]
        async with follow(app, ("match", "a"), ("last_event_id", "earliest")) as late:
            await asyncio.wait_for(asked.wait(), HANG)
            assert b"data" not in late.body
            log.works = True
            assert [(await late.next_event()).data for _ in "12"] == ["1", "2"]


async def test_subscribers_that_the_history_lost_are_announced_again(quick: None) -> None:
    """For example, if another node took this one for dead.

    Subscriptions that only the history knows are announced as gone.
    """
    log = FailingLog()
    stale = Present("stale", (("exact", "gone", None), ("exact", "too", None)))
    async with application_on(log, node_timeout=1) as app, follow(app, ("match", "a")), follow(app, ("match", "b")):
        present = await log.present()
        real = log.announce

        async def fail_once(changes: Sequence[Change]) -> list[Entry]:
            if any(change.active for change in changes):
                log.announce = real  # type: ignore[method-assign]
                raise HistoryUnavailable("once")
            return await real(changes)

        log.announce = fail_once  # type: ignore[method-assign]
        log._present = {stale.id: stale, present[1].id: present[1], "more": Present("more", ())}
        async with asyncio.timeout(HANG):
            while await log.present() != present[::-1]:
                await asyncio.sleep(0.01)
        assert said(await log.read(0)) == [("a", True), ("b", True), ("gone", False), ("too", False), ("a", True)]


async def test_a_failed_announcement_of_a_departure_is_found_and_repeated(quick: None) -> None:
    log = FailingLog()
    async with application_on(log, node_timeout=1) as app:
        real = log.announce

        async def fail_once(changes: Sequence[Change]) -> list[Entry]:
            log.announce = real  # type: ignore[method-assign]
            raise ZeroDivisionError

        async with follow(app, ("match", "a")):
            log.announce = fail_once  # type: ignore[method-assign]
        async with asyncio.timeout(HANG):
            while await log.present():
                await asyncio.sleep(0.01)
        assert said(await log.read(0)) == [("a", True), ("a", False)]


async def test_many_departures_are_announced_in_portions_and_new_subscribers_need_not_wait(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BATCH_CHANGES", 10)
    log = FailingLog()
    gone = [Present(str(n), (("exact", str(n), None),)) for n in range(100)]
    log._present = {one.id: one for one in gone}
    async with application_on(log, node_timeout=1) as app, follow(app, ("match", "a")):
        assert len(await log.present()) > 2
        async with asyncio.timeout(HANG):
            while len(await log.present()) > 1:
                await asyncio.sleep(0)
        assert sorted(said(await log.read(0))[:101]) == sorted([("a", True), *((str(n), False) for n in range(100))])


# -- trimmed presence updates


async def test_n108_a_reconnecting_client_is_informed_of_trimmed_presence_updates_that_it_may_read(
    tmp_path: Path,
) -> None:
    watching = ("match_urlpattern", BELOW + "/*")
    async with two_nodes(tmp_path, presence_updates=10) as (one, other):
        first = await publish(one, EVERYTHING, ("topic", "a"), ("data", "first"))
        for n in range(20):
            async with follow(other, ("match", str(n))):
                pass
        await publish(other, EVERYTHING, ("topic", "a"), ("data", "last"))
        for node in (one, other):
            await until(lambda: node.state.hub.delivery.position >= 42)  # noqa: B023
            for matchers, granted, cursor in (
                ([("match", "a"), watching], ["*"], "earliest"),
                ([("match", "a"), watching], [], first),
                ([("match", "a")], ["*"], first),
                ([("match", "a"), watching], ["a"], first),
                ([("match", "a"), watching], [BELOW + "/exact/a/b"], "earliest"),
            ):
                headers = [bearer(current_token(subscribe=granted))] if granted else []
                async with follow(node, *matchers, ("last_event_id", first), headers=headers) as stream:
                    assert stream.headers["mercure-last-event-id"] == cursor
                    ids = [event.id for event in await stream.until("last")]
                    assert ids[:1] == ([first] if cursor == "earliest" else ids[:0])


async def test_a_slow_stream_is_informed_of_trimmed_presence_updates_that_it_may_read() -> None:
    log = MemoryHistory(Retention(max_updates=1_000, max_bytes=2**20, presence_updates=4))
    async with application_on(log) as app, AsyncExitStack() as stack:
        hub = app.state.hub
        for n in range(300):
            await publish(app, EVERYTHING, ("topic", "a"), ("data", str(n)))
        grants = [CompiledGrant(subscribe=(hub.compiler.compile("exact", pattern),)) for pattern in ("*", "a")]

        async def reading(grant: CompiledGrant, cursor: str) -> Reading:
            subscriber, _ = await hub.subscribing.admit([("exact", "*")], grant, cursor)
            seat = stack.enter_context(hub.delivery.reader_seat(subscriber, Recorder()))
            walk: Reading = hub.delivery.reading(seat, subscriber.start)
            return walk

        cursors = "earliest", (await log.read(99))[0].update.id
        readers = [await reading(grant, cursor) for grant in grants for cursor in cursors]
        parts = [await reader.next() for reader in readers]
        assert [part and (part.start, part.end) for part in parts] == [(0, 128), (100, 128)] * 2
        for n in range(5):
            async with follow(app, ("match", str(n))):
                pass
        async with asyncio.timeout(HANG):
            while hub.delivery.position < 310:  # readers read up to there
                await hub.delivery.moved()
        for reader in readers[:2]:
            with pytest.raises(PositionExpired, match="presence"):
                await reader.next()
        for reader in readers[2:]:
            part = await reader.next()
            assert part is not None
            assert part.wanted[0].position == 129
        # A reader from the earliest entry on is not informed of entries trimmed before.
        late, found = await reading(grants[0], "earliest"), []
        while (part := await late.next()) is not None:
            found += [entry.position for entry in part.wanted]
        assert found == [*range(1, 301), *range(307, 311)]


# -- repeated ids


async def test_n162_a_repeated_id_gets_the_same_response_and_is_dispatched_once(tmp_path: Path) -> None:
    async with two_nodes(tmp_path, subscriptions=False, idempotency_window=60) as (one, other):
        async with follow(one, ("match", "a")) as stream:
            for node in (one, other, one):
                assert (
                    await publish(node, EVERYTHING, ("topic", "a"), ("id", "order-7"), ("data", "first")) == "order-7"
                )
            answer = await ask(
                one, "POST", PATH, [("content-type", "application/x-ndjson"), bearer(EVERYTHING)],
                b'{"topic": "a", "id": "order-7"}\n{"topic": "a", "id": "order-8"}\n{"topic": "a", "id": "order-8"}\n',
            )  # fmt: skip
            assert answer.text == "order-7\norder-8\norder-8\n"
            assert len({await publish(one, EVERYTHING, ("topic", "a")) for _ in range(3)}) == 3
            await publish(one, EVERYTHING, ("topic", "a"), ("data", "end"))
            events = await stream.until("end")
        assert [event.id for event in events[:2]] == ["order-7", "order-8"]
        assert len(events) == 5
        for node in (one, other):  # a repeated update takes no room in the backlog
            node.state.hub.window._settle()
            assert node.state.hub.window._updates == node.state.hub.window._bytes == 0


async def test_a_publisher_cannot_suppress_what_another_one_publishes(tmp_path: Path) -> None:
    """A remembered id belongs to its publisher, on every node."""
    tokens = [
        current_token(publish=["https://b.example/x"]),
        current_token(publish=["https://a.example/o"]),
        classic_token(publish=["https://a.example/o"]),
    ]
    topics = ["https://b.example/x", "https://a.example/o", "https://a.example/o"]
    async with two_nodes(tmp_path, subscriptions=False, idempotency_window=3_600) as (one, other):
        async with follow(other, ("match", "https://a.example/o"), headers=[bearer(EVERYTHING)]) as stream:
            for node in (one, other, one):
                for n, (token, topic) in enumerate(zip(tokens, topics, strict=True)):
                    fields = ("topic", topic), ("id", "order-7"), ("private", ""), ("data", str(n))
                    assert await publish(node, token, *fields) == "order-7"
            await publish(one, EVERYTHING, ("topic", "https://a.example/o"), ("data", "end"))
            events = await stream.until("end")
        assert [event.data for event in events] == ["1", "2"]


async def test_n115_an_id_can_be_reused_unless_the_operator_forbids_it() -> None:
    async with started(subscriptions=False) as app, follow(app, ("match", "a")) as stream:
        for _ in range(2):
            await publish(app, EVERYTHING, ("topic", "a"), ("id", "same"))
        assert [(await stream.next_event()).id for _ in range(2)] == ["same", "same"]
