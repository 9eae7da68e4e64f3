"""The kinds of history, and what tests of all of them share."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hub.history import open_history
from hub.history.base import EARLIEST, Entry, Retention
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hub.history.base import History

KINDS = ("memory", "sqlite", "redis")
SHARED = ("sqlite", "redis")
"""Histories that several nodes can share."""


def node_of(url: str, **chosen: Any) -> History:
    return open_history(url, replace(Retention(max_updates=100_000, max_bytes=2**30), **chosen))


@asynccontextmanager
async def nodes(url: str, count: int = 1, **chosen: Any) -> AsyncIterator[list[History]]:
    made = [node_of(url, **chosen) for _ in range(count)]
    try:
        yield made
    finally:
        for node in made:
            await node.aclose()


async def everything(node: History) -> list[Entry]:
    found: list[Entry] = []
    while page := await node.read(found[-1].position if found else EARLIEST):
        found += page
    return found


def named(*ids: str, data: str = "") -> list[Update]:
    return [Update(("t",), data, id=id) for id in ids]


def ids_of(entries: Sequence[Entry]) -> list[str]:
    return [entry.update.id for entry in entries]
