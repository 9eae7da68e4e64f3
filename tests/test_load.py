"""The load generator counts the deliveries of a server exactly, and finds
missing ones.
"""

from __future__ import annotations

import json
import socket
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench import bench_kick
from bench.benchmark import table
from bench.clients import Clients, Subscriber, due_times
from bench.crowd import Stream, faults
from bench.hold import hold
from bench.load import main, run
from bench.measure import summary
from bench.report import draw
from bench.servers import installed
from bench.targets import Load, Mercure, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.measure import Figures
    from tests.conftest import HubProcess

SMALL = Load(connections=20, groups=2, rate=300, poisson=False, seconds=0.1, spin=False)
"""29 updates, each to 10 subscribers."""


def target(hub: HubProcess, dialect: Mercure | None = None) -> Target:
    return Target("127.0.0.1", hub.port, dialect or Mercure(hub.url), (hub.process.pid,))


@pytest.mark.parametrize("name", installed())
@pytest.mark.processes
def test_every_server_delivers_every_update_once(name: str) -> None:
    with installed()[name]() as server:
        found = run(SMALL, server)
    assert (found["updates"], found["deliveries"]) == (29, 290)
    assert found["lost"] == found["doubled"] == found["closed"] == 0
    assert 0 < found["p50 ms"] <= found["p99 ms"] <= found["max ms"]
    assert found["CPU µs a delivery"] > 0


@pytest.mark.parametrize(
    "load",
    [
        Load(connections=20, groups=2, rate=0, window=50, batch=10, seconds=0.2),
        Load(connections=20, groups=20, rate=100, seconds=0.2, private=True),
        Load(connections=20, groups=2, rate=100, seconds=0.2, new_topics=True, fresh_tokens=True),
        Load(connections=20, rate=50, seconds=0.2, stuck=2, payload=100_000),
    ],
    ids=["joined frames", "private", "new topics", "stuck readers"],
)
def test_nothing_is_lost_or_doubled(load: Load, shared_hub: HubProcess) -> None:
    found = run(load, target(shared_hub))
    assert found["updates"] > 0
    assert found["deliveries"] == found["updates"] * load.connections / load.groups
    assert found["lost"] == found["doubled"] == found["closed"] == 0


def test_visitors_are_not_waited_for(shared_hub: HubProcess) -> None:
    found = run(Load(connections=10, rate=100, seconds=0.3, visitors=100), target(shared_hub))
    assert found["came"] == 29
    assert found["refused"] == found["lost"] == found["closed"] == 0


def test_newcomers_receive_nothing(shared_hub: HubProcess) -> None:
    found = run(Load(connections=10, rate=100, seconds=0.3, newcomers=100), target(shared_hub))
    assert found["came"] == 29
    assert found["deliveries"] == found["updates"] * 10


class Faulty(Mercure):
    """A dialect that spoils the last update: it has no subscribers, or two marks.

    There is one update before the warm-up, five in it, and 29 in SMALL.  A second mark
    of an earlier update could count as one that has not arrived yet.
    """

    def __init__(self, url: str, fault: str) -> None:
        super().__init__(url)
        self.fault, self.published = fault, 0

    def publish(self, updates: Sequence[tuple[int, int, str]], load: Load) -> bytes:
        self.published += 1
        [(group, number, data)] = updates
        if self.published == 1 + 5 + 29:
            group, data = (99, data) if self.fault == "lost" else (group, data + data)
        return super().publish([(group, number, data)], load)


PATIENCE = 10.0
"""Seconds of silence that mean a loss: far more than on a busy machine, because the
tests wait that long."""


@pytest.mark.parametrize(("fault", "missing"), [("lost", 20), ("doubled", -20)])
def test_missing_and_repeated_deliveries_are_reported(fault: str, missing: int, shared_hub: HubProcess) -> None:
    load = replace(
        SMALL, groups=1, publishers=1, patience=PATIENCE
    )  # with one publisher, the last update is the last to arrive
    found = run(load, target(shared_hub, Faulty(shared_hub.url, fault)))
    assert {name: found[name] for name in ("lost", "doubled")} == {"lost": 0, "doubled": 0} | {fault: 20}
    assert found["deliveries"] == 29 * 20 - missing


def test_a_repeated_delivery_does_not_hide_a_missing_one_of_another_reader() -> None:
    with closing(Clients(SMALL, Target("127.0.0.1", 9, Mercure("http://127.0.0.1:9/hub")))) as clients:
        clients._subscribers = {1: Subscriber("reader", 0), 2: Subscriber("probe", 0)}
        clients._published[0] = 1
        clients.expected = clients.delivered = 2
        clients._received[1] = 2
        assert not clients._is_delivered()
        clients._received[1:3] = [1, 1]
        assert clients._is_delivered()
        clients._received[1] += 1
        clients.delivered += 1
        assert clients._is_delivered()


def test_a_subscriber_without_deliveries_is_found_before_the_measurement(shared_hub: HubProcess) -> None:
    class Deaf(Mercure):
        asked = 0

        def subscribe(self, group: int, load: Load) -> bytes:
            self.asked += 1
            return super().subscribe(99 if self.asked == 7 else group, load)

    with pytest.raises(RuntimeError, match="19 of 20 deliveries arrived"):
        run(replace(SMALL, groups=1, patience=PATIENCE), target(shared_hub, Deaf(shared_hub.url)))


def test_a_refusal_of_the_hub_is_reported(start_hub: Callable[..., HubProcess]) -> None:
    hub = start_hub(HUB_MAX_CONNECTIONS="15")  # so few that none is kept for clients with a token
    found = run(Load(connections=5, rate=100, seconds=0.2, newcomers=100, spin=False), target(hub))
    assert (found["came"], found["refused"]) == (10, 9)
    with pytest.raises(RuntimeError, match=r"a subscriber was refused: HTTP/1\.1 200 "):
        run(replace(SMALL, connections=40), target(hub))
    with pytest.raises(RuntimeError, match=r"an update was refused: HTTP/1\.1 401"):
        run(SMALL, target(hub, Mercure(hub.url, token="wrong")))


@pytest.mark.parametrize("cut", range(41))
def test_a_time_may_be_split_between_two_reads(cut: int) -> None:
    text = b"data: ~%019d\n\n" % 5 + b"data: ~%019d" % 6
    first, rest = due_times(text[:cut])
    second, end = due_times(rest + text[cut:])
    assert (first + second, end) == ([5, 6], b"")


def test_any_hub_can_be_measured_by_its_url(shared_hub: HubProcess, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--connections", "5", "--rate", "100", "--seconds", "0.2", "--no-poisson", "--no-spin", "--json"]
    main(["--url", shared_hub.url, "--token", shared_hub.token, *flags])
    found = json.loads(capsys.readouterr().out)
    assert (found["updates"], found["deliveries"], found["lost"]) == (19, 95, 0)
    assert "CPU µs a delivery" not in found
    main(["--url", shared_hub.url, "--pid", str(shared_hub.process.pid), *flags[:-1]])
    assert "CPU µs a delivery" in capsys.readouterr().out


@pytest.mark.processes
def test_a_hub_can_be_watched_for_a_long_time(tmp_path: Path) -> None:
    samples: list[Figures] = []
    made = hold(Load(connections=20, groups=2, rate=100, seconds=0.5, visitors=20, spin=False), 0.1, samples.append)
    assert 0 < len(samples) <= 4  # a busy machine may miss some
    tenths = [sample["minutes"] * 60 / 0.1 for sample in samples]
    assert tenths == pytest.approx(sorted({round(tenth) for tenth in tenths}))
    heading, connections, *_ = table(made)
    assert (heading[0], heading[-2:]) == ("minutes", ["least", "most"])
    assert connections[0] == "connections"
    assert int(connections[-1]) > 20
    draw(made, tmp_path / "hold.svg")
    assert (tmp_path / "hold.svg").exists()


def test_a_summary_compares_one_figure_and_takes_the_median_of_the_others() -> None:
    made = summary(
        {
            "slow": [{"cost": 8, "delay": 1}, {"cost": 9, "delay": 3}, {"cost": 10, "delay": 2}],
            "fast": [{"cost": 2}, {"cost": 3, "delay": 7}, {"cost": 5}],
        },
        of="cost",
    )
    assert made["slow"] == {"min": 8, "median": 9, "max": 10, "ratio": 1, "delay": 2}
    assert made["fast"] == {"min": 2, "median": 3, "max": 5, "ratio": pytest.approx(1 / 3), "delay": 7}


@pytest.mark.processes
@pytest.mark.parametrize("setup", bench_kick.SETUPS)
def test_nothing_follows_the_end_of_a_users_streams(setup: str) -> None:
    made = bench_kick.measure(bench_kick.FEW, *bench_kick.SETUPS[setup], rounds=3)
    assert [row["ended"] for row in made.values()] == [18, 18]


def test_what_follows_an_end_is_found() -> None:
    def found(*streams: Stream) -> list[str]:
        return faults(streams, {0: 20}, [[10, 20, 30]])

    def stream(user: int, *times: int, ended: int = 0) -> Stream:
        made = Stream(user, unused, ended=ended)
        for time in times:
            made.take(b"~%019d" % time)
        return made

    with closing(socket.socket()) as unused:
        assert found(stream(0, 10, 20, ended=25), stream(0, ended=25), stream(1, 10, 20, 30)) == []
        assert found(stream(0, 10)) == ["a stream of user 0 goes on"]
        assert found(stream(0, 30, 20, ended=40)) == ["user 0 has received what was published after the end"]
        assert found(stream(1, 10, 20, 30, ended=40)) == ["a stream of user 1 has ended"]
        for times in ((10, 20), (10, 20, 20), (10, 20, 30, 30)):
            assert found(stream(1, *times)) == [f"user 1 has received {len(times)} updates of 3, or other ones"]
