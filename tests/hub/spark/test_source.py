"""hub.spark.source reads each event once, despite lost connections, trims, restarts and
retries.
"""

from __future__ import annotations

import json
import logging
import pickle
import signal
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.captured import AnalysisException, UnknownException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from hub.protocol.events import HEARTBEAT, Block, frame, parse_block
from hub.protocol.topics import FORBIDDEN
from hub.protocol.updates import EARLIEST_ID, Update
from hub.spark import register, source
from hub.spark.errors import DataLoss, Refused, Silent, Unreachable
from hub.spark.options import SparkOptions
from hub.spark.pull import EventParser, follow
from hub.spark.source import Reader, SourceOptions, Span, StreamReader, measure, to_arrow
from skipfilter.spark.errors import BadInput, PipelineError
from tests.hub.spark.hubs import events_in, metadata_in, other_hub, publish, token_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.conftest import HubProcess

EVERYTHING = ReadAllAvailable()


def source_of(hub: Any, **options: str) -> SourceOptions:
    return SourceOptions.parse(
        {"url": hub.url, "match": "*"} | {name.lower(): value for name, value in options.items()}
    )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def ids_of(batches: Iterable[pa.RecordBatch]) -> list[str]:
    return [row["id"] for row in rows_of(batches)]


def read_all(reader: StreamReader, start: dict[str, Any], limit: Any = EVERYTHING) -> Iterator[tuple[Any, list[str]]]:
    """Yield the end offset and the ids of each batch from `start` on, in the way of
    Spark.
    """
    while (end := reader.latestOffset(start, limit)) != start:
        yield end, [id for part in reader.partitions(start, end) for id in ids_of(reader.read(part))]
        reader.commit(end)
        start = end
    assert reader.partitions(start, start) == []


# -- an event stream

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=sorted(FORBIDDEN)), max_size=5)
DATA = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n :"), max_size=8)
UPDATES = st.builds(
    Update,
    st.just(("a",)),
    DATA,
    id=TEXTS.map(lambda text: f"x{text}y"),
    type=st.none() | TEXTS.map(lambda text: f"x{text}"),
    retry=st.none() | st.integers(0, 10**15 - 1),
)


@given(st.lists(UPDATES, max_size=5), st.lists(st.integers(1, 9), max_size=20), st.sampled_from(["\n", "\r", "\r\n"]))
def test_a_stream_in_any_chunks_has_the_published_events(updates: list[Update], sizes: list[int], end: str) -> None:
    stream = b"".join(map(frame, updates)).replace(b"\n", end.encode())
    parser = EventParser()
    events, start = [], 0
    for size in sizes:
        events += parser.feed(stream[start : start + size])
        start += size
    events += parser.feed(stream[start:])
    if end == "\r":  # of which a line feed may be the rest
        events += parser.feed(b"\n")
    expected = [
        {
            "id": update.id,
            "type": update.type,
            "data": update.data.replace("\r\n", "\n").replace("\r", "\n"),
            "retry": update.retry,
        }
        for update in updates
    ]
    rows = rows_of([to_arrow(events)]) if events else []
    assert [{name: row[name] for name in ("id", "type", "data", "retry")} for row in rows] == expected


def test_streams_of_other_hubs_are_parsed_by_the_standard() -> None:
    parser = EventParser()
    stream = (
        b"\xef\xbb\xbf:\nretry: 5\nid: 1\ndata\n\n"  # no colon is an empty value
        b"data:a\ndata: b\ndata:  c\n\n"  # the id stays
        b"id: 2\nevent: dropped\n\n"  # no data, no event; but the id counts
        b"event: t\ndata: :d\nid: 3\n\n"
        b"id: 4\0\ndata: e\n\n"  # no id
        b"data: f\nretry: +5\nretry: 1_0\nretry: \xd9\xa5\nunknown: x\n\n"
        b": all that\n\ndata: g"
    )
    assert parser.feed(stream) == [
        ("1", "", "", "5", ""),
        ("1", "", "a\nb\n c", "", ""),
        ("3", "t", ":d", "", ""),
        ("3", "", "e", "", ""),
        ("3", "", "f", "", ""),
    ]
    assert not parser.is_complete
    assert parser.feed(b"\nid: 5\n\n:\n") == [("5", "", "g", "", "")]
    assert not parser.is_complete
    assert parser.feed(b": all\n") == []
    assert parser.is_complete
    assert parser.last_event_id == "5"


@pytest.mark.parametrize(
    ("stream", "complete"),
    [
        (b": all\n", True),
        (b"\xef\xbb\xbf: all\n", True),
        (b"retry: 5\n:\n: all\n", True),
        (b"id: 1\ndata: x\n\n: all\n", True),
        (b": all\n\n", True),  # as earlier versions wrote it
        (b": all", False),
        (b": all of them\n", False),
        (b"data: : all\n", False),
        (b"data: x\n\ndata: : all\n\n", False),
        (b"", False),
    ],
)
def test_the_comment_that_this_is_all_is_a_whole_line(stream: bytes, complete: bool) -> None:
    for size in range(1, len(stream) + 2):
        parser = EventParser()
        for start in range(0, len(stream), size):
            parser.feed(stream[start : start + size])
        assert parser.is_complete is complete


def test_a_large_event_whose_lines_look_like_the_comment_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(block: bytes) -> Block:
        parsed.append(block)
        return parse_block(block)

    monkeypatch.setattr("hub.spark.pull.parse_block", parse)
    parser, line = EventParser(), b"data: : all\n"
    for _ in range(100):
        assert parser.feed(line * 10) == []
    assert parsed == []
    [event] = parser.feed(b"\n")
    assert (event[2].count("\n"), len(parsed), parser.is_complete) == (999, 1, False)


TOLD = {"topics": ["a", "é\u2028"], "private": True, "time": 1_764_000_000_123, "position": 7, "epoch": "e"}
COLUMNS = ("topics", "private", "ts", "position", "epoch")


def told_of(comment: str, *, applied: bool = True, before: bytes = b"", between: bytes = b"") -> tuple[Any, ...]:
    """Return the metadata columns of an event that has a comment."""
    parser = EventParser(metadata=applied)
    frame = before + b": " + comment.encode() + b"\n" + between + b"id: 1\ndata: x\n\n"
    second = b"id: 2\ndata: y\n\n"
    first, other = rows_of([to_arrow(parser.feed(frame + second))])
    assert (first["id"], first["data"], other["id"]) == ("1", "x", "2")
    assert [other[name] for name in COLUMNS] == [None] * 5
    return tuple(first[name] for name in COLUMNS)


def test_a_comment_is_only_the_metadata_of_its_event() -> None:
    time = datetime.fromtimestamp(1_764_000_000, UTC) + timedelta(milliseconds=123)
    told = (["a", "é\u2028"], True, time, 7, "e")
    for between in (b"", b"retry: 5\n", b":\n"):
        assert told_of(json.dumps(TOLD, ensure_ascii=False), between=between) == told
    assert told_of(json.dumps(TOLD), before=HEARTBEAT) == told
    assert told_of(json.dumps(TOLD | {"private": False, "more": 1})) == (told[0], False, *told[2:])


@pytest.mark.parametrize(
    "comment",
    [
        "{",
        "{}",
        '{"private":false}',
        "[" * 100_000,
        json.dumps(TOLD) * 2,
        *(json.dumps({name: value for name, value in TOLD.items() if name != missing}) for missing in TOLD),
        *(json.dumps(TOLD | {"topics": topics}) for topics in ("a", [], ["a", None], None, ["\ud800"])),
        *(json.dumps(TOLD | {"private": private}) for private in (0, None, "false")),
        *(json.dumps(TOLD | {"time": time}) for time in (-1, 1.5, True, None, 10**15, 10**30)),
        *(json.dumps(TOLD | {"position": position}) for position in (-1, 1.5, True, None, 2**63)),
        *(json.dumps(TOLD | {"epoch": epoch}) for epoch in (None, 7, "\ud800")),
    ],
)
def test_other_comments_are_not_metadata(comment: str) -> None:
    assert told_of(comment) == (None,) * 5


def test_comments_are_not_metadata_unless_it_was_requested() -> None:
    assert told_of(json.dumps(TOLD), applied=False) == (None,) * 5


# -- options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"token": "SECRET"}, "token is refused"),
        ({"url": "https://u:SECRET@h/"}, "url contains a token"),
        ({"url": "https://h/?authorization=SECRET"}, "url contains a token"),
        ({"url": "https://h/?Access_Token=SECRET"}, "url contains a token"),
        ({"tokenenv": "eyJhbGciOiJIUzI1NiJ9.SECRET.SECRET"}, "not be the token"),
        ({"tokenfile": "Bearer eyJhbGciOiJIUzI1NiJ9.SECRET.SECRET"}, "not be the token"),
        ({"tokenenv": "A", "tokenfile": "B"}, "can be given"),
        ({"authorization": "SECRET"}, "there is no option 'authorization'"),
        ({"matchmqtt": "SECRET"}, "there is no option 'matchmqtt'"),
        ({"url": "ftp://h"}, "url must be that of a hub"),
        ({"url": ""}, "url must be that of a hub"),
        ({"url": "https://u:SECRET@h:x/"}, "url must be that of a hub"),
        ({"match": ""}, "nothing to subscribe to"),
        ({"maxrowsperbatch": "0"}, "maxRowsPerBatch"),
        ({"maxrowsperbatch": "-1"}, "maxRowsPerBatch"),
        ({"retries": "x"}, "retries"),
        ({"idletimeout": "nan"}, "idleTimeout"),
        ({"idletimeout": "0"}, "idleTimeout"),
        ({"failondataloss": "maybe"}, "failOnDataLoss"),
        ({"metadata": "true"}, "metadata must be auto, required or off, not 'true'"),
    ],
)
def test_an_invalid_option_is_named_and_a_token_is_not_shown(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        SourceOptions.parse({"url": "https://h/", "match": "*"} | options)
    assert "SECRET" not in str(raised.value)


def test_selectors_of_both_dialects_can_be_repeated() -> None:
    options = {"url": "http://h/", "match_mqtt": "a/+\nb/#", "topic": '["x", "[y", "{z}"]', "match": '["not JSON'}
    assert SourceOptions.parse(options).wanted == (
        ("match", '["not JSON'), ("match_mqtt", "a/+"), ("match_mqtt", "b/#"),
        ("topic", "x"), ("topic", "[y"), ("topic", "{z}"),
    )  # fmt: skip


@pytest.mark.parametrize("where", ["tokenEnv", "tokenFile"])
def test_the_error_of_a_missing_token_names_its_source(where: str, tmp_path: Path) -> None:
    place = "NO_SUCH_VARIABLE" if where == "tokenEnv" else str(tmp_path / "missing")
    with pytest.raises(BadInput, match=f"there is no token.*{place}"):
        SourceOptions.parse({"url": "http://h/", "match": "*", where.lower(): place}).connection.headers()
    if where == "tokenFile":
        Path(place).write_text("two\nlines of a SECRET", "utf-8")
        with pytest.raises(BadInput, match="cannot be one") as raised:
            SourceOptions.parse({"url": "http://h/", "match": "*", where.lower(): place}).connection.headers()
        assert "SECRET" not in str(raised.value)


def test_the_token_in_a_file_can_be_replaced_while_it_is_in_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = SparkOptions("http://h/", token_file=str(file))
    for token in ("one", "two"):
        file.write_text(f"{token}\n", "utf-8")
        assert connection.headers() == [(b"Authorization", f"Bearer {token}".encode())]


def test_no_token_is_sent_to_executors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("A_TOKEN", "SECRET")
    (tmp_path / "token").write_text("SECRET", "utf-8")
    for options in ({"tokenenv": "A_TOKEN"}, {"tokenfile": str(tmp_path / "token")}):
        parsed = SourceOptions.parse({"url": "http://h/", "match": "*"} | options)
        assert parsed.connection.headers() == [(b"Authorization", b"Bearer SECRET")]
        for reader in (parsed, Reader(parsed), StreamReader(parsed)):
            assert b"SECRET" not in pickle.dumps(reader)
            assert "SECRET" not in repr(reader)


# -- offsets, against a hub


@pytest.fixture(scope="module")
def token(shared_hub: HubProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    return token_file(shared_hub, tmp_path_factory.mktemp("token"))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from(["seen", "private", "other"]), max_size=6)),
        st.tuples(st.just("batch"), st.none() | st.integers(1, 4)),
        st.tuples(st.just("available now"), st.none() | st.integers(1, 4)),
        st.tuples(st.just("crash"), st.booleans()),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(STEPS, st.booleans(), st.sampled_from([EARLIEST_ID, "latest"]))
def test_batches_have_every_event_once_even_if_they_are_planned_again(
    shared_hub: HubProcess, token: str, steps: list[tuple[str, Any]], permitted: bool, start: str
) -> None:
    topic = uuid.uuid4().hex
    options = {"match": topic, "startingFrom": start} | ({"tokenFile": token} if permitted else {})
    reader = StreamReader(source_of(shared_hub, **options))
    if start == "latest":
        publish(shared_hub, {"topic": topic})
    first = committed = reader.initialOffset()
    visible: list[str] = []
    got: list[str] = []
    planned: tuple[dict[str, Any], list[str]] | None = None

    def batch(limit: Any) -> bool:
        nonlocal committed
        end = reader.latestOffset(committed, limit)
        ids = [id for part in reader.partitions(committed, end) for id in ids_of(reader.read(part))]
        assert not isinstance(limit, ReadMaxRows) or len(ids) <= limit.max_rows
        assert (end == committed) == (not ids)
        got.extend(ids)
        committed = end
        return bool(ids)

    for step, what in [*steps, ("available now", None)]:
        match step:
            case "publish":
                if what:
                    ids = publish(
                        shared_hub,
                        *(
                            {"topic": topic if one != "other" else f"{topic}/x", "private": one == "private"}
                            for one in what
                        ),
                    )
                    seen = {"seen", "private"} if permitted else {"seen"}
                    visible += [id for id, one in zip(ids, what, strict=True) if one in seen]
            case "batch":
                batch(EVERYTHING if what is None else ReadMaxRows(what))
            case "available now":
                reader = StreamReader(reader._source)
                reader.prepareForTriggerAvailableNow()
                later: list[str] = []
                while batch(EVERYTHING if what is None else ReadMaxRows(what)):
                    later += publish(shared_hub, {"topic": topic})
                assert got == visible
                visible += later
            case "crash":  # after the next batch was planned and, it may be, read
                end = reader.latestOffset(committed, ReadMaxRows(2))
                if end == committed:
                    continue
                ids = [id for part in reader.partitions(committed, end) for id in ids_of(reader.read(part))]
                planned = pickle.loads(pickle.dumps((end, ids)))
                reader = StreamReader(reader._source)
                anew = reader.initialOffset() if committed == first else committed  # `latest` is another one by then
                again = [id for part in reader.partitions(anew, end) for id in ids_of(reader.read(part))]
                assert (end, again) == planned
                got.extend(again)
                committed = end
    reader = StreamReader(reader._source)
    batch(EVERYTHING)
    assert got == visible


@pytest.mark.parametrize("limit", [EVERYTHING, ReadMaxRows(1), ReadMaxRows(2), ReadMaxRows(3)])
def test_a_stream_with_repeated_ids_ends_and_loses_nothing(start_hub: Callable[..., HubProcess], limit: Any) -> None:
    hub = start_hub()
    published = [*"dxyd", *"ddabba", *"z"]
    publish(hub, *({"topic": "a", "id": id, "data": str(number)} for number, id in enumerate(published)))
    reader = StreamReader(source_of(hub))
    batches = []
    for _, ids in zip(range(50), read_all(reader, reader.initialOffset(), limit), strict=False):
        batches.append(ids[1])
    assert len(batches) < 30
    assert {id for ids in batches for id in ids} == set(published)
    assert batches[-1][-1] == "z"


def test_after_a_restart_a_batch_does_not_end_at_its_own_start(hub: HubProcess) -> None:
    publish(hub, *({"topic": "a", "id": id} for id in "dxyd"))
    span = measure(source_of(hub), "d")  # for the hub, the first of them
    assert span == Span("d", "y", 2)


@pytest.mark.parametrize("ids", ["aba", "aa", "abcabc", "xyxyx"])
def test_with_repeated_ids_single_runs_come_to_an_end(hub: HubProcess, ids: str) -> None:
    publish(hub, *({"topic": "a", "id": id} for id in ids))
    offset: dict[str, Any] = StreamReader(source_of(hub)).initialOffset()
    seen: list[str] = []
    for _ in range(10):
        reader = StreamReader(source_of(hub))  # a new reader, as in a job that starts every hour
        reader.prepareForTriggerAvailableNow()
        told = list(read_all(reader, json.loads(json.dumps(offset))))
        if not told:
            break
        offset = told[-1][0]
        seen += [id for _, some in told for id in some]
    else:
        pytest.fail(f"it never ends: {seen}")
    assert set(seen) == set(ids)


@pytest.mark.parametrize(
    "id", ["é\u2028 ü 日本", '"quoted", \\ and %41', "x" * 2_000, "urn:a#b?c=d&e", "latest", "{}[]"]
)
def test_an_unusual_id_is_an_offset_like_any_other(hub: HubProcess, id: str) -> None:
    publish(hub, {"topic": "a", "id": "before"}, {"topic": "a", "id": id}, {"topic": "a", "id": "after"})
    reader = StreamReader(source_of(hub))
    assert [ids for _, ids in read_all(reader, reader.initialOffset(), ReadMaxRows(2))] == [["before", id], ["after"]]
    if id != "latest":
        assert measure(source_of(hub), id) == Span(id, "after", 1)


# -- loss


def test_a_trimmed_history_is_an_error_or_a_warning(
    start_hub: Callable[..., HubProcess], caplog: pytest.LogCaptureFixture
) -> None:
    hub = start_hub(HUB_HISTORY_UPDATES="10")
    strict, lenient = StreamReader(source_of(hub)), StreamReader(source_of(hub, failOnDataLoss="false"))
    ids = publish(hub, *({"topic": "a"} for _ in range(4)))
    first = strict.latestOffset(strict.initialOffset(), EVERYTHING)
    ids += publish(hub, *({"topic": "a"} for _ in range(3)))
    planned = strict.latestOffset(first, EVERYTHING)
    (partition,) = strict.partitions(first, planned)
    caplog.set_level(logging.WARNING, "hub.spark")
    for more, left in [(3, 3), (4, 3), (2, 1), (1, 0)]:
        publish(hub, *({"topic": "a"} for _ in range(more)))
        caplog.clear()
        assert ids_of(lenient.read(partition)) == ids[7 - left : 7]
        if more == 3:  # all is there
            assert ids_of(strict.read(partition)) == ids[4:7]
            assert not caplog.records
        else:
            assert "no longer has the event" in caplog.text
            with pytest.raises(DataLoss, match="failOnDataLoss=false"):
                list(strict.read(partition))
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        strict.latestOffset(planned, EVERYTHING)
    end = lenient.latestOffset(planned, ReadMaxRows(3))
    (partition,) = lenient.partitions(planned, end)
    assert ids_of(lenient.read(partition)) == [event.id for event in events_in(hub)][:3]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_quiet_query_loses_nothing_while_the_history_moves_on(
    start_hub: Callable[..., HubProcess], start: str
) -> None:
    hub = start_hub(HUB_HISTORY_UPDATES="10")
    reader = StreamReader(source_of(hub, match="a", startingFrom=start))
    ids = publish(hub, {"topic": "a"}) if start == "earliest" else []
    offset = reader.initialOffset()
    got: list[str] = []
    for rare in (False, False, False, True, False, False, False, True, False, False):
        if rare:
            ids += publish(hub, {"topic": "a"})
        for each, read in read_all(reader, offset, EVERYTHING):
            offset, got = each, got + read
        publish(hub, *({"topic": "b"} for _ in range(5)))
        assert reader.latestOffset(offset, EVERYTHING) == offset, "so no empty batch is planned"
    assert got == ids
    # Its offset is that of the last event.  A query that begins anew has lost the place.
    with pytest.raises(DataLoss):
        StreamReader(reader._source).latestOffset(offset, EVERYTHING)


def test_starting_after_a_missing_event_is_a_loss(hub: HubProcess) -> None:
    reader = StreamReader(source_of(hub, startingFrom="never there"))
    with pytest.raises(DataLoss, match="'never there'"):
        reader.latestOffset(reader.initialOffset(), EVERYTHING)


def test_a_trimmed_first_batch_is_noticed_without_an_id(start_hub: Callable[..., HubProcess]) -> None:
    hub = start_hub(HUB_HISTORY_UPDATES="4")
    reader = StreamReader(source_of(hub))
    publish(hub, {"topic": "a"}, {"topic": "a"})
    publish(hub, {"topic": "a"})
    start = reader.initialOffset()
    (span,) = reader.partitions(start, reader.latestOffset(start, EVERYTHING))
    assert len(ids_of(reader.read(span))) == 3
    publish(hub, {"topic": "a"}, {"topic": "a"})
    with pytest.raises(DataLoss, match="3 events were found"):
        list(reader.read(span))


def test_an_executor_whose_token_grants_less_is_an_error(hub: HubProcess, tmp_path: Path) -> None:
    publish(hub, {"topic": "a"}, {"topic": "a", "private": True}, {"topic": "a"})
    planner = StreamReader(source_of(hub, tokenFile=token_file(hub, tmp_path)))
    start = planner.initialOffset()
    (span,) = planner.partitions(start, planner.latestOffset(start, EVERYTHING))
    with pytest.raises(DataLoss, match="the token on this machine has other permissions"):
        list(StreamReader(source_of(hub)).read(span))


def test_a_refusal_is_reported_and_not_retried(start_hub: Callable[..., HubProcess], tmp_path: Path) -> None:
    hub = start_hub()
    (tmp_path / "bad").write_text(hub.token[:-3] + "abc", "utf-8")
    with pytest.raises(Refused, match="401: the token is not valid") as raised:
        measure(source_of(hub, tokenFile=str(tmp_path / "bad")), EARLIEST_ID)
    assert hub.token[:-3] not in str(raised.value)
    with pytest.raises(Refused, match="400: parameter"):
        list(follow(SparkOptions(hub.url), [("match_regexp", "a")], EARLIEST_ID, idle=5))


def test_an_event_that_is_too_large_is_an_error_and_those_before_it_are_read(hub: HubProcess) -> None:
    publish(hub, {"topic": "a", "data": "small"}, {"topic": "a", "data": "x" * 100_000})
    with pytest.raises(BadInput, match="more than 9,999 bytes: set the option maxEventBytes"):
        measure(source_of(hub, maxEventBytes="9999"), EARLIEST_ID)
    measure(source_of(hub, maxEventBytes="200000"), EARLIEST_ID)


def test_a_missing_hub_is_an_error(hub: HubProcess) -> None:
    hub.stop()
    with pytest.raises(Unreachable, match="2 times in a row"):
        measure(source_of(hub, retries="1"), EARLIEST_ID)


# -- lost and restarted hubs


def restart(start_hub: Callable[..., HubProcess], hub: HubProcess, **environment: str) -> HubProcess:
    hub.stop(signal.SIGKILL)
    return start_hub("--port", str(hub.port), **environment)


def test_a_restart_in_the_middle_loses_nothing_and_repeats_nothing(
    start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    log = {"HUB_HISTORY_URL": f"sqlite:///{tmp_path}/log.db"}
    hub = start_hub(**log)
    # More than the buffers between the two hold, so that the hub is in the middle of
    # it.
    ids = publish(hub, *({"topic": "a", "data": "x" * 60_000} for _ in range(14)))
    for _ in range(24):
        ids += publish(hub, *({"topic": "a", "data": "x" * 60_000} for _ in range(14)))
    got: list[str] = []
    restarted = False
    for events in follow(SparkOptions(hub.url), [("match", "*")], EARLIEST_ID, idle=5):
        got += [event[0] for event in events]
        if not restarted:
            restart(start_hub, hub, **log)
            restarted = True
    assert got == ids


def test_a_restart_that_loses_the_history_is_not_the_end_of_the_stream(start_hub: Callable[..., HubProcess]) -> None:
    hub = start_hub()
    for _ in range(25):
        publish(hub, *({"topic": "a", "data": "x" * 60_000} for _ in range(14)))
    reading = follow(SparkOptions(hub.url), [("match", "*")], EARLIEST_ID, idle=5)
    next(reading)
    restart(start_hub, hub)
    with pytest.raises(DataLoss):
        for _ in reading:
            pass


# -- other hubs


def test_another_hub_is_read_until_it_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_PAUSE", 0.2)
    with other_hub() as hub:
        hub.frames = [b"id: 1\ndata: x\n\n", b"id: 2\ndata: y\n\n", b"id: 3\ndata: z\n\n"]
        for hub.beat in (0.02, 60.0):
            reader = StreamReader(source_of(hub))
            start = reader.initialOffset()
            assert next(ids for _, ids in read_all(reader, start, ReadMaxRows(2))) == ["1", "2"]


def test_reading_another_hub_that_withholds_the_end_times_out() -> None:
    with other_hub() as hub:
        hub.frames = [b"id: 1\ndata: x\n\n"]
        for hub.beat in (0.02, 60.0):
            reader = StreamReader(source_of(hub, idleTimeout="0.2"))
            rows = reader.read(reader.partitions({}, Span(EARLIEST_ID, "2", 2).offset())[0])
            with pytest.raises(Silent, match=r"no event has come for 0\.2 seconds, and 1 of 2 rows are missing"):
                list(rows)


@pytest.mark.parametrize("applied", ["", "wait=0"])
def test_a_hub_without_metadata_leaves_nulls_or_is_refused_at_once(applied: str) -> None:
    comment = json.dumps(TOLD).encode()
    with other_hub() as hub:
        hub.frames = [b": " + comment + b"\nid: 1\ndata: x\n\n", b": all\n\n"]
        hub.applied = applied
        partition = InputPartition(Span(EARLIEST_ID, "1", 1))
        for chosen in ("auto", "off"):
            (row,) = rows_of(Reader(source_of(hub, metadata=chosen)).read(partition))
            assert [row[name] for name in COLUMNS] == [None] * 5
        needy = source_of(hub, metadata="required", startingFrom="latest")
        hub.asked.clear()
        with pytest.raises(BadInput, match=r"the hub does not report the topics .* metadata=auto"):
            StreamReader(needy).initialOffset()
        assert hub.asked == ["HEAD"]  # no events were read
        with pytest.raises(BadInput, match="the hub does not report the topics"):
            list(StreamReader(needy).read(partition))  # by an executor that reaches another hub


# -- with Spark


@pytest.fixture
def mercure(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


STRANGE: list[dict[str, Any]] = [
    {"topic": "a", "data": "x\ny\r\nz\rend\n"},
    {"topic": "a", "data": ""},
    {"topic": "a", "data": "é\u2028\u0085 日本 😀 \0"},
    {"topic": ["b", "a"], "data": " spaces ", "type": "t:é", "retry": 5},
    {"topic": "a", "data": "x" * 500_000},
    {"topic": "a", "data": "id: no\n\nevent: no", "id": "é\u2028"},
    {"topic": "a", "data": "secret", "private": True},
]


def expected_rows(updates: list[dict[str, Any]], ids: list[str]) -> list[tuple[Any, ...]]:
    return [
        (
            id,
            one.get("type"),
            one["data"].replace("\r\n", "\n").replace("\r", "\n"),
            one.get("retry"),
            one["topic"] if isinstance(one["topic"], list) else [one["topic"]],
            one.get("private", False),
        )
        for id, one in zip(ids, updates, strict=True)
    ]


def test_a_table_has_the_history_and_no_plan_shows_the_token(
    mercure: SparkSession, hub: HubProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ids = publish(hub, *STRANGE, {"topic": "c/d/e", "data": "z"})
    every = expected_rows([*STRANGE, {"topic": "c/d/e", "data": "z"}], ids)
    with_token = mercure.read.format("mercure").options(url=hub.url, tokenFile=token_file(hub, tmp_path))
    table = with_token.option("match", "*").load()
    rows = table.collect()
    assert [tuple(row[:6]) for row in rows] == every
    places = [(one["time"], one["position"], one["epoch"]) for one in metadata_in(hub)]
    assert [(round(row.ts.timestamp() * 1_000), row.position, row.epoch) for row in rows] == places
    anonymous = mercure.read.format("mercure").options(url=hub.url)
    for name, value, chosen in [
        ("match_mqtt", "c/+/#", every[-1:]),
        ("topic", "c/{x}/e\nb", [every[3], every[-1]]),
        ("match_exact", '["a", "nothing"]', every[:6]),
    ]:
        assert [tuple(row[:6]) for row in anonymous.option(name, value).load().collect()] == chosen
        anonymous = mercure.read.format("mercure").options(url=hub.url)
    after = anonymous.options(match="*", startingFrom=ids[2]).load()
    assert [row.id for row in after.collect()] == [ids[3], ids[4], ids[5], ids[7]]
    assert anonymous.options(match="*", startingFrom=ids[-1]).load().collect() == []
    table.explain("extended")
    out, err = capfd.readouterr()
    assert hub.token not in out + err + str(table) + hub.log()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"token": "SECRET"}, "token is refused"),
        ({"startingFrom": "latest"}, "is for streams"),
        ({}, "nothing to subsc"),
    ],
)
def test_spark_reports_an_invalid_option(
    mercure: SparkSession, shared_hub: HubProcess, options: dict[str, str], told: str
) -> None:
    chosen = {"match": "*"} | options if options else {}
    with pytest.raises((AnalysisException, UnknownException), match=told) as raised:
        mercure.read.format("mercure").options(url=shared_hub.url, **chosen).load().collect()
    assert "SECRET" not in str(raised.value)


def stream_of(spark: SparkSession, hub: HubProcess, **options: str) -> DataFrame:
    return spark.readStream.format("mercure").options(**{"url": hub.url, "match": "*"} | options).load()


def run(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Write all events available now, each batch into a folder named by its number."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").json(f"{folder}/out/{number}")

    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(write)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def batches(spark: SparkSession, folder: Path) -> dict[int, list[str]]:
    """The ids of every batch."""
    return {
        int(path.name): [row.id for row in spark.read.schema("id string").json(str(path)).collect()]
        for path in sorted(folder.joinpath("out").iterdir())
    }


def test_a_stream_continues_from_its_checkpoint_with_the_same_batches(
    mercure: SparkSession, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    log = {"HUB_HISTORY_URL": f"sqlite:///{tmp_path}/log.db", "HUB_SUBSCRIPTIONS": "false"}
    hub = start_hub(**log)
    token = token_file(hub, tmp_path)
    publish(hub, {"topic": "a", "data": "before"})
    options = {"tokenFile": token, "maxRowsPerBatch": "4", "startingFrom": EARLIEST_ID}
    ids = [event.id for event in events_in(hub)]
    ids += publish(hub, *({"topic": "a", "private": number % 2 == 0} for number in range(9)))
    query = run(stream_of(mercure, hub, **options), tmp_path)
    first = batches(mercure, tmp_path)
    assert first == {0: ids[:4], 1: ids[4:8], 2: ids[8:]}
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [4, 4, 2]

    hub = restart(start_hub, hub, **log)
    ids += publish(hub, *({"topic": "a"} for _ in range(3)))
    run(stream_of(mercure, hub, **options), tmp_path)
    assert batches(mercure, tmp_path) == first | {3: ids[10:]}

    # A batch that was planned and not committed stays the same, even if there are more
    # events by now.
    (tmp_path / "checkpoint/commits/3").unlink()
    (tmp_path / "checkpoint/commits/.3.crc").unlink(missing_ok=True)
    ids += publish(hub, *({"topic": "a"} for _ in range(2)))
    run(stream_of(mercure, hub, **options), tmp_path)
    assert batches(mercure, tmp_path) == first | {3: ids[10:13], 4: ids[13:]}

    files = [path for path in tmp_path.joinpath("checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not any(hub.token.encode() in path.read_bytes() for path in files)


def test_a_first_batch_from_latest_is_the_same_when_it_is_planned_again(
    mercure: SparkSession, hub: HubProcess, tmp_path: Path
) -> None:
    publish(hub, {"topic": "a"})
    frame = stream_of(mercure, hub, startingFrom="latest")
    run(frame, tmp_path)  # starts after the newest event, and finds none
    ids = publish(hub, {"topic": "a"}, {"topic": "a"})
    for number in (0, 1):  # neither was committed; the newest event is another one now
        for file in tmp_path.glob(f"checkpoint/commits/*{number}*"):
            file.unlink()
        run(frame, tmp_path)
        assert [row.id for row in mercure.read.schema("id string").json(f"{tmp_path}/out/*").collect()] == ids


def test_a_task_that_fails_after_some_rows_is_read_again(mercure: SparkSession, hub: HubProcess) -> None:
    ids = publish(hub, *({"topic": "a", "data": "x" * 2_000} for _ in range(400)))
    table = mercure.read.format("mercure").options(url=hub.url, match="*").load()

    def fail_once(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for part in parts:
            yield part
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("on purpose")

    rows = table.mapInArrow(fail_once, table.schema).collect()
    assert [row.id for row in rows] == ids


def test_a_query_comes_to_rest_despite_presence_updates(mercure: SparkSession, hub: HubProcess, tmp_path: Path) -> None:
    # Otherwise, the query's own connections would be updates, which need new
    # connections to read them.
    frame = stream_of(mercure, hub, tokenFile=token_file(hub, tmp_path))
    query = frame.writeStream.format("memory").queryName("follows").start()
    try:
        ids: list[str] = []
        for _ in range(2):
            ids += publish(hub, {"topic": "a"}, {"topic": "a", "private": True})
            query.processAllAvailable()
            assert [row.id for row in mercure.table("follows").collect()] == ids
    finally:
        query.stop()


def test_a_query_whose_events_were_trimmed_fails_and_can_continue_without_them(
    mercure: SparkSession, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    hub = start_hub(HUB_HISTORY_UPDATES="10")
    publish(hub, *({"topic": "a"} for _ in range(3)))
    run(stream_of(mercure, hub), tmp_path)
    for _ in range(3):
        publish(hub, *({"topic": "a"} for _ in range(4)))
    with pytest.raises(StreamingQueryException, match="the hub no longer has the event"):
        run(stream_of(mercure, hub), tmp_path)
    run(stream_of(mercure, hub, failOnDataLoss="false"), tmp_path)
    assert batches(mercure, tmp_path)[1] == [event.id for event in events_in(hub)]


def test_every_error_of_a_job_is_a_pipeline_error() -> None:
    for error in (BadInput, Refused, Unreachable, Silent, DataLoss):
        assert issubclass(error, PipelineError)
