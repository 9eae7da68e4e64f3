"""Tables: all patterns of one matcher type, found by a topic.

To add a table, add a file here and a line to `skipfilter.topics.index`.  If a matcher
type has no table, its patterns are tested one by one.

Belongs here: how the patterns of one type are found together.
Does not belong here: what one pattern means (`matchers`), and values (`core`).
"""

from __future__ import annotations

from skipfilter.topics.tables.base import SelectorPostings, Table
from skipfilter.topics.tables.residual import AlikeLimit
from skipfilter.topics.tables.simple import EverythingTable, ExactTable, LinearTable
from skipfilter.topics.tables.uri_templates import UriTemplateTable
from skipfilter.topics.tables.url_patterns import UrlPatternTable
from skipfilter.topics.tables.words import WordTable

__all__ = [
    "AlikeLimit",
    "EverythingTable",
    "ExactTable",
    "LinearTable",
    "SelectorPostings",
    "Table",
    "UriTemplateTable",
    "UrlPatternTable",
    "WordTable",
]
