"""Topics and patterns as words: the grammars of AMQP 0-9-1, MQTT 5 and NATS.

    grammar   separator   one word   any number of words
    AMQP      .           *          #   anywhere         stock.*.nyse   #.error   a.#.z
    MQTT      /           +          #   at the end       stock/+/nyse   alerts/#
    NATS      .           *          >   at the end, at   stock.*.nyse   alerts.>
                                         least one word

A pattern becomes a tuple of words and wildcards.  Patterns with the same meaning become
the same tuple: several MANY in a row become one, and ONE moves before MANY (`#.*`
becomes `*.#`, at least one word).

AMQP: the empty topic has no words.  MQTT: an empty level is a word, `a/#` matches `a`
itself, and a pattern that begins with a wildcard does not match a topic that begins
with `$`.  NATS: a topic with an empty word matches nothing, and a wildcard character
inside of a word is text.

Source: AMQP 0-9-1, 3.1.3.3; MQTT 5.0, 4.7; NATS, Subject-Based Messaging.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from skipfilter.errors import PatternError, not_text
from skipfilter.text import shown

MAX_WORDS: Final = 100
"""The maximum number of words of a pattern; each may cost a node of a trie."""


class Wildcard(Enum):
    """A wildcard in a parsed pattern."""

    ONE = 1
    MANY = 2


ONE: Final = Wildcard.ONE
MANY: Final = Wildcard.MANY

Words: TypeAlias = tuple[str | Wildcard, ...]
"""A parsed pattern."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The syntax of topics and patterns in one protocol.

    Raises ValueError if the separator is empty, two of the three signs are equal, or
    `hidden` is empty or has a separator in it.
    """

    name: str
    """The matcher type of a SelectorIndex with this grammar."""
    separator: str
    one: str
    """The wildcard for one word."""
    many: str
    """The wildcard for any number of words."""
    many_ends: bool
    """Whether MANY may only stand at the end of a pattern."""
    empty_words: bool
    """Whether a word may be empty; if not, the empty topic has no words."""
    hidden: str | None
    """The prefix of topics that patterns beginning with a wildcard do not match."""
    many_needs_a_word: bool = False
    """Whether MANY stands for at least one word."""
    signs_inside: bool = False
    """Whether a wildcard's sign inside of a word is text; if not, it is refused."""
    empty_words_match: bool = True
    """Whether wildcards match the empty words of a topic, if patterns cannot have such;
    if not, a topic with an empty word matches nothing.
    """
    foreign: frozenset[str] = frozenset()
    """Wildcards of other grammars, which are refused as words: they would only match
    themselves, and whoever writes one hardly means that."""

    def __post_init__(self) -> None:
        if not self.separator or len({self.separator, self.one, self.many}) < 3:
            signs = f"{self.separator!r}, {self.one!r} and {self.many!r}"
            raise ValueError(f"grammar {self.name!r}: {signs} must be three signs, and different")
        if self.hidden is not None and (not self.hidden or self.separator in self.hidden):
            raise ValueError(f"grammar {self.name!r}: {self.hidden!r} must be the beginning of a word")

    def parse_topic(self, topic: str) -> list[str]:
        """Return the words of `topic`.

        Takes O(|topic|).

        A topic that no pattern can spell, such as one with an empty word in AMQP, still
        has words, which wildcards match.  Raises TypeError if it is not a str.
        """
        if not isinstance(topic, str):
            raise not_text(topic)
        return self.read(topic)[0]

    def parse_pattern(self, pattern: str) -> Words:
        """Return the words of `pattern`.

        Takes O(|pattern|).  Raises PatternError if the grammar refuses it, and
        TypeError if it is not a str.
        """
        if not isinstance(pattern, str):
            raise not_text(pattern, "pattern")
        if "\x00" in pattern:
            raise PatternError(self.name, pattern, "it contains a NUL")
        if not pattern and (self.empty_words or not self.empty_words_match):
            raise PatternError(self.name, pattern, "it is empty")
        words = pattern.split(self.separator) if pattern else []
        if len(words) > MAX_WORDS:
            raise PatternError(self.name, pattern, f"it has more than {MAX_WORDS} words")
        if self.many_ends and self.many in words[:-1]:
            raise PatternError(self.name, pattern, f"{self.many} may only stand at the end")
        one, many = self.one, self.many
        if not self.foreign.isdisjoint(words):
            raise PatternError(self.name, pattern, self._why_foreign(words))
        # 1. Most patterns have no more than words and ONE.
        if many not in pattern and pattern.count(one) == words.count(one) and (self.empty_words or "" not in words):
            return tuple([ONE if word == one else word for word in words])
        # 2. All others.
        parsed: list[str | Wildcard] = []
        for word in words:
            if one not in word and many not in word and (word or self.empty_words):
                parsed.append(word)
            elif word in (one, many):
                if word == one or self.many_needs_a_word:
                    # ONE goes before a MANY: `#.*` means the same as `*.#`.
                    parsed.insert(len(parsed) - (parsed[-1:] == [MANY]), ONE)
                if word == many and parsed[-1:] != [MANY]:
                    parsed.append(MANY)
            elif not word:
                raise PatternError(self.name, pattern, "a word is empty")
            elif not self.signs_inside:
                raise PatternError(self.name, pattern, f"a wildcard must be a whole word, and {word!r} is not")
            else:
                parsed.append(word)
        if parsed == [MANY] and not self.empty_words_match:
            parsed = [ONE, MANY]  # a topic without words stands for one that matches nothing
        return tuple(parsed)

    def _why_foreign(self, words: list[str]) -> str:
        word = next(word for word in words if word in self.foreign)
        return f"{word!r} is no wildcard here: {self.one} is one word, and {self.many} any number of words"

    def read(self, topic: str) -> tuple[list[str], bool]:
        """Return the words of `topic`, a str, and whether it is hidden from patterns
        that begin with a wildcard.

        Takes O(|topic|).
        """
        words = topic.split(self.separator) if topic or self.empty_words else []
        if not self.empty_words_match and "" in words:
            words = []  # no pattern matches a topic without words
        return words, self.hidden is not None and topic.startswith(self.hidden)

    def hides(self, topic: str) -> bool:
        """Return whether `topic` is hidden from patterns that begin with a wildcard.

        Takes O(1).
        """
        return self.hidden is not None and topic.startswith(self.hidden)


AMQP: Final = Grammar("amqp", ".", "*", "#", many_ends=False, empty_words=False, hidden=None, foreign=frozenset("+>"))
MQTT: Final = Grammar("mqtt", "/", "+", "#", many_ends=True, empty_words=True, hidden="$", foreign=frozenset("*>"))
NATS: Final = Grammar(
    "nats",
    ".",
    "*",
    ">",
    many_ends=True,
    empty_words=False,
    hidden=None,
    many_needs_a_word=True,
    signs_inside=True,
    empty_words_match=False,
    foreign=frozenset("+#"),
)


def match_words(pattern: Words, words: list[str], hidden: bool = False) -> bool:
    """Return whether `pattern` matches all of `words`.

    `hidden` means that a pattern which begins with a wildcard does not match.  Takes
    O(|pattern| * |words|) at worst, without recursion: if a word does not fit, only the
    last MANY takes one more word, because an earlier MANY taking more cannot help.
    """
    if hidden and pattern and isinstance(pattern[0], Wildcard):
        return False
    at = taken = 0
    many = -1  # the index of the last MANY in the pattern
    resumed = 0  # how many words that MANY and everything before it have taken
    while taken < len(words):
        if at < len(pattern) and pattern[at] is MANY:
            many, resumed = at, taken
            at += 1
        elif at < len(pattern) and (pattern[at] is ONE or pattern[at] == words[taken]):
            at += 1
            taken += 1
        elif many >= 0:
            resumed += 1
            at, taken = many + 1, resumed
        else:
            return False
    return all(word is MANY for word in pattern[at:])


def why_not_words(grammar: Grammar, pattern: Words, topic: str) -> str:
    """Return why `topic` does not match: the first word that differs, if there
    is one.
    """
    if grammar.hides(topic) and pattern and isinstance(pattern[0], Wildcard):
        return f"a topic that begins with {grammar.hidden} is hidden from a wildcard at the beginning"
    words = grammar.parse_topic(topic)
    if not words and topic:
        return "one of its words is empty"
    for n, (wanted, word) in enumerate(zip(pattern, words, strict=False), 1):
        if wanted is MANY:
            return f"its words do not fit from number {n} on"
        if wanted is not ONE and wanted != word:
            return f"word {n} is {shown(word)}"
    return f"the number of its words is {len(words)}"
