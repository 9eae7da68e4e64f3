"""A topic matches an AMQP binding pattern word by word: `*` is one word, `#` any number, none too.

    stock.*.nyse    matches stock.ibm.nyse
    #.error         matches error, web.error, web.7.error
    #               matches everything, the empty topic too

Words are separated by dots, and compared as they are.  A pattern with an empty word is refused, and so is one
with a wildcard inside a word; a topic with an empty word is not, and wildcards match that word.

Source: AMQP 0-9-1, 3.1.3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skipfilter.words import AMQP, Words, match_words, why_not_words


@dataclass(frozen=True, slots=True)
class Amqp:
    """Matches the topics of the binding pattern `pattern`.  Raises PatternError where it is none.

    >>> Amqp("*.stock.#").match("usd.stock"), Amqp("*.stock.#").match("stock.nasdaq")
    (True, False)
    """

    pattern: str
    words: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", AMQP.parse_pattern(self.pattern))

    def match(self, topic: str) -> bool:
        return match_words(self.words, AMQP.parse_topic(topic))

    def why_not(self, topic: str) -> str:
        return why_not_words(AMQP, self.words, topic)
