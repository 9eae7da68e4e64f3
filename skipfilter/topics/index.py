"""SelectorIndex: finds the values whose selectors match a topic, without testing
values.

A value declares selectors; each is a matcher type and a pattern.  Values that declare
the same selector share one bitmap of ids, and for each matcher type a table finds the
bitmaps of a topic.

    alice  uritemplate /books/{id}   ─┐
    bob    uritemplate /books/{isbn} ─┴─► trie of segments ─► {0, 1} ─┐
    bob    exact       /books/1      ───► hash             ─► {1}    ─┼─ OR ─► {0, 1, 2}
    carol  mqtt        /books/#      ───► trie of words    ─► {2}    ─┘

So a topic that was never seen before costs the walks of the tables, some microseconds
whatever the number of values; a predicate would be called once for each value.

A SkipFilter refers to the bitmaps of a topic, the posting lists.  If a value comes or
goes, its posting lists change in place.  So the filter asks again only if there is a
new posting list, and the newest selectors are in a journal:

    id of the value     7            9             9
    selector            /books/{id}  /films/{id}   /books/new

A filter that knows the posting lists of a topic up to the id 8 gets the topic tested
against the last two selectors.  If the journal does not go back so far, the tables are
walked again.  Ids only grow, so they are also the clock.

Source: inverted bitmaps are Svalgaard's and Tveden's, 1980.  Here there is one for each
distinct selector, not one for each topic, so the topics need not be known beforehand.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from skipfilter.errors import LimitError, PatternError, absent, not_copied, not_text, note, require_ints
from skipfilter.posting_list import NONE
from skipfilter.text import brief, shown
from skipfilter.topics.explanation import explain
from skipfilter.topics.matchers import MATCHERS, Amqp, Mqtt, UrlPattern, WordPattern
from skipfilter.topics.tables import (
    AlikeLimit,
    EverythingTable,
    ExactTable,
    LinearTable,
    UriTemplateTable,
    UrlPatternTable,
    WordTable,
)
from skipfilter.topics.words import AMQP, MQTT, Grammar

_LIST_BYTES: Final = 56
_BITMAP_BYTES: Final = 440
"""About how many bytes a posting list takes, and a bitmap of few ids."""
JOURNAL: Final = 16
"""The number of the newest selectors in the journal."""

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from skipfilter.posting_list import PostingList
    from skipfilter.topics.explanation import Explanation
    from skipfilter.topics.matchers import CompiledSelector, Matcher, Selector
    from skipfilter.topics.tables import SelectorPostings, Table

    AnySelector: TypeAlias = Selector | CompiledSelector | Matcher
    """How a selector may be written."""


class SelectorIndex:
    """The source of one SkipFilter, whose values declare selectors.

    Relative URL Patterns, and topics under them, are resolved against `base_url`.
    `grammars` adds matcher types for patterns of words by their names: for example
    `skipfilter.topics.NATS`, or a `Grammar` of your own.  `matchers` adds any other
    matcher types of your own; each of their distinct patterns is tested against each
    new topic.

    Limits.  If one is exceeded, nothing has changed.  Raises PatternError if a pattern
    has more than `max_length` characters.  Raises LimitError for more than
    `max_selectors` selectors of a value, more than `max_url_patterns` distinct URL
    Patterns with groups in parentheses (some 7 KB each, and up to 32 KB; one with more
    than 50 instructions counts as several, see `UrlPattern.cost`), or more than
    `max_alike` URI templates or other URL Patterns that no fixed text distinguishes,
    each of which must be tested against each new topic.  With `above_max_alike`, that
    function is called instead: with the value, and with the ids of the values that
    declare each of the others, which are empty for those that this value declares too.
    It raises an error to refuse the value.  If `regexp_groups` is True,
    a URL Pattern is trusted with up to 8 MB; otherwise one that needs more than 32 KB
    raises PatternError.

    A selector may be compiled, as in `UriTemplate("/{id}")`, with or without its type.
    It equals the selector with its pattern, and values that share the matcher pay for
    it once.  Its length and `regexp_groups` are not checked: the caller vouches for it.
    Raises ValueError if it is of another type, or has another `base_url`.

    A topic costs O(its length * the nodes that its beginning reaches), and a test for
    each candidate (`verified` counts them).  A declaration costs O(length of the
    pattern).  The filter calls `add`, `discard` and `posting_lists` under its lock;
    `explain`, `verified` and `distinct` may be called from any thread.  Raises
    TypeError if an index is copied or pickled.

    >>> from skipfilter import SkipFilter
    >>> readers = SkipFilter(SelectorIndex())
    >>> readers.add("alice", [("uritemplate", "https://example.com/books/{id}")])
    >>> readers.add("bob", [("exact", "https://example.com/books/1")])
    >>> readers.match_any("https://example.com/books/1")
    ['alice', 'bob']
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        grammars: Iterable[Grammar] | Grammar = (),
        matchers: Mapping[str, Callable[[str], Matcher]] = MappingProxyType({}),
        regexp_groups: bool = False,
        max_length: int = 4096,
        max_selectors: int = 100,
        max_url_patterns: int = 10_000,
        max_alike: int = 256,
        above_max_alike: Callable[[object, list[PostingList]], None] | None = None,
    ) -> None:
        self._alike = AlikeLimit(max_alike, above_max_alike)
        grammars = [grammars] if isinstance(grammars, Grammar) else list(grammars)
        if not all(isinstance(one, Grammar) for one in grammars):
            raise TypeError(f"grammars={brief(grammars)}: not a list of grammars, such as [skipfilter.topics.NATS]")
        require_ints(max_length=max_length, max_selectors=max_selectors, max_alike=max_alike)
        for name, factory in matchers.items():
            if not callable(factory):
                raise TypeError(f"matchers: {name}={brief(factory)} makes no matcher of a pattern")
        self._compile: dict[str, Callable[[str], Matcher]] = {
            **MATCHERS,
            "urlpattern": partial(UrlPattern, base_url=base_url, regexp_groups=regexp_groups),
            **{grammar.name: partial(WordPattern, grammar=grammar) for grammar in grammars},
            **matchers,
        }

        def made() -> dict[str, Table]:
            """Return the empty tables by matcher type."""
            tables: dict[str, Table] = {
                "exact": ExactTable(),
                "everything": EverythingTable(),
                "uritemplate": UriTemplateTable(self._alike),
                "urlpattern": UrlPatternTable(base_url, max_url_patterns, self._alike, regexp_groups=regexp_groups),
                "amqp": WordTable(AMQP, Amqp),
                "mqtt": WordTable(MQTT, Mqtt),
                **{grammar.name: WordTable(grammar) for grammar in grammars},
            }
            return {
                matcher_type: LinearTable(matcher_type, compile)
                if matcher_type in matchers or matcher_type not in tables
                else tables[matcher_type]
                for matcher_type, compile in self._compile.items()
            }

        self._made = made
        self._tables = made()
        self._verified_before = 0  # by tables that were cleared
        self._max_length = max_length
        self._max_selectors = max_selectors
        # value -> the posting lists of its selectors, which have ids; see `_Held`.
        self._held: dict[object, _Held] = {}
        self._in_use: list[Table] = []  # tables that ever had a pattern; no other is walked
        self._newest = -1  # the newest id
        # The newest selectors, oldest first.
        self._journal: deque[_Begun] = deque(maxlen=JOURNAL)
        self._journal_end = -1  # the newest id in the journal
        # From ids after this one on, the journal has all selectors.  It is at least 0,
        # so that the tables are walked for a new topic.
        self._forgotten = 0
        self._pattern_bytes = 0  # those of the texts of selectors
        self._held_bytes = 0  # what values hold beyond a single posting list
        self._shared = 0  # ids in posting lists, beyond the first of each
        self._bitmaps = 0  # posting lists with more than one id
        self.distinct = 0
        """The number of distinct selectors; selectors that mean the same count as one.
        """

    __reduce__ = not_copied

    needs_selectors: Final = True
    """For a SkipFilter: a value without selectors would match nothing."""

    # -- as the source of a SkipFilter

    def add(self, id: int, value: object, selectors: Iterable[AnySelector] = ()) -> None:
        """Take in the selectors that `value` declares, or with an error none of them.

        Takes O(|pattern|) for each selector.  Declaring the same selectors again
        changes nothing.  Raises ValueError if they differ, because only `replace`
        changes them; LimitError and PatternError as the class says; and LookupError if
        a matcher type does not exist.
        """
        declared = self._parsed(value, selectors)
        if (held := self._held.get(value)) is not None:
            if set(_selectors_of(held)) != declared.keys():
                raise ValueError(f"{brief(value)} is in the filter with other selectors; replace() changes them")
            return
        self._take_in(id, value, declared, None)

    def add_many(self, id: int, pairs: Collection[tuple[object, Iterable[AnySelector]]]) -> None:
        """Take in new values with their selectors, or with an error none of them.

        They get ids from `id` on.  Takes as long as `add` of each.  The error has a
        note that names the value.
        """
        at = id
        tables = {name: table for name, table in self._tables.items() if not isinstance(table, LinearTable)}
        try:
            for value, selectors in pairs:
                matcher_type, pattern = _only(selectors) or ("", "")
                table = tables.get(matcher_type)
                if table is None or len(pattern) > self._max_length:
                    self._take_in(at, value, self._parsed(value, selectors), None)
                else:
                    # The usual case, without what others need.
                    self._alike.value = value
                    postings = table.declare(pattern)
                    self._join(at, postings)
                    selector = matcher_type, pattern
                    is_its = postings.declared is pattern
                    held = self._held[value] = postings if is_its else _held({selector: selector}, [postings])
                    self._held_bytes += _bytes_held(held)
                    self._newest = at
                at += 1
        except BaseException as error:
            note(error, value)
            added = [value for value, _ in islice(pairs, at - id)]
            while added:
                at -= 1
                self.discard(at, added.pop())
            # The filter will use these ids again.
            while self._journal and self._journal[-1].id >= id:
                self._journal.pop()
            self._forgotten = min(self._forgotten, max(id - 1, 0))
            self._journal_end = self._journal[-1].id if self._journal else self._forgotten
            raise
        finally:
            self._alike.value = None

    def replace(self, old: int, id: int, value: object, selectors: Iterable[AnySelector]) -> None:
        """Give `value` the id `id` and other selectors, or with an error change
        nothing.

        Costs as much as `add` and `discard`.
        """
        # Those of before stay in their tables until the others are there: a posting
        # list in both never becomes empty, so whoever refers to it finds the new id.
        declared = self._parsed(value, selectors)
        held = self._held[value]
        self._take_in(id, value, declared, held)
        self._leave(old, held)

    def clear(self) -> object:
        """Forget all values, and return what held them.  O(1)."""
        freed = self._tables, self._held, self._journal
        self._verified_before = self.verified
        self._tables, self._held, self._in_use = self._made(), {}, []
        self._journal = deque(maxlen=JOURNAL)
        self._forgotten, self._journal_end = 0, -1
        self.distinct = self._pattern_bytes = self._held_bytes = self._shared = self._bitmaps = 0
        return freed

    def discard(self, id: int, value: object) -> None:
        """Forget `value` and its selectors.  Raises KeyError if it is absent.

        Takes O(log n) for each selector, and O(|pattern|) if no other value declares
        it.
        """
        held = self._held.pop(value)
        if id == self._newest:
            self._newest -= 1  # a filter that undoes an addition uses the id again
        self._leave(id, held)

    def posting_lists(self, key: str, start: int = 0) -> list[SelectorPostings]:
        """Return the posting lists of the topic `key` that were made for the value
        with the id `start`, or for a later one.

        Costs a test for each of these selectors if they are few, else the walks of the
        tables.  Raises TypeError if the topic is not a str.
        """
        if not isinstance(key, str):
            raise not_text(key)
        if start > self._journal_end:
            return []
        if start > self._forgotten:
            # From a copy: a matcher of the caller's own may add and remove values.
            fresh = []
            for one in reversed(self._journal):
                if one.id < start:
                    break
                fresh.append(one)
            return [one.postings for one in fresh if one.postings and one.matches(key)]
        lists: list[SelectorPostings] = []
        for table in self._in_use:
            lists += table.find(key)
        return lists

    # -- for people

    def declared(self, value: object) -> tuple[Selector, ...]:
        """Return the selectors that `value` declares, in its order, each once.

        Takes O(selectors).  Raises KeyError if the value is absent.
        """
        return tuple(_selectors_of(self._held[value]))

    def explain(self, key: str, value: object) -> list[Explanation]:
        """Return, for each selector of `value`, whether it matches the topic `key`, and
        why.

        Compiles and tests each selector, which costs as much as its matcher says; for
        one that does not match, it tries a few dozen small changes.

        Uses the matchers and not the tables, so it is also the reference for the index.
        Raises KeyError if the value is absent, and TypeError if the topic is not a str.

        >>> index = SelectorIndex()
        >>> index.add(0, "bob", [("exact", "/books/1"), ("amqp", "stock.*")])
        >>> for explanation in index.explain("/books/1", "bob"):
        ...     print(explanation)
        exact '/books/1' matches
        amqp 'stock.*' does not match: word 1 is '/books/1'
        """
        if not isinstance(key, str):
            raise not_text(key)
        held = self._held.get(value)
        if held is None:
            raise absent(value)
        explanations = []
        for matcher_type, pattern in _declared_in(held):
            matcher = self._compile[matcher_type](pattern) if isinstance(pattern, str) else pattern
            explanations.append(explain((matcher_type, matcher.pattern), matcher, key, self._matcher_of))
        return explanations

    @property
    def verified(self) -> int:
        """The number of patterns that were tested one by one so far.

        Takes O(matcher types).

        Many for each topic mean patterns that were made hard to distinguish.
        """
        return self._verified_before + sum(table.verified for table in self._in_use)

    def sizes(self) -> tuple[int, int, int]:
        """Return `distinct`, and about how many bytes the texts of the selectors take,
        and what finds them.

        Takes O(matcher types).
        """
        tables = sum(table.size for table in self._in_use)
        lists = _LIST_BYTES * self.distinct + sys.getsizeof(self._held)
        shared = _BITMAP_BYTES * self._bitmaps + 2 * self._shared
        return self.distinct, self._pattern_bytes, tables + lists + shared + self._held_bytes

    # -- internals

    def _matcher_of(self, matcher_type: str, pattern: str) -> Matcher | None:
        compile = self._compile.get(matcher_type)
        return None if compile is None else compile(pattern)

    def _parsed(self, value: object, selectors: Iterable[AnySelector]) -> dict[Selector, Selector | CompiledSelector]:
        """Return the declared selectors by their text; as text if one came in both
        forms.
        """
        is_list = type(selectors) is list or type(selectors) is tuple  # faster than the next line
        if not is_list and (
            isinstance(selectors, (str, bytes)) or not isinstance(selectors, (Sequence, AbstractSet, Iterator))
        ):
            raise ValueError(f"selectors {brief(selectors)}: not a list; {self._how_to_write(selectors)}")
        declared: dict[Selector, Selector | CompiledSelector] = {}
        for selector in selectors:
            if type(selector) is tuple and len(selector) == 2 and type(selector[1]) is str is type(selector[0]):
                declared[selector] = selector  # the usual case
            else:
                self._parse_other(selector, selectors, declared)
            if len(declared) > self._max_selectors:
                raise LimitError(f"{brief(value)} declares more than {self._max_selectors} selectors")
        return declared

    def _parse_other(
        self, selector: Any, selectors: object, declared: dict[Selector, Selector | CompiledSelector]
    ) -> None:
        """Add a selector that is not simply two texts."""
        match selector:
            case (str() as matcher_type, str() as pattern):
                declared[matcher_type, pattern] = matcher_type, pattern
            case (str() as matcher_type, object(pattern=str() as pattern)):
                matcher = selector[1]
                if not self._table(matcher_type).accepts(matcher):
                    reason = "another type of matcher, or another base URL, than this index has"
                    raise ValueError(f"selector {brief(selector)}: {reason}")
                declared.setdefault((matcher_type, pattern), (matcher_type, matcher))
            case _ if isinstance(getattr(selector, "pattern", None), str) and hasattr(selector, "why_not"):
                matcher_type = self._type_of(selector)
                declared.setdefault((matcher_type, selector.pattern), (matcher_type, selector))
            case (str() as matcher_type, pattern) if matcher_type in self._tables:
                raise ValueError(
                    f"selector {brief(selector)}: the pattern is of type {type(pattern).__name__}, not str"
                )
            case _ if isinstance(selectors, tuple) and isinstance(selector, str):
                raise ValueError(f"selectors {brief(selectors)}: not a list; {self._how_to_write(selectors)}")
            case _:
                how = self._how_to_write(selector)
                raise ValueError(f"selector {brief(selector)}: not a (matcher type, pattern); {how}")

    def _type_of(self, matcher: Matcher) -> str:
        """Return the matcher type of a compiled pattern."""
        for matcher_type, table in self._tables.items():
            if table.accepts(matcher):
                return matcher_type
        reason = "no matcher type of this index has such matchers, or they have another base URL"
        raise ValueError(f"selector {brief(matcher)}: {reason}")

    def _how_to_write(self, something: object) -> str:
        """Return, for an error message, how to write as selectors what is none."""
        match something:
            case (str() as matcher_type, str()) if matcher_type in self._tables:
                return f"write [{brief(tuple(something))}]"
            case Mapping():
                return f"write {brief([*something.items()])}"
            case _ if type(something).__module__ == "re":
                return "a regular expression needs a predicate, or a matcher type of your own"
            case str() if something.lstrip()[:1] == "[":
                return "write json.loads(text)"
            case str():
                return f"write [(matcher type, {brief(something)})], with a type of {', '.join(self._tables)}"
            case object(pattern=str()):
                return f"write [{brief(something)}]"
            case _:
                return f"a matcher type is one of {', '.join(self._tables)}"

    def _table(self, matcher_type: str) -> Table:
        try:
            return self._tables[matcher_type]
        except KeyError:
            raise LookupError(f"matcher type {shown(matcher_type)} is none of {', '.join(self._tables)}") from None

    def _take_in(
        self, id: int, value: object, declared: Mapping[Selector, Selector | CompiledSelector], before: _Held | None
    ) -> None:
        """Take in a value, or with an error nothing of it.  `before` is what it has
        declared so far, which is kept in the posting lists.
        """
        if id <= self._newest:
            raise ValueError(f"id {id} comes after {self._newest}: an index serves one SkipFilter")
        self._alike.value = value
        lists: list[SelectorPostings] = []
        try:
            for matcher_type, pattern in declared.values():
                postings = self._table(matcher_type).declare(self._short(matcher_type, pattern))
                lists.append(postings)
            # Nearly all values have one selector, and its posting list was made for it.
            held = postings if len(lists) == 1 and postings.declared is pattern else _held(declared, lists)
            # Only now: the matchers of the caller may have added or removed a value.
            if id <= self._newest or id < self._journal_end or self._held.get(value) is not before:
                raise ValueError("the filter was changed while the selectors of a value were compiled")
            self._held[value] = held  # before any id is written, because its hash may fail
        except BaseException:
            for postings in dict.fromkeys(lists):
                if not postings:
                    postings.table.remove(postings)
            raise
        finally:
            self._alike.value = None
        self._newest = id
        for postings in lists if len(lists) == 1 else dict.fromkeys(lists):
            self._join(id, postings)
        self._held_bytes += _bytes_held(held)

    def _short(self, matcher_type: str, pattern: str | Matcher) -> str | Matcher:
        """Return a pattern.  Raises PatternError if it is a text that is too long."""
        if isinstance(pattern, str) and len(pattern) > self._max_length:
            reason = f"it has {len(pattern):,} characters; the limit is {self._max_length:,}"
            raise PatternError(matcher_type, pattern, reason)
        return pattern

    def _join(self, id: int, postings: SelectorPostings) -> None:
        """Add the id of a value to a posting list."""
        ids = postings.ids
        if ids is NONE:
            self._begin(id, postings)
        else:
            self._shared += 1
            self._bitmaps += isinstance(ids, int)
        postings.add(id)

    def _begin(self, id: int, postings: SelectorPostings) -> None:
        """Count a selector that a value declares first."""
        if postings.table not in self._in_use:
            self._in_use.append(postings.table)
        self.distinct += 1
        self._pattern_bytes += _bytes_of(postings)
        journal = self._journal
        if len(journal) == journal.maxlen:
            self._forgotten = journal[0].id
        journal.append(_Begun(id, postings))
        self._journal_end = id

    def _leave(self, id: int, held: _Held) -> None:
        """Take an id out of posting lists, and drop those that are then empty."""
        self._held_bytes -= _bytes_held(held)
        for postings in _lists_of(held):
            postings.discard(id)
            if postings:
                self._shared -= 1
                self._bitmaps -= isinstance(postings.ids, int)
            else:
                postings.table.remove(postings)
                self.distinct -= 1
                self._pattern_bytes -= _bytes_of(postings)

    def _check(self) -> None:
        """Assert all invariants; for tests."""
        there: set[SelectorPostings] = set()
        for table in self._tables.values():
            table._check()
            assert all(postings.table is table for postings in table.posting_lists())
            there.update(table.posting_lists())
        assert {postings for held in self._held.values() for postings in _lists_of(held)} == there
        assert all(postings and postings.table in self._in_use for postings in there)
        assert len(there) == self.distinct
        assert self._pattern_bytes == sum(map(_bytes_of, there))
        assert self._held_bytes == sum(map(_bytes_held, self._held.values()))
        assert self._shared == sum(len(postings) - 1 for postings in there)
        assert self._bitmaps == sum(len(postings) > 1 for postings in there)
        noted = [one.id for one in self._journal]
        assert noted == sorted(noted)
        assert self._journal_end == max(noted, default=self._journal_end)
        assert noted or self._journal_end in (-1, self._forgotten)
        assert self._forgotten <= min(noted, default=self._newest + 1)


class _Begun:
    """A selector that is new since the value with the id `id`."""

    __slots__ = ("_matcher", "id", "postings")

    def __init__(self, id: int, postings: SelectorPostings) -> None:
        self.id = id
        self.postings = postings
        self._matcher: Matcher | None = None

    def matches(self, topic: str) -> bool:
        """Return whether the selector matches; compiles it once, if it was text."""
        if self._matcher is None:
            self._matcher = self.postings.matcher
        return self._matcher.match(topic)


def _bytes_of(postings: SelectorPostings) -> int:
    """Return the bytes of the text of a selector; a matcher is the caller's."""
    return sys.getsizeof(postings.declared) if isinstance(postings.declared, str) else 0


# -- what a value has declared


@dataclass(frozen=True, slots=True)
class _Others:
    """Selectors that are not all written as those of their posting lists are.

    For example, {id} and {isbn} mean the same, and have one posting list.
    """

    selectors: tuple[Selector | CompiledSelector, ...]
    lists: tuple[SelectorPostings, ...]


# Nearly all values need no more than the posting lists, which know their selectors.
_Held: TypeAlias = "SelectorPostings | tuple[SelectorPostings, ...] | _Others"


def _held(declared: Mapping[Selector, Selector | CompiledSelector], lists: list[SelectorPostings]) -> _Held:
    """Return what is kept of a value's selectors and their posting lists."""
    for (_, pattern), postings in zip(declared, lists, strict=True):
        if postings.pattern != pattern:
            return _Others(tuple(declared.values()), tuple(dict.fromkeys(lists)))
    return lists[0] if len(lists) == 1 else tuple(lists)


def _bytes_held(held: _Held) -> int:
    """Return the bytes of what a value holds beyond a single posting list."""
    if isinstance(held, tuple):
        return sys.getsizeof(held)
    if not isinstance(held, _Others):
        return 0
    texts = sum(sys.getsizeof(pattern) for _, pattern in held.selectors if isinstance(pattern, str))
    return sum(map(sys.getsizeof, (held, held.lists, held.selectors, *held.selectors))) + texts


def _only(selectors: object) -> Selector | None:
    """Return the selector of a list with one, if it is two texts; None for others."""
    if type(selectors) is list and len(selectors) == 1:
        [selector] = selectors
        if type(selector) is tuple and len(selector) == 2 and type(selector[0]) is type(selector[1]) is str:
            return selector
    return None


def _lists_of(held: _Held) -> tuple[SelectorPostings, ...]:
    """Return the posting lists of a value, each once."""
    if isinstance(held, _Others):
        return held.lists
    return held if isinstance(held, tuple) else (held,)


def _declared_in(held: _Held) -> Iterable[Selector | CompiledSelector]:
    """Return the selectors of a value, in its order."""
    if isinstance(held, _Others):
        return held.selectors
    return [(postings.table.matcher_type, postings.declared) for postings in _lists_of(held)]  # type: ignore[misc]


def _selectors_of(held: _Held) -> list[Selector]:
    """Return the selectors of a value as text, in its order."""
    return [
        (matcher_type, pattern if isinstance(pattern, str) else pattern.pattern)
        for matcher_type, pattern in _declared_in(held)
    ]
