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

from skipfilter.topics.matchers.word_pattern import WordPattern
from skipfilter.topics.words import AMQP, Grammar


@dataclass(frozen=True, slots=True)
class Amqp(WordPattern):
    """Matches the topics of the binding pattern `pattern`.

    Raises PatternError if the pattern is invalid.

    >>> Amqp("*.stock.#").match("usd.stock"), Amqp("*.stock.#").match("stock.nasdaq")
    (True, False)
    """

    grammar: Grammar = field(default=AMQP, init=False, repr=False, compare=False)
