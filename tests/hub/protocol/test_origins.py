"""Origins that an operator lists, and which origins of browsers they let in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import ConfigurationError, Settings
from hub.protocol.origins import allows_origin

EVIL = [
    "https://evil.example",
    "https://example.com.evil.example",
    "https://evil.example/.example.com",
    "https://evil.example?.example.com",
    "https://evil.example#.example.com",
    "https://evil.example:1.example.com",
    "https://user@evil.example",
    "https://a@b.example.com",
    "https://a:b.example.com",
    "https://[::1].example.com",
    "https://xexample.com",
    "https://.example.com",
    "https://example.com.",
    "https://shop.example.com:8443",
    "https://shop.example.com ",
    "http://shop.example.com",
    "//shop.example.com",
    "shop.example.com",
    "capacitor",
    "xcapacitor://localhost",
    "https://evil.example/capacitor://",
    "https://",
    "null",
    "",
    "*",
]


@pytest.mark.parametrize(
    ("listed", "origin"),
    [
        ("https://example.com", "https://example.com"),
        ("https://example.com:8443", "https://example.com:8443"),
        ("https://Example.com", "HTTPS://EXAMPLE.COM"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://*.example.com", "https://shop.example.com"),
        ("https://*.example.com", "https://a.b-c.example.com"),
        ("https://*.Example.com", "https://SHOP.example.COM"),
        ("https://*.example.com:8443", "https://shop.example.com:8443"),
        ("capacitor://", "capacitor://localhost"),
        ("capacitor://", "Capacitor://localhost"),
        ("https://", "https://any.example:8443"),
        ("null", "null"),
        ("*", "https://any.example"),
        ("*", "null"),
    ],
)
def test_r5_an_entry_allows_these_origins(listed: str, origin: str) -> None:
    assert allows_origin([listed], origin)
    assert allows_origin(["https://other.example", listed], origin)
    assert not allows_origin([], origin)


@pytest.mark.parametrize("origin", EVIL)
@pytest.mark.parametrize("listed", ["https://example.com", "https://*.example.com", "capacitor://", "app://"])
def test_r5_n97_origins_that_only_look_similar_are_not_allowed(listed: str, origin: str) -> None:
    assert not allows_origin([listed], origin)


LABEL = st.sampled_from(["a", "b.c", "example", "com", "", "*", "A"])
HOST = st.lists(LABEL, min_size=1, max_size=3).map(".".join)
ORIGIN = st.builds("{}://{}{}".format, st.sampled_from(["https", "app"]), HOST, st.sampled_from(["", ":1", "/", "@x"]))


def naive(listed: str, origin: str) -> bool:
    if "*." in listed:
        listed = re.escape(listed).replace(r"\*\.", r"[^/:@?#\[\]]+\.", 1)
    elif listed.endswith("://"):
        listed = re.escape(listed) + ".*"
    elif listed == "*":
        listed = ".*"
    else:
        listed = re.escape(listed)
    return re.fullmatch(listed, origin, re.IGNORECASE) is not None


@given(ORIGIN | st.sampled_from(["*", "null", "app://"]), ORIGIN | st.sampled_from(EVIL))
def test_r5_entries_agree_with_a_regular_expression(listed: str, origin: str) -> None:
    try:
        settings = Settings(dev=True, cors_origins=listed)
    except ConfigurationError:
        return
    assert allows_origin(settings.cors_origins, origin) == naive(listed, origin)


def settings(name: str, value: Any) -> Settings:
    chosen: dict[str, Any] = {"dev": True, name: value}
    return Settings(**chosen)


@pytest.mark.parametrize("name", ["cors_origins", "publish_origins"])
@pytest.mark.parametrize(
    ("listed", "fine"),
    [
        ("https://example.com", True),
        ("https://example.com:8443 http://localhost:3000", True),
        ("http://[::1]:3000", True),
        ("https://*.example.com:8443", True),
        ("capacitor://", True),
        ("null", True),
        ("*", True),
        ("example.com", False),
        ("https://example.com/", False),
        ("https://example.com/page", False),
        ("https://*", False),
        ("https://*example.com", False),
        ("https://a.*.example.com", False),
        ("https://**.example.com", False),
        ("https://user@example.com", False),
        ("https://example.com,https://example.org", True),
        ("https:", False),
        ("None", False),
    ],
)
def test_r5_an_entry_that_could_match_no_origin_is_refused(name: str, listed: str, fine: bool) -> None:
    if fine:
        assert getattr(settings(name, listed), name) == tuple(re.split("[ ,]", listed))
    else:
        with pytest.raises(ConfigurationError, match=f"{name}"):
            settings(name, listed)
    with pytest.raises(ConfigurationError, match=f"{name}"):
        settings(name, [f"{listed}\n"])
