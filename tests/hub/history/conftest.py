"""Fixtures for histories of all kinds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def new_url(tmp_path: Path, redis_server: RedisServer) -> Callable[[str], str]:
    """Return a function that returns the URL of an unused history of a kind."""

    def new(kind: str) -> str:
        urls = {
            "memory": "memory://",
            "sqlite": f"sqlite:///{tmp_path}/{next(_numbers)}.db?synchronous=normal",
            "redis": f"{redis_server.url}?name=log{next(_numbers)}",
        }
        return urls[kind]

    return new
