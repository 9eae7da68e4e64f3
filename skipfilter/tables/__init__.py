"""The patterns of one matcher type, found by the topics that match them.

A plug point: a table is a file here and a line in `skipfilter.index`; the patterns of a type without one are asked
one by one.
"""

from __future__ import annotations

from skipfilter.tables.base import PostingList, Table
from skipfilter.tables.simple import EverythingTable, ExactTable, LinearTable
from skipfilter.tables.uri_templates import UriTemplateTable
from skipfilter.tables.url_patterns import UrlPatternTable
from skipfilter.tables.words import WordTable, amqp_table, mqtt_table

__all__ = [
    "EverythingTable",
    "ExactTable",
    "LinearTable",
    "PostingList",
    "Table",
    "UriTemplateTable",
    "UrlPatternTable",
    "WordTable",
    "amqp_table",
    "mqtt_table",
]
