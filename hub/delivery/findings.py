"""Findings: why a subscriber receives an update or not, matcher by matcher.

    a private update of /users/42
        matchers   uritemplate /users/{id}    matches
        grants     exact /user/42             does not; it would with 'users' for 'user'

Whether it receives the update is the question of `audience`, and is not answered here.

Belongs here: what a person wants to know of a matcher.  Does not belong here: any rule
of matching, and positions in the history.
"""

from __future__ import annotations

from functools import partial
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final, NamedTuple

from skipfilter import compile_matcher
from skipfilter.topics.explanation import explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub.protocol.topics import TopicMatcher
    from hub.turns import Pace

MAX_FINDINGS: Final = 10
"""Findings about matchers, and about grants, at most; those that match come first."""
MAX_LOOKED: Final = 100
"""Matchers of all subscribers that are tried for a near miss, at most: those most like
a topic."""
MAX_TOPICS: Final = 5
"""Topics of an update with which a matcher that matches none is compared, at most."""


class Finding(NamedTuple):
    """Whether one matcher matches an update, and why."""

    type: str
    pattern: str
    topic: str
    """The topic of the update that it matches or, if it matches none, nearly does."""
    reason: str | None
    """Why it does not match; None if it does."""
    near_miss: str | None
    """With which small change it would; see `skipfilter.Explanation`."""


async def findings(
    matchers: Sequence[TopicMatcher], topics: Sequence[str], pace: Pace, *, base_url: str
) -> list[Finding]:
    """Return up to MAX_FINDINGS findings about matchers and an update with some topics.

    Those that match come first, then near misses, then those that are like a topic.
    Takes up to MAX_FINDINGS * MAX_TOPICS explanations, of some 0.2 ms, and lets other
    tasks run at the `pace`.
    """
    found: list[Finding] = []
    others: list[tuple[int, TopicMatcher]] = []
    for matcher in matchers:
        if pace.is_over():
            await pace.pause()
        topic = next((topic for topic in topics if matcher.match(topic)), None)
        if topic is None:
            alike = max(_alike(matcher.pattern, topic) for topic in topics)
            others.append((-alike, matcher))
        elif len(found) < MAX_FINDINGS:
            found.append(Finding(matcher.type, matcher.pattern, topic, None, None))
    others.sort(key=lambda one: one[0])
    missed = []
    for _, matcher in others[: MAX_FINDINGS - len(found)]:
        missed.append(await _why_not(matcher, topics[:MAX_TOPICS], pace, base_url))
    return found + sorted(missed, key=lambda finding: finding.near_miss is None)


async def near_misses(
    matchers: Sequence[TopicMatcher], topics: Sequence[str], pace: Pace, *, base_url: str, most: int
) -> list[TopicMatcher]:
    """Return up to `most` matchers that would match a topic with a small change.

    None of them matches.  Takes a comparison for each, of some 7 µs, and up to
    MAX_LOOKED * MAX_TOPICS explanations; lets other tasks run at the `pace`.
    """
    likely: list[tuple[int, int]] = []  # a heap
    for n, matcher in enumerate(matchers):
        if pace.is_over():
            await pace.pause()
        alike = max(_alike(matcher.pattern, topic) for topic in topics[:MAX_TOPICS])
        push = heappush if len(likely) < MAX_LOOKED else heappushpop
        push(likely, (alike, n))
    found: list[TopicMatcher] = []
    for _, n in sorted(likely, reverse=True):
        if len(found) == most:
            break
        finding = await _why_not(matchers[n], topics[:MAX_TOPICS], pace, base_url)
        if finding.near_miss is not None:
            found.append(matchers[n])
    return found


def _alike(pattern: str, topic: str) -> int:
    """Return with how many equal characters both begin and end."""
    most = min(len(pattern), len(topic))
    first = next((n for n in range(most) if pattern[n] != topic[n]), most)
    return first + next((n for n in range(most - first) if pattern[-1 - n] != topic[-1 - n]), most - first)


async def _why_not(matcher: TopicMatcher, topics: Sequence[str], pace: Pace, base_url: str) -> Finding:
    """Return why a matcher matches none of some topics: of those, the nearest one."""
    found: list[Finding] = []
    for topic in topics:
        for type, one in reversed(matcher.selectors):  # the template of a classic topic says more than its text
            if pace.is_over():
                await pace.pause()
            why = explain((type, matcher.pattern), one, topic, partial(compile_matcher, base_url=base_url))
            found.append(Finding(matcher.type, matcher.pattern, topic, why.reason, why.near_miss))
            if why.near_miss is not None:
                return found[-1]
    return found[0]
