"""hub.spark.sink publishes each row, once if the hub remembers ids, and names refused
rows.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from hub import Settings
from hub.protocol.requests import FORM, NDJSON
from hub.protocol.updates import EARLIEST_ID
from hub.spark import register
from hub.spark.errors import NotTaken, Unreachable
from hub.spark.options import SparkOptions
from hub.spark.push import Push, as_form
from hub.spark.sink import SinkOptions, check_columns, publish, requests, row_id, to_update
from hub.spark.source import SCHEMA, Reader, SourceOptions, Span
from skipfilter.spark.errors import BadInput
from tests.hub.publishing import parse_updates
from tests.hub.spark.hubs import events_in, metadata_in, other_hub, token_file
from tests.hub.spark.hubs import publish as publish_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.conftest import HubProcess
    from tests.hub.spark.hubs import OtherHub

SETTINGS = Settings(dev=True)

# -- rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
ROWS = st.fixed_dictionaries(
    {"topics": st.lists(TEXTS, min_size=1, max_size=2)},
    optional={
        "data": st.none() | TEXTS,
        "private": st.booleans(),
        "id": st.none() | st.just("") | TEXTS,
        "type": st.none() | TEXTS,
        "retry": st.none() | st.integers(0, 86_400_000),
    },
)


@given(ROWS)
def test_a_row_is_the_same_update_in_a_line_and_in_a_form(row: dict[str, Any]) -> None:
    update = to_update(row, private=False)
    (line,) = parse_updates(json.dumps(update).encode(), NDJSON, SETTINGS)
    (form,) = parse_updates(as_form(update), FORM, SETTINGS)
    assert line == form
    assert line.topics == tuple(row["topics"])
    assert (line.data, line.type, line.retry) == (row.get("data") or "", row.get("type") or None, row.get("retry"))
    assert line.private is row.get("private", False)
    assert line.id == (row.get("id") or row_id({name: value for name, value in update.items() if name != "id"}))


@given(ROWS, ROWS)
def test_rows_without_an_id_get_equal_ids_only_if_they_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    def said(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in to_update(row | {"id": None}, private=False).items() if name != "id"}

    ids = [to_update(row | {"id": None}, private=False)["id"] for row in (one, other)]
    assert ids[0].startswith("urn:uuid:")
    assert ids[0] == to_update(dict(reversed(one.items())) | {"id": ""}, private=False)["id"]
    assert (ids[0] == ids[1]) == (said(one) == said(other))


@pytest.mark.parametrize(
    ("row", "private", "id"),
    [
        ({"topic": "a"}, False, "b984361f-bc42-5eb7-b2b1-609513d53906"),
        ({"topic": "a", "private": False}, None, "b984361f-bc42-5eb7-b2b1-609513d53906"),
        (
            {"topic": "a", "private": False, "ts": 5, "position": 7, "epoch": "e"},
            None,
            "b984361f-bc42-5eb7-b2b1-609513d53906",
        ),
        (
            {"topics": ["a", "b"], "data": "é", "private": True, "type": "t", "retry": 5},
            None,
            "c2b3475a-86f7-5d91-b0d5-1b6175859d8b",
        ),
        (
            {"topics": ["a", "b"], "data": "é", "type": "t", "retry": 5, "position": 1},
            True,
            "c2b3475a-86f7-5d91-b0d5-1b6175859d8b",
        ),
    ],
)
def test_the_id_of_a_row_stays_the_same_from_release_to_release(
    row: dict[str, Any], private: bool | None, id: str
) -> None:
    assert to_update(row, private=private)["id"] == f"urn:uuid:{id}"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"topic": None}, "column 'topic' is null"),
        ({"topics": None}, "column 'topics' is null"),
        ({"topics": []}, "column 'topics' is null or empty"),
        ({"topics": ["a", None]}, "contains a null"),
        ({"topic": "a", "private": None}, "column 'private' is null"),
    ],
)
def test_an_invalid_update_names_its_row_and_column(row: dict[str, Any], told: str) -> None:
    good = {name: value if isinstance(value, str) else {"topics": ["a"], "private": True}.get(name, "a") for name, value in row.items()}  # fmt: skip
    batch = pa.RecordBatch.from_pylist([good, good, row])
    batches = iter([pa.RecordBatch.from_pylist([good] * 3), batch])
    made = requests(batches, max_rows=2, max_bytes=1_000, private=None if "private" in row else False)
    assert [[number for number, _ in next(made)] for _ in range(3)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(BadInput, match=f"^row 5: .*{told}"):
        next(made)


def schema_of(text: str) -> StructType:
    """Return the same as StructType.fromDDL, which needs a Spark session."""
    columns = [column.split(" ") for column in text.split(", ")]
    simple = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

    def json_of(type: str) -> Any:
        if type.startswith("array<"):
            return {"type": "array", "elementType": json_of(type[6:-1]), "containsNull": True}
        return simple.get(type, type)

    fields = [{"name": name, "type": json_of(type), "nullable": True, "metadata": {}} for name, type in columns]
    return StructType.fromJson({"fields": fields})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("data string", "exactly one of the columns 'topics' and 'topic'"),
        ("topic string, topics array<string>", "exactly one of the columns 'topics' and 'topic'"),
        ("topics string", "column 'topics' is string, but must be array<string>"),
        ("topics array<int>", "column 'topics' is array<int>"),
        ("topic string, data binary", "column 'data' is binary, but must be string"),
        ("topic string, private string", "column 'private' is string, but must be boolean"),
        ("topic string, retry double", "column 'retry' is double, but must be an integer type"),
        ("topic string, id bigint", "column 'id' is bigint"),
        ("topic string, DATA string, x int", "column 'DATA' would be lost"),
    ],
)
def test_invalid_columns_are_named(schema: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        check_columns(schema_of(schema), None if "private" in schema else False)


def test_valid_columns_are_accepted() -> None:
    for retry in ("tinyint", "smallint", "int", "bigint"):
        check_columns(schema_of(f"topic string, id string, data string, private boolean, retry {retry}"), None)
    check_columns(schema_of("topics array<string>, type string"), True)
    check_columns(SCHEMA, None)  # the columns of the source


def test_a_table_or_an_option_must_say_whether_updates_are_private() -> None:
    with pytest.raises(BadInput, match=r"column 'private' .* or the option private=true or private=false"):
        check_columns(schema_of("topic string, data string"), None)
    for private in (True, False):
        with pytest.raises(BadInput, match=r"the column 'private' and the option private=.*: use only one"):
            check_columns(schema_of("topic string, private boolean"), private)
    with pytest.raises(BadInput, match="private must be true or false, not 'on'"):
        SinkOptions.parse({"url": "http://h/", "private": "on"})
    with pytest.raises(BadInput, match="'private'"):
        to_update({"topic": "a"})
    for name, private in (("true", True), ("false", False)):
        assert SinkOptions.parse({"url": "http://h/", "private": name}).private is private
    assert SinkOptions.parse({"url": "http://h/"}).private is None


def test_a_mirror_of_a_hub_without_metadata_publishes_nothing(other: OtherHub) -> None:
    other.frames, other.applied = [b"id: 1\ndata: secret\n\n: all\n\n"], "wait=0"
    options = {"url": other.url, "match": "*"}
    rows = list(Reader(SourceOptions.parse(options)).read(InputPartition(Span(EARLIEST_ID, "1", 1))))
    with pytest.raises(BadInput, match="row 0: column 'topics' is null"):
        publish(SinkOptions.parse({"url": other.url}), iter(rows))
    mapped = [rows[0].set_column(rows[0].schema.get_field_index("topics"), "topics", [["a"]])]
    with pytest.raises(BadInput, match="row 0: column 'private' is null, but must be true or false"):
        publish(SinkOptions.parse({"url": other.url}), iter(mapped))
    assert (other.updates, other.types) == ([], [])


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 5), st.integers(1, 400), st.integers(1, 7))
def test_requests_have_all_rows_in_order_within_their_bounds(
    sizes: list[int], max_rows: int, max_bytes: int, per_batch: int
) -> None:
    rows = [{"topic": "a", "data": "x" * size} for size in sizes]
    batches = [pa.RecordBatch.from_pylist(rows[n : n + per_batch]) for n in range(0, len(rows), per_batch)]
    made = list(requests(iter(batches), max_rows=max_rows, max_bytes=max_bytes, private=False))
    assert [number for lines in made for number, _ in lines] == list(range(len(rows)))
    assert [json.loads(line).get("data", "") for lines in made for _, line in lines] == [row["data"] for row in rows]
    for lines in made:
        assert 1 <= len(lines) <= max_rows
        assert len(lines) == 1 or sum(len(line) + 1 for _, line in lines) <= max_bytes
    for lines, following in pairwise(made):  # no request is smaller than it must be
        size = sum(len(line) + 1 for _, line in lines)
        assert len(lines) == max_rows or size + len(following[0][1]) + 1 > max_bytes


# -- a hub


def lines_of(*rows: dict[str, Any]) -> list[bytes]:
    return [json.dumps(to_update({"private": False} | row)).encode() for row in rows]


def published(connection: SparkOptions, lines: Sequence[bytes], *, most: int = 1_000) -> Push:
    publisher = Push(connection, most=most)
    try:
        publisher.publish(lines)
    finally:
        publisher.close()
    return publisher


def test_a_hub_with_a_lower_limit_gets_smaller_requests(start_hub: Callable[..., HubProcess], tmp_path: Path) -> None:
    hub = start_hub(HUB_MAX_BATCH="7", HUB_SUBSCRIPTIONS="false")
    rows = [{"topic": "a", "id": str(n)} for n in range(40)]
    publisher = published(SparkOptions(hub.url, token_file=token_file(hub, tmp_path)), lines_of(*rows))
    assert [event.id for event in events_in(hub)] == [row["id"] for row in rows]
    assert publisher.takes_lines
    assert 3 < publisher.most <= 7


def test_a_refused_row_is_named_and_nothing_of_its_request_is_published(hub: HubProcess, tmp_path: Path) -> None:
    sink = SinkOptions(SparkOptions(hub.url, token_file=token_file(hub, tmp_path)), 3, 2**19, private=False)
    rows = [{"topic": "a", "id": str(n)} for n in range(5)]
    for bad, told in [
        ({"topic": "*", "id": "5"}, "topic '\\*' is reserved"),
        ({"topic": "a", "id": "#5"}, "id '#5' is reserved"),
        ({"topic": "x" * 5_000, "id": "5"}, "is longer than 4096 bytes"),
    ]:
        for after in (0, 1):
            table = [*rows, bad, *rows[:after]]
            with pytest.raises(NotTaken, match=f"the hub answers 4..: row 5: .*{told}") as raised:
                publish(sink, iter([pa.RecordBatch.from_pylist(table)]))
            assert hub.token not in str(raised.value)
            there = {event.id for event in events_in(hub, match="a")}
            # Smaller requests find the row that is too large, so the rows before it are
            # published.
            assert there == ({"0", "1", "2"} if bad["topic"][0] != "x" else {"0", "1", "2", "3", "4"})


def test_a_single_refused_update_is_not_taken_for_a_hub_without_ndjson(hub: HubProcess, tmp_path: Path) -> None:
    publisher = Push(SparkOptions(hub.url, token_file=token_file(hub, tmp_path)), most=10)
    with pytest.raises(NotTaken, match="is reserved"):
        publisher.publish(lines_of({"topic": "*"}))
    assert publisher.takes_lines
    publisher.close()


def test_a_missing_grant_to_publish_blames_no_row(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(hub.token[:-3] + "abc", "utf-8")
    for connection in (SparkOptions(hub.url), SparkOptions(hub.url, token_file=str(tmp_path / "bad"))):
        with pytest.raises(NotTaken, match="the hub answers 401") as raised:
            published(connection, lines_of({"topic": "a"}))
        assert raised.value.index is None
        assert hub.token[:-3] not in str(raised.value)


# -- other hubs


@pytest.fixture
def other() -> Iterator[OtherHub]:
    with other_hub() as hub:
        yield hub


def test_a_hub_without_ndjson_is_tried_once_and_gets_forms(other: OtherHub) -> None:
    rows = [{"topics": ["a", "é b"], "data": f"{n}\n&=+%", "private": n % 2 == 0, "retry": n} for n in range(5)]
    publisher = published(SparkOptions(other.url), lines_of(*rows), most=2)
    assert not publisher.takes_lines
    assert other.types == ["application/x-ndjson", *["application/x-www-form-urlencoded"] * 5]
    assert [update["topic"] for update in other.updates] == [["a", "é b"]] * 5
    assert [update["data"] for update in other.updates] == [[row["data"]] for row in rows]
    assert [("private" in update) for update in other.updates] == [True, False, True, False, True]
    assert [update["retry"] for update in other.updates] == [[str(n)] for n in range(5)]
    assert len({update["id"][0] for update in other.updates}) == 5


@pytest.mark.parametrize("status", [400, 415])
def test_forms_that_are_refused_too_name_the_row(other: OtherHub, status: int) -> None:
    other.refusals = [status, 400]
    with pytest.raises(NotTaken, match="400: not now") as raised:
        published(SparkOptions(other.url), lines_of({"topic": "a"}, {"topic": "b"}))
    assert raised.value.index == 0
    assert other.updates == []


@pytest.mark.parametrize("status", [429, 503])
def test_temporary_errors_are_retried_a_bounded_time(other: OtherHub, status: int) -> None:
    other.refusals = [415, status]
    published(SparkOptions(other.url), lines_of({"topic": "a", "id": "1"}, {"topic": "b", "id": "2"}))
    assert [update["id"] for update in other.updates] == [["1"], ["2"]]
    other.refusals = [status] * 2
    with pytest.raises(Unreachable, match=f"2 times in a row; the last reason: {status}: not now"):
        published(SparkOptions(other.url, retries=1), lines_of({"topic": "a"}))
    assert other.refusals == []


def test_a_form_is_read_by_another_parser() -> None:
    update = {"topic": ["a b", "&=+%\u2028"], "data": "é\r\n", "id": "urn:x", "type": "t", "retry": 0, "private": True}
    assert parse_qsl(as_form(update).decode(), keep_blank_values=True) == [
        ("topic", "a b"), ("topic", "&=+%\u2028"), ("data", "é\r\n"), ("id", "urn:x"), ("type", "t"), ("retry", "0"),
        ("private", "on"),
    ]  # fmt: skip


# -- with Spark


@pytest.fixture
def mercure(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def test_rows_of_failed_tasks_are_published_once_with_a_window_and_at_least_once_without(
    mercure: SparkSession, start_hub: Callable[..., HubProcess], other: OtherHub, tmp_path: Path
) -> None:
    rows = mercure.range(0, 400, numPartitions=2).selectExpr(
        "array(concat('https://example.com/', id % 7), 'all') topics",
        "concat(id, '\\nline') data",
        "id % 3 = 0 private",
        "if(id % 2 = 0, concat('urn:', id), null) id",
        "'t' type",
        "cast(id as int) retry",
    )
    for window in ("0", "600"):
        hub = start_hub(HUB_IDEMPOTENCY_WINDOW=window, HUB_SUBSCRIPTIONS="false")
        # Two requests fail, after five or six others; so one or two tasks do, and are
        # tried again from the beginning.
        other.behind, other.refusals = hub.url, [200] * 5 + [403, 200, 403]
        writer = rows.write.format("mercure").mode("append").option("maxRowsPerRequest", "40")
        writer.options(url=other.url, tokenFile=token_file(hub, tmp_path)).save()
        assert other.refusals == []
        found = Counter((event.data, event.type, event.retry) for event in events_in(hub))
        assert set(found) == {(f"{n}\nline", "t", str(n)) for n in range(400)}
        assert found.total() == 400 if window == "600" else found.total() > 400
        assert len({event.id for event in events_in(hub)}) == 400
        for event in events_in(hub):
            assert (event.id == f"urn:{event.retry}") is (int(event.retry or 0) % 2 == 0)


def test_a_hub_is_mirrored_over_a_restart_and_private_updates_stay_private(
    mercure: SparkSession, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    one = start_hub(HUB_SUBSCRIPTIONS="false")
    other = start_hub(HUB_SUBSCRIPTIONS="false", HUB_IDEMPOTENCY_WINDOW="600")
    token = token_file(one, tmp_path)
    updates = [
        {"topic": ["a", "é\u2028", f"{n}"][: n % 3 + 1], "data": f"{n}\n\u2028", "id": f"n{n}", "private": n % 2 == 0}
        for n in range(24)
    ]
    publish_lines(one, *updates, {"topic": "a", "type": "t", "retry": 5})

    def stream(*columns: str, metadata: str = "required") -> DataStreamWriter:
        options = {"url": one.url, "tokenFile": token, "match": "*", "maxRowsPerBatch": "10", "metadata": metadata}
        rows = mercure.readStream.format("mercure").options(**options).load()
        writer = (rows.selectExpr(*columns) if columns else rows).writeStream.format("mercure")
        return writer.options(url=other.url, tokenFile=token).trigger(availableNow=True)

    leak = stream("'b' topic", "data", "id", "type", "retry", metadata="auto")
    with pytest.raises(PySparkException, match="or the option private=true or private=false"):
        leak.option("checkpointLocation", str(tmp_path / "leak")).start().awaitTermination()
    assert events_in(other) == []

    def mirror() -> None:
        stream().option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    mirror()
    (tmp_path / "checkpoint/commits/2").unlink()
    (tmp_path / "checkpoint/commits/.2.crc").unlink(missing_ok=True)
    mirror()
    assert events_in(other) == events_in(one)
    told = [[(told["topics"], told["private"]) for told in metadata_in(hub)] for hub in (other, one)]
    assert told[0] == told[1]
    assert [private for _, private in told[0]] == [True, False] * 12 + [False]
    files = [path for path in tmp_path.joinpath("checkpoint").rglob("*") if path.is_file()]
    assert not any(one.token.encode() in path.read_bytes() for path in files)


def test_the_error_names_the_refused_row_and_partition_and_no_token(
    mercure: SparkSession, hub: HubProcess, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = token_file(hub, tmp_path)
    rows = mercure.range(0, 6, numPartitions=2)
    for columns, told in [
        (["if(id = 4, '*', 'a') topic"], r"partition 1, row 1: topic '\*' is reserved"),
        (["if(id = 5, null, 'a') topic"], r"partition 1, row 2: column 'topic' is null"),
        (["'a' topic", "id"], r"column 'id' is bigint, but must be string"),
    ]:
        writer = rows.selectExpr(*columns).write.format("mercure").mode("append")
        with pytest.raises(PySparkException, match=told) as raised:
            writer.options(url=hub.url, tokenFile=token, private="false").save()
        assert hub.token not in str(raised.value)
    with pytest.raises(PySparkException, match="use mode append"):
        rows.selectExpr("'a' topic").write.format("mercure").mode("overwrite").options(url=hub.url).save()
    assert hub.token not in "".join(capfd.readouterr())


def test_two_equal_rows_are_one_update_unless_they_have_ids(
    mercure: SparkSession, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    hub = start_hub(HUB_IDEMPOTENCY_WINDOW="600", HUB_SUBSCRIPTIONS="false")
    rows = mercure.range(4)
    for columns, found in [(["'a' topic"], 1), (["'b' topic", "cast(id as string) id"], 4)]:
        writer = rows.selectExpr(*columns).write.format("mercure").mode("append")
        writer.options(url=hub.url, tokenFile=token_file(hub, tmp_path), private="false").save()
        assert len(events_in(hub, match=columns[0][1])) == found
