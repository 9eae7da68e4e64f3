"""Coverage of word patterns: does every topic of one pattern also match another one?

    general     special     covers
    stock.*     stock.ibm   yes
    #.nyse      a.*.nyse    yes
    *.#         #.a         yes: both need at least one word
    a.*.#       a.#         no: the topic a

The general pattern reads the special one word by word.  Its state is the set of its
positions that the words so far lead to, as bits; bit n is set if its first n words
and wildcards may have been used up.  Two observations keep this exact and cheap:

- A `*` of the special pattern stands for each word.  A word that no pattern has is the
  hardest to match, because only wildcards match it.  So one such word is enough.
- A `#` of the special pattern stands for any number of such words.  It is enough to try
  none and very many.  If both fit, the general pattern has a `#` of its own next to the
  place, or can move one there, so each number between fits too.

After very many words, the state has the positions of all `#` reached so far, and those
that only `*` separate from them.  So these states are subsets of each other, and the
smallest decides.

Source: P. Hintjens, High-speed message matching (iMatix), for subsumption; the set of
positions is K. Thompson's, Regular Expression Search Algorithm, 1968.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipfilter.topics.words import MANY, ONE, Wildcard

if TYPE_CHECKING:
    from skipfilter.topics.words import Grammar, Words


def covers(grammar: Grammar, general: Words, special: Words) -> bool:
    """Return whether every topic that matches `special` also matches `general`.

    Both are patterns that `grammar` has parsed.  Takes O(words of `special` * its `#`)
    operations on integers of a bit for each word of `general`, and for each of its `#`
    as many again as `general` has words.
    """
    if special == (MANY,) and grammar.empty_words:
        special = (ONE, MANY)  # each topic has a word
    # A hidden topic is one of a literal beginning: `special` says which, or has none.
    literal = special[0] if special and isinstance(special[0], str) else None
    if literal is not None and general and isinstance(general[0], Wildcard) and grammar.hides(literal):
        return False
    positions = _Positions(general)
    states = {positions.begin()}
    for word in special:
        if word is MANY:
            states.add(min(map(positions.after_many, states)))
        else:
            states = {positions.after(state, word) for state in states}
    return all(state >> len(general) & 1 for state in states)


class _Positions:
    """The transitions of a pattern: from a set of positions, as bits, to the next."""

    def __init__(self, pattern: Words) -> None:
        self._size = len(pattern)
        self._many = 0  # the positions before a `#`
        self._words: dict[object, int] = {ONE: 0}  # the positions before each word, and before `*`
        for position, word in enumerate(pattern):
            if word is MANY:
                self._many |= 1 << position
            else:
                self._words[word] = self._words.get(word, 0) | 1 << position

    def begin(self) -> int:
        """Return the positions before the first word."""
        return self._closed(1)

    def after(self, state: int, word: object) -> int:
        """Return the positions after `word`; after any other word if it is ONE."""
        ones = self._words[ONE]
        taking = ones | self._words.get(word, 0)
        return self._closed((state & taking) << 1 | state & self._many)

    def after_many(self, state: int) -> int:
        """Return the positions after very many words that the pattern does not name."""
        for _ in range(self._size + 1):
            state = self.after(state, ONE)
        return state

    def _closed(self, state: int) -> int:
        """Return `state` with the positions after each `#`, which may match no word."""
        return state | (state & self._many) << 1
