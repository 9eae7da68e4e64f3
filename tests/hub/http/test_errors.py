"""Errors: status, challenge, problem document, and what only the log may say."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlencode

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import hub.errors
from hub import errors, logs
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from hub.errors import RequestError
from hub.logs import LogFormatter
from tests.asgi import FORM, NDJSON, PATH, application, ask, bearer, classic_token, current_token, follow, publish
from tests.hub.signing import sign

if TYPE_CHECKING:
    from hub.http.embedding import HubApplication
    from tests.asgi import Answer

pytestmark = pytest.mark.anyio

DIALECTS = pytest.mark.parametrize("classic", [True, False], ids=["both", "current"])
METADATA = f"https://hub.example/.well-known/oauth-protected-resource{PATH}"
RESOURCE = f'resource_metadata="{METADATA}"'
SUBSCRIPTIONS = f"{PATH}/subscriptions"


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def with_headers(self, *headers: tuple[str, str]) -> Request:
        return Request(self.method, self.target, [*self.headers, *headers], self.body)


PUBLISH = Request("POST", PATH, [FORM], b"topic=a&data=d")
BATCH = Request("POST", PATH, [NDJSON], b'{"topic": "a"}')
SUBSCRIBE = Request("GET", f"{PATH}?match=a")
QUERY = Request("QUERY", PATH, [FORM], b"match=a")
WHO = Request("GET", SUBSCRIPTIONS)
WHO_ELSE = Request("GET", f"{SUBSCRIPTIONS}/exact/a/urn:x")
ALL = [PUBLISH, BATCH, SUBSCRIBE, QUERY, WHO, WHO_ELSE]


async def send(app: HubApplication, request: Request, *headers: tuple[str, str], **scope: Any) -> Answer:
    return await ask(app, request.method, request.target, [*request.headers, *headers], request.body, **scope)


def assert_problem(answer: Answer, status: int, title: str) -> None:
    """Assert a document of RFC 9457; the code of OAuth is only in the header (N94)."""
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    document = answer.json()
    assert set(document) == {"type", "title", "status", "detail"}
    assert (document["type"], document["title"], document["status"]) == ("about:blank", title, status)
    assert document["detail"]
    assert not any(code in answer.text for code in ("invalid_token", "insufficient_scope", "invalid_request"))


# -- the token


@DIALECTS
@pytest.mark.parametrize("request_", ALL)
async def test_n90_n95_n154_t46_without_a_token(classic: bool, request_: Request) -> None:
    async with application(classic=classic, anonymous=False) as app:
        answer = await send(app, request_)
        assert_problem(answer, 401, "Token required")
        assert answer.headers["www-authenticate"] == f"Bearer {RESOURCE}"


INVALID = {
    "nonsense": "nonsense",
    "dots": "a.b.c",
    "empty parts": "..",
    "too long": "a" * 100_000,
    "another key": current_token(["*"], ["*"]).rpartition(".")[0] + ".AAAA",
    "expired": current_token(["*"], ["*"], seconds=-1),
    "another hub": current_token(["*"], ["*"], resource="https://other.example/"),
    "another issuer": current_token(["*"], ["*"], issuer="https://evil.example"),
    "classic, another key": sign({"mercure": {"publish": ["*"]}}, key="another key"),
    "classic, expired": sign({"mercure": {"publish": ["*"]}, "exp": 1}, key=DEVELOPMENT_KEY),
    "classic, a wrong claim": sign({"mercure": {"publish": "*", "subscribe": "*"}}, key=DEVELOPMENT_KEY),
    "a wrong detail": current_token([("nonsense", "a")], [("nonsense", "a")]),
    "too many details": current_token([str(n) for n in range(101)], [str(n) for n in range(101)]),
    "no JSON": sign(text=b"{", key=DEVELOPMENT_KEY),
    "no algorithm": "eyJhbGciOiJub25lIn0.e30.",
}


def production(classic: bool) -> dict[str, Any]:
    """The settings of development mode, but for the reason that a client is told."""
    keys = {"publisher_key": DEVELOPMENT_KEY, "subscriber_key": DEVELOPMENT_KEY} if classic else {}
    issuers = [{"id": DEVELOPMENT_ISSUER, "keys": {"key": DEVELOPMENT_KEY}}]
    others = {"public_urls": ["https://hub.example"], "anonymous": True, "subscriptions": True, "debugger": True}
    return {"dev": False, "issuers": issuers} | others | keys


@DIALECTS
@pytest.mark.parametrize("request_", ALL)
async def test_n91_n95_t46_an_invalid_token_gets_the_same_response_for_every_cause(
    classic: bool, request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    async with application(classic=classic, **production(classic)) as app:
        bodies, reasons = set(), set()
        for cause, token in INVALID.items():
            caplog.clear()
            answer = await send(app, request_, bearer(token))
            assert_problem(answer, 401, "Invalid token")
            assert answer.headers["www-authenticate"] == f'Bearer error="invalid_token", {RESOURCE}', cause
            bodies.add(answer.body)
            [record] = [record for record in caplog.records if "request refused" in record.getMessage()]
            assert record.levelno == logging.WARNING
            reasons.add(record.getMessage().partition("reason=")[2].partition(" request=")[0])
            assert token not in caplog.text
        assert len(bodies) == 1
        assert len(reasons) >= 9
        assert b"log says why" in bodies.pop()


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("expired", " s ago"),
        ("another hub", f"lacks 'https://hub.example{PATH}'"),
        ("another issuer", "is not trusted"),
        ("too long", "100000 characters"),
        ("a wrong detail", "nonsense"),
    ],
)
async def test_n91_r53_the_log_has_the_cause(cause: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    async with application() as app:
        await send(app, PUBLISH, bearer(INVALID[cause]))
    assert told in caplog.text
    assert "status=401" in caplog.text
    assert "method=POST" in caplog.text


@DIALECTS
@pytest.mark.parametrize("request_", [PUBLISH, BATCH, WHO, WHO_ELSE])
async def test_n92_n95_n154_t46_a_token_without_the_grant(
    classic: bool, request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    sign_one = classic_token if classic else current_token
    async with application(classic=classic) as app:
        for token in (sign_one(), sign_one(["b"], ["b"]), sign_one(subscribe=["a"]), current_token([], ["x"])):
            answer = await send(app, request_, bearer(token))
            assert_problem(answer, 403, "Insufficient scope")
            assert answer.headers["www-authenticate"] == f'Bearer error="insufficient_scope", {RESOURCE}'
    assert "status=403" in caplog.text


@DIALECTS
async def test_n92_n78_a_token_without_grants_may_subscribe(classic: bool) -> None:
    async with application(classic=classic, anonymous=False) as app:
        for request in (SUBSCRIBE, QUERY):
            assert (await send(app, request, bearer(current_token()))).status == 200


@DIALECTS
@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer a"), ("authorization", "Bearer a")],
        [("authorization", "Basic dTpw")],
        [("authorization", "Bearer")],
        [("authorization", "")],
        [("authorization", "Bearer a b")],
        [("authorization", "Bearer é")],
        [("authorization", "Digest x"), ("cookie", f"mercure_access_token={current_token(['*'], ['*'])}")],
    ],
    ids=lambda headers: headers[-1][1][:8],
)
async def test_n93_t40_t46_a_malformed_presentation_of_a_token(classic: bool, headers: list[tuple[str, str]]) -> None:
    async with application(classic=classic) as app:
        for request in ALL:
            answer = await send(app, request, *headers)
            assert_problem(answer, 400, "Invalid presentation of a token")
            assert answer.headers["www-authenticate"] == f'Bearer error="invalid_request", {RESOURCE}'


async def test_n93_v42_v43_a_repeated_query_parameter_and_a_cookie_from_another_origin() -> None:
    token = classic_token(["*"], ["*"])
    cookie = ("cookie", f"mercureAuthorization={token}")
    async with application() as app:
        for request, headers in (
            (Request("GET", f"{PATH}?match=a&authorization={token}&authorization={token}"), []),
            (Request("GET", f"{PATH}?match=a&authorization="), []),
            (PUBLISH, [cookie]),
            (PUBLISH, [cookie, ("origin", "https://evil.example")]),
        ):
            answer = await send(app, request, *headers)
            assert_problem(answer, 400, "Invalid presentation of a token")
            assert answer.headers["www-authenticate"] == f'Bearer error="invalid_request", {RESOURCE}'
        assert (await send(app, PUBLISH, cookie, ("origin", "https://hub.example"))).status == 200


@pytest.mark.parametrize(
    ("listed", "origin", "referer", "status"),
    [
        ("", None, None, 400),
        ("", "https://hub.example", None, 200),
        ("", "https://page.example", None, 400),
        ("https://page.example", "https://page.example", None, 200),
        ("https://page.example", None, "https://page.example/x?y", 200),
        ("https://page.example", None, "https://evil.example/https://page.example", 400),
        ("https://page.example", "https://evil.example", "https://page.example/", 400),
        ("https://page.example", "https://page.example", "https://evil.example/", 200),
        ("https://*.page.example", "https://a.page.example", None, 200),
        ("https://*.page.example", "https://page.example", None, 400),
        ("*", "https://evil.example", None, 200),
        ("*", None, None, 400),
    ],
)
async def test_t45_n63_v43_n93_r5_publishing_with_a_cookie(
    listed: str, origin: str | None, referer: str | None, status: int
) -> None:
    headers = [(name, value) for name, value in (("origin", origin), ("referer", referer)) if value is not None]
    for classic, name in (
        (True, "mercureAuthorization"),
        (True, "mercure_access_token"),
        (False, "mercure_access_token"),
    ):
        token = current_token(["*"], ["*"])
        async with application(classic=classic, publish_origins=listed, cors_origins="", anonymous=False) as app:
            for request in (PUBLISH, BATCH):
                answer = await send(app, request, ("cookie", f"{name}={token}"), *headers)
                assert answer.status == status
                if status == 400:
                    assert answer.headers["www-authenticate"] == f'Bearer error="invalid_request", {RESOURCE}'
            for request in (SUBSCRIBE, QUERY, WHO):  # these change nothing
                assert (await send(app, request, ("cookie", f"{name}={token}"), *headers)).status == 200


# -- the contents of a challenge


@pytest.mark.parametrize(
    "host",
    [b'a"b', b"a\\b", b"\xff.example", "é.example".encode(), b"", b'x", error="invalid_token'],
)
async def test_n95_n154_a_host_that_cannot_be_quoted_is_left_out(host: bytes) -> None:
    async with application() as app:
        for headers, challenge in (([], "Bearer"), ([bearer("a.b.c")], 'Bearer error="invalid_token"')):
            answer = await ask(app, "POST", PATH, [("host", host), *headers])
            assert (answer.status, answer.headers["www-authenticate"]) == (401, challenge)


async def test_n95_n154_a_request_without_a_host_gets_no_incomplete_url() -> None:
    async with application() as app:
        answer = await ask(app, "POST", PATH, headers=[], http_version="1.0")
        assert answer.headers["www-authenticate"] == f"Bearer {RESOURCE}"
        nameless = await ask(app, "POST", PATH, [("host", "")])
        assert nameless.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("host", "scheme", "origin"),
    [
        ("HUB.Example", "https", "https://hub.example"),
        ("hub.example:8443", "https", "https://hub.example:8443"),
        ("localhost:3000", "http", "http://localhost:3000"),
        ("[::1]:3000", "http", "http://[::1]:3000"),
    ],
)
async def test_n154_the_url_of_the_metadata_is_at_the_origin_of_the_request(
    host: str, scheme: str, origin: str
) -> None:
    async with application() as app:
        challenge = (await ask(app, "POST", PATH, [("host", host)], scheme=scheme)).headers["www-authenticate"]
        url = challenge.removeprefix('Bearer resource_metadata="').removesuffix('"')
        assert url == f"{origin}/.well-known/oauth-protected-resource{PATH}"
        metadata = await ask(app, "GET", url.removeprefix(origin), [("host", host)], scheme=scheme)
        assert metadata.json()["resource"] == origin + PATH


# -- the other errors


def form(*pairs: tuple[str, str]) -> Request:
    return Request("POST", PATH, [FORM], urlencode(pairs).encode())


BAD = [
    (form(("data", "x")), 400, "Invalid request"),
    (form(("topic", "a\0")), 400, "Invalid request"),
    (form(("topic", "*")), 400, "Invalid request"),
    (form(("topic", f"{PATH}/x")), 400, "Invalid request"),
    (form(("topic", "a"), ("id", "#x")), 400, "Invalid request"),
    (form(("topic", "a"), ("type", "mercure")), 400, "Invalid request"),
    (form(("topic", "a"), ("retry", "+1")), 400, "Invalid request"),
    (Request("POST", PATH, [FORM], b"topic=a&data=%FF"), 400, "Invalid request"),
    (Request("POST", PATH, [("content-type", "text/plain")], b"topic=a"), 400, "Invalid request"),
    (Request("POST", PATH, [], b"topic=a"), 400, "Invalid request"),
    (Request("POST", PATH, [NDJSON], b""), 400, "Invalid request"),
    (Request("POST", PATH, [NDJSON], b"[]"), 400, "Invalid request"),
    (form(*[("topic", "a")] * 1001), 413, "Too large"),
    (form(("topic", "a" * 4097)), 413, "Too large"),
    (form(("topic", "a"), ("data", "x" * 2**20)), 413, "Too large"),
    (Request("POST", PATH, [NDJSON], b'{"topic":"a"}\n' * 1001), 413, "Too large"),
    (Request("GET", PATH), 400, "Invalid request"),
    (Request("GET", f"{PATH}?Match=a"), 400, "Invalid request"),
    (Request("GET", f"{PATH}?match=%00"), 400, "Invalid request"),
    (Request("GET", f"{PATH}?match_urlpattern=/("), 400, "Invalid request"),
    (Request("GET", f"{PATH}?match={'a' * 4097}"), 400, "Invalid request"),
    (Request("QUERY", PATH, [FORM], b"match=a&" * 101), 400, "Invalid request"),
    (Request("QUERY", PATH, [FORM], b"match=a&".ljust(2**20 + 1, b"x")), 413, "Too large"),
    (Request("QUERY", PATH, [NDJSON], b"{}"), 415, "Unsupported content"),
    (Request("GET", f"{SUBSCRIPTIONS}/nonsense/a/b"), 400, "Invalid request"),
    (Request("GET", f"{SUBSCRIPTIONS}/exact/%zz"), 400, "Invalid request"),
    (Request("GET", f"{SUBSCRIPTIONS}/exact/%FF"), 400, "Invalid request"),
    (Request("GET", f"{SUBSCRIPTIONS}/exact/a/urn:nobody"), 404, "Not found"),
    (Request("GET", f"{SUBSCRIPTIONS}/a/b/c/d"), 404, "Not found"),
    (Request("GET", f"{PATH}/nothing"), 404, "Not Found"),
    (Request("DELETE", PATH), 405, "Method Not Allowed"),
    (Request("POST", SUBSCRIPTIONS), 405, "Method Not Allowed"),
]


@DIALECTS
@pytest.mark.parametrize(
    ("request_", "status", "title"), BAD, ids=lambda value: str(getattr(value, "target", value))[:40]
)
async def test_n94_errors_unrelated_to_the_token_have_no_challenge(
    classic: bool, request_: Request, status: int, title: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hub")
    async with application(classic=classic) as app:
        answer = await send(app, request_, bearer(current_token(["*"], ["*"])))
        assert_problem(answer, status, title)
        assert "www-authenticate" not in answer.headers
    refused = [record.levelno for record in caplog.records if "request refused" in record.getMessage()]
    assert refused == [logging.INFO]


async def test_the_methods_of_a_path_are_sorted() -> None:
    async with application() as app:
        for path, methods in (
            (PATH, "GET, HEAD, POST, QUERY"),
            (SUBSCRIPTIONS, "GET, HEAD"),
            (f"{PATH}/health/ready", "GET, HEAD"),
            (f"{PATH}/debug/debugger.js", "GET, HEAD"),
        ):
            answer = await send(app, Request("DELETE", path))
            assert (answer.status, answer.headers["allow"]) == (405, methods)
            assert answer.detail == f"the methods of this path are {methods}"


@DIALECTS
async def test_n94_n23_a_client_above_the_limit_gets_retry_after(classic: bool) -> None:
    async with application(classic=classic, max_connections_per_client=1) as app, follow(app, ("match", "a")):
        for request in (SUBSCRIBE, QUERY):
            answer = await send(app, request)
            assert_problem(answer, 429, "Limit exceeded")
            assert (answer.headers["retry-after"], "www-authenticate" in answer.headers) == ("10", False)


@DIALECTS
async def test_r23_a_hub_that_is_closing_refuses_updates(classic: bool) -> None:
    async with application(classic=classic) as app:
        app.state.hub.shutdown.begin()
        for request in (PUBLISH, BATCH):
            answer = await send(app, request, bearer(current_token(["*"])))
            assert_problem(answer, 503, "Shutting down")
            assert (answer.headers["retry-after"], "www-authenticate" in answer.headers) == ("1", False)


@DIALECTS
async def test_n91_unavailable_keys_are_not_the_fault_of_the_token(
    classic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = {"id": "https://issuer.example", "keys": {"jwks_url": "http://127.0.0.1:1/keys"}}
    async with application(classic=classic, issuers=(issuer,)) as app:
        for request in (PUBLISH, WHO):
            answer = await send(app, request, bearer(current_token(["*"], ["*"])))
            assert_problem(answer, 503, "Keys unavailable")
            assert (answer.headers["retry-after"], "www-authenticate" in answer.headers) == ("10", False)
            assert "ConnectError" not in answer.text
        answer = await send(app, SUBSCRIBE, bearer(current_token(["*"], ["*"])))
        assert answer.is_ended_stream
    assert "ConnectError" in caplog.text


@DIALECTS
@pytest.mark.parametrize(
    ("scheme", "host"),
    [
        ("https", "evil.example"),
        ("http", "hub.example"),
        ("https", "hub.example:8443"),
        ("https", "hub.example:80"),
        ("https", "hub.example."),
        ("https", "x@hub.example"),
        ("https", "hub.example, evil.example"),
        ("https", ""),
        ("https", "é\x85"),
    ],
)
async def test_t48_r6_a_request_to_another_url_is_misdirected(
    classic: bool, scheme: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with application(classic=classic, public_urls="https://Hub.Example:443 http://other.example:8080") as app:
        token = bearer(current_token(["*"], ["*"]))
        for request in (*ALL, Request("GET", METADATA.removeprefix("https://hub.example"))):
            answer = await send(app, request, token, ("host", host), scheme=scheme)
            assert_problem(answer, 421, "Misdirected request")
            assert "www-authenticate" not in answer.headers
            assert "is not a URL of this hub" in answer.detail
            assert "add it to `public_urls`" in answer.detail
            assert "a proxy in front of it must pass the Host header on" in answer.detail
            for ignored in ("https, http", "ftp", "x" * 99):
                answer = await send(app, request, token, ("host", host), ("x-forwarded-proto", ignored), scheme=scheme)
                assert f"the server does not take X-Forwarded-Proto: '{ignored[:80]}'" in answer.detail
            answer = await send(app, request, token, ("host", host), ("x-forwarded-proto", scheme), scheme=scheme)
            assert "a proxy in front of it must pass the Host header on" in answer.detail
            for fine in ("hub.example", "HUB.example", "hub.example:443"):
                assert (await send(app, request, token, ("host", fine))).status in (200, 404)
    assert "\x85" not in caplog.text


async def test_t48_of_several_hosts_the_first_counts() -> None:
    async with application(public_urls="https://hub.example") as app:
        for hosts, status in ((("hub.example", "evil.example"), 200), (("evil.example", "hub.example"), 421)):
            assert (await send(app, SUBSCRIBE, *(("host", host) for host in hosts))).status == status


# -- the order of checks


@DIALECTS
@pytest.mark.parametrize("bad", [bad for bad, *_ in BAD if bad.method == "POST" and bad.target == PATH])
async def test_n96_the_token_is_checked_before_the_update(classic: bool, bad: Request) -> None:
    async with application(classic=classic) as app:
        assert (await send(app, bad)).status == 401
        assert (await send(app, bad, bearer("a.b.c"))).status == 401
        assert (await send(app, bad, ("authorization", "Basic a"))).status == 400


@DIALECTS
@pytest.mark.parametrize(
    ("bad", "status"), [(bad, status) for bad, status, _ in BAD if bad.method == "POST" and bad.target == PATH]
)
async def test_n96_n48_n44_updates_that_no_client_may_send_are_refused_before_the_grant_is_checked(
    classic: bool, bad: Request, status: int
) -> None:
    async with application(classic=classic) as app:
        assert (await send(app, bad, bearer(current_token(["b"])))).status == status


@DIALECTS
async def test_n96_the_size_of_a_body_is_checked_before_its_content(classic: bool) -> None:
    async with application(classic=classic, max_body=100) as app:
        token = bearer(current_token(["b"]))
        for headers, body in (
            ([FORM], b"topic=*&data=%FF".ljust(101, b"x")),
            ([("content-type", "text/plain")], b"x" * 101),
            ([NDJSON], b"{" * 101),
        ):
            assert (await ask(app, "POST", PATH, [*headers, token], body)).status == 413
        assert (await ask(app, "QUERY", f"{PATH}?Match=a", [FORM, token], b"x" * 101)).status == 413
        assert (await ask(app, "QUERY", f"{PATH}?Match=a", [FORM, bearer("a.b.c")], b"x" * 101)).status == 401


@DIALECTS
@pytest.mark.parametrize("bad", [bad for bad, status, _ in BAD if bad.method in ("GET", "QUERY") and status == 400])
async def test_n96_the_token_of_a_subscribe_request_is_checked_before_its_matchers(classic: bool, bad: Request) -> None:
    async with application(classic=classic) as app:
        assert (await send(app, bad, bearer("a.b.c"))).status == 401
        answer = await send(app, bad, ("authorization", "Basic a"))
        assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_request"')


async def test_n96_n80_one_wrong_update_refuses_the_whole_batch() -> None:
    lines = b'{"topic": "a", "data": "1"}\n{"topic": "b", "data": "2"}\n'
    async with application() as app, follow(app, ("match", "a"), ("match", "end")) as stream:
        token = bearer(current_token(["a"]))
        assert (await ask(app, "POST", PATH, [NDJSON, token], lines)).status == 403
        assert (await ask(app, "POST", PATH, [NDJSON, token], lines + b'{"topic": "*"}')).status == 400
        await publish(app, current_token(["end"]), ("topic", "end"), ("data", "end"))
        assert await stream.until("end") == []


# -- the log


@DIALECTS
async def test_n163_r53_neither_tokens_nor_data_nor_payloads_are_logged(
    classic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    private = "the-private-data"
    token = current_token(["a"], ["a", ("exact", "*")], payload={"secret": "the-payload"}, subject="ann")
    async with application(classic=classic) as app:
        async with follow(app, ("match", "*"), headers=[bearer(token)]) as stream:
            await publish(app, token, ("topic", "a"), ("data", private), ("private", ""))
            assert ["the-payload" in event.data for event in await stream.until(private)] == [True]
        for body in (f"data={private}%FF", f"topic=a&data={private}&retry=x", f"topic=b&data={private}"):
            assert (await ask(app, "POST", PATH, [FORM, bearer(token)], body.encode())).status in (400, 403)
        for line in (
            f'"{private}',
            f'"{private}"',
            f'{{"topic": "a", "data": ["{private}"]}}',
            f'{{"topic":"b","data":"{private}"}}',
        ):
            assert (await ask(app, "POST", PATH, [NDJSON, bearer(token)], line.encode())).status in (400, 403)
        assert (await ask(app, "GET", SUBSCRIPTIONS, [bearer(token)])).status == 200
        cookie = ("cookie", f"mercure_access_token={token}")
        assert (await ask(app, "POST", PATH, [FORM, cookie], b"topic=a")).status == 400
    assert "request refused" in caplog.text
    assert "updates published" in caplog.text
    assert "update dispatched" in caplog.text
    assert private not in caplog.text
    assert "the-payload" not in caplog.text
    assert not [part for part in token.split(".") if part in caplog.text]


@given(st.data())
async def test_n163_n91_no_part_of_a_broken_token_is_logged_or_returned(data: st.DataObject) -> None:
    valid = data.draw(st.sampled_from([TOKEN, CLASSIC]))
    at = data.draw(st.integers(0, len(valid)))
    how = data.draw(st.sampled_from(["cut", "change", "add", "part"]))
    char = data.draw(st.sampled_from("Aa_-.=+%\x7f"))
    broken = {
        "cut": valid[:at],
        "change": valid[:at] + char + valid[at + 1 :],
        "add": valid[:at] + char + valid[at:],
        "part": ".".join(data.draw(st.permutations(valid.split(".")))),
    }[how]
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    keep = Keep(logging.DEBUG)
    logging.getLogger().addHandler(keep)
    try:
        async with application() as app:
            answer = await ask(app, "POST", PATH, [FORM, ("authorization", f"Bearer {broken}")], b"topic=a")
    finally:
        logging.getLogger().removeHandler(keep)
    assert answer.status in (200, 400, 401)
    pieces = [part for part in broken.split(".") if len(part) > 20]
    assert not [part for part in pieces for line in [*lines, answer.text] if part[:20] in line]


UNPRINTABLE = "\x00\t\r\x1b\x7f\x85\x9b\xa0\xad\u200b\u200d\u200e\u2028\u2029\u202e\u2066\ufeff\U000e0041"
"""Characters of the categories Cc, Cf, Zl and Zp, and a no-break space."""


@pytest.mark.parametrize("text", [unquote("%1b%5b2J%0d2026-01-01%20INFO"), *UNPRINTABLE, "a\nb", 'a b\n\x1b="\\'])
async def test_text_of_clients_is_printable_in_the_log(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hub")
    async with application() as app, follow(app, ("match", "a"), ("last_event_id", text)):
        pass
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.isprintable() for line in lines)
    [line] = [line for line in lines if "cursor not found" in line]
    for one in text:
        assert one.isprintable() or ascii(one)[1:-1] in line


@pytest.mark.parametrize("one", [*UNPRINTABLE, "\n", "\ud800"])
def test_every_part_of_a_log_line_is_printable(one: str, caplog: pytest.LogCaptureFixture) -> None:
    structlog.stdlib.get_logger("hub").error(f"event {one}", plain=one, quoted=f"a {one}", listed=one * 2)
    [record] = caplog.records
    assert record.getMessage().isprintable()
    assert record.getMessage().count(ascii(one)[1:-1]) == 5


def test_a_traceback_of_the_hub_keeps_its_lines_and_none_is_forged(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("one\n2026-01-01 00:00:00,000 INFO    forged\r\x1b[2J\u202e")
    except ValueError:
        structlog.stdlib.get_logger("hub").exception("failed", cursor="a\nb")
    [record] = caplog.records
    assert not record.exc_info
    first, second, *_, last_but_one, last = record.getMessage().split("\n")
    assert first == r"event=failed cursor=a\nb"
    assert second == "    Traceback (most recent call last):"
    assert last_but_one == "    ValueError: one"
    assert last == r"    2026-01-01 00:00:00,000 INFO    forged\r\x1b[2J\u202e"
    assert LogFormatter("%(message)s").format(record) == record.getMessage()


def test_a_log_line_below_the_level_is_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    escaped: list[str] = []
    monkeypatch.setattr(logs, "printable", escaped.append)
    log = structlog.stdlib.get_logger("hub.quiet")
    logging.getLogger("hub.quiet").setLevel(logging.WARNING)
    log.info("a\x1b")
    assert escaped == []


def test_a_traceback_of_the_server_keeps_its_lines_and_none_is_forged() -> None:
    try:
        raise ValueError("one\n2026-01-01 00:00:00,000 INFO    forged\r\x1b[2J\u202e")
    except ValueError:
        record = logging.LogRecord(
            "uvicorn.error", logging.ERROR, "", 0, "Exception in %s", ("a\nb\x1b",), sys.exc_info()
        )
    first, *rest = LogFormatter("%(levelname)s %(message)s").format(record).split("\n")
    assert first == "ERROR Exception in a"
    assert rest[:2] == [r"    b\x1b", "    Traceback (most recent call last):"]
    assert rest[-2:] == [
        "    ValueError: one",
        "    2026-01-01 00:00:00,000 INFO    forged\\r\\x1b[2J\\u202e",
    ]
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


TOKEN = current_token(["a"], now=time.time() + 3600)
CLASSIC = classic_token(["a"])


@DIALECTS
async def test_r53_subscribers_that_come_and_go_are_logged(classic: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hub")
    async with application(classic=classic) as app:
        async with follow(app, ("match", "a"), ("match_urlpattern", "/:b")):
            [subscriber] = (seat.subscriber for seat in app.state.hub.delivery.audience)
        lines = [record.getMessage() for record in caplog.records if f"id={subscriber.id}" in record.getMessage()]
    connected, disconnected = lines
    assert 'event="subscriber connected"' in connected
    assert "exact:a" in connected
    assert "urlpattern:/:b" in connected
    assert 'event="subscriber disconnected"' in disconnected
    assert "the client went away" in disconnected


# -- the tree of errors


def test_n94_each_error_of_a_request_has_a_status_and_a_title() -> None:
    named = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RequestError)]
    for error in named:
        if error is not RequestError:
            assert 400 <= error.status < 600
            assert error.title
            assert f"{error.__name__:<24}{error.status}" in (hub.errors.__doc__ or "")
    statuses = {error.status for error in named if error is not RequestError and error.challenge is not None}
    assert statuses == {400, 401, 403}
