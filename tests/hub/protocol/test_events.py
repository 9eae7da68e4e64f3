"""Frames, byte by byte; `test_event_stream` reads them with parsers."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sse_starlette import ServerSentEvent

from hub.errors import EventTooLarge
from hub.protocol.events import HEARTBEAT, Blocks, frame, parse_block, retry
from hub.protocol.updates import Update
from tests.hub.test_event_stream import UPDATES


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (Update(("a",), id="1"), b"id: 1\ndata: \n\n"),  # a data line even if there is no data
        (Update(("a", "b"), "x", private=True, id="1"), b"id: 1\ndata: x\n\n"),  # topics and privacy do not show
        (Update(("a",), "x", id="1", type="t", retry=0), b"id: 1\nevent: t\ndata: x\nretry: 0\n\n"),
        (Update(("a",), "x", id="1", retry=10**15 - 1), b"id: 1\ndata: x\nretry: 999999999999999\n\n"),
        (Update(("a",), "x", id="1", type=" :t"), b"id: 1\nevent:  :t\ndata: x\n\n"),
        (Update(("a",), "x\ny\rz\r\n", id="1"), b"id: 1\ndata: x\ndata: y\ndata: z\ndata: \n\n"),
        (Update(("a",), "x\n\ny", id="1"), b"id: 1\ndata: x\ndata: \ndata: y\n\n"),
        (Update(("a",), "\n", id="1"), b"id: 1\ndata: \ndata: \n\n"),
        (Update(("a",), "\r", id="1"), b"id: 1\ndata: \ndata: \n\n"),
        (Update(("a",), "\n\r", id="1"), b"id: 1\ndata: \ndata: \ndata: \n\n"),
        (Update(("a",), "\r\n\r\n", id="1"), b"id: 1\ndata: \ndata: \ndata: \n\n"),
        (Update(("a",), "\r\r\n\n", id="1"), b"id: 1\ndata: \ndata: \ndata: \ndata: \n\n"),
        (Update(("a",), "x\0y", id="1"), b"id: 1\ndata: x\0y\n\n"),
        (Update(("a",), "\ufeffx", id="1"), b"id: 1\ndata: \xef\xbb\xbfx\n\n"),
        (Update(("a",), ":x", id=":1"), b"id: :1\ndata: :x\n\n"),
        (
            Update(("a",), "x\u2028y\u2029\x0bz\x0c\x1c\x1d\x1e\x85", id="1"),
            "id: 1\ndata: x\u2028y\u2029\x0bz\x0c\x1c\x1d\x1e\x85\n\n".encode(),
        ),
        (
            Update(("a",), "x\r\rid: 2\revent: mercure", id="1"),
            b"id: 1\ndata: x\ndata: \ndata: id: 2\ndata: event: mercure\n\n",
        ),
        (Update(("a",), " é", id="é"), "id: é\ndata:  é\n\n".encode()),
    ],
)
def test_n28_n26_r21_v55_the_bytes_of_an_event(update: Update, expected: bytes) -> None:
    assert frame(update) == expected


def test_r21_n8_a_heartbeat_is_a_comment_of_two_bytes() -> None:
    assert HEARTBEAT == b":\n"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(3, b"retry: 3000\n"), (0.0015, b"retry: 2\n"), (1e9, b"retry: 1000000000000\n")]
)
def test_n30_the_retry_hint_is_whole_milliseconds_and_not_an_event(seconds: float, expected: bytes) -> None:
    assert retry(seconds) == expected


@given(UPDATES)
def test_n28_frames_agree_with_sse_starlette(update: Update) -> None:
    event = ServerSentEvent(update.data, id=update.id, event=update.type, retry=update.retry, sep="\n")
    assert frame(update) == event.encode()


@given(UPDATES)
def test_r21_n29_lines_end_with_lf_and_there_are_no_other_lines(update: Update) -> None:
    *lines, last, rest = frame(update).split(b"\n")
    assert (last, rest) == (b"", b"")
    names = [line.split(b": ")[0] for line in lines]
    data = update.data.replace("\r\n", "\n").replace("\r", "\n")
    assert b"\r" not in frame(update)
    assert names == (
        [b"id"]
        + [b"event"] * (update.type is not None)
        + [b"data"] * (1 + data.count("\n"))
        + [b"retry"] * (update.retry is not None)
    )


STREAM = "\ufeffid: 1\ndata: a\n\n:\n\n\n\nid: 2\nevent: x\ndata:b\u2028\ndata:  c\ndata\nretry: 1\n\ndata: é\n\nid: 3\n\nid: \0\n\nid: 4"
EVENTS = [("1", "a"), ("2", "b\u2028\n c\n"), (None, "é"), ("3", None)]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_an_event_stream_is_cut_at_blank_lines_in_any_chunks(end: str) -> None:
    data = STREAM.replace("\n", end).encode()
    for cuts in ([n] for n in range(len(data) + 1)), [range(len(data))]:
        for cut in cuts:
            blocks = Blocks()
            pieces = [data[a:b] for a, b in pairwise([0, *cut, len(data)])]
            events = [parse_block(block) for piece in pieces for block in blocks.feed(piece)]
            assert [(event.id, event.data) for event in events if (event.id, event.data) != (None, None)] == EVENTS


def test_n8_a_heartbeat_has_one_line_end() -> None:
    """A blank line after it ends the subscriber of Micronaut, and is an empty event for
    that of Spring.
    """
    assert HEARTBEAT == b":\n"
    assert b"\n\n" not in HEARTBEAT + retry(2) + HEARTBEAT


def test_each_part_of_a_large_event_costs_as_much_as_it_has_bytes() -> None:
    part, blocks, peaks = b"x" * 2**12, Blocks(), []
    for _ in range(2**24 // len(part)):
        assert [*blocks.feed(part)] == []
    tracemalloc.start()
    for _ in range(101):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        assert [*blocks.feed(part)] == []
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert sorted(peaks)[50] < 2**16  # now and then, all of it may be moved
    [block] = blocks.feed(b"\n\n")
    assert len(block) == 2**24 + 101 * 2**12


@given(st.lists(st.sampled_from([b"\n", b"\r", b"x", b":", b"\n\n", b"\r\n"]), max_size=30), st.integers(1, 20))
def test_an_event_has_at_most_so_many_bytes(pieces: list[bytes], most: int) -> None:
    data = b"".join(pieces)
    whole = [*Blocks().feed(data)]
    rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")[-1]
    fits = max(map(len, whole), default=0) <= most and len(rest) <= most + 1
    for parts in ([data], [data[n : n + 1] for n in range(len(data))]):
        blocks = Blocks(most)
        found = (block for part in parts for block in blocks.feed(part))
        if fits:
            assert [*found] == whole
        else:
            with pytest.raises(EventTooLarge):
                list(found)


def test_n26_an_lf_after_a_cr_ends_no_second_line_and_hides_no_third() -> None:
    whole = b"data: a\r\n\r\ndata: b\r\n\n"
    blocks = Blocks()
    assert [block for at in range(len(whole)) for block in blocks.feed(whole[at : at + 1])] == [b"data: a", b"data: b"]
    blocks = Blocks()
    assert [block for part in (b"data: x\r", b"\n", b"\n") for block in blocks.feed(part)] == [b"data: x"]
