"""Histories that several nodes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer(appendonly="yes")
    yield server
    server.close()


@pytest.fixture
def url_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    def url(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/log.db?synchronous=normal"
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url

    return url
