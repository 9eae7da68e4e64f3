"""Patterns of any grammar match word by word, such as those of NATS.

    alerts.>         matches alerts.fire, alerts.fire.7; not alerts
    stock.*.nyse     matches stock.ibm.nyse
    a*b              matches a*b alone

A grammar says how words are separated, and what its wildcards mean; see
`skipfilter.topics.words`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skipfilter.topics.words import match_words, why_not_words

if TYPE_CHECKING:
    from skipfilter.topics.words import Grammar, Words


@dataclass(frozen=True, slots=True)
class WordPattern:
    """Matches the topics of the pattern `pattern` in a grammar.

    Raises PatternError if the pattern is invalid.

    >>> from skipfilter.topics import NATS
    >>> alerts = WordPattern("alerts.>", NATS)
    >>> alerts.match("alerts.fire"), alerts.match("alerts")
    (True, False)
    """

    pattern: str
    grammar: Grammar
    words: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.grammar.parse_pattern(self.pattern))

    def match(self, topic: str) -> bool:
        """Return whether the pattern matches all words of `topic`.

        Takes O(words of the pattern * words of the topic) at worst.
        """
        return match_words(self.words, self.grammar.parse_topic(topic), self.grammar.hides(topic))

    def why_not(self, topic: str) -> str:
        """Return the first word that differs, or the number of words.

        Costs as much as `match`.
        """
        return why_not_words(self.grammar, self.words, topic)
