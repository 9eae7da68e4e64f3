"""The limits of a head, without a parser: the test reports what a parser would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.errors import HeadTooLarge, TargetTooLong
from hub.server.head_limit import HeadLimit


def fed(limit: HeadLimit, *pieces: bytes, target: int = 0) -> None:
    """Feed pieces of a head that does not end."""
    for piece in pieces:
        data = piece
        while data:
            part = limit.part(data)
            limit.count(part, target=target)
            data = data[len(part) :]


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 200))
def test_an_unfinished_head_is_refused_as_soon_as_it_has_as_many_bytes_as_the_limit(
    sizes: list[int], most: int
) -> None:
    limit = HeadLimit(max_head=most, max_fields=1)
    pieces = [b"x" * size for size in sizes]
    if sum(sizes) < most:
        fed(limit, *pieces)
        fed(limit, b"x" * (most - sum(sizes) - 1))
    with pytest.raises(HeadTooLarge, match=f"more than {most} bytes"):
        fed(limit, *pieces, b"x" * most)


def test_no_part_is_longer_than_what_is_left() -> None:
    limit = HeadLimit(max_head=10, max_fields=1)
    assert limit.part(b"x" * 30) == b"x" * 10
    limit.count(b"x" * 6, target=0)
    assert limit.part(b"x" * 30) == b"x" * 4


@pytest.mark.parametrize(("target", "error"), [(50, HeadTooLarge), (51, TargetTooLong)])
def test_the_target_is_to_blame_if_it_takes_more_than_half(target: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        fed(HeadLimit(max_head=100, max_fields=1), b"x" * 100, target=target)


def test_a_body_is_not_limited_but_trailers_and_the_next_head_are() -> None:
    limit = HeadLimit(max_head=10, max_fields=2)
    fed(limit, b"x" * 9)
    limit.end_head()
    limit.count(b"x" * 1_000, target=0)  # the part that ended the head
    assert len(limit.part(b"x" * 1_000)) == 1_000
    limit.add_body()
    limit.count(b"x" * 1_000, target=0)
    for report in (limit.begin_chunk, limit.end_message):
        report()
        fed(limit, b"x" * 9)
        with pytest.raises(HeadTooLarge):
            fed(limit, b"x")


def test_fields_and_trailers_count_together() -> None:
    limit = HeadLimit(max_head=10, max_fields=2)
    for present in range(2):
        limit.add_field(present)
    with pytest.raises(HeadTooLarge, match="more than 2 header fields and trailers"):
        limit.add_field(2)


def test_only_a_request_line_is_escaped() -> None:
    limit = HeadLimit(max_head=100, max_fields=2)
    assert limit.escaped("\r\nGET /é HTTP/1.1\r\nx: é\r\n".encode()) == b"\r\nGET /%C3%A9 HTTP/1.1\r\nx: \xc3\xa9\r\n"
    limit.part(b"GET /")
    limit.begin_message()
    limit.count(b"GET /", target=1)
    assert limit.escaped("é HTTP/1.1".encode()) == b"%C3%A9 HTTP/1.1"
    limit.part(b" HTTP/1.1\r\n")
    limit.count(b" HTTP/1.1\r\n", target=1)
    assert limit.escaped("x: é".encode()) == "x: é".encode()
    limit.end_head()
    assert limit.escaped("é".encode()) == "é".encode()
    limit.end_message()
    assert limit.escaped("é".encode()) == b"%C3%A9"
