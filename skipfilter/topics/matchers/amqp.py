"""AMQP binding patterns match word by word: `*` is one word, `#` any number of words.

    stock.*.nyse    matches stock.ibm.nyse
    #.error         matches error, web.error, web.7.error
    #               matches every topic, also the empty one

Words are separated by dots and compared exactly.  A pattern with an empty word, or with
a wildcard inside of a word, is refused; RabbitMQ takes such a wildcard as text.  A
topic may have empty words; wildcards match them.

Source: AMQP 0-9-1, 3.1.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skipfilter.topics.words import AMQP, Words, match_words, why_not_words


@dataclass(frozen=True, slots=True)
class Amqp:
    """Matches the topics of the binding pattern `pattern`.

    Raises PatternError if the pattern is invalid.

    >>> Amqp("*.stock.#").match("usd.stock"), Amqp("*.stock.#").match("stock.nasdaq")
    (True, False)
    """

    pattern: str
    words: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", AMQP.parse_pattern(self.pattern))

    def match(self, topic: str) -> bool:
        """Return whether the pattern matches all words of `topic`.

        Takes O(words of the pattern * words of the topic) at worst.
        """
        return match_words(self.words, AMQP.parse_topic(topic))

    def why_not(self, topic: str) -> str:
        """Return the first word that differs, or the number of words.

        Costs as much as `match`.
        """
        return why_not_words(AMQP, self.words, topic)
