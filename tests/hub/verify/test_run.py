"""`skipfilter verify`, on invented histories, and on correct, killed and faulty hubs."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from array import array
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import pytest

from hub.verify.checker import EXAMPLES, Corrupted, Findings, Published, Seen, Stretch, check
from tests.conftest import HubProcess
from tests.hub.commands import environment
from tests.hub.commands import run as run_command
from tests.waiting import HANG
from tests.wire import PATH, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

# -- made-up histories: of ten updates, one a second, each known after half a second

COUNT = 10
CLOSING = COUNT - 1


def made_up(**changed: Any) -> list[Published]:
    """Return updates; `_3={"sent": 1}` changes fields of update 3."""
    updates = [Published(1, n, n, n + 0.5, n + 0.6, f"urn:{n}", f"urn:{n}") for n in range(COUNT)]
    for name, change in changed.items():
        for field, value in change.items():
            setattr(updates[int(name[1:])], field, value)
    return updates


def stretch(*serials: int, since: float = -1, after: int | None = None, announced: bool = False) -> Stretch:
    return Stretch(since, after, announced, array("I", serials))


def found(
    *histories: Stretch | Sequence[Stretch], last: Sequence[int] = range(COUNT), updates: list[Published] | None = None
) -> Findings:
    clients = [Seen(f"client {n}", [one] if isinstance(one, Stretch) else list(one)) for n, one in enumerate(histories)]
    reading = Seen("the final read", [stretch(*last, since=COUNT)])
    return check(made_up() if updates is None else updates, clients, reading, CLOSING)


ALL = stretch(*range(COUNT))
UNCERTAIN = {"acknowledged": math.inf, "told": ""}
NEVER = UNCERTAIN | {"seen": math.inf, "id": ""}


def test_one_order_for_all_clients_is_correct() -> None:
    findings = found(ALL, stretch(5, 6, 7, 8, 9, since=4.5), stretch(5, 6, 7, 8, 9, since=4.5, after=4))
    assert (findings.counts, findings.gaps, findings.missed) == ({}, 0, 0)


def test_a_missing_update_is_a_loss() -> None:
    for one, missing in (
        (stretch(0, 1, 2, 4, 5, 6, 7, 8, 9), "3"),
        (stretch(1, 2, 3, 4, 5, 6, 7, 8, 9), "0"),
        (stretch(6, 7, 8, 9, since=4.5, after=4), "5"),
        (stretch(5, 6, 7, 9, since=4.5), "8"),
        ([stretch(0, 1, 2, 4), stretch(*range(COUNT), announced=True, since=4)], "3"),
    ):
        findings = found(ALL, one)
        assert findings.counts == {"loss": 1}
        (example,) = findings.examples["loss"]
        assert (example.client, example.position) == ("client 1", int(missing) - {"5": 5, "8": 5}.get(missing, 0))
        assert example.what == f"publisher 1 number {missing} (urn:{missing}) is missing"


def test_a_stretch_must_have_all_updates_of_the_final_history_after_its_first() -> None:
    # All were sent at the same time, so their times do not order them.
    updates = [Published(n, 1, 0, 5, 5, f"urn:{n}", f"urn:{n}") for n in range(COUNT)]
    last = [3, 1, 2, 0, *range(4, COUNT)]
    assert found(stretch(1, 0, *range(4, COUNT)), last=last, updates=updates).counts == {"loss": 1}
    assert found(stretch(2, 0, *range(4, COUNT)), last=last, updates=updates).counts == {}
    assert found(stretch(0, *range(4, COUNT), after=1), last=last, updates=updates).counts == {"loss": 1}
    assert found(stretch(*range(4, COUNT), after=0), last=last, updates=updates).counts == {}
    unfinished = found(stretch(3, 1, since=0), last=last, updates=updates)
    assert unfinished.counts == {"loss": 8, "unfinished": 1}


def test_a_client_that_does_not_reach_the_end_lost_the_rest() -> None:
    findings = found(ALL, stretch(*range(7)), [])
    assert findings.counts == {"loss": 3, "unfinished": 2}
    assert findings.examples["unfinished"][0] == ("client 1", 7, "did not come to the last update")
    assert found(ALL, last=range(5)).counts == {"unfinished": 1}


def test_updates_hidden_by_an_announced_gap_are_counted_and_not_lost() -> None:
    # The history has lost 3 and 4, which one client has received; both clients had a
    # gap announced.
    told = stretch(0, 1, 2, 5, 6, 7, 8, 9, since=4.7, announced=True)
    findings = found([stretch(0, 1, 2, 3, 4), told], [stretch(0, 1, 2), told], last=[0, 1, 2, 5, 6, 7, 8, 9])
    assert findings.counts == {"lost": 2}
    assert (findings.gaps, findings.missed) == (2, 2)
    # For a client without an announcement, it is a loss.
    findings = found([stretch(0, 1, 2, 3, 4), told], stretch(0, 1, 2, 5, 6, 7, 8, 9), last=[0, 1, 2, 5, 6, 7, 8, 9])
    assert findings.counts == {"lost": 2, "loss": 2}


def test_a_gap_hides_no_later_update() -> None:
    findings = found(ALL, [stretch(0, 1), stretch(2, 3, 4, 5, 6, 8, 9, since=5.5, announced=True)])
    assert findings.counts == {"loss": 1}


def test_an_unanswered_update_that_one_client_received_is_expected_by_all() -> None:
    updates = made_up(_3=UNCERTAIN)
    without = stretch(0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert found(ALL, updates=updates).counts == {}
    assert found(ALL, without, updates=updates).counts == {"disagreement": 1}
    # Also if the history has forgotten it.
    assert found(ALL, without, updates=updates, last=range(5, COUNT)).counts == {"disagreement": 1}
    assert found(without, updates=made_up(_3=NEVER), last=without.serials).counts == {}


def test_a_repeated_update_is_a_duplicate_unless_a_gap_was_announced() -> None:
    findings = found(stretch(0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9))
    assert findings.counts == {"duplicate": 2}
    what = "publisher 1 number 2 (urn:2) comes again, 2 events later"
    assert findings.examples["duplicate"][0] == ("client 0", 4, what)
    again = stretch(*range(COUNT), since=3.5, announced=True)
    assert found([stretch(0, 1, 2, 3), again]).counts == {}


def test_an_order_other_than_that_of_the_final_history_is_a_reordering() -> None:
    # 2 and 3 were being published at the same time: either order is correct, if all
    # clients have the same.
    updates = made_up(_2={"acknowledged": 3.5, "seen": 3.6})
    swapped = stretch(0, 1, 3, 2, 4, 5, 6, 7, 8, 9)
    assert found(swapped, updates=updates, last=swapped.serials).counts == {}
    findings = found(ALL, swapped, updates=updates)
    assert findings.counts == {"reordering": 1}
    what = "publisher 1 number 2 (urn:2) comes after publisher 1 number 3 (urn:3)"
    assert findings.examples["reordering"] == [("client 1", 3, what)]
    # Also if the history has forgotten them.
    assert found(ALL, swapped, updates=updates, last=range(5, COUNT)).counts == {"reordering": 1}


def test_an_impossible_order_is_a_reordering_even_if_all_clients_agree() -> None:
    swapped = stretch(0, 1, 3, 2, 4, 5, 6, 7, 8, 9)
    assert found(swapped, last=swapped.serials).counts == {"reordering": 1}  # the final read's, of which it is a part
    assert found(swapped, last=range(5, COUNT)).counts == {"reordering": 1}
    assert found(swapped, updates=made_up(_2=UNCERTAIN | {"seen": 3.7}), last=swapped.serials).counts == {}


def test_changed_data_and_ids_are_corruption() -> None:
    findings = check(
        made_up(_3={"id": "urn:x"}),
        [Seen("client 0", [ALL], [Corrupted(4, "urn:4 has 'nonsense'")])],
        Seen("the final read", [ALL]),
        CLOSING,
    )
    assert findings.counts == {"corruption": 2}
    assert findings.examples["corruption"] == [
        ("client 0", 4, "urn:4 has 'nonsense'"),
        ("", None, "publisher 1 number 3 (urn:3) came with the id urn:x"),
    ]


def test_an_acknowledged_update_that_is_nowhere_is_lost() -> None:
    nowhere = stretch(0, 1, 2, 4, 5, 6, 7, 8, 9, since=3.9)
    findings = found(nowhere, updates=made_up(_3={"seen": math.inf, "id": ""}), last=nowhere.serials)
    assert findings.counts == {"lost": 1}
    assert (
        findings.examples["lost"][0].what == "publisher 1 number 3 (urn:3) was acknowledged, and no client received it"
    )
    assert (findings.violations(may_lose=False), findings.violations(may_lose=True)) == (1, 0)


def test_updates_trimmed_from_the_start_of_the_history_are_not_lost_but_those_from_its_middle_are() -> None:
    assert found(ALL, last=range(4, COUNT)).counts == {}
    assert found(ALL, last=[0, 1, 2, *range(4, COUNT)]).counts == {"lost": 1}


def test_updates_after_the_end_do_not_count() -> None:
    updates = [*made_up(), Published(1, 10, 3.2, math.inf, 9.7)]
    assert found(ALL, stretch(*range(COUNT), 10, 3), updates=updates).counts == {}
    assert found([ALL, stretch(0, 2, since=20, announced=True)]).counts == {}


def test_a_few_examples_are_kept_and_all_are_counted() -> None:
    findings = found(*[stretch(*range(1, COUNT))] * 20)
    assert (findings.counts["loss"], len(findings.examples["loss"])) == (20, EXAMPLES)


def test_a_correct_hub_has_no_findings_and_planted_faults_are_found() -> None:
    planted = 0
    for seed in range(300):
        random = Random(seed)
        updates, clients, last, closing = simulated(random)
        honest = check(updates, clients, last, closing).counts
        assert set(honest) <= {"lost"}, seed
        had = list(last.stretches[0].serials)
        if len(had) < 4:
            continue
        n = random.randrange(1, len(had) - 2)
        for kind, spoilt in (
            ("loss", [*had[:n], *had[n + 1 :]]),
            ("duplicate", [*had[: n + 1], had[n - 1], *had[n + 1 :]]),
            ("reordering", [*had[:n], had[n + 1], had[n], *had[n + 2 :]]),
        ):
            client = Seen("spoilt", [stretch(*spoilt, since=updates[closing].began)])
            accused = check(updates, [*clients, client], last, closing).counts - honest
            if kind == "loss" and updates[had[n]].acknowledged == math.inf:
                kind = "disagreement"
            assert accused == {kind: 1}, seed
            planted += 1
    assert planted > 300


def simulated(random: Random) -> tuple[list[Published], list[Seen], Seen, int]:
    """Return the histories of clients of a correct hub, and its updates.

    The hub's history forgets its oldest entries, and sometimes loses its newest.  Each
    second one thing happens: an update is sent, is appended, or is acknowledged; a
    client reads, loses its connection, or reconnects.
    """
    updates: list[Published] = []
    pending: list[int] = []
    unanswered: list[int] = []
    log: list[int] = []
    fresh = 0  # entries from this index on were appended after the last loss
    clients = [Seen(f"client {n}") for n in range(4)]
    cursors: list[int | None] = [None] * len(clients)
    places: list[int | None] = [None] * len(clients)  # the index that each connected client has read up to

    def read(n: int, place: int, now: float, limit: int) -> None:
        for serial in log[place : place + limit]:
            updates[serial].seen = min(updates[serial].seen, now)
            clients[n].stretches[-1].serials.append(serial)
            cursors[n] = serial
        places[n] = min(len(log), place + limit)

    def come(n: int, now: float) -> int:
        cursor = cursors[n]
        if cursor is None:
            clients[n].stretches = [Stretch(now)]
            return len(log)
        if cursor in log[fresh:]:
            return log.index(cursor) + 1
        clients[n].stretches.append(Stretch(now, announced=True))
        return 0

    for now in range(300):
        n = random.randrange(len(clients))
        match random.choice(("begin", "append", "append", "answer", "read", "read", "leave", "come", "forget")):
            case "begin":
                updates.append(Published(0, len(updates), now))
                pending.append(len(updates) - 1)
            case "append" if pending:
                serial = pending.pop(random.randrange(len(pending)))
                if random.random() < 0.9:  # otherwise the update never arrives
                    log.append(serial)
                    unanswered.append(serial)
            case "answer" if unanswered:
                serial = unanswered.pop(random.randrange(len(unanswered)))
                if random.random() < 0.9:  # otherwise the response is lost
                    updates[serial].acknowledged = now
            case "read" if (place := places[n]) is not None:
                read(n, place, now, 2)
            case "leave":
                places[n] = None
            case "come" if places[n] is None:
                places[n] = come(n, now)
            case "forget" if log and random.random() < 0.1:
                some = random.randint(1, len(log))
                if random.random() < 0.5:
                    del log[:some]
                    fresh = max(0, fresh - some)
                else:
                    del log[-some:]
                    fresh = len(log)
                places = [None] * len(clients)  # the entries that they would continue from are gone
    ends = [come(n, 400) if place is None else place for n, place in enumerate(places)]
    closing = len(updates)
    updates.append(Published(0, closing, 401, 402))
    log.append(closing)
    for n, place in enumerate(ends):
        read(n, place, 403, len(log))
    return updates, clients, Seen("the final read", [Stretch(404, serials=array("I", log))]), closing


# -- the command


class Proxy:
    """A proxy for a hub.  Subclasses add a fault, to update 2 of publisher 1.

    Streams that begin with this update are spared: what came before its first event, a
    client cannot know.
    """

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.left = 3
        """How often it still does."""

    pause = 0.0
    """Seconds before the first event of a stream."""

    def ask(self, cursor: str | None) -> tuple[str | None, dict[str, str]]:
        """The cursor that the hub gets, and headers for the client."""
        return cursor, {}

    def spoil(self, event: bytes, following: bytes) -> list[bytes]:
        """Return the events that a client gets for the update and the next one."""
        return [event, following]

    async def publish(self, pass_on: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the response to its publication; b"" cuts the connection."""
        return await pass_on()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and return whether there may be another one."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.pop("content-length")))
        del headers["host"]
        if method == "GET":
            await self._stream(target, headers, writer)
            return False

        async def pass_on() -> bytes:
            async with await request(self.hub, "POST", target, headers.items(), body) as reply:
                return answer(reply.status, await reply.body())

        answered = await (self.publish(pass_on) if is_the_one(unquote_to_bytes(body)) else pass_on())
        writer.write(answered)
        return answered != b""

    async def _stream(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if headers.get("accept") != "text/event-stream":
            writer.write(answer(406, b"only event streams"))
            return
        cursor, told = self.ask(headers.pop("last-event-id", None))
        if cursor is not None:
            headers["last-event-id"] = cursor
        async with await request(self.hub, "GET", target, headers.items()) as reply:
            told = {k: v for k, v in reply.headers.items() if k == "mercure-last-event-id"} | told
            lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", *(f"{k}: {v}" for k, v in told.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            await asyncio.sleep(self.pause)
            rest, held, goes_on = b"", b"", cursor is not None
            async for chunk in reply.chunks():
                await writer.drain()
                *events, rest = (rest + chunk).split(b"\n\n")
                for event in events:
                    if held:
                        writer.write(b"".join(each + b"\n\n" for each in self.spoil(held, event)))
                        held = b""
                    elif goes_on and self.left and is_the_one(event):
                        self.left -= 1
                        held = event
                    else:
                        writer.write(event + b"\n\n")
                        goes_on = goes_on or b"data:" in event


def is_the_one(text: bytes) -> bool:
    return re.search(rb"data[:=] ?\w+[ +]\d+[ +]1[ +]2[ +]", text) is not None


def answer(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d -\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Drops(Proxy):
    def spoil(self, event: bytes, following: bytes) -> list[bytes]:
        return [following]


class Repeats(Proxy):
    def spoil(self, event: bytes, following: bytes) -> list[bytes]:
        return [event, following, event]


class Swaps(Proxy):
    def spoil(self, event: bytes, following: bytes) -> list[bytes]:
        return [following, event]


class ChangesData(Proxy):
    def spoil(self, event: bytes, following: bytes) -> list[bytes]:
        return [event.replace(b" 1 2 ", b" 1 3 "), following]


class ChangesIds(Proxy):
    async def publish(self, pass_on: Callable[[], Awaitable[bytes]]) -> bytes:
        await pass_on()
        return answer(200, b"urn:x")


class TakesAndForgets(Proxy):
    async def publish(self, pass_on: Callable[[], Awaitable[bytes]]) -> bytes:
        return answer(200, b"urn:x")


class LiesAboutGaps(Proxy):
    """Continues from now, and claims to continue from the cursor."""

    def ask(self, cursor: str | None) -> tuple[str | None, dict[str, str]]:
        return (None, {"mercure-last-event-id": cursor}) if cursor not in (None, "earliest") else (cursor, {})


class RepeatsAll(Proxy):
    """Replays everything, and claims to continue from the cursor."""

    def ask(self, cursor: str | None) -> tuple[str | None, dict[str, str]]:
        return ("earliest", {"mercure-last-event-id": cursor}) if cursor is not None else (cursor, {})


async def verified(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the report."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-m", "hub", "verify", "--json", *arguments),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert "Traceback" not in errors.decode(), errors.decode()
    assert "Warning" not in errors.decode(), errors.decode()
    return process.returncode or 0, json.loads(out)


async def verified_behind(proxy: Proxy, *arguments: str) -> tuple[int, dict[str, Any]]:
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        server = await asyncio.start_server(
            lambda *streams: tasks.append(group.create_task(proxy.serve(*streams))), "127.0.0.1", 0
        )
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
            # Even a busy machine publishes the two updates of publisher 1 in this time.
            result = await verified(url, *QUICK, "--seconds", "3", *arguments)
            for task in tasks:  # from Python 3.12 on, the server ends after its connections
                task.cancel()
    return result


def kinds(report: dict[str, Any]) -> set[str]:
    return {kind for kind, violations in report["violations"].items() if violations["count"]}


QUICK = ("--dev", "--clients", "8", "--rate", "60", "--seconds", "1.5", "--churn", "0.5", "--patience", str(HANG))


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[HubProcess]:
    hub = HubProcess(HUB_HISTORY_URL="memory://")
    yield hub
    hub.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "expected", "possible"),
    [
        (Drops, {"loss"}, set()),
        (Repeats, {"duplicate"}, set()),
        (Swaps, {"reordering"}, set()),
        (ChangesData, {"corruption"}, {"loss", "lost", "disagreement"}),  # no client has the published data
        (ChangesIds, {"corruption"}, set()),
        (TakesAndForgets, {"lost", "loss"}, set()),
        (LiesAboutGaps, {"loss"}, {"unfinished"}),
        (RepeatsAll, {"duplicate"}, {"reordering"}),  # it did not ask for these
    ],
)
async def test_a_faulty_hub_is_found(
    shared_hub: HubProcess, fault: type[Proxy], expected: set[str], possible: set[str]
) -> None:
    # The patience is only used up by a client that never reaches the last update.
    patience = "4" if "unfinished" in possible else str(HANG)
    # A client that leaves before the next event has missed nothing.
    stay = ("--churn", "60") if fault.spoil is not Proxy.spoil else ()
    status, report = await verified_behind(fault(shared_hub), "--may-lose", "--patience", patience, *stay)
    assert expected <= kinds(report) <= expected | possible, report
    assert (status, report["ok"]) == (1, False)


class GarblesCursors(Proxy):
    def ask(self, cursor: str | None) -> tuple[str | None, dict[str, str]]:
        return (cursor if cursor in (None, "earliest") else "nonsense"), {}


@pytest.mark.anyio
async def test_an_announced_gap_is_counted_and_is_not_a_violation(shared_hub: HubProcess) -> None:
    status, report = await verified_behind(GarblesCursors(shared_hub))
    assert (status, kinds(report)) == (0, set())
    assert report["announced"]["gaps"] >= 4


class IsSlow(Proxy):
    pause = 1.0


@pytest.mark.anyio
async def test_a_replay_that_takes_longer_than_a_connection_comes_to_its_end(shared_hub: HubProcess) -> None:
    status, report = await verified_behind(IsSlow(shared_hub), "--churn", "0.02")
    assert (status, kinds(report)) == (0, set())


class RefusesAndCutsOff(Proxy):
    """Alternates between both, sometimes after it has passed the update on."""

    async def publish(self, pass_on: Callable[[], Awaitable[bytes]]) -> bytes:
        self.left -= 1
        match self.left:
            case 2:
                return answer(503, b"")
            case 1:
                await pass_on()
                return answer(503, b"")
            case _:
                await pass_on()
                return b""


@pytest.mark.anyio
async def test_refused_and_unanswered_updates_are_not_violations(shared_hub: HubProcess) -> None:
    status, report = await verified_behind(RefusesAndCutsOff(shared_hub))
    assert (status, kinds(report)) == (0, set())
    assert report["nodes"][0]["refused"] == {"503": 2}
    assert report["nodes"][0]["uncertain"] == 1


@pytest.mark.anyio
async def test_a_correct_hub_is_reported_as_correct(shared_hub: HubProcess) -> None:
    more = ("--clients", "30", "--private", "0.5", "--seed", "7")
    status, report = await verified(shared_hub.url, shared_hub.url, *QUICK, *more)
    assert (status, kinds(report), report["ok"], report["seed"]) == (0, set(), True, 7)
    assert report["announced"] == {"gaps": 0, "missed": 0}
    first, second = (node["acknowledged"] for node in report["nodes"])
    assert min(first, second) > 0
    assert report["received"] > 20 * (first + second)
    assert report["reconnections"] > 0
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"] <= report["latency_ms"]["max"]


@pytest.mark.anyio
async def test_a_restarted_hub_announces_missing_updates(
    start_hub: Callable[..., HubProcess],
) -> None:
    hub = start_hub(HUB_HISTORY_URL="memory://")
    async with await subscribe(hub, ("match_uritemplate", "https://verify.example/{run}/{publisher}")) as reader:
        running = asyncio.create_task(verified(hub.url, *QUICK, "--seconds", "5", "--may-lose"))
        for _ in range(20):
            await reader.next_event()
    await asyncio.to_thread(hub.stop)
    await asyncio.to_thread(start_hub, "--port", str(hub.port), HUB_HISTORY_URL="memory://")
    status, report = await running
    assert (status, kinds(report) - {"lost"}) == (0, set()), report
    assert report["announced"]["gaps"] > 0
    assert report["nodes"][0]["refused"]


def test_the_report_is_readable(shared_hub: HubProcess) -> None:
    ended = run_command("verify", shared_hub.url, *QUICK, "--seconds", "0.5")
    assert ended.returncode == 0
    assert "All is well." in ended.stdout
    assert re.search(r"^ +\d+ +0 +0 +\d+\.\d\d s  http://localhost", ended.stdout, re.MULTILINE)
    assert re.search(r"^duplicate +0$", ended.stdout, re.MULTILINE)
    assert re.search(r"published.* received", ended.stderr)


def test_the_reason_of_a_failed_start_is_named(shared_hub: HubProcess) -> None:
    for arguments, told in (
        ([shared_hub.url], "accepts no update: 401"),
        ([shared_hub.url, shared_hub.origin + "/nothing", "--dev"], "/nothing accepts no update: 404"),
        (["http://127.0.0.1:1/", "--dev"], "http://127.0.0.1:1/ accepts no update: Connect call failed"),
        (["localhost:3000", "--dev"], "'localhost:3000' is not the URL of a hub"),
        ([shared_hub.url, "--rate", "0"], "--rate"),
        ([], "http://127.0.0.1:2/ accepts no update: Connect call failed"),
    ):
        ended = run_command("verify", *arguments, HUB_URL="http://127.0.0.1:2/")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert told in ended.stderr
        assert "Traceback" not in ended.stderr
