"""URLs of Redis: their syntax, and the client that they name."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from hub.errors import ConfigurationError

CONNECT_TIMEOUT: Final = 2.0
"""Seconds that a connection may take to open, or to close."""


def open_client(url: str) -> tuple[Redis, Sentinel | None, str]:
    """Return the client of a URL, its Sentinels or None, and the URL without its user.

    The client connects on first use.  In
    `redis+sentinel://user:password@host,host:port/service/database`, user and password
    are those of the server.  Those of the Sentinels are `?sentinel_username=` and
    `?sentinel_password=`.

    Raises ConfigurationError if the URL is invalid.  The message never contains the
    password.
    """
    # 1. Split the URL.  The errors of these functions are not shown, because they may
    #    contain the password.
    try:
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        addresses = [(host.hostname or "localhost", host.port or 26379) for host in map(urlsplit, _urls(hosts))]
    except ValueError:
        raise ConfigurationError("history_url: a host or port is invalid; in a password, write / as %2F") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError("history_url: in a password, write / as %2F, ? as %3F and # as %23")
    if parts.fragment:
        raise ConfigurationError("history_url: nothing may follow a #; in a password, write # as %23")
    # 2. Check the path: /service/database for Sentinels, /database for one server.
    sentinel, where = parts.scheme == "redis+sentinel", f"{parts.scheme}://{hosts}{parts.path}"
    if sentinel and not re.fullmatch(r"/[^/]+(/\d*)?", parts.path):
        raise ConfigurationError(f"history_url {where}: the hosts must be followed by /service or /service/database")
    if not sentinel and (len(addresses) > 1 or not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigurationError(f"history_url {where}: one host may be followed only by the number of a database")
    # 3. Let redis-py parse the rest, and make the client.
    try:
        service, _, database = parts.path[1:].partition("/") if sentinel else ("", "", parts.path[1:])
        origin = f"redis://{user}{at}" if sentinel else f"{parts.scheme}://{parts.netloc}"
        options: dict[str, Any] = {**parse_url(f"{origin}/{database}?{parts.query}")}
        own = {key: options.pop(f"sentinel_{key}") for key in ("username", "password") if f"sentinel_{key}" in options}
        common: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,
            "max_connections": 2**31,
            "retry": Retry(NoBackoff(), 0),  # a failed command may have run: send nothing twice
            "socket_connect_timeout": CONNECT_TIMEOUT,
            # RedisHistory has its own timeout.  The timeout of redis-py uses wait_for,
            # which can swallow a cancellation in Python 3.11.
            "socket_timeout": None,
        }
        if sentinel:
            quick = common | {"socket_timeout": 1.0} | own
            sentinels = Sentinel(addresses, sentinel_kwargs=quick, **common | options)  # type: ignore[no-untyped-call]
            client = sentinels.master_for(service)
        else:
            sentinels = None
            client = Redis.from_pool(ConnectionPool(**common | options))
        client.connection_pool.make_connection()
    except (RedisError, TypeError, ValueError) as error:
        raise ConfigurationError(f"history_url {where}: {error}") from None
    return client, sentinels, where


def _urls(hosts: str) -> list[str]:
    """Return each host of a list as a URL that urlsplit understands."""
    return [f"//{host}" for host in hosts.split(",")]
