"""Patterns of words, such as those of AMQP, in a trie (see `skipfilter.topics.trie`).

A topic costs O(words * nodes that its beginning reaches).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from skipfilter.topics.matchers import Amqp, Mqtt, WordPattern
from skipfilter.topics.tables.base import SelectorPostings
from skipfilter.topics.trie import Trie, find_all, find_simple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from skipfilter.topics.matchers import Matcher
    from skipfilter.topics.words import Grammar, Words

_OURS: Final = (Amqp, Mqtt, WordPattern)


class WordTable:
    """The patterns of one grammar; `compile` makes the matcher of one."""

    def __init__(self, grammar: Grammar, compile: Callable[[str], WordPattern] | None = None) -> None:
        self.matcher_type = grammar.name
        self.verified = 0
        self.compile: Callable[[str], Matcher] = compile or partial(WordPattern, grammar=grammar)
        self._grammar = grammar
        self._trie: Trie[str, SelectorPostings] = Trie()

    def accepts(self, matcher: Matcher) -> bool:
        """Return whether it is a matcher of this grammar."""
        # A subclass of the caller's own may match something else.
        return isinstance(matcher, WordPattern) and type(matcher) in _OURS and matcher.grammar == self._grammar

    def declare(self, declared: str | Matcher) -> SelectorPostings:
        """Return the posting list of the pattern, and make it if it is new."""
        node = self._trie.node(self._words(declared))
        if node.value is None:
            node.value = SelectorPostings(self, declared)
        return node.value

    def remove(self, postings: SelectorPostings) -> None:
        """Forget the pattern, and the nodes that only it needed."""
        words = self._words(postings.declared)
        self._trie.node(words).value = None
        self._trie.prune(words)

    def find(self, topic: str) -> list[SelectorPostings]:
        """Return the posting lists of the patterns that match `topic`."""
        trie = self._trie
        find = find_all if trie.inner_manys else find_simple  # as Trie.find, without a call
        words, hidden = self._grammar.read(topic)
        return find(trie.root, words, hidden)

    @property
    def size(self) -> int:
        """About how many bytes the table takes, without the posting lists."""
        return self._trie.size

    def posting_lists(self) -> Iterator[SelectorPostings]:
        """Iterate over all posting lists."""
        if self._trie.root.value is not None:
            yield self._trie.root.value
        for _, node in self._trie.nodes():
            if node.value is not None:
                yield node.value

    def _words(self, declared: str | Matcher) -> Words:
        if isinstance(declared, str):
            return self._grammar.parse_pattern(declared)
        assert isinstance(declared, WordPattern)
        return declared.words

    def _check(self) -> None:
        self._trie._check()
        for postings in self.posting_lists():
            assert self._trie.node(self._words(postings.declared)).value is postings
