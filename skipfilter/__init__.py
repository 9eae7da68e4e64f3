"""Predicate-based fan-out: which of these values want this message?

Values sit in an id-ordered container; each key has a roaring bitmap of the values that passed it, extended
when it is asked; a message is dispatched with one OR or AND of bitmaps.

>>> from skipfilter import SkipFilter, UriTemplate
>>> readers = SkipFilter(lambda template, topic: template.match(topic))
>>> _ = readers.add(UriTemplate("https://example.com/books/{id}"))
>>> _ = readers.add(UriTemplate("https://example.com/{+anything}"))
>>> [reader.pattern for reader in readers.match_any("https://example.com/books/1")]
['https://example.com/books/{id}', 'https://example.com/{+anything}']
>>> readers.matches("https://example.org/")
False
"""

from __future__ import annotations

from skipfilter.container import SkipFilter, Source
from skipfilter.errors import PatternError, SkipFilterError
from skipfilter.matchers import MATCHERS, Exact, Matcher, UriTemplate, compile_matcher

__all__ = [
    "MATCHERS",
    "Exact",
    "Matcher",
    "PatternError",
    "SkipFilter",
    "SkipFilterError",
    "Source",
    "UriTemplate",
    "compile_matcher",
]
