"""Settings: errors name the setting and hide secrets, in the environment too."""

from __future__ import annotations

import json
import logging
import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import ValidationError

from hub import ConfigurationError, Settings, create_app, settings_from_environment
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY
from hub.http.embedding import server_app
from hub.node.shares import RESOURCES
from hub.server.http1 import HttpProtocol
from hub.server.socket_options import _drop_silent
from hub.settings.description import descriptions
from hub.settings.issuers import PUBLIC_KEY_ALGORITHMS
from hub.settings.settings import GROUPS
from hub.settings.sources import Sources
from tests.hub import settings_table
from tests.hub.serving import served
from tests.wire import publish, subscribe

if TYPE_CHECKING:
    from pathlib import Path

KEY = "k" * 32
SECRET = "a-secret-that-nobody-should-see-in-a-log"
HUB = "https://hub.example/.well-known/mercure"


def pem(key: Any) -> str:
    text: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return text.decode()


RSA = pem(rsa.generate_private_key(65537, 2048))
EC = pem(ec.generate_private_key(ec.SECP256R1()))
EDDSA = pem(ed25519.Ed25519PrivateKey.generate())


def issuer(id: Any = "https://issuer.example", **roles: Any) -> Any:
    return {"id": id, **(roles or {"keys": {"key": SECRET}})}


def of(**values: Any) -> Settings:
    """Return settings whose values need not have the declared types."""
    return Settings(**values)


def refused(told: str | None, **values: Any) -> str:
    with pytest.raises(ConfigurationError, match=told) as caught:
        server_app(Settings(**values))
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # a traceback does not show it either
    return str(caught.value)


# -- possible publishers and subscribers


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "no publisher is allowed: set `publisher_key` or `issuers`, or `dev` to try the hub"),
        ({"anonymous": True}, "no publisher is allowed"),
        ({"subscriber_key": KEY}, "no publisher is allowed"),
        ({"publisher_key": KEY}, "no subscriber is allowed: set `subscriber_key`, `issuers` or `anonymous`"),
        ({"issuers": [issuer(publisher={"key": KEY})], "resource": HUB}, "no subscriber is allowed"),
        ({"issuers": [issuer(subscriber={"key": KEY})], "resource": HUB}, "no publisher is allowed"),
        (
            {"issuers": [issuer(subscriber={"key": KEY})], "resource": HUB, "subscriber_key": KEY},
            "no publisher is allowed",
        ),
        (
            {"publisher_algorithm": "RS256", "subscriber_algorithm": "RS256", "anonymous": True},
            "no publisher is allowed",
        ),
    ],
)
def test_r12_a_hub_without_possible_clients_does_not_start(values: dict[str, Any], told: str) -> None:
    refused(told, **values)


@pytest.mark.parametrize(
    ("values", "publish", "anonymous"),
    [
        ({"publisher_key": KEY, "anonymous": True}, True, True),
        ({"publisher_key": KEY, "subscriber_key": KEY}, True, False),
        ({"publisher_jwks_url": "https://x/keys", "subscriber_jwks_url": "https://x/keys"}, True, False),
        ({"issuers": [issuer()], "resource": HUB}, True, False),
        ({"issuers": [issuer()], "public_urls": "https://hub.example"}, True, False),
        ({"issuers": [issuer(publisher={"key": KEY})], "resource": HUB, "subscriber_key": KEY}, True, False),
        (
            {"issuers": [issuer(publisher={"key": KEY}), issuer("b", subscriber={"key": KEY})], "resource": HUB},
            True,
            False,
        ),
        ({"anonymous": True}, False, True),
        ({"subscriber_key": KEY}, False, False),
    ],
)
def test_r12_r7_the_smallest_settings_that_are_enough(values: dict[str, Any], publish: bool, anonymous: bool) -> None:
    settings = Settings(**values)
    assert (settings.can_publish, settings.can_subscribe, settings.anonymous) == (publish, True, anonymous)
    create_app(settings)


# -- keys


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "set one of key and jwks_url"),
        ({"key": SECRET, "jwks_url": "https://x/keys"}, "set one of key and jwks_url"),
        ({"jwks_url": "https://x/keys", "algorithm": "RS256"}, "algorithm belongs to key"),
        ({"key": SECRET, "algorithms": ("RS256",)}, "algorithms belong to jwks_url"),
        ({"key": SECRET, "algorithm": "none"}, "algorithm"),
        ({"key": SECRET, "algorithm": "hs256"}, "algorithm"),
        ({"key": SECRET, "algorithm": "RS256"}, "not a key for RS256"),
        ({"key": SECRET, "algorithm": "EdDSA"}, "not a key for EdDSA"),
        ({"key": ""}, "the key is empty"),
        ({"key": RSA}, "the key is in PEM, so set its algorithm"),
        ({"key": RSA, "algorithm": "HS256"}, "a key in PEM is not a secret"),
        ({"key": EC, "algorithm": "HS512"}, "a key in PEM is not a secret"),
        ({"key": RSA, "algorithm": "ES256"}, "ES256"),
        ({"key": EC, "algorithm": "ES384"}, "another algorithm than ES384"),
        ({"jwks_url": "http://x/keys"}, "jwks_url"),
        ({"jwks_url": "http://localhost.evil.example/keys"}, "jwks_url"),
        ({"jwks_url": "ftp://x/keys"}, "jwks_url"),
        ({"jwks_url": "keys.json"}, "jwks_url"),
        ({"jwks_url": "https://"}, "jwks_url"),
        ({"jwks_url": "file:///nowhere/keys.json"}, "keys"),
        ({"jwks_url": "https://x/keys", "algorithms": []}, "algorithms"),
        ({"jwks_url": "https://x/keys", "algorithms": ["RS256", "HS256"]}, "a key set is public"),
        ({"jwks_url": "https://x/keys", "algorithms": ["none"]}, "algorithms"),
        ({"key": SECRET, "secret": SECRET}, "secret"),
    ],
)
def test_r7_t47_n65_keys_that_do_not_fit_prevent_the_start(keys: dict[str, Any], told: str) -> None:
    for roles in (
        {"keys": keys},
        {"keys": {"key": KEY}, "publisher": keys},
        {"keys": {"key": KEY}, "subscriber": keys},
    ):
        refused(told, resource=HUB, issuers=[issuer(**roles)])


@pytest.mark.parametrize("role", ["publisher", "subscriber"])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"key": SECRET, "algorithm": "RS256"}, "_key: not a key for RS256"),
        ({"key": RSA}, "_key: the key is in PEM, so set its algorithm"),
        ({"key": RSA, "algorithm": "HS256"}, "_key: a key in PEM is not a secret"),
        ({"key": ""}, "_key: the key is empty"),
        ({"key": SECRET, "jwks_url": "https://x/keys"}, "set one of key and jwks_url"),
        ({"key": SECRET, "algorithm": "none"}, "_algorithm"),
        ({"jwks_url": "http://x/keys"}, "jwks_url"),
        ({"jwks_url": "https://x/keys", "algorithm": "HS256"}, "a key set is public"),
        ({"jwks_url": "file:///nowhere/keys.json"}, "_jwks_url"),
    ],
)
def test_r7_t47_v32_classic_keys_that_do_not_fit_prevent_the_start(
    role: str, values: dict[str, Any], told: str
) -> None:
    others = {"publisher_key": KEY, "anonymous": True}
    given = {f"{role}_{name}": value for name, value in values.items()}
    if "key" not in values and role == "publisher":
        others.pop("publisher_key")
    refused(told, **others | given)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(SECRET, None), (SECRET, "HS512"), (RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (EDDSA, "EdDSA")],
)
def test_r7_t47_suitable_keys_are_accepted(key: str, algorithm: str | None) -> None:
    create_app(Settings(resource=HUB, issuers=[issuer(keys={"key": key, "algorithm": algorithm})]))
    create_app(of(publisher_key=key, publisher_algorithm=algorithm, anonymous=True))


def test_r7_the_algorithms_of_a_key_set_are_those_of_public_keys() -> None:
    assert {a[:2] for a in PUBLIC_KEY_ALGORITHMS} == {"Ed", "ES", "RS", "PS"}
    assert len(set(PUBLIC_KEY_ALGORITHMS)) == 12
    settings = Settings(publisher_jwks_url="https://x/keys", anonymous=True)
    keys = settings.classic_keys("publisher")
    assert keys is not None
    assert keys.algorithms == PUBLIC_KEY_ALGORITHMS
    settings = Settings(publisher_jwks_url="https://x/keys", publisher_algorithm="ES256", anonymous=True)
    keys = settings.classic_keys("publisher")
    assert keys is not None
    assert keys.algorithms == ("ES256",)


@pytest.mark.parametrize(
    "url", ["https://x/keys", "http://localhost:8080/keys", "http://127.0.0.1/keys", "http://[::1]:1/keys"]
)
def test_r7_the_url_of_a_key_set_is_https_or_a_file(url: str) -> None:
    create_app(Settings(resource=HUB, issuers=[issuer(keys={"jwks_url": url})]))


def test_r7_a_key_set_in_a_file_is_read_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(
        json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]})
    )
    chosen = {"resource": HUB, "issuers": [issuer(keys={"jwks_url": file.as_uri()})]}
    create_app(of(**chosen))
    file.write_text("{")
    refused("issuer 'https://issuer.example'", **chosen)


@pytest.mark.parametrize(
    ("issuers", "told"),
    [
        ([issuer(), issuer()], "two issuers have the same id"),
        ([issuer("")], r"issuers\.0\.id"),
        ([issuer(None)], r"issuers\.0\.id"),
        ([{"keys": {"key": SECRET}}], r"issuers\.0\.id"),
        ([{"id": "a"}], "issuer 'a' has no keys"),
        ([issuer("a"), {"id": "b", "authorization_server": True}], r"issuers\.1: .*issuer 'b' has no keys"),
        ([issuer(nonsense=SECRET)], r"issuers\.0"),
        (SECRET, "issuers"),
        ([SECRET], "issuers"),
    ],
)
def test_r7_invalid_issuers_are_refused(issuers: Any, told: str) -> None:
    refused(told, resource=HUB, issuers=issuers)


def test_r7_n69_r6_issuers_need_a_public_url_or_a_resource() -> None:
    told = refused("issuers need `public_urls` or `resource`", issuers=[issuer()])
    assert "a token names the hub that it is for" in told
    assert Settings(dev=True).issuers[0].id == DEVELOPMENT_ISSUER


def test_v88_v76_r7_classic_keys_need_the_classic_dialect() -> None:
    for name in ("publisher_key", "subscriber_key"):
        refused("`classic` is off", dev=True, classic=False, **{name: SECRET})
    refused("`classic` is off", dev=True, classic=False, publisher_jwks_url="https://x/keys")
    settings = Settings(dev=True, classic=False)
    assert settings.classic_keys("publisher") is settings.classic_keys("subscriber") is None


# -- URLs and paths


@pytest.mark.parametrize(
    "resource",
    [
        "hub",
        "/hub",
        "//hub.example/x",
        "hub.example",
        "",
        "https:",
        "https://hub.example/x#y",
        "https://hub.example/a b",
        f"{HUB}\n",
        "1a:b",
    ],
)
def test_t33_r6_a_resource_that_is_not_an_absolute_url_prevents_the_start(resource: str) -> None:
    refused("resource", dev=True, resource=resource)


@pytest.mark.parametrize(
    ("values", "resource", "url"),
    [
        ({}, "https://asked.example/.well-known/mercure", "http://mercure.invalid/.well-known/mercure"),
        ({"resource": HUB}, HUB, HUB),
        ({"resource": "urn:example:hub"}, "urn:example:hub", "http://mercure.invalid/.well-known/mercure"),
        ({"resource": "https://x.example/"}, "https://x.example/", "http://mercure.invalid/.well-known/mercure"),
        ({"resource": "https://x.example/a/.well-known/mercure"}, "https://x.example/a/.well-known/mercure", "http://mercure.invalid/.well-known/mercure"),
        ({"public_urls": "https://a.example https://b.example"}, "https://asked.example/.well-known/mercure", "https://a.example/.well-known/mercure"),
        ({"public_urls": "https://a.example", "resource": "urn:x"}, "urn:x", "https://a.example/.well-known/mercure"),
        ({"public_urls": "https://a.example", "resource": HUB}, HUB, HUB),
        ({"path": "/hub"}, "https://asked.example/hub", "http://mercure.invalid/hub"),
    ],
)  # fmt: skip
def test_r6_n69_n34_the_resource_and_the_base_url_of_patterns(values: dict[str, Any], resource: str, url: str) -> None:
    settings = Settings(dev=True, **values)
    assert (settings.resource_at("https://asked.example"), settings.url) == (resource, url)


@pytest.mark.parametrize(
    "url",
    [
        "hub.example",
        "https://x/y",
        "https://x/",
        "ftp://x",
        "https://",
        "https://x?y",
        "https://x y",
        "https://*.x",
        "capacitor://x",
    ],
)
def test_r6_a_public_url_is_a_scheme_and_an_authority(url: str) -> None:
    refused(r"public_urls", dev=True, public_urls=[url])


def test_r6_public_urls_are_lower_case_like_the_origins_of_requests() -> None:
    settings = Settings(dev=True, public_urls=["https://Hub.Example:8443", "http://b"])
    assert settings.public_urls == ("https://hub.example:8443", "http://b")
    assert settings.url == "https://hub.example:8443/.well-known/mercure"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("HTTPS://App.Example:8443", "https://app.example:8443"),
        ("https://München.example", "https://xn--mnchen-3ya.example"),
        ("http://[0:0::1]:3000", "http://[::1]:3000"),
    ],
)
def test_r5_r6_origins_and_public_urls_are_as_browsers_write_them(given: str, written: str) -> None:
    settings = Settings(dev=True, cors_origins=[given], publish_origins=[given], public_urls=[given])
    assert settings.cors_origins == settings.publish_origins == settings.public_urls == (written,)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("https://*.Example.com:443", "https://*.example.com"),
        ("https://*.example.com:8443", "https://*.example.com:8443"),
        *((origin, origin) for origin in ("*", "null", "capacitor://", "capacitor://localhost", "tauri://localhost")),
    ],
)
def test_r5_patterns_of_origins_are_as_browsers_write_them(given: str, written: str) -> None:
    assert Settings(dev=True, cors_origins=[given]).cors_origins == (written,)


@pytest.mark.parametrize(
    "origin",
    ["https://a.example/", "https://a.example/x", "https://a.example?x", "https://user@a.example", "a.example", "https:",
     "https://*", "https://a*.example", "https://a.*.example", "https://a example", "https://a:99999", "https://a%00", "//a"],
)  # fmt: skip
def test_r5_what_no_browser_sends_as_an_origin_is_refused(origin: str) -> None:
    refused("cors_origins", dev=True, cors_origins=[origin])


def test_an_event_log_is_a_directory_and_may_be_below_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert Settings(dev=True, event_log="~/events").event_log == "/home/alice/events"
    assert Settings(dev=True, event_log="./~/events").event_log == "./~/events"
    told = "'file:///var/events' should be the path of a directory, not a URL"
    refused(f"event_log: {told}", dev=True, event_log="file:///var/events")


@pytest.mark.parametrize(
    "path",
    ["hub", "", "/", "/a b", "/a\n", "/a/", "//a", "/a//b", "/a?b", "/a%20", "/é", "/a/../b", "/.", "/..", "/./a"],
)
def test_n6_a_path_that_is_not_normal_in_a_url_prevents_the_start(path: str) -> None:
    refused("path", dev=True, path=path)


@pytest.mark.parametrize("path", ["/hub", "/.well-known/mercure", "/a/b-c_d~e.f/.g", "/..a", "/-", "/1"])
def test_n6_n145_the_path_of_the_metadata_follows_the_path_of_the_hub(path: str) -> None:
    assert Settings(dev=True, path=path).metadata_path == f"/.well-known/oauth-protected-resource{path}"


# -- other settings


def test_r1_r2_r3_r4_r14_n18_n56_n77_the_defaults() -> None:
    settings = Settings(publisher_key=KEY, subscriber_key=KEY)
    for name in ("anonymous", "subscriptions", "debugger", "dev"):
        assert getattr(settings, name) is False
    assert settings.cookie == "__Secure-mercure_access_token"
    assert (settings.path, settings.classic) == ("/.well-known/mercure", True)
    assert (settings.cors_origins, settings.publish_origins, settings.public_urls) == ((), (), ())
    assert (settings.max_lifetime, settings.heartbeat, settings.max_body) == (600.0, 15.0, 2**20)
    assert (settings.max_matchers, settings.max_pattern, settings.max_topics) == (100, 4096, 1000)
    assert (settings.max_classic_matchers, settings.max_matchers_bytes, settings.max_token) == (1000, 2**16, 2**16)


@pytest.mark.parametrize(
    "values",
    [
        *[
            {name: -1}
            for name in ("heartbeat", "max_lifetime", "retry", "max_body", "max_connections_per_client", "event_log_keep")
        ],
        *[
            {name: 0}
            for name in (
                "history_updates", "history_bytes", "presence_updates", "presence_bytes", "max_connections", "max_batch", "max_topics", "max_topic",
                "max_matchers", "max_classic_matchers", "max_pattern", "max_matchers_bytes", "max_token", "max_url_patterns", "cached_topics", "cached_topics_bytes", "cached_tokens", "body_timeout",
                "jwks_ttl", "event_log_segment_seconds", "event_log_segment_bytes",
            )
        ],
        {"heartbeat": "often"},
        {"cookie": ""},
        {"cookie": "a b"},
        {"cookie": "a=b"},
        {"cookie": "a;"},
        {"cookie": "ä"},
        {"hartbeat": 1},
        {"anonymous": "perhaps"},
        {"publisher_algorithm": "none"},
    ],
    ids=str,
)  # fmt: skip
def test_values_out_of_range_and_unknown_settings_are_named(values: dict[str, Any]) -> None:
    refused(next(iter(values)), dev=True, **values)


def numbers() -> dict[str, dict[str, float]]:
    """Return the bounds of each setting that is a number: `gt` or `ge`, and `le`."""
    return {
        name: {
            bound: getattr(one, bound) for one in field.metadata for bound in ("gt", "ge", "le") if hasattr(one, bound)
        }
        for name, field in Settings.model_fields.items()
        if field.annotation in (int, float)
    }


@pytest.mark.parametrize("name", numbers())
def test_every_number_has_bounds_and_is_finite(name: str) -> None:
    bounds = numbers()[name]
    assert set(bounds) in ({"gt", "le"}, {"ge", "le"})
    largest = bounds["le"]
    assert getattr(of(dev=True, **{name: largest}), name) == largest
    for value in (largest + 1, largest * 1e300, "inf", "nan", float("inf"), float("nan"), "1e400", -1):
        assert re.match(rf"{name}: [^;]+$", refused(name, dev=True, **{name: value}))


@pytest.mark.anyio
@pytest.mark.parametrize("name", [*numbers(), "all"])
async def test_a_hub_with_the_largest_value_of_a_number_serves_a_stream(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    largest: dict[str, Any] = {one: bounds["le"] for one, bounds in numbers().items() if name in (one, "all")}
    places = {"history_url": f"sqlite:///{tmp_path}/log.db", "event_log": str(tmp_path / "events")}
    app = create_app(of(dev=True, **places, **largest))
    async with served(app, http=HttpProtocol) as hub, await subscribe(hub, ("match", "a")) as stream:
        assert stream.status == 200
        await publish(hub, ("topic", "a"), ("data", "x"))
        assert (await stream.next_event()).data == "x"
        async with await subscribe(hub, ("match", "a"), ("last_event_id", "earliest")) as late:
            assert (await late.next_event()).data == "x"
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    with socket.socket() as connection:
        # tune_connection() would hide an error.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, app.state.hub.settings.send_buffer)
        _drop_silent(connection, app.state.hub.settings.client_timeout)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_error_of_a_wrong_value_begins_with_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    monkeypatch.setenv("HUB_HISTORY_URL", "memory://")
    monkeypatch.setenv(f"HUB_{name.upper()}", "§ <")
    if name in (
        "publisher_key",
        "subscriber_key",
        "event_log",
        "event_log_key",
        "metrics_host",
        "operator_host",
        "operator_socket",
    ):
        return  # any text is valid
    with pytest.raises(ConfigurationError, match=f"^HUB_{name.upper()}[.: ]") as caught, Sources().named():
        create_app(settings_from_environment())
    for foreign in ("Value error", "Input", "String should match", "^(", "Settings", "(ValueError)", "\n"):
        assert foreign not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"path": "/a/"}, "path: '/a/' should be a path like /.well-known/mercure, of letters, digits and "),
        (
            {"public_urls": "https://[x"},
            "public_urls: 'https://[x' should be a scheme and a host, as in https://hub.example.com",
        ),
        ({"public_urls": "https://x:99999"}, "public_urls: 'https://x:99999' should be a scheme and a host"),
        ({"resource": "https://[x"}, "resource: 'https://[x' should be an absolute URL without a fragment"),
        ({"cors_origins": "a"}, "cors_origins: 'a' should be an origin, as in https://app.example.com"),
        (
            {"publisher_jwks_url": "http://x/"},
            "publisher_jwks_url: 'http://x/' should be a URL that begins with https://",
        ),
        ({"subscriber_jwks_url": "x"}, "subscriber_jwks_url: 'x' should be a URL that begins with https://"),
        (
            {"publisher_jwks_url": "https://x/keys", "publisher_key": SECRET},
            "`publisher_key`, `publisher_jwks_url` and `publisher_algorithm` do not fit together: set one of key and jwks_url",
        ),
        ({"issuers": [{"id": "a", "keys": {}}]}, "issuers.0.keys: set one of key and jwks_url"),
        ({"issuers": '{"id": "a"}'}, "issuers: should be a JSON array"),
        ({"publisher_key": ""}, "publisher_key: the key is empty"),
        ({"publisher_key": SECRET, "publisher_algorithm": "RS256"}, "publisher_key: not a key for RS256: "),
        ({"nonsense": 1}, "nonsense: there is no such setting"),
        ({"publisher_key": SECRET, "classic": False}, "publisher_… and subscriber_… are for classic tokens"),
        ({"history_url": "sqlite://[x/y.db"}, "history_url: this is not a URL"),
        ({"history_url": "rediss://[::1"}, "history_url: "),
    ],
    ids=str,
)
def test_errors_are_plain_sentences(values: dict[str, Any], told: str) -> None:
    assert refused(None, **{"dev": True, "resource": HUB} | values).startswith(told)


def test_r2_r3_zero_means_never_or_no_limit_if_that_makes_sense() -> None:
    names = ("heartbeat", "max_lifetime", "retry", "max_body", "max_connections_per_client")
    create_app(of(dev=True, **dict.fromkeys(names, 0)))


def test_several_errors_are_reported_at_once() -> None:
    told = refused("heartbeat", dev=True, heartbeat=-1, path="x", nonsense=SECRET)
    assert all(name in told for name in ("heartbeat", "path", "nonsense"))


def test_settings_do_not_change() -> None:
    settings = Settings(dev=True)
    with pytest.raises(ValidationError, match="frozen"):
        settings.heartbeat = 1.0
    with pytest.raises(ValidationError, match="frozen"):
        settings.issuers[0].id = "x"


def test_n163_a_key_is_never_shown() -> None:
    settings = Settings(dev=True, publisher_key=SECRET, issuers=[issuer(keys={"key": SECRET})])
    assert SECRET not in repr(settings) + str(settings) + repr(settings.classic_keys("publisher"))
    assert SECRET not in str(settings.model_dump()) + settings.model_dump_json()
    refused("publisher_key", dev=True, publisher_key=[SECRET])
    refused("publisher_key", dev=True, publisher_key={"key": SECRET})
    refused("issuers", dev=True, issuers=[issuer(keys={"key": [SECRET]})])


# -- development


def test_dev_fills_in_settings_that_are_not_given() -> None:
    settings = Settings(dev=True)
    assert settings.anonymous
    assert settings.debugger
    assert settings.subscriptions
    assert (settings.cors_origins, settings.publish_origins) == (("*",), ())
    assert settings.cookie == "mercure_access_token"  # N62: without HTTPS
    for keys in (settings.issuers[0].keys, settings.classic_keys("publisher"), settings.classic_keys("subscriber")):
        assert keys is not None
        assert keys.key is not None
        assert keys.key == DEVELOPMENT_KEY
    assert settings.has_well_known_keys
    chosen = Settings(dev=True, anonymous=False, cookie="x", cors_origins="", subscriptions=False)
    assert (chosen.anonymous, chosen.cookie, chosen.cors_origins, chosen.subscriptions) == (False, "x", (), False)
    for name, nothing in (
        ("issuers", []),
        ("issuers", ()),
        ("issuers", "[]"),
        ("publisher_key", None),
        ("classic", False),
    ):
        assert of(dev=True, **{name: nothing}).has_well_known_keys


OWN_KEYS: dict[str, dict[str, Any]] = {
    "publisher_key": {"publisher_key": KEY},
    "publisher_jwks_url": {"publisher_jwks_url": "https://x/keys"},
    "subscriber_key": {"subscriber_key": KEY},
    "subscriber_jwks_url": {"subscriber_jwks_url": "https://x/keys"},
    "issuers": {"issuers": [{"id": "us", "keys": {"key": KEY}}]},
    "text": {"issuers": json.dumps([{"id": "us", "keys": {"key": KEY}}])},
    "the same key": {"publisher_key": DEVELOPMENT_KEY},
    "the same issuer": {"issuers": [{"id": DEVELOPMENT_ISSUER, "keys": {"key": DEVELOPMENT_KEY}}]},
    "another key of the same issuer": {"issuers": [{"id": DEVELOPMENT_ISSUER, "keys": {"key": KEY}}]},
}


@pytest.mark.parametrize("given", OWN_KEYS.values(), ids=OWN_KEYS)
def test_dev_fills_in_no_keys_beside_keys_that_are_given(given: dict[str, Any]) -> None:
    settings, alone = Settings(dev=True, **given), Settings(anonymous=True, public_urls=["https://x"], **given)
    for name in (
        "issuers",
        *(f"{role}_{kind}" for role in ("publisher", "subscriber") for kind in ("key", "jwks_url")),
    ):
        assert getattr(settings, name) == getattr(alone, name)
    assert not settings.has_well_known_keys


def test_dev_fills_in_no_keys_beside_an_algorithm_or_keys_for_the_other_role() -> None:
    told = "no publisher is allowed: set `publisher_key` or `issuers`, as `dev` sets no key if a key, key set, algorithm or issuer is set"
    assert refused("no publisher", dev=True, subscriber_key=KEY) == told
    assert refused("no publisher", dev=True, publisher_algorithm="HS384") == told
    told = refused("no subscriber is allowed", dev=True, publisher_key=KEY, anonymous=False)
    assert told.endswith(
        "set `subscriber_key`, `issuers` or `anonymous`, as `dev` sets no key if a key, key set, algorithm or issuer is set"
    )


def test_without_dev_nothing_is_filled_in() -> None:
    for off in (False, "0", "false", "no"):
        refused("no publisher is allowed", dev=off)


# -- the environment


def test_the_environment_is_only_read_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_PUBLISHER_KEY", "p" * 32)
    monkeypatch.setenv("HUB_SUBSCRIBER_KEY", "s" * 32)
    monkeypatch.setenv("HUB_HEARTBEAT", "7")
    monkeypatch.setenv("HUB_CORS_ORIGINS", "https://a.example  https://b.example")
    monkeypatch.setenv("HUB_PUBLISH_ORIGINS", "*")
    monkeypatch.setenv("HUB_PUBLIC_URLS", "https://Hub.example")
    monkeypatch.setenv("HUB_RESOURCE", HUB)
    settings = settings_from_environment(history_updates=5)
    assert (settings.heartbeat, settings.history_updates) == (7.0, 5)
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert (settings.publish_origins, settings.public_urls) == (("*",), ("https://hub.example",))
    assert settings.resource == HUB
    assert settings.publisher_key is not None
    assert settings.publisher_key == "p" * 32
    assert not settings.anonymous
    assert type(settings) is Settings
    assert settings_from_environment(heartbeat=8).heartbeat == 8  # an argument overrides the environment
    assert Settings(dev=True).heartbeat == 15.0


def test_r7_issuers_come_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    issuers = [
        issuer("https://a.example", publisher={"jwks_url": "https://a.example/keys", "algorithms": ["ES256"]}),
        issuer("b", keys={"key": SECRET, "algorithm": "HS384"}, authorization_server=True),
    ]
    monkeypatch.setenv("HUB_ISSUERS", json.dumps(issuers))
    monkeypatch.setenv("HUB_RESOURCE", HUB)
    monkeypatch.setenv("HUB_CLASSIC", "0")
    settings = settings_from_environment()
    assert settings.issuers == of(resource=HUB, classic=False, issuers=issuers).issuers
    [a, b] = settings.issuers
    assert a.publisher is not None
    assert (a.publisher.algorithms, a.subscriber, a.authorization_server) == (("ES256",), None, False)
    assert b.keys is not None
    assert b.keys.key is not None
    assert (b.keys.key, b.keys.algorithm, b.authorization_server) == (SECRET, "HS384", True)
    create_app(settings)


@pytest.mark.parametrize(
    "text", [f"[{SECRET}", SECRET, f'[{{"id": "{SECRET}"', f'["{SECRET}"]', f'{{"key": "{SECRET}"}}', ""]
)
def test_r7_n163_issuers_that_are_not_json_are_named_and_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_ISSUERS", text)
    monkeypatch.setenv("HUB_RESOURCE", HUB)
    with pytest.raises(ConfigurationError, match="HUB_ISSUERS") as caught:
        settings_from_environment()
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("HUB_HEARTBEAT", "often"), ("HUB_PATH", "x"), ("HUB_PUBLISHER_ALGORITHM", "none"), ("HUB_DEV", "perhaps")],
)
def test_errors_of_the_environment_have_the_same_sentences(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"^{name}: '{value}' should be "):
        settings_from_environment()


def test_r12_an_empty_key_in_the_environment_is_not_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_PUBLISHER_KEY", "")
    monkeypatch.setenv("HUB_ANONYMOUS", "1")
    with pytest.raises(ConfigurationError, match="publisher_key"):
        create_app(settings_from_environment())


def test_the_environment_can_select_development_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    monkeypatch.setenv("HUB_ANONYMOUS", "0")
    settings = settings_from_environment()
    assert settings.debugger
    assert not settings.anonymous
    monkeypatch.setenv("HUB_CLASSIC", "off")
    assert settings_from_environment().classic_keys("publisher") is None


def test_the_default_history_of_a_server_is_a_file_and_of_a_program_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HUB_HISTORY_URL", raising=False)
    assert settings_from_environment(dev=True).history_url == "sqlite:///mercure.db"
    assert Settings(dev=True).history_url == "memory://"
    monkeypatch.setenv("HUB_HISTORY_URL", "redis://:secret@h")
    settings = settings_from_environment(dev=True)
    assert settings.history_url == "redis://:secret@h"
    assert "secret" not in repr(settings)


def test_the_readme_has_a_current_table_of_all_settings() -> None:
    page = settings_table.README.read_text()
    assert page == settings_table.with_table(page), "run python -m tests.hub.settings_table"
    assert all(f"\n| `{name}` | " in page for name in Settings.model_fields)


def test_the_page_about_security_has_a_current_table_of_all_shares() -> None:
    page = settings_table.SECURITY.read_text()
    assert page == settings_table.with_shares(page), "run python -m tests.hub.settings_table"
    assert all(f" (`HUB_{resource.setting.upper()}`) | " in page for resource in RESOURCES.values())


def test_every_number_has_a_unit_and_every_setting_a_meaning() -> None:
    numbers = {name for name, field in Settings.model_fields.items() if field.annotation in (int, float)}
    found = {each.name: each for each in descriptions()}
    assert {name for name in numbers if found[name].unit in ("text", "list")} == set()
    assert list(found) == list(Settings.model_fields)
    assert all(each.meaning for each in found.values())
    assert [name for group in GROUPS for name in group.model_fields] == list(found)
