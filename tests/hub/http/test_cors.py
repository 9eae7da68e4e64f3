"""CORS: what pages of other origins may do and read; and the security headers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from hub import Settings
from hub.http.cors import cors as cors_of
from tests.asgi import FORM, PATH, Answer, application, ask, bearer, classic_token, current_token, follow, scope_of
from tests.wire import Event

pytestmark = pytest.mark.anyio

PAGE = "https://page.example"
LIST = f"{PAGE} https://*.family.example capacitor://"
SUBSCRIBE = f"{PATH}?match=a"
SUBSCRIPTIONS = f"{PATH}/subscriptions"
EVERYTHING = bearer(current_token(["*"], ["*"]))


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def names(text: str) -> set[str]:
    return {name.strip().lower() for name in text.split(",")}


async def test_r5_without_origins_there_are_no_cors_headers() -> None:
    async with application(cors_origins="") as app:
        for method, headers in (("GET", []), ("OPTIONS", [("access-control-request-method", "GET")])):
            answer = await ask(app, method, SUBSCRIBE, [("origin", PAGE), *headers])
            assert (answer.status, cors(answer)) == (200 if method == "GET" else 405, {})
            assert "vary" not in answer.headers


# Method, target, headers and status of responses of every kind.
REQUESTS: list[tuple[str, str, list[tuple[str, str]], int]] = [
    ("GET", SUBSCRIBE, [], 200),
    ("HEAD", SUBSCRIBE, [], 200),
    ("QUERY", SUBSCRIBE, [], 200),
    ("POST", PATH, [FORM, EVERYTHING], 400),
    ("POST", PATH, [FORM], 401),
    ("POST", PATH, [FORM, bearer(current_token())], 400),
    ("GET", SUBSCRIPTIONS, [EVERYTHING], 200),
    ("GET", SUBSCRIPTIONS, [bearer(current_token())], 403),
    ("GET", f"{SUBSCRIPTIONS}/exact/a/b", [EVERYTHING], 404),
    ("GET", SUBSCRIPTIONS, [EVERYTHING, ("if-none-match", "*")], 304),
    ("GET", PATH, [], 400),
    ("GET", "/nothing", [], 404),
    ("DELETE", PATH, [], 405),
    ("OPTIONS", PATH, [], 405),
    ("GET", f"{PATH}/debug/", [], 200),
    ("GET", f"{PATH}/debug/config.json", [], 200),
    ("GET", "/", [], 307),
]


@pytest.mark.parametrize(
    "origin", [PAGE, "https://a.b.family.example", "capacitor://localhost", "https://A.FAMILY.example"]
)
async def test_n97_n98_r25_pages_of_listed_origins_may_read_everything_with_credentials(origin: str) -> None:
    async with application(cors_origins=LIST) as app:
        for method, target, headers, status in REQUESTS:
            answer = await ask(app, method, target, [*headers, ("origin", origin)])
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert "origin" in names(answer.headers["vary"])
            assert names(answer.headers["access-control-expose-headers"]) >= {
                "link", "etag", "mercure-last-event-id", "last-event-id", "www-authenticate", "preference-applied", "retry-after",
            }  # fmt: skip


HOSTILE: list[str | bytes] = [
    "https://evil.example", "https://page.example.evil.example", "https://page.example:8443", "http://page.example",
    "https://family.example", "null", "", "*", '"', f'{PAGE}", "x', f"{PAGE}, https://evil.example", f"{PAGE}/", f" {PAGE}",
    b"https://\xff.example", "https://é.example", "https://evil.example/.family.example",
]  # fmt: skip


@pytest.mark.parametrize("origin", HOSTILE)
async def test_n97_pages_of_other_origins_may_not(origin: str | bytes) -> None:
    async with application(cors_origins=LIST) as app:
        for method, target, headers, status in REQUESTS:
            answer = await ask(app, method, target, [*headers, ("origin", origin)])
            assert answer.status == status
            assert "access-control-allow-origin" not in answer.headers
            assert "origin" in names(answer.headers["vary"])
        preflight = await ask(app, "OPTIONS", PATH, [("origin", origin), ("access-control-request-method", "GET")])
        assert (preflight.status, "access-control-allow-origin" in preflight.headers) == (400, False)


async def test_n97_a_cache_never_gives_the_response_for_one_origin_to_another() -> None:
    async with application(cors_origins=LIST) as app:
        for headers in ([], [("origin", PAGE)], [("origin", "https://evil.example")]):
            for method, target, more, _ in REQUESTS:
                answer = await ask(app, method, target, [*more, *headers])
                assert "origin" in names(answer.headers["vary"])


async def test_n97_only_the_first_of_several_origins_counts() -> None:
    async with application(cors_origins=LIST) as app:
        answer = await ask(app, "GET", SUBSCRIBE, [("origin", "https://evil.example"), ("origin", PAGE)])
        assert "access-control-allow-origin" not in answer.headers
        answer = await ask(app, "GET", SUBSCRIBE, [("origin", PAGE), ("origin", "https://evil.example")])
        assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("listed", ["*", f"{PAGE} *"])
@pytest.mark.parametrize("origin", [PAGE, "https://evil.example", "null", "https://é.example"])
async def test_n97_r5_any_origin_without_credentials(listed: str, origin: str) -> None:
    async with application(cors_origins=listed) as app:
        for method, target, headers, _ in REQUESTS:
            answer = await ask(app, method, target, [*headers, ("origin", origin), ("cookie", "a=b")])
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


# -- preflight


async def preflight(app: Any, method: str, *headers: str, origin: str = PAGE) -> Answer:
    asked = [("origin", origin), ("access-control-request-method", method)]
    if headers:
        asked.append(("access-control-request-headers", ", ".join(headers)))
    return await ask(app, "OPTIONS", PATH, asked)


ALLOWED = [
    *("authorization", "cache-control", "content-type", "if-none-match", "last-event-id", "prefer"),
    *("traceparent", "tracestate", "x-request-id"),
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "QUERY"])
async def test_n99_r25_a_page_may_use_all_methods_and_headers_of_the_hub(method: str) -> None:
    async with application(cors_origins=LIST) as app:
        for headers in (*([name] for name in ALLOWED), ALLOWED, [name.title() for name in ALLOWED]):
            answer = await preflight(app, method, *headers)
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["access-control-allow-credentials"] == "true"
            assert method in answer.headers["access-control-allow-methods"]
            assert names(answer.headers["access-control-allow-headers"]) >= set(ALLOWED)
            assert int(answer.headers["access-control-max-age"]) > 0


@pytest.mark.parametrize(
    ("method", "header"),
    [
        ("DELETE", "authorization"),
        ("PUT", "authorization"),
        ("get", "authorization"),
        ("GET", "x-custom"),
        ("POST", "cookie"),
    ],
)
async def test_n99_r25_a_page_may_send_no_other_headers(method: str, header: str) -> None:
    async with application(cors_origins=LIST) as app:
        answer = await preflight(app, method, header)
        assert answer.status == 400
        assert names(answer.headers["access-control-allow-methods"]) == {"get", "head", "post", "query"}


@given(
    origin=st.sampled_from([PAGE, "https://x.family.example", "https://evil.example", "null", "*"]),
    method=st.sampled_from(["GET", "POST", "QUERY", "get", "DELETE", "", "*"]),
    asked=st.none()
    | st.lists(st.sampled_from([*ALLOWED, "Prefer", " x-a", "accept", "Accept-Language", "é", "", "*"])),
    private=st.booleans(),
)
def test_n99_a_preflight_is_refused_if_and_only_if_there_is_a_cause(
    origin: str, method: str, asked: list[str] | None, private: bool
) -> None:
    rules = cors_of(Settings(dev=True, cors_origins=LIST.split()))
    assert rules is not None
    fields = {"origin": origin, "access-control-request-method": method}
    if asked is not None:
        fields["access-control-request-headers"] = ",".join(asked)
    if private:
        fields["access-control-request-private-network"] = "true"
    headers = Headers(fields)
    assert (rules.preflight_response(headers).status_code == 200) == (rules.refusal(headers) == "")


async def test_n99_n97_a_preflight_for_any_origin_has_no_credentials() -> None:
    async with application() as app:
        answer = await preflight(app, "POST", "authorization", origin="https://evil.example")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert "access-control-allow-credentials" not in answer.headers


async def test_n99_a_preflight_needs_no_token_and_does_not_subscribe() -> None:
    async with application(cors_origins=LIST, anonymous=False) as app:
        assert (await preflight(app, "GET")).status == 200
        assert app.state.hub.delivery.connection_count == 0


async def test_n97_a_stream_to_a_page_goes_on_past_its_head() -> None:
    async with application(cors_origins=LIST) as app, follow(app, ("match", "a"), headers=[("origin", PAGE)]) as stream:
        assert stream.headers["access-control-allow-origin"] == PAGE
        await ask(app, "POST", PATH, [FORM, bearer(classic_token(["a"]))], b"topic=a&data=1&id=i")
        assert await stream.next_event() == Event("i", "message", "1", None)


# -- security headers

SAFE = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


def assert_safe(answer: Answer) -> None:
    given = [(name.decode().lower(), value.decode()) for name, value in answer.raw_headers]
    assert [(name, value) for name, value in given if name in SAFE] == list(SAFE.items())


@pytest.mark.parametrize("origins", ["", LIST, "*"])
async def test_r24_every_response_has_the_cors_headers_once(origins: str) -> None:
    async with application(cors_origins=origins) as app:
        for method, target, headers, status in REQUESTS:
            answer = await ask(app, method, target, headers)
            assert answer.status == status
            assert_safe(answer)
        assert_safe(await preflight(app, "GET"))
        assert_safe(await ask(app, "GET", f"/.well-known/oauth-protected-resource{PATH}"))
        assert_safe(await ask(app, "GET", f"{PATH}/debug"))


async def test_r24_error_responses_have_the_cors_headers_too() -> None:
    async with application() as app:

        async def fail(*_: Any, **options: Any) -> Any:
            raise RuntimeError("planted")

        app.state.hub.history.append = fail
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"topic=a", "more_body": False}

        with pytest.raises(RuntimeError, match="planted"):
            await app(scope_of("POST", PATH, [FORM, EVERYTHING]), receive, send)
        answer = Answer(messages[0]["status"], messages[0]["headers"], messages[1]["body"])
        assert (answer.status, b"planted" in answer.body) == (500, False)
        assert_safe(answer)
