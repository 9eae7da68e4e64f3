"""skipfilter.spark.tables.schemas: Spark's types are those of Arrow, and the page shows
them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from hub.spark import source
from hub.spark import tables as hub_tables
from hub.spark.source import COLUMNS
from skipfilter.bulk import columns
from skipfilter.bulk.columns import arrow_schema
from skipfilter.bulk.outputs import IDENTITY, Output
from skipfilter.spark.tables import schemas
from skipfilter.spark.tables.schemas import schema
from tests.skipfilter.spark import columns_page

if TYPE_CHECKING:
    from skipfilter.bulk.columns import Column

TABLES = [columns.UPDATES, columns.SESSIONS, columns.POSTINGS, COLUMNS, *(output.columns for output in Output)]
SELECTORS = "array<struct<type:string,pattern:string>>"
WRITTEN = {
    "UPDATES": "update_id string!, topics array<string>!, private boolean!, type string, retry bigint, "
    "data_bytes bigint!, data string, ts timestamp!, position bigint, hub string, epoch string, "
    "presence boolean, dt date!",
    "SESSIONS": f"subscriber_id bigint!, subscriber string!, selectors {SELECTORS}!, authorised {SELECTORS}!, "
    "connected_from timestamp!, disconnected_at timestamp, after bigint, until bigint, hub string, epoch string, "
    "node string, number bigint, issuer string, subject string, token_id string, address string, "
    "ended_because string, complete boolean, dt date!",
    "GAPS": "hub string, epoch string, node string!, ts timestamp!, found timestamp, after bigint!, updates boolean!, "
    "cause string!",
    "POSTINGS": "shard int!, match_type string!, selector string!, subscribed binary, authorised binary, "
    "n_subscribed bigint!, n_authorised bigint!",
    "FANOUT": "update_id string!, ts timestamp!, position bigint, fanout bigint, at_least bigint, "
    "made_from string, dt date!",
    "SCHEMA": "id string!, type string, data string!, retry bigint, topics array<string>, private boolean, "
    "ts timestamp, position bigint, epoch string",
    "SESSION_EVENTS": "event string!, node string!, number bigint, ts timestamp!, after bigint, until bigint, "
    f"hub string, epoch string, subscriber string, issuer string, subject string, token_id string, address string, "
    f"selectors {SELECTORS}, authorised {SELECTORS}, reason string, clean boolean, "
    "updates boolean, found timestamp, cause string",
    "SESSION_IDS": "node string!, number bigint!, subscriber_id bigint!",
}
"""The columns of stored tables, and of the source; those with a ! are never null."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_stored_table_has_the_columns_that_were_always_stored(name: str) -> None:
    [found] = [vars(module)[name] for module in (schemas, hub_tables, source) if name in vars(module)][:1]
    assert (
        ", ".join(f"{each.name} {each.dataType.simpleString()}{'!' * (not each.nullable)}" for each in found)
        == (WRITTEN[name])
    )


def test_a_line_of_a_log_may_have_nulls_at_any_depth() -> None:
    # With spark.sql.fromJsonForceNullableSchema=false, from_json would believe otherwise.
    for line, name in (
        (hub_tables._UPDATE, "topics"),
        (hub_tables._EVENT, "selectors"),
        (hub_tables._EVENT, "authorised"),
    ):
        assert "false" not in json.dumps([field.jsonValue() for field in line])
        assert "containsNull" in json.dumps(line[name].jsonValue())


@pytest.mark.parametrize("table", TABLES)
def test_a_schema_of_spark_is_the_exact_one_of_arrow(table: tuple[Column, ...]) -> None:
    assert arrow_schema(table).equals(to_arrow_schema(schema(table), timezone="UTC"))


def test_the_page_shows_the_columns_that_there_are() -> None:
    for path in (columns_page.README, columns_page.QUESTIONS):
        page = path.read_text("utf-8")
        assert page == columns_page.with_tables(page), "run python -m tests.skipfilter.spark.columns_page"
        assert all(f"`{column.name}`" in page for column in IDENTITY)
