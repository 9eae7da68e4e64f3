"""URI templates, in a trie of path segments (see `skipfilter.topics.tables.segments`).

A variable such as {id} cannot contain a `/`.  So a whole segment that is fixed text, or
one such variable, can be matched alone, and most templates have no other segments.

The linear matcher verifies the candidates of a residual; all templates that are tried
on a topic share its sets of positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from cachetools import LRUCache

from skipfilter.topics.matchers.uri_template import VALUE, Subject, UriTemplate, encoded, is_value, segments_of
from skipfilter.topics.tables.segments import MAX_DEPTH, SegmentTrie, split, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipfilter.topics.matchers import Matcher
    from skipfilter.topics.matchers.uri_template import TemplatePart
    from skipfilter.topics.tables.base import SelectorPostings
    from skipfilter.topics.tables.residual import AlikeLimit
    from skipfilter.topics.tables.segments import Path

COMPILED: Final = 1_000
"""The number of compiled templates that are cached."""

Rest: TypeAlias = tuple["TemplatePart", ...]


class UriTemplateTable:
    """The templates, by meaning: the names of variables make no difference.

    `alike` limits the templates that only the matcher can distinguish, because each new
    topic is tested against all of them.
    """

    def __init__(self, alike: AlikeLimit | None = None) -> None:
        self.matcher_type = "uritemplate"
        # The newest templates, for a value that declares what another has declared.
        self._compiled: LRUCache[str, UriTemplate] = LRUCache(COMPILED)
        self._trie: SegmentTrie[Rest] = SegmentTrie(self, alike)
        self._roots = (self._trie.root,)

    def compile(self, pattern: str) -> UriTemplate:
        """Return the matcher of `pattern`, from the cache if it is there."""
        template: UriTemplate | None = self._compiled.get(pattern)
        if template is None:
            template = self._compiled[pattern] = UriTemplate(pattern)
        return template

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is a `UriTemplate`."""
        return type(matcher) is UriTemplate

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of the template, and make it if it is new."""
        path, rest = self._split(declared)
        return self._trie.declare(declared, path, rest, None if rest is None else texts(rest))

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the posting list, and the nodes that only it needed."""
        self._trie.remove(*self._split(postings.declared))

    def find(self, topic: str) -> list[SelectorPostings]:
        """Return the posting lists of the templates that match `topic`."""
        return self._trie.find(encoded(topic), self._roots, is_value, Subject)

    @property
    def verified(self) -> int:
        """The number of templates that were tested one by one so far."""
        return self._trie.verified

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return self._trie.size

    def posting_lists(self) -> Iterator[SelectorPostings]:
        """Iterate over all posting lists."""
        return self._trie.posting_lists()

    def _split(self, declared: str | Matcher) -> tuple[Path, Rest | None]:
        if isinstance(declared, str):
            segments = segments_of(declared)  # most templates have no more than these
            if segments is not None and len(segments) < MAX_DEPTH:
                return tuple(segments), None
        template = self.compile(declared) if isinstance(declared, str) else declared
        assert isinstance(template, UriTemplate)
        return split(template.parts, VALUE)

    def _check(self) -> None:
        self._trie._check()
