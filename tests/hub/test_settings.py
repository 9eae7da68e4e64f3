"""Settings: what makes no hub is refused by name; secrets are not repeated."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hub import ConfigurationError, Settings, create_app, settings_from_environment
from hub.authorization import Authorizer
from hub.settings import DEVELOPMENT_TOKEN


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("HUB_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "nobody could publish: set publisher_key"),
        ({"publisher_key": "k"}, "nobody could subscribe: set subscriber_key"),
        ({"dev": True, "issuer": "https://i", "issuer_key": "k"}, "issuer goes"),
        ({"dev": True, "issuer": "https://i", "public_url": "https://x"}, "issuer goes"),
        ({"anonymous": True}, "nobody could publish"),
        ({"dev": True, "history_updates": 0}, "history_updates"),
        ({"dev": True, "issuer": "https://i"}, "issuer goes with issuer_key and public_url"),
        ({"dev": True, "heartbeat": -1}, "heartbeat"),
        ({"dev": True, "path": "hub"}, "path"),
        ({"dev": True, "path": "/a b"}, "path"),
        ({"dev": True, "path": "/a\n"}, "path"),
        ({"dev": True, "public_url": "https://x/y"}, "public_url"),
        ({"dev": True, "hartbeat": 1}, "hartbeat"),
        ({"dev": True, "publisher_algorithm": "none"}, "publisher_algorithm"),
    ],
)
def test_what_makes_no_hub_is_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Settings(**values)


def test_settings_that_make_a_hub() -> None:
    assert Settings(publisher_key="k", anonymous=True).resource is None
    settings = Settings(issuer="https://i", issuer_key="k", public_url="https://x")
    assert settings.resource == "https://x/.well-known/mercure"
    with pytest.raises(ValidationError, match="frozen"):
        settings.heartbeat = 1.0


def test_a_key_is_never_repeated() -> None:
    secret = "my-secret-that-is-no-pem"
    settings = Settings(dev=True, publisher_key=secret, publisher_algorithm="RS256")
    assert secret not in repr(settings)
    with pytest.raises(ConfigurationError, match="publisher_key is no key for RS256") as caught:
        create_app(settings)
    assert secret not in repr(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        Settings(dev=True, publisher_key=[secret])
    assert secret not in repr(caught.value)


def test_the_environment_is_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_PUBLISHER_KEY", "p" * 32)
    monkeypatch.setenv("HUB_SUBSCRIBER_KEY", "s" * 32)
    monkeypatch.setenv("HUB_HEARTBEAT", "7")
    monkeypatch.setenv("HUB_CORS_ORIGINS", "https://a.example https://b.example")
    settings = settings_from_environment(history_updates=5)
    assert (settings.heartbeat, settings.history_updates) == (7.0, 5)
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert settings.publisher_key is not None
    assert settings.publisher_key.get_secret_value() == "p" * 32
    assert not settings.anonymous
    assert type(settings) is Settings
    assert Settings(dev=True).heartbeat == 40.0  # and not otherwise


def test_dev_fills_in_what_was_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DEV", "1")
    monkeypatch.setenv("HUB_ANONYMOUS", "0")
    settings = settings_from_environment()
    assert settings.debugger
    assert not settings.anonymous


def test_v34_the_development_token_is_one_that_existing_clients_could_have_made() -> None:
    grant = Authorizer(Settings(dev=True), clock=lambda: 0.0).verify("publish", DEVELOPMENT_TOKEN)
    assert [m.pattern for m in grant.publish] == [m.pattern for m in grant.subscribe] == ["*"]
    assert grant.expires is None
