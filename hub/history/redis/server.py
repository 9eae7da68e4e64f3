"""The Redis server of a history: what in its configuration loses entries.

    maxmemory-policy    anything but noeviction: a full server deletes entries
    appendonly          no: a server that crashes returns to its last snapshot
    cluster             another server has the keys, and this client cannot follow

A user with fewer permissions needs PERMISSIONS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import MovedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from redis.exceptions import NoPermissionError

PERMISSIONS: Final = "~{mercure}:* +@read +@write +@scripting +@connection -@dangerous +time +info"
"""The rules of an ACL for the user of a history with the name `mercure`."""


def warnings(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield what should be changed, from the reply of INFO."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and info.get("maxmemory"):
        yield (
            f"the Redis server deletes keys when its memory is full (maxmemory-policy {policy}), so updates that the "
            "hub has accepted may be lost: set maxmemory-policy noeviction"
        )
    if not info.get("aof_enabled", 1):
        yield (
            "the Redis server has no append-only file, so updates that the hub has accepted are lost if it crashes: "
            "set appendonly yes, and appendfsync always or everysec"
        )


def remedy(error: MovedError | NoPermissionError) -> str:
    """Return what is wrong, and what to change."""
    if isinstance(error, MovedError):
        return (
            f"this server is a node of a Redis Cluster, and {error.host}:{error.port} has the keys; the hub needs a "
            "Redis that is not a Cluster, with Sentinel if it must not fail"
        )
    return f"{error}; the ACL of the user needs {PERMISSIONS} (with the `name` of the URL instead of mercure)"


def clues(info: Mapping[str, Any]) -> dict[str, object]:
    """Return why a history may have lost entries, for a log line."""
    told = {
        "policy": "maxmemory_policy",
        "evicted_keys": "evicted_keys",
        "aof": "aof_enabled",
        "role": "role",
        "uptime": "uptime_in_seconds",
    }
    return {name: info[field] for name, field in told.items() if field in info}
