"""MQTT topic filters match level by level: `+` is one level, `#` any number at the end.

    sport/+/player1    matches sport/tennis/player1
    sport/#            matches sport, sport/tennis, sport/tennis/player1
    +/+                matches /finance, because an empty level is a level

A filter that begins with a wildcard does not match a topic that begins with `$`.
Levels are compared exactly.  `$share` has no meaning here: it says how a server
delivers, not what a filter matches.  A topic with a `+` or `#` is matched like any
other; brokers refuse to publish it, and a router must do that itself.

Source: MQTT 5.0, 4.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skipfilter.topics.matchers.word_pattern import WordPattern
from skipfilter.topics.words import MQTT, Grammar


@dataclass(frozen=True, slots=True)
class Mqtt(WordPattern):
    """Matches the topics of the topic filter `pattern`.

    Raises PatternError if the filter is invalid.

    >>> Mqtt("alerts/#").match("alerts"), Mqtt("#").match("$SYS/uptime")
    (True, False)
    """

    grammar: Grammar = field(default=MQTT, init=False, repr=False, compare=False)
