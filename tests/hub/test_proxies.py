"""The hints at the proxies of the environment."""

from __future__ import annotations

import pytest

from hub.proxies import hint_at_proxy

HUB = "https://hub.example:8443/.well-known/mercure"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://p"}, "HTTPS_PROXY"),
        ({"https_proxy": "http://p"}, "HTTPS_PROXY"),
        ({"ALL_PROXY": "http://p"}, "ALL_PROXY"),
        ({"HTTP_PROXY": "http://p"}, ""),
        ({"HTTPS_PROXY": ""}, ""),
        *(
            ({"HTTPS_PROXY": "http://p", "NO_PROXY": hosts}, "")
            for hosts in ("*", "hub.example", ".example", "a, example")
        ),
        ({"HTTPS_PROXY": "http://p", "NO_PROXY": "other.example"}, "HTTPS_PROXY"),
    ],
)
def test_a_hint_names_the_variable(variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = f"; the environment names a proxy for this URL: see {named} and NO_PROXY"
    assert hint_at_proxy(HUB) == (told if named else "")
