"""The proxies that environment variables name, such as HTTPS_PROXY.

httpx2 sends requests through them, as most programs do.  If a request fails, its error
does not mention them, so the messages of the hub do.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hub.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


def hint_at_proxy(url: str) -> str:
    """Return what a message adds if the environment names a proxy for a URL."""
    parts, proxies = urlsplit(url), getproxies()
    for scheme in (parts.scheme, "all"):
        if proxies.get(scheme) and not proxy_bypass(parts.netloc):
            return f"; the environment names a proxy for this URL: see {scheme.upper()}_PROXY and NO_PROXY"
    return ""


@contextmanager
def usable_proxies() -> Iterator[None]:
    """Raise ConfigurationError if a client of httpx2 cannot be made inside of the
    context, because the environment names a proxy that cannot be used.
    """
    try:
        yield
    except (ImportError, ValueError) as error:
        set_ones = [f"{name.upper()}_PROXY" for name in ("http", "https", "all") if getproxies().get(name)]
        if not set_ones:
            raise
        reason = str(error).partition(". ")[0]
        raise ConfigurationError(f"the proxy in {' or '.join(set_ones)} cannot be used: {reason}") from None
