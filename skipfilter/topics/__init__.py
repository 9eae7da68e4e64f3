"""Topics, and patterns that match them: which posting lists does a topic have?

    index          SelectorIndex: declared selectors, and the posting lists of a topic
      └► tables/       for each matcher type, all its patterns, found by a topic
           ├► matchers/    one pattern, compiled: does it match a topic?
           └► trie         patterns of words, walked together
    explanation    why a selector matches, or does not
    near_misses    with which small change it would
    coverage       whether one pattern matches all that another matches
    words          topics and patterns as words: the grammars of AMQP, MQTT and NATS
    positions      sets of positions in a text, for matchers that never backtrack

Belongs here: what the text of a pattern means, and how it is found.
Does not belong here: values and their bitmaps (`core`), and the content of messages
(`fields`).
"""

from __future__ import annotations

from skipfilter.topics.words import AMQP, MQTT, NATS, Grammar

__all__ = ["AMQP", "MQTT", "NATS", "Grammar"]
