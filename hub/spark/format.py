"""The format "mercure", as Spark asks for its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from hub.spark.sink import Sink, StreamWriter, Writer, check_columns
from hub.spark.source import SCHEMA, Reader, Source, StreamReader
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Mercure(DataSource):
    """A Mercure hub."""

    @classmethod
    def name(cls) -> str:
        return "mercure"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        return Reader(self._source(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return StreamReader(self._source(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(self._sink(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(self._sink(schema, overwrite=overwrite))

    def _source(self, schema: StructType) -> Source:
        if schema != SCHEMA:
            raise BadInput(f"the columns are {SCHEMA.simpleString()}, and cannot be others")
        return Source.parse(self.options)

    def _sink(self, schema: StructType, *, overwrite: bool) -> Sink:
        if overwrite:
            raise BadInput("what was published stays: the mode is append, of a stream append or update")
        sink = Sink.parse(self.options)
        check_columns(schema, sink.private)
        return sink
