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

from skipfilter.topics.words import MQTT, Words, match_words, why_not_words


@dataclass(frozen=True, slots=True)
class Mqtt:
    """Matches the topics of the topic filter `pattern`.

    Raises PatternError if the filter is invalid.

    >>> Mqtt("alerts/#").match("alerts"), Mqtt("#").match("$SYS/uptime")
    (True, False)
    """

    pattern: str
    words: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", MQTT.parse_pattern(self.pattern))

    def match(self, topic: str) -> bool:
        """Return whether the filter matches all levels of `topic`.

        Takes O(levels of the topic).
        """
        return match_words(self.words, MQTT.parse_topic(topic), MQTT.hides(topic))

    def why_not(self, topic: str) -> str:
        """Return the first level that differs, or the number of levels.

        Takes O(levels of the topic).
        """
        return why_not_words(MQTT, self.words, topic)
