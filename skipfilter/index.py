"""SelectorIndex: the values whose selectors match a topic, without asking any of them.

A value declares selectors, each a matcher type and a pattern.  Values that want the same share one bitmap of ids,
and a table for each matcher type finds the bitmaps by the topic.

    alice  uritemplate /books/{id}   ─┐
    bob    uritemplate /books/{isbn} ─┴─► trie of segments ─► {0, 1} ─┐
    bob    exact       /books/1      ───► hash             ─► {1}    ─┼─ OR ─► /books/1: {0, 1, 2}
    carol  mqtt        /books/#      ───► trie of words    ─► {2}    ─┘

So a topic that was never seen before costs the tables' walks, whatever the number of values: microseconds where
a predicate is asked once a value.  An index is the source of a SkipFilter, which remembers the union.

Source: inverted bitmaps are Svalgaard's and Tveden's, 1980; one for each distinct selector rather than for each
topic makes them independent of the topics.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from skipfilter.errors import LimitError, PatternError, not_copied, not_text
from skipfilter.matchers import MATCHERS
from skipfilter.tables import (
    EverythingTable,
    ExactTable,
    LinearTable,
    UriTemplateTable,
    UrlPatternTable,
    amqp_table,
    mqtt_table,
)
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sortedcontainers import SortedDict

    from skipfilter.matchers import CompiledSelector, Matcher, Selector
    from skipfilter.tables import PostingList, Table


class SelectorIndex:
    """The source of one SkipFilter, whose values declare selectors.

    `base_url` is what relative URL Patterns, and topics under them, are resolved against.  `matchers` adds
    matcher types of your own; each of their distinct patterns is asked about each new topic.

    Bounds, with an error for what is beyond and nothing changed: `max_length` characters of a pattern
    (PatternError); `max_selectors` of a value, `max_url_patterns` different ones, which take some 100 KB each and up
    to 2 MB, and `max_alike` URI templates that no fixed text tells apart, each of which is asked about each new topic
    (LimitError).  URL Patterns that are not small (see `UrlPattern`) are refused (PatternError) without
    `regexp_groups=True`: one of 30 characters can take seconds to match.

    A selector may come compiled, such as `("uritemplate", UriTemplate("/{id}"))`.  It is the same selector as that of
    its pattern, and taken as it is, whatever its length and `regexp_groups`: who has compiled it answers for it.  So
    values that share a matcher pay for it once.  ValueError where it is of another type, or has another `base_url`.

    A topic costs the steps of its walks: O(its length * the nodes that its beginning reaches), and a test for each
    candidate (`verified` counts them).  Declaring costs O(length of the pattern).  The methods of a source are for
    the filter, which has a lock; `explain`, `verified` and `distinct` may be called from any thread.  An index cannot
    be copied or pickled: TypeError.

    >>> from skipfilter import SkipFilter
    >>> readers = SkipFilter(SelectorIndex())
    >>> _ = readers.add("alice", [("uritemplate", "https://example.com/books/{id}")])
    >>> _ = readers.add("bob", [("exact", "https://example.com/books/1"), ("mqtt", "alerts/+")])
    >>> readers.match_any("https://example.com/books/1")
    ['alice', 'bob']
    """

    # All its mutable state: the tables; `_held`, the selectors of each value and their posting lists; `_in_use`, the
    # tables that were ever needed; `_newest`, the last id; and `distinct`.  A posting list stays as long as it has ids.

    def __init__(
        self,
        *,
        base_url: str | None = None,
        matchers: Mapping[str, Callable[[str], Matcher]] = MappingProxyType({}),
        regexp_groups: bool = False,
        max_length: int = 4096,
        max_selectors: int = 100,
        max_url_patterns: int = 1_000,
        max_alike: int = 256,
    ) -> None:
        url_patterns = UrlPatternTable(base_url, max_url_patterns, regexp_groups=regexp_groups)
        self._compile = {**MATCHERS, "urlpattern": url_patterns.compile, **matchers}
        tables: dict[str, Table] = {
            "exact": ExactTable(),
            "everything": EverythingTable(),
            "uritemplate": UriTemplateTable(max_alike),
            "urlpattern": url_patterns,
            "amqp": amqp_table(),
            "mqtt": mqtt_table(),
        }
        self._tables = {
            matcher_type: tables[matcher_type]
            if matcher_type in tables and matcher_type not in matchers
            else LinearTable(compile)
            for matcher_type, compile in self._compile.items()
        }
        self._max_length = max_length
        self._max_selectors = max_selectors
        self._held: dict[object, tuple[tuple[Selector | CompiledSelector, ...], tuple[PostingList, ...]]] = {}
        self._in_use: list[Table] = []
        self._newest = -1
        self.distinct = 0
        """How many languages there are: distinct selectors, of which those that say the same count once."""

    __reduce__ = not_copied

    # -- as the source of a SkipFilter

    def add(self, id: int, value: object, selectors: Iterable[Selector | CompiledSelector] = ()) -> None:
        """Take in what `value` declares: all of it or, with an error, nothing.

        The same again is nothing new; something else is a ValueError, as a value's selectors never change.
        """
        declared = self._parsed(value, selectors)
        if (held := self._held.get(value)) is not None:
            if set(map(_in_text, held[0])) != declared.keys():
                raise ValueError(f"{value!r:.80} is there with other selectors; remove it first")
            return
        if id <= self._newest:
            raise ValueError(f"id {id} comes after {self._newest}: an index serves one SkipFilter")
        posting_lists: dict[PostingList, None] = {}  # each once: selectors of one language have one posting list
        try:
            for matcher_type, pattern in declared.values():
                posting_lists[self._postings(matcher_type, pattern)] = None
        except BaseException:
            for postings in posting_lists:
                if not postings.ids:
                    postings.table.remove(postings)
            raise
        for postings in posting_lists:
            self.distinct += not postings.ids
            postings.ids.add(id)
            if postings.table not in self._in_use:
                self._in_use.append(postings.table)
        self._held[value] = tuple(declared.values()), tuple(posting_lists)
        self._newest = id

    def discard(self, id: int, value: object) -> None:
        _, posting_lists = self._held.pop(value)
        if id == self._newest:
            self._newest -= 1  # a filter that takes an addition back gives the id out again
        for postings in posting_lists:
            postings.ids.discard(id)
            if not postings.ids:
                postings.table.remove(postings)
                self.distinct -= 1

    def ids_matching(self, key: str, values: SortedDict, start: int) -> BitMap64:
        """The ids of the values with a selector that matches the topic `key`, those before `start` too.

        Raises TypeError for a topic that is not a str.
        """
        if not isinstance(key, str):
            raise not_text(key)
        found = [postings.ids for table in self._in_use for postings in table.find(key)]
        if len(found) == 1:
            return found[0]
        passed = BitMap64()
        for ids in found:
            passed |= ids
        return passed

    # -- for people

    def explain(self, topic: str, value: object) -> dict[Selector, str | None]:
        """For each selector of `value`, in text, why it does not match `topic`, or None where it does.

        Asks the matchers alone, so it is also what an index must agree with.  Raises KeyError for a value that
        is not there, and TypeError for a topic that is not a str.

        >>> index = SelectorIndex()
        >>> index.add(0, "bob", [("exact", "/books/1"), ("amqp", "stock.*")])
        >>> index.explain("/books/1", "bob")
        {('exact', '/books/1'): None, ('amqp', 'stock.*'): "word 1 is '/books/1'"}
        """
        if not isinstance(topic, str):
            raise not_text(topic)
        declared, _ = self._held[value]
        explained: dict[Selector, str | None] = {}
        for selector in declared:
            matcher_type, pattern = selector
            matcher = self._compile[matcher_type](pattern) if isinstance(pattern, str) else pattern
            explained[_in_text(selector)] = None if matcher.match(topic) else matcher.why_not(topic)
        return explained

    @property
    def verified(self) -> int:
        """How many patterns were asked one by one so far; many a topic mean patterns made to be hard to tell apart."""
        return sum(table.verified for table in self._in_use)

    # -- underneath

    def _parsed(
        self, value: object, selectors: Iterable[Selector | CompiledSelector]
    ) -> dict[Selector, Selector | CompiledSelector]:
        """What is declared, by its text; in text where it came as both."""
        declared: dict[Selector, Selector | CompiledSelector] = {}
        for selector in selectors:
            match selector:
                case (str(), str()):
                    text = selector if isinstance(selector, tuple) else (selector[0], selector[1])
                    declared[text] = text
                case (str() as matcher_type, object(pattern=str() as pattern) as matcher):
                    if not self._table(matcher_type).accepts(matcher):
                        reason = "another type of matcher, or another base URL, than this index has"
                        raise ValueError(f"selector {selector!r:.80}: {reason}")
                    compiled = selector if isinstance(selector, tuple) else (matcher_type, matcher)
                    declared.setdefault((matcher_type, pattern), compiled)
                case _:
                    raise ValueError(f"selector {selector!r:.80}: not a (matcher type, pattern)")
            if len(declared) > self._max_selectors:
                raise LimitError(f"{value!r:.80} declares more than {self._max_selectors} selectors")
        return declared

    def _table(self, matcher_type: str) -> Table:
        try:
            return self._tables[matcher_type]
        except KeyError:
            raise LookupError(f"matcher type {shown(matcher_type)} is none of {', '.join(self._tables)}") from None

    def _postings(self, matcher_type: str, pattern: str | Matcher) -> PostingList:
        table = self._table(matcher_type)
        if not isinstance(pattern, str):
            return table.declare(pattern)
        if len(pattern) > self._max_length:
            reason = f"it is {len(pattern):,} characters long; {self._max_length:,} may be"
            raise PatternError(matcher_type, pattern, reason)
        return table.declare(table.compile(pattern))

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        there: set[PostingList] = set()
        for table in self._tables.values():
            table._check()
            assert all(postings.table is table for postings in table.posting_lists())
            there.update(table.posting_lists())
        assert {postings for _, posting_lists in self._held.values() for postings in posting_lists} == there
        assert all(postings.ids and postings.table in self._in_use for postings in there)
        assert len(there) == self.distinct


def _in_text(selector: Selector | CompiledSelector) -> Selector:
    matcher_type, pattern = selector
    return matcher_type, pattern if isinstance(pattern, str) else pattern.pattern
