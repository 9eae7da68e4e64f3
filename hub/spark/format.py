"""The format "mercure": gives Spark its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from hub.spark.sink import SinkOptions, StreamWriter, Writer, check_columns
from hub.spark.source import SCHEMA, Reader, SourceOptions, StreamReader
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Mercure(DataSource):
    """A Mercure hub."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mercure"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        """Return a reader of a table."""
        return Reader(self._source(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return a reader of a stream."""
        return StreamReader(self._source(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return a writer of a table."""
        return Writer(self._sink(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return a writer of a stream."""
        return StreamWriter(self._sink(schema, overwrite=overwrite))

    def _source(self, schema: StructType) -> SourceOptions:
        if schema != SCHEMA:
            raise BadInput(f"the columns are {SCHEMA.simpleString()}, and cannot be chosen")
        return SourceOptions.parse(self.options)

    def _sink(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise BadInput("published updates cannot be overwritten: use mode append, or for a stream append or update")
        sink = SinkOptions.parse(self.options)
        check_columns(schema, sink.private)
        return sink
