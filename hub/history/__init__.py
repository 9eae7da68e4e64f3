"""PLUG POINT: the history, an ordered log of updates.

    memory://                         memory of this process, for one node; ends with it
    sqlite:///relative.db             one file, for all processes of one machine
    sqlite:////absolute.db
    redis://  rediss://               a stream in Redis or Valkey, for many machines
    redis+sentinel://

To add one, write a class with the methods of `base.History` and the class method
`from_url`, and add a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from hub.errors import ConfigurationError

if TYPE_CHECKING:
    from hub.history.base import History, Retention

HISTORIES: Final = {
    "memory": "hub.history.memory:MemoryHistory",
    "sqlite": "hub.history.sqlite.history:SqliteHistory",
    "redis": "hub.history.redis.history:RedisHistory",
    "rediss": "hub.history.redis.history:RedisHistory",
    "redis+sentinel": "hub.history.redis.history:RedisHistory",
}
"""Scheme of a URL -> the class that opens it, which is imported on first use."""


class _Opens(Protocol):
    """A class of HISTORIES."""

    def from_url(self, url: str, retention: Retention) -> History:
        """Return the history of a URL, without reading or writing anything."""
        ...


def open_history(url: str, retention: Retention) -> History:
    """Return the history of a URL, without reading or writing anything yet.

    Raises ConfigurationError if the URL is invalid or its scheme is unknown.  The
    message never contains the password of the URL.
    """
    scheme, colon, _ = url.partition(":")  # not by urlsplit(), whose errors show the password
    if not colon or not scheme.replace("+", "").isalnum():  # it may be a secret, so it is not shown
        raise ConfigurationError(f"history_url is not a URL that begins with one of {', '.join(HISTORIES)}")
    if scheme not in HISTORIES:
        raise ConfigurationError(f"history_url begins with {scheme!r}, which is none of {', '.join(HISTORIES)}")
    module, name = HISTORIES[scheme].split(":")
    history = cast("_Opens", getattr(import_module(module), name))
    try:
        return history.from_url(url, retention)
    except ConfigurationError:
        raise
    except ValueError:  # its text may contain the password
        raise ConfigurationError("history_url: this is not a URL") from None
