"""Tables: all patterns of one matcher type, found by a topic.

To add a table, add a file here and a line to `skipfilter.index`.  If a matcher type has
no table, its patterns are tested one by one.
"""

from __future__ import annotations

from skipfilter.tables.base import PostingList, Table
from skipfilter.tables.residual import AlikeLimit
from skipfilter.tables.simple import EverythingTable, ExactTable, LinearTable
from skipfilter.tables.uri_templates import UriTemplateTable
from skipfilter.tables.url_patterns import UrlPatternTable
from skipfilter.tables.words import WordTable, amqp_table, mqtt_table, word_table

__all__ = [
    "AlikeLimit",
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
    "word_table",
]
