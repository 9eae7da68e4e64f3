"""Canonical URLs: a topic as its eight components, and the fixed text of a pattern as
a topic would have it.

    https://EXAMPLE.com:443/a/../b?q    https   example.com   ""   /b   q
                                        protocol hostname    port pathname search ...

The package `ada-url` parses and serialises; this module only cuts what it returns.

Source: the WHATWG URL Standard, and "canonicalization" in the URL Pattern Standard.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from skipfilter.text import missing

CACHED_TOPICS: Final = 64
"""The number of parsed topics that are cached, because a topic meets many patterns."""

CACHED_TEXTS: Final = 256
"""The number of protocols and of hostnames that are cached, because many patterns have
the same.
"""

# The grammar of what the URL Standard serialises: delimiters inside of a component are
# escaped.  "/." stands before a path with two slashes if the URL has no host.
_COMPONENTS: Final = re.compile(
    rb"([^:]*+):(?://(?:([^:@/?#]*+)(?::([^@/?#]*+))?+@)?+(\[[^\]]*+\]|[^:/?#]*+)(?::([0-9]*+))?+|(?:/\.)?+(?=//))?+"
    rb"([^?#]*+)(?:\?([^#]*+))?+(?:#(.*+))?+",
    re.DOTALL,
)


class Url(NamedTuple):
    """The components of a canonical URL, all in ASCII, without their delimiters."""

    protocol: bytes
    username: bytes
    password: bytes
    hostname: bytes
    port: bytes
    pathname: bytes
    search: bytes
    hash: bytes


COMPONENTS: Final = Url._fields
PROTOCOL, USERNAME, PASSWORD, HOSTNAME, PORT, PATHNAME, SEARCH, HASH = range(8)

DEFAULT_PORTS: Final = {"http": "80", "https": "443", "ws": "80", "wss": "443", "ftp": "21", "file": None}
"""The special schemes, with their default ports."""


@cache
def _ada() -> Any:
    """Return the package `ada-url`, which few users of the library need.

    Raises ImportError if it is missing.
    """
    try:
        import ada_url
    except ImportError as error:
        raise ImportError(missing("a URL Pattern", "ada-url", "urlpattern")) from error
    return ada_url


@lru_cache(CACHED_TOPICS)
def parse(topic: str, base_url: str | None) -> Url | None:
    """Return the URL that `topic` is, resolved against `base_url`; None if it is not a
    URL.
    """
    try:
        href = _ada().normalize_url(topic) if base_url is None else _ada().join_url(base_url, topic)
    except ValueError:  # also a lone surrogate
        return None
    found = _COMPONENTS.fullmatch(href.encode())
    assert found is not None, href
    return Url(*found.groups(b""))


# -- the fixed text of patterns, one function for each kind of component


@lru_cache(CACHED_TEXTS)
def protocol(text: str) -> str:
    """Return `text` as a protocol.  Raises ValueError if it cannot be one; so do the
    others.
    """
    value: str = text and _ada().URL(f"{text}://dummy.invalid").protocol[:-1]
    return value


@lru_cache(CACHED_TEXTS)
def hostname(text: str) -> str:
    """Return `text` as a hostname, or as a part of one."""
    return _set("hostname", text)


def ipv6_hostname(text: str) -> str:
    """Return `text` as a part of an IPv6 address, in lower case."""
    if not re.fullmatch(r"[0-9a-fA-F:[\]]*", text):
        raise ValueError(f"{text!r} is not a part of an IPv6 address")
    return text.lower()


def pathname(text: str) -> str:
    """Return `text` as a part of a path with slashes."""
    if not text or text[0] == "/":
        return text and _set("pathname", text)
    # The parser would put a slash before it.
    path = _set("pathname", f"/-{text}")
    return path.removeprefix("/-")


def opaque_pathname(text: str) -> str:
    """Return `text` as a part of a path without structure, as in `mailto:a@b`.

    Such a path ends before a ? or #.
    """
    # The parser would strip spaces at the end, and read slashes at the beginning.
    text = re.split("[?#]", text, maxsplit=1)[0]
    value: str = text and _ada().URL(f"data:-{text}-").pathname[1:-1]
    return value


def username(text: str) -> str:
    """Return `text` as a part of a username."""
    return _set("username", text)


def password(text: str) -> str:
    """Return `text` as a part of a password."""
    return _set("password", text)


def port(text: str) -> str:
    """Return `text` as a port."""
    return _set("port", text, "dummy")


def search(text: str) -> str:
    """Return `text` as a part of a query, without the question mark."""
    return text and _set("search", f"?{text}")[1:]


def hash(text: str) -> str:
    """Return `text` as a part of a fragment, without the hash sign."""
    return text and _set("hash", f"#{text}")[1:]


def _set(name: str, text: str, scheme: str = "https") -> str:
    """Return a component of a URL after it was set to `text`."""
    if not text:
        return ""
    url = _ada().URL(f"{scheme}://dummy.invalid/")
    setattr(url, name, text)
    value: str = getattr(url, name)
    return value
