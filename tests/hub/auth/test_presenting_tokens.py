"""How a request presents its token, and which one counts if there are several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hub.auth.grant import ANONYMOUS
from hub.auth.presented import find_token
from hub.errors import InvalidPresentation, InvalidToken, TokenRequired
from tests.hub.signing import (
    NOW,
    ORIGIN,
    RESOURCE,
    SUBSCRIBER_KEY,
    at_once,
    authorizer,
    classic,
    current,
    detail,
    patterns,
    settings,
)

if TYPE_CHECKING:
    from hub.auth.grant import CompiledGrant

HEADER = classic(["by header"])
QUERY = classic(["by query"])
COOKIE = classic(["by cookie"])


def request(
    header: str | bytes | None = None, cookies: str | None = None, origin: str | None = ORIGIN
) -> list[tuple[bytes, bytes]]:
    given = {"authorization": header, "cookie": cookies, "origin": origin}
    return [(k.encode(), v if isinstance(v, bytes) else v.encode()) for k, v in given.items() if v is not None]


def publisher(headers: list[tuple[bytes, bytes]], query: tuple[str, ...] = (), **values: Any) -> CompiledGrant:
    return at_once(authorizer(**values).authorize("publish", headers, query, origin=ORIGIN))


def pattern(grant: CompiledGrant) -> str:
    return grant.publish[0].pattern


# -- the header


def test_the_refusal_of_a_password_names_the_proxy_that_asks_for_it() -> None:
    with pytest.raises(InvalidPresentation) as caught:
        publisher(request("Basic dXNlcjpodW50ZXIy"))
    assert "if a proxy asks for the password, let it leave out the path of the hub" in str(caught.value)
    assert "dXNlcjpodW50ZXIy" not in str(caught.value)


@pytest.mark.parametrize("value", [f"Bearer {HEADER}", f"bearer {HEADER}", f"BEARER  {HEADER} "])
def test_n58_t41_the_scheme_of_the_header_is_in_any_case(value: str) -> None:
    assert pattern(publisher(request(value))) == "by header"


@pytest.mark.parametrize(
    "given",
    [
        [b"Basic a"],
        [b"Bearer"],
        [b"Bearer "],
        [b""],
        [b"Bearer a b"],
        [b"a.b.c"],
        [b"Bearer a", b"Bearer a"],
        [b"Bearer a", b"Basic a"],
        [b"Bearer \xe9"],
        [b"Bearer\ta"],
    ],
)
def test_n93_v41_t40_a_header_that_is_not_a_single_bearer_token_is_refused(given: list[bytes]) -> None:
    with pytest.raises(InvalidPresentation) as caught:
        find_token([(b"authorization", value) for value in given], (), settings())
    assert (caught.value.status, caught.value.challenge) == (400, "invalid_request")


def test_n58_a_short_header_is_an_invalid_token() -> None:
    with pytest.raises(InvalidToken):
        publisher(request("Bearer a"))


# -- precedence


def test_n61_v40_the_header_comes_before_the_query_and_the_query_before_the_cookie() -> None:
    cookies = f"mercureAuthorization={COOKIE}"
    assert pattern(publisher(request(f"Bearer {HEADER}", cookies), (QUERY,))) == "by header"
    assert pattern(publisher(request(None, cookies), (QUERY,))) == "by query"
    assert pattern(publisher(request(None, cookies))) == "by cookie"


def test_n61_the_first_token_counts_even_if_it_is_invalid() -> None:
    for headers, query in (
        (request("Bearer x.y.z", f"mercureAuthorization={COOKIE}"), (QUERY,)),
        (request(None, f"mercureAuthorization={COOKIE}"), ("x.y.z",)),
    ):
        with pytest.raises(InvalidToken):
            publisher(headers, query)


def test_n61_the_header_hides_even_an_invalid_query() -> None:
    assert pattern(publisher(request(f"Bearer {HEADER}"), (QUERY, QUERY))) == "by header"


def test_the_repr_of_a_presented_token_does_not_show_it() -> None:
    found = find_token(request(f"Bearer {HEADER}"), (), settings())
    assert found is not None
    assert HEADER not in repr(found)
    assert "header" in repr(found)


# -- the query


@pytest.mark.parametrize("query", [(QUERY, QUERY), (QUERY, ""), ("",)])
def test_v42_the_parameter_must_occur_once_with_a_token(query: tuple[str, ...]) -> None:
    with pytest.raises(InvalidPresentation, match="authorization parameter"):
        publisher(request(), query)


def test_n60_t42_without_the_classic_dialect_no_parameter_is_read() -> None:
    current_only: dict[str, Any] = {"classic": False, "publisher_key": None, "subscriber_key": None, "anonymous": True}
    token = current(detail({"match": "a"}))
    for query in ((QUERY,), (token,), (token, token), ("",)):
        with pytest.raises(TokenRequired):
            publisher(request(), query, **current_only)
        hub = authorizer(**current_only)
        assert at_once(hub.authorize("subscribe", [], query, origin=ORIGIN)) == ANONYMOUS
        headers = request(f"Bearer {token}")
        assert pattern(at_once(hub.authorize("publish", headers, query, origin=ORIGIN))) == "a"


def test_v86_n60_a_current_token_in_the_query_is_refused_even_if_it_is_cached() -> None:
    hub, token = authorizer(), current(detail({"match": "a"}))
    for _ in range(2):
        with pytest.raises(InvalidToken) as caught:
            at_once(hub.authorize("publish", [], (token,), origin=ORIGIN))
        assert "in the query" in caught.value.reason
        at_once(hub.authorize("publish", request(f"Bearer {token}"), origin=ORIGIN))


# -- cookies


def test_n59_v44_v86_the_chosen_cookie_comes_before_the_classic_one() -> None:
    other = classic(["by the other"])
    assert pattern(publisher(request(None, f"mercureAuthorization={other}; a=b; name={COOKIE}"), cookie="name")) == (
        "by cookie"
    )
    default = f"__Secure-mercure_access_token={COOKIE}; mercureAuthorization={other}"
    assert pattern(publisher(request(None, default))) == "by cookie"
    assert pattern(publisher(request(None, default), cookie="name")) == "by the other"


def test_n59_an_empty_cookie_is_not_a_token() -> None:
    assert pattern(publisher(request(None, f"name=; mercureAuthorization={COOKIE}"), cookie="name")) == "by cookie"
    with pytest.raises(TokenRequired):
        publisher(request(None, "name=; mercureAuthorization="), cookie="name")
    with pytest.raises(TokenRequired):
        publisher(request(None, f"other={COOKIE}"), cookie="name")


def test_n59_of_cookies_with_one_name_the_one_nearest_to_the_path_counts() -> None:
    far = classic(["far"])
    assert pattern(publisher(request(None, f'name="{COOKIE}"; name={far}'), cookie="name")) == "by cookie"


def test_v86_v88_the_classic_cookie_is_only_read_in_the_classic_dialect() -> None:
    only: dict[str, Any] = {"classic": False, "publisher_key": None, "subscriber_key": None, "cookie": "name"}
    token = current(detail({"match": "a"}))
    assert pattern(publisher(request(None, f"name={token}"), **only)) == "a"
    with pytest.raises(TokenRequired):
        publisher(request(None, f"mercureAuthorization={token}"), **only)


# -- requests without a token


def test_n90_v5_a_token_is_required_unless_anonymous_subscribers_are_allowed() -> None:
    hub = authorizer(anonymous=True)
    assert at_once(hub.authorize("subscribe", [], origin=ORIGIN)) is ANONYMOUS
    with pytest.raises(TokenRequired) as caught:
        at_once(hub.authorize("publish", [], origin=ORIGIN))
    assert (caught.value.status, caught.value.challenge) == (401, "")
    with pytest.raises(TokenRequired):
        at_once(authorizer().authorize("subscribe", [], origin=ORIGIN))


def test_n131_if_a_token_is_required_anonymous_is_not_enough() -> None:
    hub = authorizer(anonymous=True)
    with pytest.raises(TokenRequired):
        at_once(hub.authorize("subscribe", [], origin=ORIGIN, required=True))
    token = classic([], ["a"], key=SUBSCRIBER_KEY)
    headers = request(f"Bearer {token}")
    assert patterns(at_once(hub.authorize("subscribe", headers, origin=ORIGIN, required=True)).subscribe) == [
        ("topic", "a")
    ]


def test_v5_n24_a_presented_token_must_be_valid() -> None:
    hub = authorizer(anonymous=True)
    for headers in (request("Bearer x"), request(None, "mercureAuthorization=x")):
        with pytest.raises(InvalidToken):
            at_once(hub.authorize("subscribe", headers, origin=ORIGIN))
    expired = classic([], ["a"], key=SUBSCRIBER_KEY, exp=NOW - 1)
    with pytest.raises(InvalidToken):
        at_once(hub.authorize("subscribe", request(None, f"mercureAuthorization={expired}"), origin=ORIGIN))


# -- publishing with a cookie

FRIENDS = "https://friend.example https://*.family.example capacitor://"


@pytest.mark.parametrize(
    ("headers", "fine"),
    [
        ({}, False),
        ({"origin": ORIGIN}, True),
        ({"origin": "https://public.example"}, True),  # N63: the origin that clients see, even behind a proxy
        ({"origin": "https://friend.example"}, True),
        ({"origin": "https://FRIEND.example"}, True),
        ({"origin": "https://a.family.example"}, True),
        ({"origin": "https://family.example"}, False),
        ({"origin": "capacitor://localhost"}, True),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "https://evil.example", "referer": ORIGIN + "/x"}, False),  # Origin beats Referer
        ({"origin": ORIGIN, "referer": "https://evil.example/x"}, True),
        ({"referer": ORIGIN + "/page?x"}, True),
        ({"referer": "https://a.family.example/page"}, True),
        ({"referer": "https://evil.example/" + ORIGIN}, False),
        ({"referer": ORIGIN.replace("https", "http") + "/x"}, False),
        ({"referer": ORIGIN + ".evil.example/"}, False),
        ({"referer": ORIGIN + "@evil.example/"}, False),
        ({"referer": "nonsense"}, False),
        ({"referer": "http://[x"}, False),
        ({"referer": ""}, False),
    ],
)
def test_n63_v43_t45_a_cookie_may_publish_only_from_an_allowed_origin(headers: dict[str, str], fine: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    raw.append((b"cookie", f"mercureAuthorization={COOKIE}".encode()))
    values: dict[str, Any] = {"publish_origins": FRIENDS, "public_urls": ("https://Public.example",)}
    if fine:
        assert pattern(publisher(raw, **values)) == "by cookie"
    else:
        with pytest.raises(InvalidPresentation) as caught:
            publisher(raw, **values)
        assert caught.value.challenge == "invalid_request"


@pytest.mark.parametrize(
    ("listed", "origin", "fine"),
    [("*", "https://any.example", True), ("*", "null", True), ("null", "null", True), ("*", None, False)],
)
def test_n63_t45_any_origin_may_publish_if_configured_but_a_missing_origin_never(
    listed: str, origin: str | None, fine: bool
) -> None:
    headers = request(None, f"mercureAuthorization={COOKIE}", origin)
    if fine:
        publisher(headers, publish_origins=listed)
    else:
        with pytest.raises(InvalidPresentation, match="needs an Origin or Referer"):
            publisher(headers, publish_origins=listed)


def test_n63_only_publishing_by_cookie_depends_on_the_origin() -> None:
    evil = "https://evil.example"
    assert publisher(request(f"Bearer {HEADER}", None, evil))
    assert publisher(request(None, None, evil), (QUERY,))
    token = classic([], ["a"], key=SUBSCRIBER_KEY)
    for origin in (evil, None):
        headers = request(None, f"mercureAuthorization={token}", origin)
        assert at_once(authorizer().authorize("subscribe", headers, origin=ORIGIN)).subscribe


def test_n96_the_origin_is_checked_before_the_token() -> None:
    with pytest.raises(InvalidPresentation):
        publisher(request(None, "mercureAuthorization=x.y.z", "https://evil.example"))


def test_n69_t48_a_token_is_for_the_origin_of_the_request() -> None:
    hub = authorizer(public_urls=(ORIGIN, "http://other.example:8080"))
    other = current(detail({"match": "a"}), aud="http://other.example:8080/.well-known/mercure")
    for token, origin in ((current(detail({"match": "a"})), ORIGIN), (other, "http://other.example:8080")):
        headers = request(f"Bearer {token}")
        assert at_once(hub.authorize("publish", headers, origin=origin)).publish
        with pytest.raises(InvalidToken):
            at_once(hub.authorize("publish", headers, origin="https://third.example"))
    with pytest.raises(InvalidToken):
        at_once(hub.authorize("publish", request(f"Bearer {other}"), origin=ORIGIN))


def test_n69_a_configured_resource_is_the_same_at_every_origin() -> None:
    hub = authorizer(resource="urn:example:hub")
    headers = request(f"Bearer {current(detail({'match': 'a'}), aud='urn:example:hub')}")
    assert at_once(hub.authorize("publish", headers, origin="http://10.0.0.7")).publish
    with pytest.raises(InvalidToken):
        at_once(hub.authorize("publish", request(f"Bearer {current(aud=RESOURCE)}"), origin=ORIGIN))
