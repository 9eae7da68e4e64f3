"""Readers of the event stream: the standard's algorithm, httpx2, and any chunking."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus

import httpx2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hub.protocol.events import HEARTBEAT, LOST, frame, retry
from hub.protocol.topics import FORBIDDEN
from hub.protocol.updates import Update
from tests.asgi import FORM, NDJSON, PATH, application, ask, bearer, current_token, follow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator


class Message(NamedTuple):
    """An event as a page sees it."""

    id: str
    type: str
    data: str


class EventSource:
    """A parser of event streams by the HTML Living Standard, 9.2.5 and 9.2.6."""

    def __init__(self) -> None:
        self.reconnection_time: int | None = None
        self.last_event_id_string = ""
        self._stream = b""
        self._may_have_bom = True
        self._after_cr = False
        self._data = self._event_type = self._last_event_id = ""

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Yield the events that `chunk` completes."""
        for octet in chunk:
            after_cr, self._after_cr = self._after_cr, octet == 0x0D
            if octet == 0x0A and after_cr:  # the second half of a CRLF
                continue
            if octet not in (0x0A, 0x0D):
                self._stream += bytes([octet])
                continue
            line = self._stream
            if self._may_have_bom:  # "UTF-8 decode" strips one at the beginning
                line = line.removeprefix(b"\xef\xbb\xbf")
            self._stream, self._may_have_bom = b"", False
            yield from self._process_line(line.decode("utf-8", "replace"))

    def _process_line(self, line: str) -> Iterator[Message]:
        if line == "":
            yield from self._dispatch()
        elif line[0] == ":":
            pass
        elif ":" in line:
            field, value = line[: line.index(":")], line[line.index(":") + 1 :]
            if value and value[0] == " ":
                value = value[1:]
            self._process_field(field, value)
        else:
            self._process_field(line, "")

    def _process_field(self, field: str, value: str) -> None:
        if field == "event":
            self._event_type = value
        elif field == "data":
            self._data += value
            self._data += "\n"
        elif field == "id":
            if "\0" not in value:
                self._last_event_id = value
        elif field == "retry" and value and all("0" <= char <= "9" for char in value):
            self.reconnection_time = int(value)

    def _dispatch(self) -> Iterator[Message]:
        self.last_event_id_string = self._last_event_id
        if self._data == "":
            self._event_type = ""
            return
        data = self._data[:-1] if self._data[-1] == "\n" else self._data
        event = Message(self.last_event_id_string, self._event_type or "message", data)
        self._data = self._event_type = ""
        yield event


def read(chunks: Iterable[bytes]) -> list[Message]:
    source = EventSource()
    return [event for chunk in chunks for event in source.feed(chunk)]


def read_with_httpx2(chunks: Iterable[bytes]) -> list[tuple[Message, int | None]]:
    """Return the events, each with its `retry`."""

    async def content() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[tuple[Message, int | None]]:
        response = httpx2.Response(
            200,
            headers={"content-type": "text/event-stream; charset=utf-8"},
            content=content(),
            request=httpx2.Request("GET", "http://x"),
        )
        return [(Message(e.id, e.event, e.data), e.retry) async for e in httpx2.EventSource(response)]

    return asyncio.run(collect())


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Return `stream` in chunks of these sizes, in turn."""
    chunks = []
    while stream:
        for size in sizes:
            chunks.append(stream[:size])
            stream = stream[size:]
    return chunks


def message(update: Update) -> Message:
    """Return what a page should see of `update`: CR and CRLF of the data become LF."""
    return Message(update.id, update.type or "message", update.data.replace("\r\n", "\n").replace("\r", "\n"))


# Line ends, characters that only other formats treat as line ends, and characters that
# are special at the beginning of a line or of a stream.
ODD = "\r\n:\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x85\0\ufeff \tdi"
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=FORBIDDEN) | st.sampled_from(" :\u2028\u2029é"),
    min_size=1,
)
IDS = NAMES.filter(lambda name: name == name.strip(" ") and not name.startswith("#") and name != "earliest")
DATA = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(ODD)) | st.sampled_from(
    ["", "\n", "\r", "\r\n", "x\n\n", "\n\nx", "\ufeff", " ", "  x", ":", "id: 2\n\ndata: y\n\n", "data: x", "\0"]
)
UPDATES = st.builds(
    Update,
    st.just(("a",)),
    DATA,
    id=IDS,
    type=st.none() | NAMES.filter(lambda name: name != "mercure"),
    retry=st.none() | st.integers(0, 10**15 - 1),
)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


# -- the parser


VECTORS: list[tuple[bytes, list[tuple[str, str, str]]]] = [
    # examples of the standard
    (b"data: YHOO\ndata: +2\ndata: 10\n\n", [("", "message", "YHOO\n+2\n10")]),
    (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [("1", "message", "first event"), ("", "message", "second event"), ("", "message", " third event")],
    ),
    (b"data\n\ndata\ndata\n\ndata:", [("", "message", ""), ("", "message", "\n")]),
    (b"data:test\n\ndata: test\n\n", [("", "message", "test"), ("", "message", "test")]),
    # other rules of the standard
    (b"\xef\xbb\xbfdata: x\n\n", [("", "message", "x")]),
    (b"\xef\xbb\xbf\xef\xbb\xbfdata: x\n\ndata: y\n\n", [("", "message", "y")]),
    (
        b"data: x\r\rdata: y\r\n\r\ndata: z\n\r\n",
        [("", "message", "x"), ("", "message", "y"), ("", "message", "z")],
    ),
    (b"id: 1\nid: 2\0\ndata: x\n\ndata: y\n\n", [("1", "message", "x"), ("1", "message", "y")]),
    (b"event: t\n\ndata: x\n\n", [("", "message", "x")]),
    (b"event: t\ndata: x\n\ndata: y\n\n", [("", "t", "x"), ("", "message", "y")]),
    (b"retry: 5\n\nid: 7\n\n", []),
    (b" data: x\nDATA: x\n\n", []),
]
"""Streams, and their events."""


@pytest.mark.parametrize(("stream", "expected"), VECTORS)
def test_the_parser_agrees_with_the_standard(stream: bytes, expected: list[tuple[str, str, str]]) -> None:
    assert read([stream]) == expected
    assert read(cut(stream, [1])) == expected


# -- frames


@settings(deadline=None)
@given(st.lists(UPDATES | st.sampled_from([HEARTBEAT, LOST]), max_size=6), SIZES)
def test_n26_n28_n29_n8_v55_readers_get_the_updates_back_and_skip_comments(
    parts: list[Update | bytes], sizes: list[int]
) -> None:
    chunks = cut(b"".join(part if isinstance(part, bytes) else frame(part) for part in parts), sizes)
    updates = [part for part in parts if isinstance(part, Update)]
    assert read(chunks) == list(map(message, updates))
    assert read_with_httpx2(chunks) == [(message(update), update.retry) for update in updates]


@settings(deadline=None)
@given(UPDATES, st.integers(0, 10**6))
def test_n30_the_retry_hint_is_read_at_once_and_is_no_event(update: Update, milliseconds: int) -> None:
    source = EventSource()
    assert list(source.feed(HEARTBEAT + retry(milliseconds / 1000))) == []
    assert source.reconnection_time == milliseconds
    assert list(source.feed(frame(update))) == [message(update)]
    assert source.reconnection_time == (milliseconds if update.retry is None else update.retry)  # N53: 0 counts
    # httpx2 takes each blank line for the end of an event.  So it has the hint on the
    # first event.
    [event] = read_with_httpx2([HEARTBEAT + retry(milliseconds / 1000), frame(update)])
    assert event == (message(update), milliseconds if update.retry is None else update.retry)


@given(UPDATES)
def test_n27_each_event_leaves_its_id_as_the_cursor(update: Update) -> None:
    source = EventSource()
    list(source.feed(frame(Update(("a",), id="before")) + frame(update)))
    assert source.last_event_id_string == update.id


# -- through a hub, from the body of a publisher to the page of a reader


def in_form(update: Update) -> bytes:
    fields = [("topic", "a"), ("data", update.data), ("id", update.id)]
    fields += [
        (name, str(value)) for name, value in (("type", update.type), ("retry", update.retry)) if value is not None
    ]
    return "&".join(f"{name}={quote_plus(value)}" for name, value in fields).encode()


def in_json(update: Update, *, ascii: bool) -> bytes:
    members: dict[str, Any] = {"topic": "a", "data": update.data, "id": update.id}
    members |= {} if update.type is None else {"type": update.type}
    members |= {} if update.retry is None else {"retry": update.retry}
    return json.dumps(members, ensure_ascii=ascii).encode() + b"\n"


@settings(deadline=None, max_examples=40)
@given(st.lists(UPDATES, min_size=1, max_size=5, unique_by=lambda update: update.id), SIZES)
@example([Update(("a",), "x\r\n\ry\u2028\x85\0\ufeff", id="é\u2028:", type=" t:", retry=0)], [1])
def test_n26_n49_v55_a_reader_gets_the_published_data(updates: list[Update], sizes: list[int]) -> None:
    async def run() -> tuple[bytes, bytes]:
        async with application(subscriptions=False) as app:
            sender = bearer(current_token(publish=["*"]))
            async with follow(app, ("match", "a")) as live:
                for update in updates:
                    reply = await ask(app, "POST", PATH, [FORM, sender], in_form(update))
                    assert (reply.status, reply.text) == (200, update.id)
                body = b"".join(in_json(update, ascii=bool(n % 2)) for n, update in enumerate(updates))
                reply = await ask(app, "POST", PATH, [NDJSON, sender], body)
                assert (reply.status, reply.text) == (200, "".join(f"{update.id}\n" for update in updates))
                await ask(app, "POST", PATH, [FORM, sender], b"topic=a&id=the+end")
                while b"id: the end\n" not in live.body:
                    await live.changed()
                async with follow(app, ("match", "a"), ("last_event_id", "earliest")) as later:
                    while b"id: the end\n" not in later.body:
                        await later.changed()
                    return live.body, later.body

    for stream in asyncio.run(run()):
        *events, end = read(cut(stream, sizes))
        assert events == [message(update) for update in updates] * 2
        assert end == ("the end", "message", "")
