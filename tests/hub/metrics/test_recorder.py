"""The numbers of one process: each agrees with what the test has counted itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hub import Grant, Settings, create_app
from hub.delivery.seat import Ending
from hub.errors import HistoryUnavailable
from hub.metrics.catalogue import CATALOGUE
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, application, ask, bearer, current_token, follow, publish
from tests.hub.metrics.reading import changes, metrics_at
from tests.hub.serving import Served, served
from tests.waiting import until
from tests.wire import subscribe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hub.http.embedding import HubApplication
    from tests.hub.metrics.reading import Metrics

pytestmark = pytest.mark.anyio

ANY = current_token(["*"], ["*"])


def times(metrics: Metrics) -> Metrics:
    """Return the sums of histograms, which are times."""
    return {name: value for name, value in metrics.items() if name.endswith("_sum")}


def counts(metrics: Metrics) -> Metrics:
    """Return all numbers but times, buckets, and what the machine decides."""
    return {
        name: value
        for name, value in metrics.items()
        if not name.endswith("_sum")
        and "_bucket{" not in name
        and not name.startswith(("hub_cache", "hub_bound", "hub_history_bytes", "hub_updates_in_flight"))
    }


@contextlib.asynccontextmanager
async def measured(**settings: Any) -> AsyncIterator[tuple[HubApplication, Callable[[], Any]]]:
    """Yield a running hub, and a function that returns its metrics."""
    async with application(metrics_port=0, **{"subscriptions": False} | settings) as app:
        assert app.metrics_url

        async def read() -> Metrics:
            return await metrics_at(app.metrics_url)

        yield app, read


@contextlib.asynccontextmanager
async def measured_server(**settings: Any) -> AsyncIterator[tuple[HubApplication, Callable[[], Any], Served]]:
    """Yield a hub on a real port, a function that returns its metrics, and the port."""
    app = create_app(Settings(**{"dev": True, "retry": 0, "subscriptions": False, "metrics_port": 0} | settings))
    async with served(app, http="hub.server:HubProtocol") as server:
        await until(lambda: app.metrics_url)
        yield app, lambda: metrics_at(app.metrics_url), server


async def test_r50_updates_streams_and_deliveries_are_counted() -> None:
    async with measured() as (app, read):
        before = await read()
        async with follow(app, ("match", "a")) as first, follow(app, ("match", "a")), follow(app, ("match", "b")):
            for data in ("1", "22", "333"):
                await publish(app, ANY, ("topic", "a"), ("data", data), ("id", data))
                await first.until(data)
            during = changes(before, await read())
            received = first.body.partition(b"\n")[2]  # after the heartbeat
        after = changes(before, await read())
    assert counts(during) == {
        "mercure_subscribers_connected": 3,
        "mercure_subscribers_total": 3,
        "mercure_updates_total": 3,
        "hub_streams_live": 3,
        "hub_deliveries_total{live}": 2 * 3,
        "hub_delivered_bytes_total{live}": 2 * len(received),
        "hub_dispatch_seconds_count": 3,
        "hub_dispatch_delay_seconds_count": 3,
        "hub_publish_seconds_count": 3,
        "hub_history_updates": 3,
    }
    assert all(0 < value < 60 for value in times(during).values())
    assert after["hub_streams_closed_total{client_left}"] == 3
    assert after["hub_stream_seconds_count"] == 3
    assert after["mercure_subscribers_total"] == 3
    assert "mercure_subscribers_connected" not in after  # as before
    assert "hub_streams_live" not in after


async def test_updates_from_the_history_are_counted_for_streams_and_readers() -> None:
    async with measured() as (app, read):
        for n in range(5):
            await publish(app, ANY, ("topic", "ab"[n % 2]), ("data", str(n)))
        before = await read()
        async with follow(app, ("match", "a"), ("last_event_id", "earliest")) as stream:
            await stream.next_event()
            await until(lambda: app.hub.delivery.live_count == 1)
            caught_up = changes(before, await read())
            body = stream.body[stream.body.index(b"id:") :]
        assert caught_up["hub_deliveries_total{history}"] == 3
        assert caught_up["hub_delivered_bytes_total{history}"] == len(body)
        assert caught_up["hub_catch_up_seconds_count"] == 1
        assert caught_up["hub_history_read_seconds_count"] >= 1
        assert not any(name.endswith("{live}") for name in caught_up)
        before = await read()
        answer = await ask(app, "GET", f"{PATH}?match=b&last_event_id=earliest", [("prefer", "wait=0")])
        read_all = changes(before, await read())
    assert answer.text.count("data:") == read_all["hub_deliveries_total{history}"] == 2
    assert "mercure_subscribers_total" not in read_all


async def test_a_stream_that_leaves_during_a_dispatch_is_not_counted_as_a_delivery() -> None:
    async with measured() as (app, read):
        before = await read()
        async with follow(app, ("match", "a")) as first, follow(app, ("match", "a")):
            await until(lambda: app.hub.delivery.live_count == 2)
            seats = [*app.hub.delivery.audience]
            live = app.hub.delivery._live
            outlet = seats[0].outlet
            assert outlet is not None
            write = type(outlet).write

            def leaving(self: Any, body: bytes, position: int) -> None:
                if self is outlet:  # the other one has just left the live seats
                    live.leave(seats[1])
                write(self, body, position)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(outlet), "write", leaving)
                await publish(app, ANY, ("topic", "a"), ("data", "x"))
                await first.next_event()
                found = changes(before, await read())
    assert found["hub_deliveries_total{live}"] == 1


async def test_streams_that_fall_behind_and_catch_up_are_counted() -> None:
    async with measured_server(send_buffer=4_096) as (app, read, server):
        before = await read()
        slow = await subscribe(server, ("match", "a"), receive_buffer=4_096)
        await until(lambda: app.hub.delivery.live_count == 1)
        for n in range(40):
            await app.publish("a", data="x" * 100_000, id=str(n))
        await until(lambda: app.hub.delivery.live_count == 0)
        behind = changes(before, await read())
        assert behind["hub_streams_fell_behind_total"] == 1
        assert "hub_streams_live" not in behind
        assert behind["mercure_subscribers_connected"] == 1
        for _ in range(40):
            await slow.next_event()
        await until(lambda: app.hub.delivery.live_count == 1)
        found = changes(before, await read())
        await slow.close()
    delivered = found["hub_deliveries_total{live}"] + found.get("hub_deliveries_total{history}", 0)
    assert delivered == 40
    assert found["hub_catch_up_seconds_count"] >= 1


@pytest.mark.parametrize("ending", Ending)
async def test_each_reason_of_an_end_has_a_count(ending: Ending) -> None:
    async with measured() as (app, read):
        before = await read()
        async with follow(app, ("match", "a")):
            await until(lambda: app.hub.delivery.live_count == 1)
            for seat in app.hub.delivery.audience:
                seat.close(ending)
            await until(lambda: app.hub.delivery.connection_count == 0)
        found = changes(before, await read())
    assert {name: value for name, value in found.items() if "closed" in name} == {
        f"hub_streams_closed_total{{{ending.name.lower()}}}": 1
    }


async def test_refusals_are_counted_by_reason() -> None:
    async with measured(cors_origins=("https://app.example",), subscriptions=True) as (app, read):
        before = await read()
        foreign = ("origin", "https://evil.example")
        await ask(app, "POST", PATH, [FORM, bearer("nonsense")], b"topic=a")
        await ask(app, "POST", PATH, [FORM], b"topic=a")
        await ask(app, "POST", PATH, [FORM, bearer(current_token(["b"]))], b"topic=a")
        await ask(app, "GET", PATH)
        await ask(app, "GET", f"{PATH}/nothing")
        await ask(app, "GET", f"{PATH}/subscriptions", [bearer("nonsense")])
        await ask(app, "DELETE", PATH)
        await ask(app, "OPTIONS", PATH, [foreign, ("access-control-request-method", "POST")])
        await ask(app, "GET", f"{PATH}?match=a", [foreign] * 50)
        found = changes(before, await read())
    assert {name: value for name, value in found.items() if "refusals" in name} == {
        "hub_refusals_total{invalid_token}": 2,
        "hub_refusals_total{token_required}": 1,
        "hub_refusals_total{insufficient_scope}": 1,
        "hub_refusals_total{invalid_request}": 1,
        "hub_refusals_total{not_found}": 1,
        "hub_refusals_total{method_not_allowed}": 1,
        "hub_refusals_total{cors}": 2,
    }


async def test_what_the_parser_refuses_and_open_connections_are_counted() -> None:
    async with measured_server() as (_, read, server):
        before = await read()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        _, idle = await asyncio.open_connection("127.0.0.1", server.port)
        async with await subscribe(server, ("match", "a")):
            writer.write(b"nonsense\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            found = changes(before, await read())
            assert found["hub_refusals_total{invalid_request}"] == 1
            assert found["hub_connections_without_stream"] == 2
            assert found["hub_bound_used{connections}"] == 1
        writer.close()
        idle.close()


async def test_errors_are_counted() -> None:
    async def authorize(request: Any) -> Grant | None:
        if "fail" in request.headers:
            raise RuntimeError("planted")
        return Grant()

    app = create_app(Settings(path=PATH, metrics_port=0, anonymous=True, subscriptions=True), authorize=authorize)
    async with app.running():
        before = await metrics_at(app.metrics_url)
        async with follow(app, ("match", "a")):
            pass
        for target in (f"{PATH}?match=a", f"{PATH}/subscriptions"):
            with pytest.raises(RuntimeError, match="planted"):
                await ask(app, "GET", target, [("fail", "1")])
        found = changes(before, await metrics_at(app.metrics_url))
    assert found["hub_refusals_total{internal_server_error}"] == 2
    assert found["hub_authorize_seconds_count"] == 3


async def test_the_caches_are_measured() -> None:
    async with measured() as (app, read):
        before = await read()
        async with follow(app, ("match", "a"), ("match", "b")) as stream:
            for n in range(10):
                await publish(app, ANY, ("topic", "ab"[n % 2]), ("data", str(n)))
                await stream.until(str(n))
            found = changes(before, await read())
    assert found["hub_cache_lookups_total{topics}"] == 10
    assert found["hub_cache_misses_total{topics}"] == 4  # a key is cached when it comes again
    assert found["hub_cache_entries{topics}"] == 2
    assert found["hub_cache_lookups_total{tokens}"] == 10
    assert found["hub_cache_misses_total{tokens}"] == 1
    assert found["hub_cache_entries{tokens}"] == 1
    assert found["hub_cache_bytes{tokens}"] > 0


async def test_repeated_updates_are_counted_once() -> None:
    async with measured(idempotency_window=3_600) as (app, read):
        before = await read()
        for _ in range(5):
            await publish(app, ANY, ("topic", "a"), ("id", "same"))
        found = changes(before, await read())
    assert found["mercure_updates_total"] == found["hub_history_updates"] == 1
    assert found["hub_publish_seconds_count"] == 5


async def test_a_stream_counts_before_it_has_read_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> Any:
        raise HistoryUnavailable("planted")

    async with measured() as (app, read):
        await publish(app, ANY, ("topic", "a"))
        before = await read()
        monkeypatch.setattr(app.hub.history, "read", fail)
        async with follow(app, ("match", "a"), ("last_event_id", "earliest")) as stream:
            during = changes(before, await read())
            monkeypatch.undo()
            await stream.next_event()
        after = changes(before, await read())
    assert during["mercure_subscribers_connected"] == during["mercure_subscribers_total"] == 1
    assert "hub_streams_live" not in during
    assert "mercure_subscribers_connected" not in after
    assert after["hub_streams_closed_total{client_left}"] == 1


async def test_presence_updates_are_no_published_updates() -> None:
    async with measured(subscriptions=True) as (app, read):
        before = await read()
        async with follow(app, ("match", "a")):
            await until(lambda: app.hub.delivery.live_count == 1)
        found = changes(before, await read())
    assert "mercure_updates_total" not in found
    assert found["hub_dispatch_seconds_count"] >= 1


async def test_a_history_that_fails_is_seen_and_the_other_numbers_are_current() -> None:
    async with measured() as (app, read):
        before = await read()
        assert before["hub_processes_ready"] == before["hub_processes"] == 1

        async def fail(*_: object) -> Any:
            raise HistoryUnavailable("planted")

        async def hang(*_: object) -> Any:
            await asyncio.Event().wait()

        for number, broken in enumerate((fail, hang), 1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(app.hub.history, "stats", broken)
                patch.setattr(app.hub.history, "check", broken)
                patch.setattr(app.hub.health, "_checked", float("-inf"))
                async with follow(app, ("match", "a")):
                    await until(lambda: app.hub.delivery.live_count == 1)
                    found = changes(before, await read())
            assert found["hub_processes_ready"] == -1
            assert found["hub_streams_live"] == 1
            assert found["mercure_subscribers_total"] == number


async def test_no_client_can_make_a_label() -> None:
    async with measured() as (app, read):
        before = await read()
        for n in range(20):
            await ask(app, "GET", f"{PATH}/{n}", [("origin", f"https://{n}.example"), ("x-request-id", str(n))])
            await ask(app, f"METHOD{n}", PATH)
            await publish(app, ANY, ("topic", f"topic {n}"), ("type", f"type{n}"))
            app.hub.observer.refused(f"reason {n}")
        found = await read()
    assert found.keys() == before.keys()
    assert found["hub_refusals_total{other}"] - before["hub_refusals_total{other}"] >= 20


async def test_histograms_are_cumulative_and_end_with_their_count() -> None:
    async with measured() as (app, read):
        recorder = app.hub.observer.all[-1]
        for seconds in (0.0, 0.0001, 0.00011, 0.3, 10.0, 11.0):
            recorder.published([Update(("a",))], 1, seconds, "")
        found = await read()
    buckets = {
        name.partition("{")[2].rstrip("}"): value
        for name, value in found.items()
        if name.startswith("hub_publish_seconds_bucket")
    }
    assert [buckets[bound] for bound in ("0.0001", "0.0005", "0.25", "0.5", "10.0", "+Inf")] == [2, 3, 3, 4, 5, 6]
    assert found["hub_publish_seconds_count"] == 6
    assert found["hub_publish_seconds_sum"] == pytest.approx(21.30021)


async def test_without_the_setting_nothing_is_counted_or_served() -> None:
    async with application() as app:
        assert app.metrics_url == ""
        assert [type(observer).__name__ for observer in app.hub.observer.all] == ["LogLines"]


async def test_a_port_in_use_is_logged_and_the_hub_works(caplog: pytest.LogCaptureFixture) -> None:
    async with measured() as (first, _):
        port = int(first.metrics_url.rpartition(":")[2].split("/")[0])
        async with application(metrics_port=port) as app:
            assert await publish(app, ANY, ("topic", "a"))
    assert f"cannot serve metrics on 127.0.0.1 port {port}: Address already in use" in caplog.text


async def test_a_worker_of_another_server_says_that_it_has_no_metrics(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", object)
    async with application(metrics_port=0) as app:
        assert app.metrics_url == ""
    assert "cannot add up the numbers of all; `skipfilter serve --workers` can" in caplog.text


def test_the_names_follow_the_conventions_of_prometheus() -> None:
    assert Counter(metric.name for metric in CATALOGUE).most_common(1)[0][1] == 1
    for metric in CATALOGUE:
        assert metric.help.endswith(".")
        assert metric.name.startswith(("mercure_", "hub_"))
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.kind == "histogram")
        assert (metric.label == "") == (metric.values == ("",))
