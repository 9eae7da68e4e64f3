"""Log lines: what they say about a request, a connection and an update."""

from __future__ import annotations

import json
import logging
import sys
from base64 import urlsafe_b64decode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from hub import Settings
from hub.auth.grant import ANONYMOUS
from hub.delivery import log_lines
from hub.delivery.log_lines import LogLines
from hub.delivery.stream import Stream
from hub.development import DEVELOPMENT_KEY
from hub.history.base import Retention
from hub.history.memory import MemoryHistory
from hub.hub import Hub
from hub.logs import JsonFormatter, LoggedRequest, current_request, log_to_stdlib
from hub.protocol.events import frame
from hub.protocol.updates import Update
from tests.asgi import FORM, PATH, application, ask, bearer, classic_token, current_token, follow, publish, scope_of
from tests.hub.signing import sign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hub.auth.grant import CompiledGrant

pytestmark = pytest.mark.anyio

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    """The hub's lines in JSON, from level info on."""
    caplog.set_level(logging.INFO, "hub")
    log_to_stdlib("json")
    yield Lines(caplog)
    log_to_stdlib()


class Lines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def at(self, level: int) -> None:
        self._caplog.set_level(level, "hub")

    @property
    def records(self) -> list[logging.LogRecord]:
        return [record for record in self._caplog.records if record.name == "hub"]

    @property
    def all(self) -> list[dict[str, Any]]:
        found = [json.loads(JsonFormatter().format(record)) for record in self.records]
        return [line for line in found if "DEVELOPMENT" not in line["event"]]

    def of(self, *events: str) -> list[dict[str, Any]]:
        return [line for line in self.all if line["event"] in events]


# -- about a request


async def test_r53_a_line_has_the_fields_of_its_request(lines: Lines) -> None:
    token = current_token(["a"], subject="ann")
    more = [("Origin", "https://hub.example"), ("X-Request-Id", "abc-1"), ("traceparent", TRACE)]
    async with application() as app:
        assert (await ask(app, "POST", PATH, [FORM, bearer(token), *more], b"topic=b")).status == 403
    [line] = lines.of("request refused")
    assert line.pop("time")
    assert line.pop("process")
    assert line.pop("reason").startswith("the token or session does not allow publishing to")
    assert line == {
        "level": "warning",
        "event": "request refused",
        "status": 403,
        "request": "abc-1",
        "address": "127.0.0.1",
        "method": "POST",
        "path": PATH,
        "origin": "https://hub.example",
        "traceparent": TRACE,
        "subject": "https://issuer.example ann",
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("X-Request-Id", ["", "a b", "a" * 129, "é", 'a"', "a\n"]),
        ("traceparent", ["", TRACE[:-1], TRACE.upper(), TRACE + "-x", "a" * 1_000]),
    ],
)
async def test_a_malformed_id_of_a_client_is_left_out(name: str, values: list[str], lines: Lines) -> None:
    async with application() as app:
        for value in values:
            await ask(app, "GET", f"{PATH}/nothing", [(name, value)])
    found = lines.of("request refused")
    assert len(found) == len(values)
    assert not {line.get("traceparent", "") for line in found} - {""}
    assert len({line["request"] for line in found}) == len(values)  # random ones
    assert all(len(line["request"]) == 16 for line in found)


async def test_texts_of_clients_are_cut_off(lines: Lines) -> None:
    async with application() as app:
        await ask(app, "GET", f"{PATH}/{'x' * 1_000}", [("Origin", "https://" + "o" * 1_000)])
    [line] = lines.of("request refused")
    assert (len(line["path"]), len(line["origin"])) == (200, 200)


async def test_all_lines_of_a_request_have_one_id_and_other_lines_have_none(lines: Lines) -> None:
    async with application(log_decisions=True, log_publishes=True) as app:
        for _ in range(2):
            await publish(app, current_token(["a"]), ("topic", "a"))
        structlog.stdlib.get_logger("hub").info("on its own")
    decisions, requests = lines.of("client authorized"), lines.of("updates published")
    assert [line["request"] for line in decisions] == [line["request"] for line in requests]
    assert len({line["request"] for line in requests}) == 2
    [other] = lines.of("on its own")
    assert "request" not in other
    assert current_request.get() is None


async def test_a_large_update_is_worth_a_line_an_hour_and_publisher(lines: Lines) -> None:
    told = "a large update: some clients do not read it, and ask for it again and again (large_update)"
    now = 0.0
    hub = Hub(
        Settings(dev=True, large_update=1_000),
        MemoryHistory(Retention(100, 10**6)),
        clock=lambda: now,
        wall_clock=lambda: now,
    )
    anns, bobs = (replace(ANONYMOUS, publisher=name) for name in ("ann", "bob"))
    async with hub.running():

        async def append(grant: CompiledGrant, *sizes: int) -> int:
            before = len(lines.of(told))
            await hub.publishing._append([Update(("a",), "x" * size) for size in sizes], grant, 0)
            return len(lines.of(told)) - before

        assert await append(anns, 200) == 0
        assert await append(anns, 940) == 0  # less than 1,000 bytes in a stream, and more in memory
        assert await append(anns, 1, 2_000, 1) == 1
        assert lines.of(told)[0]["bytes"] == len(frame(Update(("a",), "x" * 2_000)))  # ids have one length
        assert await append(anns, 2_000) == 0
        assert await append(bobs, 2_000) == 1
        now = 3_601.0
        assert await append(anns, 2_000) == 1
    async with application(large_update=0) as app:
        await app.hub.publish(Update(("a",), "x" * 100_000))
        assert len(lines.of(told)) == 3


async def test_the_fields_of_a_line_count_before_those_of_its_request(lines: Lines) -> None:
    reset = current_request.set(LoggedRequest([], ("1.2.3.4", 5), "GET", "/"))
    structlog.stdlib.get_logger("hub").info("a network", address="fe80::/64")
    current_request.reset(reset)
    [line] = lines.all
    assert (line["address"], line["method"]) == ("fe80::/64", "GET")


async def test_the_subject_is_known_in_requests_that_the_router_answers(lines: Lines) -> None:
    async with application() as app:
        await ask(app, "GET", f"{PATH}/subscriptions", [bearer(current_token(subject="ann"))])
    [line] = lines.of("request refused")
    assert (line["status"], line["subject"]) == (403, "https://issuer.example ann")


async def test_lines_after_a_request_are_not_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    run = Stream.run

    async def watched(stream: Stream, head: Any) -> None:
        seen.append(current_request.get())
        await run(stream, head)

    async def send(_: object) -> None:
        seen.append(current_request.get())

    monkeypatch.setattr(Stream, "run", watched)
    async with application() as app:
        async with follow(app, ("match", "a")):
            assert seen == [None]
        await app(scope_of("GET", f"{PATH}/health/live", []), send, send)  # type: ignore[arg-type]
    assert seen[1] is not None
    assert current_request.get() is None


async def test_the_addresses_and_subjects_of_clients_can_be_left_out(lines: Lines) -> None:
    log_to_stdlib("json", with_clients=False)
    token = current_token(["a"], subject="ann")
    async with application(log_decisions=True, log_publishes=True) as app:
        async with follow(app, ("match", "a"), headers=[bearer(token)]):
            await publish(app, token, ("topic", "a"))
        await ask(app, "POST", PATH, [FORM, bearer(token)], b"topic=b")
    events = {line["event"] for line in lines.all}
    assert events == {
        "client authorized",
        "updates published",
        "request refused",
        "subscriber disconnected",
    }
    assert not any(
        text in record.getMessage() for record in lines.records for text in ("127.0.0.1", "ann", "the-token")
    )


def _id_of(token: str) -> str:
    payload = token.split(".")[1]
    id: str = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["jti"]
    return id


# -- decisions


async def test_decisions_are_logged_if_wanted(lines: Lines) -> None:
    token = current_token(["a"], ["b", ("mqtt", "c/#")], subject="ann")
    async with application(log_decisions=True) as app:
        async with follow(app, ("match", "a"), headers=[bearer(token)]), follow(app, ("match", "a")):
            pass
        await publish(app, classic_token(["a"]), ("topic", "a"))
        await ask(app, "POST", PATH, [FORM, bearer("nonsense")], b"topic=a")
    known, anonymous, classic = lines.of("client authorized")
    assert [line["action"] for line in (known, anonymous, classic)] == ["subscribe", "subscribe", "publish"]
    assert (known["issuer"], known["token_id"]) == ("https://issuer.example", _id_of(token))
    assert known["subject"] == "https://issuer.example ann"
    assert (known["grants"], known["first_grants"]) == (2, ["exact:b", "mqtt:c/#"])
    assert anonymous["anonymous"] is True
    assert {"issuer", "token_id", "anonymous"}.isdisjoint(classic)
    assert [line["status"] for line in lines.of("request refused")] == [401]


async def test_a_decision_names_the_key_of_the_token(lines: Lines) -> None:
    claims = {"mercure": {"publish": ["*"]}, "iss": "x" * 1_000, "jti": 7}
    async with application(log_decisions=True) as app:
        await publish(app, sign(claims, key=DEVELOPMENT_KEY, header={"alg": "HS256", "kid": "k1"}), ("topic", "a"))
    [line] = lines.of("client authorized")
    assert (line["key"], len(line["issuer"]), "token_id" in line) == ("k1", 200, False)


async def test_without_the_settings_neither_decisions_nor_publishes_are_logged(lines: Lines) -> None:
    async with application() as app, follow(app, ("match", "a")) as stream:
        for _ in range(10):
            await publish(app, current_token(["a"]), ("topic", "a"))
            await stream.next_event()
    # One line for the connection, and none for a delivery.
    assert [line["event"] for line in lines.all] == ["subscriber disconnected"]


# -- CORS


@pytest.mark.parametrize("allowed", [(), ("https://app.example",)])
async def test_a_page_that_cors_does_not_allow_is_logged(allowed: tuple[str, ...], lines: Lines) -> None:
    foreign = ("Origin", "https://evil.example")
    async with application(cors_origins=allowed) as app:
        for origin in (foreign, ("Origin", "https://hub.example"), *(("Origin", one) for one in allowed)):
            await ask(app, "GET", f"{PATH}?match=a", [origin])
        await ask(app, "OPTIONS", PATH, [foreign, ("Access-Control-Request-Method", "POST")])
    [page] = [line for line in lines.all if line["event"].startswith("refused by CORS")]
    assert page["origin"] == "https://evil.example"
    preflight = next(line for line in lines.all if line["event"].startswith("request refused"))
    assert (preflight["origin"], preflight["method"]) == ("https://evil.example", "OPTIONS")
    assert preflight["status"] == (400 if allowed else 405)


@pytest.mark.parametrize(
    ("origin", "method", "headers", "cause"),
    [
        ("https://evil.example", "POST", "", "`cors_origins` does not allow the page's origin"),
        ("https://evil.example", "PUT", "x-a", "`cors_origins` does not allow the page's origin"),
        ("https://app.example", "DELETE", "", "the hub has no method 'DELETE'"),
        ("https://app.example", "POST", "Authorization, X-Custom,x-b", "the hub does not take the header field 'x-b'"),
        ("https://app.example", "POST", "X-" + "y" * 99, "the hub does not take the header field 'x-yyy"),
        ("https://app.example", "POST", "private", "a public page may not use a hub in a private network"),
    ],
)
async def test_the_cause_of_a_refused_preflight_is_logged(
    origin: str, method: str, headers: str, cause: str, lines: Lines
) -> None:
    asked = [("Origin", origin), ("Access-Control-Request-Method", method)]
    if headers == "private":
        asked += [("Access-Control-Request-Private-Network", "true")]
    elif headers:
        asked += [("Access-Control-Request-Headers", headers)]
    async with application(cors_origins=["https://app.example"]) as app:
        assert (await ask(app, "OPTIONS", PATH, asked)).status == 400
        fine = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "POST")]
        assert (await ask(app, "OPTIONS", PATH, fine)).status == 200
    [line] = [line for line in lines.all if line["event"].startswith("request refused")]
    assert line["event"].startswith(f"request refused by CORS: {cause}")
    assert len(line["event"]) < 200


# -- connections and updates


async def test_a_connection_has_one_line_with_its_request(lines: Lines) -> None:
    token = current_token(subscribe=["a"], subject="ann")
    headers = [bearer(token), ("X-Request-Id", "r1"), ("Origin", "https://hub.example")]
    async with application() as app, follow(app, ("match", "a"), headers=headers):
        pass
    [line] = lines.all
    assert line["event"] == "subscriber disconnected"
    assert line["reason"] == "the client went away"
    assert 0 <= line["seconds"] < 60
    assert line["first_matchers"] == ["exact:a"]
    assert [line[name] for name in ("request", "address", "method", "path", "origin", "subject")] == [
        "r1",
        "127.0.0.1",
        "GET",
        PATH,
        "https://hub.example",
        "https://issuer.example ann",
    ]


async def test_r52_r53_at_debug_an_update_has_a_line_with_its_receivers(lines: Lines) -> None:
    lines.at(logging.DEBUG)
    reads, token = current_token(subscribe=["a"]), current_token(["*"])
    async with (
        application(subscriptions=False) as app,
        follow(app, ("match", "a"), headers=[bearer(reads)]) as stream,
        follow(app, ("match", "a")),
        follow(app, ("match", "b"), headers=[bearer(reads)]),
    ):
        for fields in ([("topic", "a"), ("private", "on")], [("topic", "a"), ("topic", "b")], [("topic", "c")]):
            await ask(app, "POST", PATH, [FORM, bearer(token), ("traceparent", TRACE)], _form(fields))
        await publish(app, token, ("topic", "a"), ("data", "last"))
        await stream.until("last")
    found = lines.of("update dispatched", "update dispatched: it has no subscriber")
    assert [(line["receivers"], line["without_grant"]) for line in found] == [(1, 1), (3, 0), (0, 0), (2, 0)]
    assert [line["event"] == "update dispatched" for line in found] == [True, True, False, True]
    assert [line.get("traceparent") for line in found] == [TRACE, TRACE, TRACE, None]
    assert [line["traceparent"] for line in lines.of("updates published")[:3]] == [TRACE] * 3


@pytest.mark.parametrize("history", ["memory://", "sqlite:///{}/log.db"])
async def test_a_trace_is_that_of_the_request_even_if_the_update_is_dispatched_at_once(
    history: str, lines: Lines, tmp_path: Path
) -> None:
    lines.at(logging.DEBUG)
    token, other = current_token(["*"]), TRACE.replace("b7", "c8")
    async with (
        application(subscriptions=False, history_url=history.format(tmp_path), idempotency_window=3_600) as app,
        follow(app, ("match", "a")) as stream,
    ):
        for number, trace in enumerate((TRACE, None, other, None, TRACE)):
            headers = [FORM, bearer(token), *([("traceparent", trace)] if trace else [])]
            await ask(app, "POST", PATH, headers, _form([("topic", "a"), ("id", str(number)), ("data", str(number))]))
            await stream.until(str(number))
        # Repeated updates are not dispatched, and leave nothing behind.
        await ask(
            app, "POST", PATH, [FORM, bearer(token), ("traceparent", other)], _form([("topic", "a"), ("id", "1")])
        )
        await ask(app, "POST", PATH, [FORM, bearer(token)], _form([("topic", "a"), ("data", "last")]))
        await stream.until("last")
    found = lines.of("update dispatched")
    assert [line.get("traceparent") for line in found] == [TRACE, None, other, None, TRACE, None]
    assert [line.get("repeated") for line in lines.of("updates published")] == [None] * 5 + [1, None]


def _form(fields: list[tuple[str, str]]) -> bytes:
    return "&".join(f"{name}={value}" for name, value in fields).encode()


def test_the_traces_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    lines.at(logging.DEBUG)
    monkeypatch.setattr(log_lines, "MOST_TRACED", 3)
    observer = LogLines(None, publishes=False, dev=False, large=0, clock=lambda: 0.0)  # type: ignore[arg-type]
    reset = current_request.set(LoggedRequest([(b"traceparent", TRACE.encode())], None, "POST", "/"))
    observer.publishing([Update(("a",), id=str(n)) for n in range(5)])
    current_request.reset(reset)
    assert list(observer._traced) == ["2", "3", "4"]


# -- formats


def test_json_lines_of_other_loggers_have_the_same_form() -> None:
    try:
        raise ValueError("one\ntwo\x1b[2J\u202e\x7f\u2028")
    except ValueError:
        record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "in %s", ("a\nb\x1b",), sys.exc_info())
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()  # one line, and nothing that steers a terminal
    line = json.loads(text)
    assert (line["level"], line["event"], line["logger"]) == ("error", "in a\nb\x1b", "uvicorn.error")
    assert line["exception"].endswith("ValueError: one\ntwo\x1b[2J\u202e\x7f\u2028")
    assert line["time"].endswith("+00:00")


def test_a_json_line_of_the_hub_begins_with_time_level_process_and_event(lines: Lines) -> None:
    try:
        raise ValueError("planted\x7f\u202e")
    except ValueError:
        structlog.stdlib.get_logger("hub").exception("failed", text='a"\n\u2028', list=["b"], number=1, other=object)
    [record] = lines.records
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text)
    assert [*line][:4] == ["time", "level", "process", "event"]
    assert (line["event"], line["text"], line["list"], line["number"]) == ("failed", 'a"\n\u2028', ["b"], 1)
    assert line["exception"].endswith("ValueError: planted\x7f\u202e")


def test_a_message_that_looks_like_an_object_cannot_forge_members() -> None:
    forged = '{"event":"x","level":"error"}'
    record = logging.LogRecord("uvicorn.error", logging.INFO, "", 0, forged, (), None)
    assert json.loads(JsonFormatter().format(record))["event"] == forged
