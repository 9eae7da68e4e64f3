"""Seeded workloads: every run has the same values and topics.

templates, topics               one URI template in a hundred matches a topic
listeners, audience             exact topics with a given number of subscribers
watchers, watched               three URI templates for each subscriber
word_patterns, word_topics      AMQP patterns and topics of random words
SELECTORS, new_topics           families of URI templates, and topics always new
members, private_updates        a hub's subscribers, and its private updates
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipfilter import UriTemplate

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipfilter import Selector

SEED = 20_261_121
SHELVES = 100
"""The number of shelves of `templates` and `topics`.

Each topic is on one shelf, so one template in a hundred matches it.
"""


def templates(count: int) -> list[UriTemplate]:
    """Return `count` different templates, spread over all shelves, in random order."""
    made = [UriTemplate(f"https://example.com/{n % SHELVES}/{{item}}{{?reader{n}}}") for n in range(count)]
    random.Random(SEED).shuffle(made)
    return made


def topics(count: int) -> list[str]:
    """Return `count` different topics, each on a random shelf."""
    chance = random.Random(SEED + 1)
    return [f"https://example.com/{chance.randrange(SHELVES)}/{n}" for n in range(count)]


def sentences(count: int) -> list[str]:
    """Return `count` different strings in random order, which are compared by `==`."""
    made = [f"https://example.com/sentences/{n}" for n in range(count)]
    random.Random(SEED + 2).shuffle(made)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A subscriber to exact topics."""

    topics: tuple[str, ...]


def audience(size: int) -> str:
    """Return the topic that exactly `size` of `listeners` subscribe to."""
    return f"https://example.com/audiences/{size}"


def listeners(count: int, *sizes: int) -> list[Listener]:
    """Return `count` listeners.

    For each of `sizes`, that many random listeners subscribe to `audience(size)`.  All
    listeners also subscribe to one other topic.
    """
    chance = random.Random(SEED + 3)
    wanted: dict[int, tuple[str, ...]] = {}
    for size in sizes:
        for n in chance.sample(range(count), size):
            wanted[n] = (*wanted.get(n, ()), audience(size))
    silence = ("https://example.com/silence",)
    return [Listener((*silence, *wanted[n]) if n in wanted else silence) for n in range(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """A subscriber with three URI templates, as text and compiled."""

    selectors: tuple[str, str, str]
    templates: tuple[UriTemplate, UriTemplate, UriTemplate]


def watchers(count: int, shelves: int) -> list[Watcher]:
    """Return `count` subscribers in random order.

    Each has the templates of three neighbouring shelves out of `shelves`, so a topic
    matches 3 / `shelves` of the subscribers.  Equal selectors are one object.
    """
    texts = [f"https://example.com/{shelf}/{{item}}" for shelf in range(shelves)]
    compiled = [UriTemplate(text) for text in texts]
    made = []
    for n in range(count):
        first = n if count >= shelves else n * shelves // count
        a, b, c = ((first + step) % shelves for step in range(3))
        made.append(Watcher((texts[a], texts[b], texts[c]), (compiled[a], compiled[b], compiled[c])))
    random.Random(SEED + 4).shuffle(made)
    return made


def watched(watchers: list[Watcher], count: int) -> list[str]:
    """Return `count` different topics; at least one of `watchers` matches each."""
    chance = random.Random(SEED + 5)
    return [chance.choice(chance.choice(watchers).selectors).replace("{item}", str(n)) for n in range(count)]


def word_patterns(count: int, *, words: int, vocabulary: int, one: float = 0.0, many: float = 0.0) -> list[str]:
    """Return `count` AMQP patterns of random words; some may be equal.

    A pattern has `words` words out of a vocabulary of `vocabulary`.  A word is `*` with
    probability `one`.  With probability `many`, one word of a pattern is then replaced
    by `#`.
    """
    chance = random.Random(SEED + 6)
    made = []
    for _ in range(count):
        pattern = ["*" if chance.random() < one else f"w{chance.randrange(vocabulary)}" for _ in range(words)]
        if chance.random() < many:
            pattern[chance.randrange(words)] = "#"
        made.append(".".join(pattern))
    return made


def word_topics(patterns: list[str], count: int, vocabulary: int) -> list[str]:
    """Return `count` topics, each of which matches at least one of `patterns`.

    A topic is a random pattern with random words instead of wildcards: one for a `*`,
    and up to two for a `#`.
    """
    chance = random.Random(SEED + 7)

    def written(word: str) -> list[str]:
        """Return the words of a topic for a word or wildcard of its pattern."""
        some = 1 if word == "*" else chance.randrange(3)
        return [f"w{chance.randrange(vocabulary)}" for _ in range(some)] if word in "*#" else [word]

    return [".".join(w for word in chance.choice(patterns).split(".") for w in written(word)) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Selectors:
    """A family of URI templates, and for each template the topics that it matches."""

    template: Callable[[int], str]
    """Return template number n."""
    topic: Callable[[int, int], str]
    """Return a topic that template number n matches; a new x makes a new topic."""


def _mixed_template(n: int) -> str:
    """Return template number `n` of the realistic mix, which has six kinds."""
    kind = n % 10
    if kind < 4:
        return f"/t{n}/books/{{id}}"
    if kind < 6:
        return f"/t{n}/books/{{id}}/pages/{{page}}"
    mixed = (
        f"/t{n}/search{{?q,page}}",
        f"/t{n}/files{{/path*}}",
        f"/t{n}/{{+rest}}",
        f"/{{tenant}}/kind{n}/{{id}}.json",
    )
    return mixed[kind - 6]


def _mixed_topic(n: int, x: int) -> str:
    """Return a topic that template number `n` of the realistic mix matches."""
    kind = n % 10
    if kind < 4:
        return f"/t{n}/books/{x}"
    if kind < 6:
        return f"/t{n}/books/{x}/pages/{x % 100}"
    return (f"/t{n}/search?q={x}&page=2", f"/t{n}/files/a/{x}", f"/t{n}/some/{x}", f"/tenant{x}/kind{n}/{x}.json")[
        kind - 6
    ]


SELECTORS = {
    "one user each": Selectors(lambda n: f"/users/{n}/{{resource}}/{{id}}", lambda n, x: f"/users/{n}/orders/{x}"),
    "realistic mix": Selectors(_mixed_template, _mixed_topic),
    "no fixed start": Selectors(lambda n: f"{{+base}}/x{n}", lambda n, x: f"/a/{x}/x{n}"),
    "inside a segment": Selectors(lambda n: f"/{{x}}-{n}", lambda n, x: f"/v{x}-{n}"),
    "fixed text in the middle": Selectors(
        lambda n: f"{{+a}}/common/y{n}/{{+b}}", lambda n, x: f"/q{x}/common/y{n}/{x}"
    ),
}
"""The families by name.

The first two are usual templates.  The others are meant to make a hub slow.
"""


def new_topics(family: Selectors, selectors: int, count: int) -> list[str]:
    """Return `count` different topics for the first `selectors` templates of `family`.

    Each topic matches a random one of these templates.
    """
    chance = random.Random(SEED + 6)
    return [family.topic(chance.randrange(selectors), x) for x in chance.sample(range(10**8, 10**9), count)]


SHARED = 50
"""The number of different templates that `members` share."""


def members(count: int) -> list[tuple[Selector, ...]]:
    """Return the selectors of `count` subscribers.

    Each has an exact topic, a template of its own, and one of SHARED templates.
    """
    return [
        (
            ("exact", f"https://example.com/users/{n}"),
            ("uritemplate", f"https://example.com/users/{n}/{{resource}}/{{id}}"),
            ("uritemplate", f"https://example.com/shelves/{n % SHARED}/{{item}}"),
        )
        for n in range(count)
    ]


def private_updates(members: int, count: int) -> list[tuple[str, ...]]:
    """Return the topics of `count` updates; all topics are new.

    One of `members` members subscribes to the first topic, and none to the second.  One
    update in ten has a third topic; the members with one of the shared templates
    subscribe to it.
    """
    chance = random.Random(SEED + 7)
    made: list[tuple[str, ...]] = []
    for x in chance.sample(range(10**8, 10**9), count):
        topics = (
            f"https://example.com/users/{chance.randrange(members)}/orders/{x}",
            f"https://example.com/orders/{x}",
        )
        shared = (f"https://example.com/shelves/{chance.randrange(SHARED)}/{x}",) if len(made) % 10 == 0 else ()
        made.append((*topics, *shared))
    return made
