"""Predicate-based fan-out: which of these values want this message?

Values sit in a container ordered by id.  Each key has a roaring bitmap of the values
that match it, which is extended when the key is used, and a message is dispatched with
one OR or AND of bitmaps.  Values declare selectors:

>>> from skipfilter import SelectorIndex, SkipFilter
>>> readers = SkipFilter(SelectorIndex())
>>> readers.add("alice", [("uritemplate", "https://example.com/books/{id}")])
>>> readers.add("bob", [("exact", "https://example.com/books/1")])
>>> readers.match_any("https://example.com/books/1")
['alice', 'bob']

or any predicate decides, or criteria on a message's fields (`FieldFilter`):

>>> multiples = SkipFilter(lambda value, key: value % key == 0)
>>> multiples.add_many(range(10))
>>> multiples.match_any(2, 3)
[0, 2, 3, 4, 6, 8, 9]
"""

from __future__ import annotations

from skipfilter.core.container import Stats
from skipfilter.core.filter import SkipFilter
from skipfilter.core.sources import Index, Source
from skipfilter.errors import LimitError, PatternError, SkipFilterError
from skipfilter.fields import FieldFilter
from skipfilter.posting_list import PostingList
from skipfilter.topics.explanation import Explanation
from skipfilter.topics.index import SelectorIndex
from skipfilter.topics.matchers import (
    MATCHERS,
    Amqp,
    CompiledSelector,
    Everything,
    Exact,
    Matcher,
    Mqtt,
    Selector,
    UriTemplate,
    UrlPattern,
    WordPattern,
    compile_matcher,
)

__version__ = "0.1.0"

__all__ = [
    "MATCHERS",
    "Amqp",
    "CompiledSelector",
    "Everything",
    "Exact",
    "Explanation",
    "FieldFilter",
    "Index",
    "LimitError",
    "Matcher",
    "Mqtt",
    "PatternError",
    "PostingList",
    "Selector",
    "SelectorIndex",
    "SkipFilter",
    "SkipFilterError",
    "Source",
    "Stats",
    "UriTemplate",
    "UrlPattern",
    "WordPattern",
    "compile_matcher",
]
