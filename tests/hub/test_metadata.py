"""The metadata of the protected resource, and the configuration of the debugger."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from hub.development import DEVELOPMENT_TOKEN
from tests.asgi import PATH, application, ask, bearer, classic_token, current_token, follow

if TYPE_CHECKING:
    from tests.asgi import Answer

pytestmark = pytest.mark.anyio

DIALECTS = pytest.mark.parametrize("classic", [True, False], ids=["both", "current"])
METADATA = f"/.well-known/oauth-protected-resource{PATH}"
ISSUER = {"id": "https://issuer.example", "keys": {"key": "k" * 32}}
SERVER = {"id": "https://server.example", "publisher": {"key": "k" * 32}, "authorization_server": True}
OTHER_SERVER = {"id": "https://a.server.example/tenant", "subscriber": {"key": "k" * 32}, "authorization_server": True}
PRODUCTION: dict[str, Any] = {"dev": False, "anonymous": True, "resource": f"https://hub.example{PATH}"}


async def metadata(**settings: Any) -> dict[str, Any]:
    async with application(**settings) as app:
        answer = await ask(app, "GET", METADATA)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        document: dict[str, Any] = answer.json()
        return document


@DIALECTS
async def test_n145_n148_n149_n150_n151_n152_n153_the_whole_document(classic: bool) -> None:
    assert await metadata(classic=classic, issuers=(ISSUER, SERVER)) == {
        "resource": f"https://hub.example{PATH}",
        "authorization_servers": ["https://server.example"],
        "authorization_details_types_supported": ["https://mercure.rocks/authorization-detail"],
        "bearer_methods_supported": ["header"],
        "mercure_cookie": "mercure_access_token",
        "mercure_subscriptions": True,
        "mercure_matcher_types_supported": ["exact", "urlpattern", "uritemplate", "amqp", "mqtt"],
        "mercure_signals_supported": ["identity", "gap", "position", "heartbeat", "goodbye"],
    }


async def test_n147_authorization_servers_are_listed_if_there_are_any() -> None:
    assert "authorization_servers" not in await metadata(issuers=(ISSUER,))
    document = await metadata(issuers=(SERVER, ISSUER, OTHER_SERVER))
    assert document["authorization_servers"] == ["https://server.example", "https://a.server.example/tenant"]


async def test_n151_n140_subscriptions_are_listed_if_they_are_on() -> None:
    for on in (True, False):
        assert (await metadata(subscriptions=on)).get("mercure_subscriptions") == (True if on else None)
        async with application(subscriptions=on) as app:
            answer = await ask(app, "GET", f"{PATH}/subscriptions", [bearer(current_token([], ["*"]))])
            assert answer.status == (200 if on else 404)


async def test_n150_r4_the_document_names_the_configured_cookie() -> None:
    assert (await metadata(**PRODUCTION, issuers=(ISSUER,)))["mercure_cookie"] == "__Secure-mercure_access_token"
    document = await metadata(cookie="name")
    assert document["mercure_cookie"] == "name"
    async with application(anonymous=False) as app:
        token = current_token([], ["a"])
        for name, status in (("mercure_access_token", 200), ("name", 401)):
            assert (await ask(app, "GET", f"{PATH}?match=a", [("cookie", f"{name}={token}")])).status == status


async def test_n152_n38_exactly_the_listed_types_can_be_subscribed_to() -> None:
    types = (await metadata())["mercure_matcher_types_supported"]
    async with application() as app:
        for type in types:
            assert re.fullmatch("[a-z][a-z0-9]*", type)
            async with follow(
                app, (f"match_{type}", "a"), headers=[bearer(current_token([], [(type, "a")]))]
            ) as stream:
                assert stream.status == 200
        refused = (await ask(app, "GET", f"{PATH}?match_nonsense=a")).detail
        assert refused.endswith(", ".join(f"match_{type}" for type in types))


async def test_n153_a_hub_with_only_classic_tokens_has_no_metadata() -> None:
    async with application(**PRODUCTION, publisher_key="k" * 32) as app:
        for method in ("GET", "HEAD"):
            assert (await ask(app, method, METADATA)).status == 404
        for headers, challenge in (
            ([], "Bearer"),
            ([bearer("x")], 'Bearer error="invalid_token"'),
            ([("authorization", "Basic x")], 'Bearer error="invalid_request"'),
        ):
            assert (await ask(app, "POST", PATH, headers)).headers["www-authenticate"] == challenge


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"resource": f"https://hub.example{PATH}"}, f"https://hub.example{METADATA}"),
        ({"resource": f"http://hub.example:8080{PATH}"}, f"http://hub.example:8080{METADATA}"),
        ({"resource": "https://api.example"}, "https://api.example/.well-known/oauth-protected-resource"),
        ({"resource": "https://api.example/"}, "https://api.example/.well-known/oauth-protected-resource"),
        ({"resource": "https://api.example/v1/"}, "https://api.example/.well-known/oauth-protected-resource/v1/"),
        ({"resource": "https://api.example/v1?a=b"}, "https://api.example/.well-known/oauth-protected-resource/v1?a=b"),
        ({"resource": "https://api.example/%C3%A9"}, "https://api.example/.well-known/oauth-protected-resource/%C3%A9"),
        ({"resource": "urn:example:hub"}, None),
        ({"resource": "urn:example:hub", "public_urls": "https://hub.example"}, f"https://hub.example{METADATA}"),
        ({"public_urls": "https://hub.example"}, f"https://hub.example{METADATA}"),
    ],
)
async def test_n154_n146_the_challenge_names_the_resource_regardless_of_the_host_header(
    settings: dict[str, str], url: str | None
) -> None:
    async with application(anonymous=False, **settings) as app:
        for host in ("hub.example", "evil.example"):
            for method, headers in (("GET", []), ("POST", [bearer("x")]), ("POST", [("authorization", "Basic x")])):
                answer = await ask(app, method, f"{PATH}?match=a", [("host", host), *headers])
                if "public_urls" in settings and host == "evil.example":
                    assert answer.status == 421
                    continue
                found = re.search('resource_metadata="(.*)"', answer.headers["www-authenticate"])
                assert (found and found[1]) == url
        if url is not None and "urn" not in settings.get("resource", ""):  # RFC 9728, 3.3
            document = (await ask(app, "GET", f"/{url.split('/', 3)[3]}")).json()
            assert document["resource"] == settings.get("resource", f"https://hub.example{PATH}")
        assert (await ask(app, "GET", METADATA)).status == 200


async def test_n154_r6_of_several_public_urls_the_challenge_names_the_requested_one() -> None:
    async with application(anonymous=False, public_urls="https://hub.example https://other.example") as app:
        for host in ("hub.example", "other.example"):
            challenge = (await ask(app, "GET", f"{PATH}?match=a", [("host", host)])).headers["www-authenticate"]
            assert challenge == f'Bearer resource_metadata="https://{host}{METADATA}"'


async def test_n146_n69_t48_r6_the_resource_is_the_audience_of_tokens() -> None:
    for settings, headers in (
        ({}, []),
        ({}, [("host", "other.example:8080")]),
        ({"resource": "urn:example:hub"}, []),
        ({"resource": "https://elsewhere.example/hub"}, [("host", "other.example")]),
        ({"public_urls": "https://hub.example https://other.example"}, [("host", "other.example")]),
    ):
        async with application(anonymous=False, **settings) as app:
            resource = (await ask(app, "GET", METADATA, headers)).json()["resource"]
            assert resource == settings.get("resource", f"https://{dict(headers).get('host', 'hub.example')}{PATH}")
            for named, status in ((resource, 200), (resource + "/", 401)):
                token = bearer(current_token([], ["a"], resource=named))
                assert (await ask(app, "GET", f"{PATH}?match=a", [token, *headers])).status == status


async def test_n145_only_get_and_head_are_allowed() -> None:
    async with application() as app:
        head = await ask(app, "HEAD", METADATA)
        got = await ask(app, "GET", METADATA)
        assert (head.status, head.headers) == (200, got.headers)
        for method in ("POST", "QUERY", "DELETE"):
            answer = await ask(app, method, METADATA)
            assert (answer.status, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
        for target in (f"{METADATA}/", f"{METADATA}x", "/.well-known/oauth-protected-resource"):
            assert (await ask(app, "GET", target)).status in (307, 404)


async def test_n145_n154_the_url_in_the_challenge_works() -> None:
    async with application() as app:
        challenge = (await ask(app, "POST", PATH)).headers["www-authenticate"]
        assert challenge == f'Bearer resource_metadata="https://hub.example{METADATA}"'
        assert (await ask(app, "GET", METADATA)).status == 200


@pytest.mark.parametrize("listed", ["", "*", "https://page.example"])
@pytest.mark.parametrize("origin", ["https://page.example", "https://evil.example", "null"])
async def test_n156_pages_of_any_origin_may_read_the_metadata_without_credentials(listed: str, origin: str) -> None:
    async with application(cors_origins=listed, anonymous=False) as app:
        for method in ("GET", "HEAD"):
            answer = await ask(app, method, METADATA, [("origin", origin)])
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


# -- the debugger


@DIALECTS
async def test_r29_the_page_and_its_configuration(classic: bool) -> None:
    async with application(classic=classic) as app:
        page = await ask(app, "GET", f"{PATH}/debug/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for file in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            assert (await ask(app, "GET", f"{PATH}/debug/{file}")).status == 200
        config = await ask(app, "GET", f"{PATH}/debug/config.json")
        assert config.headers["cache-control"] == "no-store"
        document = config.json()
        token = bearer(document.pop("token"))
        assert document == {
            "hub": PATH,
            "token_command": "",
            "classic": classic,
            "subscriptions": True,
        }
        fields = [("content-type", "application/x-www-form-urlencoded"), token]
        assert (await ask(app, "POST", document["hub"], fields, b"topic=a")).status == 200
        assert (await ask(app, "GET", f"{PATH}/subscriptions", [token])).status == 200


async def test_the_etag_of_the_page_and_its_files_is_honoured() -> None:
    async with application() as app:
        for file in ("", "debugger.js", "debugger.css"):
            page = await ask(app, "GET", f"{PATH}/debug/{file}")
            again = await ask(app, "GET", f"{PATH}/debug/{file}", [("if-none-match", page.headers["etag"])])
            other = await ask(app, "GET", f"{PATH}/debug/{file}", [("if-none-match", '"other"')])
            assert [(answer.status, bool(answer.text)) for answer in (page, again, other)] == [
                (200, True),
                (304, False),
                (200, True),
            ]


async def test_r29_the_page_only_has_a_token_in_development() -> None:
    async with application(**PRODUCTION, publisher_key="k" * 32, debugger=True) as app:
        answer = await ask(app, "GET", f"{PATH}/debug/config.json")
        assert (answer.status, answer.json()["token"]) == (200, "")
        assert DEVELOPMENT_TOKEN not in (await ask(app, "GET", f"{PATH}/debug/")).text


def leads_to(answer: Answer) -> str:
    assert answer.status == 307
    return answer.headers["location"]


async def test_r29_the_root_redirects_to_the_page_if_it_is_on() -> None:
    async with application() as app:
        assert leads_to(await ask(app, "GET", "/")) == f"{PATH}/debug/"
        assert leads_to(await ask(app, "GET", f"{PATH}/debug")).endswith(f"{PATH}/debug/")
        for climbing in ("../settings.py", "..%2fsettings.py", "%2e%2e/settings.py", "nothing"):
            assert (await ask(app, "GET", f"{PATH}/debug/{climbing}")).status == 404
    async with application(debugger=False) as app:
        for target in ("/", f"{PATH}/debug", f"{PATH}/debug/", f"{PATH}/debug/config.json"):
            assert (await ask(app, "GET", target, [bearer(classic_token(["*"], ["*"]))])).status == 404
