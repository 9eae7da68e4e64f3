"""The origins that an operator allows, and the check of an origin against them (R5).

https://example.com:8443    this origin
https://*.example.com       every name below example.com, but not example.com itself
capacitor://                every origin of this scheme
null                        pages without an origin, such as files
*                           every origin
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ada_url import URL

if TYPE_CHECKING:
    from collections.abc import Iterable


_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def normal_origin(scheme: str, authority: str) -> str:
    """Return the origin of a scheme and authority, as a browser writes it.

    >>> normal_origin("https", "Hub.example.com:443")
    'https://hub.example.com'
    """
    return f"{scheme}://{authority.lower().removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"


def parse_origin(text: str) -> str | None:
    """Return an origin that a person has written as a browser writes it, or None if it
    is something else.

    The host may begin with `*.`.

    >>> parse_origin("https://München.example:443")
    'https://xn--mnchen-3ya.example'
    """
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://(\*\.)?[^\s/?#@*\\]+", text) is None:
        return None
    try:
        url = URL(text)
    except ValueError:
        return None
    return f"{url.protocol}//{url.host}"


def allows_origin(allowed: Iterable[str], origin: str) -> bool:
    """Whether `origin`, from an Origin header, matches a pattern in `allowed`.

    >>> allows_origin(["https://*.example.com"], "https://shop.example.com")
    True
    """
    # Browsers write hosts in ASCII, and the hub sends an allowed origin back in a
    # header.
    return origin.isascii() and any(_allows(pattern.lower(), origin.lower()) for pattern in allowed)


def _allows(pattern: str, origin: str) -> bool:
    if pattern in ("*", origin):
        return True
    if pattern.endswith("://"):
        return origin.startswith(pattern)
    before, wildcard, after = pattern.partition("*")
    # The wildcard stands for the first labels of a host, so the text there must not
    # have a character that would end the host.
    return bool(
        wildcard
        and origin.startswith(before)
        and origin.endswith(after)
        and len(origin) > len(before) + len(after)
        and not set("/:@?#[]").intersection(origin[len(before) : len(origin) - len(after)])
    )
