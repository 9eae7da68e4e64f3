"""Seeded workloads: the same values and topics in every run."""

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
"""A topic of `topics` is on one shelf, so one template in a hundred matches it."""


def templates(count: int) -> list[UriTemplate]:
    """`count` different templates, spread over SHELVES shelves, in a random order."""
    made = [UriTemplate(f"https://example.com/{n % SHELVES}/{{item}}{{?reader{n}}}") for n in range(count)]
    random.Random(SEED).shuffle(made)
    return made


def topics(count: int) -> list[str]:
    """`count` different topics."""
    chance = random.Random(SEED + 1)
    return [f"https://example.com/{chance.randrange(SHELVES)}/{n}" for n in range(count)]


def sentences(count: int) -> list[str]:
    """`count` different texts, to be compared with `==`, in a random order."""
    made = [f"https://example.com/sentences/{n}" for n in range(count)]
    random.Random(SEED + 2).shuffle(made)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """A subscriber that wants whole topics."""

    topics: tuple[str, ...]


def audience(size: int) -> str:
    """The topic that exactly `size` of `listeners` want."""
    return f"https://example.com/audiences/{size}"


def listeners(count: int, *sizes: int) -> list[Listener]:
    """`count` listeners; for each of `sizes`, that many of them, at random, want `audience(size)`."""
    chance = random.Random(SEED + 3)
    wanted: dict[int, tuple[str, ...]] = {}
    for size in sizes:
        for n in chance.sample(range(count), size):
            wanted[n] = (*wanted.get(n, ()), audience(size))
    silence = ("https://example.com/silence",)
    return [Listener((*silence, *wanted[n]) if n in wanted else silence) for n in range(count)]


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """A subscriber with three topic selectors: their texts, and the same compiled."""

    selectors: tuple[str, str, str]
    templates: tuple[UriTemplate, UriTemplate, UriTemplate]


def watchers(count: int, shelves: int) -> list[Watcher]:
    """`count` subscribers in a random order, each with the templates of three neighbouring shelves of `shelves`.

    So three in `shelves` of them match a topic, evenly.  Equal selectors are one object.
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
    """`count` different topics; at least one of `watchers` matches each."""
    chance = random.Random(SEED + 5)
    return [chance.choice(chance.choice(watchers).selectors).replace("{item}", str(n)) for n in range(count)]


def word_patterns(count: int, *, words: int, vocabulary: int, one: float = 0.0, many: float = 0.0) -> list[str]:
    """`count` AMQP patterns of `words` words out of `vocabulary`, not all different.

    A word is `*` in the share `one` of all words; in the share `many` of the patterns a word, any of them, is `#`.
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
    """`count` topics; each is a pattern of `patterns` with words for its wildcards, up to two of them for a `#`."""
    chance = random.Random(SEED + 7)

    def written(word: str) -> list[str]:
        some = 1 if word == "*" else chance.randrange(3)
        return [f"w{chance.randrange(vocabulary)}" for _ in range(some)] if word in "*#" else [word]

    return [".".join(w for word in chance.choice(patterns).split(".") for w in written(word)) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Selectors:
    """A family of URI templates, and the topics that each matches one of."""

    template: Callable[[int], str]
    topic: Callable[[int, int], str]
    """The topic of template number n that has a second number in it, which makes it a new one."""


def _mixed_template(n: int) -> str:
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
"""The first two as people write them, the others as somebody would who wants a hub to be slow."""


def new_topics(family: Selectors, selectors: int, count: int) -> list[str]:
    """`count` different topics, each of one of the first `selectors` templates."""
    chance = random.Random(SEED + 6)
    return [family.topic(chance.randrange(selectors), x) for x in chance.sample(range(10**8, 10**9), count)]


SHARED = 50
"""Templates that `members` share."""


def members(count: int) -> list[tuple[Selector, ...]]:
    """What each of `count` subscribers declares: a topic and a template of its own, and one of SHARED templates."""
    return [
        (
            ("exact", f"https://example.com/users/{n}"),
            ("uritemplate", f"https://example.com/users/{n}/{{resource}}/{{id}}"),
            ("uritemplate", f"https://example.com/shelves/{n % SHARED}/{{item}}"),
        )
        for n in range(count)
    ]


def private_updates(members: int, count: int) -> list[tuple[str, ...]]:
    """The topics of `count` updates, all new: one that one member wants and one that nobody does.

    One update in ten has a third, that the members wish for who share a template.
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
