"""PLUG POINT: the ordered log of updates.

    memory://                                        this process's memory, for one node; gone when it ends
    sqlite:///relative.db  sqlite:////absolute.db    one file, for all processes of one machine
    redis://  rediss://  redis+sentinel://           a stream in Redis or Valkey, for many machines

To add one: a file with a class that has what `base.History` says, and a line here.
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
"""Scheme of a URL -> the class that opens it, imported when it is asked for."""


class _Opens(Protocol):
    def from_url(self, url: str, retention: Retention) -> History: ...


def open_history(url: str, retention: Retention) -> History:
    """Return the log behind a URL; nothing is read or written yet.  Raises ConfigurationError for a URL without one."""
    scheme = url.partition(":")[0]  # urlsplit() would raise with the whole of a URL that has a password
    if scheme not in HISTORIES:
        raise ConfigurationError(f"history_url begins with {scheme!r}, which is none of {', '.join(HISTORIES)}")
    module, name = HISTORIES[scheme].split(":")
    history = cast("_Opens", getattr(import_module(module), name))
    try:
        return history.from_url(url, retention)
    except ConfigurationError:
        raise
    except ValueError:  # whose text may have the password
        raise ConfigurationError("history_url: this is no URL") from None
