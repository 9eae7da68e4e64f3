"""Frames: the bytes themselves, sse-starlette's bytes, and what a parser makes of them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_starlette import ServerSentEvent

from hub.sse import frame
from hub.topics import FORBIDDEN
from hub.updates import Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (Update(("a",), id="1"), b"id: 1\ndata: \n\n"),  # N28: a data line even if there is none
        (Update(("a",), "x", id="1", type="t", retry=0), b"id: 1\nevent: t\ndata: x\nretry: 0\n\n"),
        (Update(("a",), "x\ny\rz\r\n", id="1"), b"id: 1\ndata: x\ndata: y\ndata: z\ndata: \n\n"),
        (Update(("a",), "x\n\ny", id="1"), b"id: 1\ndata: x\ndata: \ndata: y\n\n"),
        (Update(("a",), "x\u2028y\x0bz\x0c\x1c\x85", id="1"), "id: 1\ndata: x\u2028y\x0bz\x0c\x1c\x85\n\n".encode()),
        (
            Update(("a",), "x\r\rid: 2\revent: mercure", id="1"),
            b"id: 1\ndata: x\ndata: \ndata: id: 2\ndata: event: mercure\n\n",
        ),
        (Update(("a",), " é", id="é"), "id: é\ndata:  é\n\n".encode()),
    ],
)
def test_n28_the_bytes(update: Update, expected: bytes) -> None:
    assert frame(update) == expected


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=FORBIDDEN), min_size=1)
DATA = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n:"))
UPDATES = st.builds(
    Update,
    st.just(("a",)),
    DATA,
    id=NAMES,
    type=st.none() | NAMES,
    retry=st.none() | st.integers(0, 10**12),
)


@given(UPDATES)
def test_it_is_what_sse_starlette_writes(update: Update) -> None:
    event = ServerSentEvent(update.data, id=update.id, event=update.type, retry=update.retry, sep="\n")
    assert frame(update) == event.encode()


@given(UPDATES)
def test_the_size_of_an_update_has_room_for_its_frame(update: Update) -> None:
    assert sys.getsizeof(update.data) + len(frame(update)) <= update.size + 100


@given(st.lists(UPDATES, max_size=4), st.integers(1, 7))
def test_an_event_source_gets_the_updates_back(updates: list[Update], size: int) -> None:
    stream = b":\n" + b"".join(map(frame, updates))

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    async def read() -> list[httpx2.ServerSentEvent]:
        response = httpx2.Response(
            200,
            headers={"content-type": "text/event-stream; charset=utf-8"},
            content=chunks(),
            request=httpx2.Request("GET", "http://x"),
        )
        return [event async for event in httpx2.EventSource(response)]

    assert [(event.id, event.event, event.data, event.retry) for event in asyncio.run(read())] == [
        (u.id, u.type or "message", u.data.replace("\r\n", "\n").replace("\r", "\n"), u.retry) for u in updates
    ]
