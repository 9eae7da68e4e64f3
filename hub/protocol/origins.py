"""Origins that an operator allows, and whether one that a browser names is among them (R5).

https://example.com:8443    itself
https://*.example.com       any name below, not example.com itself
capacitor://                any of that scheme
null                        pages without an origin, such as files
*                           any
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def normal_origin(scheme: str, authority: str) -> str:
    """The origin as a browser writes it.

    >>> normal_origin("https", "Hub.example.com:443")
    'https://hub.example.com'
    """
    return f"{scheme}://{authority.lower().removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"


def allows_origin(allowed: Iterable[str], origin: str) -> bool:
    """Whether `origin`, as in an Origin header, is one of `allowed`.

    >>> allows_origin(["https://*.example.com"], "https://shop.example.com")
    True
    """
    # Browsers write a host in ASCII, and what is allowed goes out in a header.
    return origin.isascii() and any(_allows(pattern.lower(), origin.lower()) for pattern in allowed)


def _allows(pattern: str, origin: str) -> bool:
    if pattern in ("*", origin):
        return True
    if pattern.endswith("://"):
        return origin.startswith(pattern)
    before, wildcard, after = pattern.partition("*")
    # What stands for the wildcard is a host's first labels, so nothing that would end the host.
    return bool(
        wildcard
        and origin.startswith(before)
        and origin.endswith(after)
        and len(origin) > len(before) + len(after)
        and not set("/:@?#[]").intersection(origin[len(before) : len(origin) - len(after)])
    )
