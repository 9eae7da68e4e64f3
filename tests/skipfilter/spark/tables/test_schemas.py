"""skipfilter.spark.tables.schemas: Spark's types are those of Arrow, and the page shows
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from hub.spark.source import COLUMNS
from skipfilter.bulk import columns
from skipfilter.bulk.columns import exact
from skipfilter.bulk.outputs import IDENTITY, Output
from skipfilter.spark.tables.schemas import schema
from tests.skipfilter.spark import columns_page

if TYPE_CHECKING:
    from skipfilter.bulk.columns import Column

TABLES = [columns.UPDATES, columns.POSTINGS, COLUMNS, *(output.columns for output in Output)]


@pytest.mark.parametrize("table", TABLES)
def test_a_schema_of_spark_is_the_exact_one_of_arrow(table: tuple[Column, ...]) -> None:
    assert exact(table).equals(to_arrow_schema(schema(table), timezone="UTC"))


def test_a_list_of_selectors_has_no_nulls_at_any_depth() -> None:
    [selectors] = [field for field in schema(columns.SESSIONS) if field.name == "selectors"]
    assert selectors.dataType.simpleString() == "array<struct<type:string,pattern:string>>"
    assert "ull':True" not in str(selectors.jsonValue()).replace(" ", "")


def test_the_page_shows_the_columns_that_there_are() -> None:
    page = columns_page.README.read_text("utf-8")
    assert page == columns_page.with_tables(page), "run python -m tests.skipfilter.spark.columns_page"
    assert all(f"`{column.name}`" in page for column in IDENTITY)
