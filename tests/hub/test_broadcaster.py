"""The source of the live set: what receivers subscribe to and what they may read, each for itself, both or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from hub.broadcaster import _Interest
from hub.topics import compile_topic_matcher
from skipfilter import SkipFilter

if TYPE_CHECKING:
    from hub.broadcaster import Key, Receiver
    from hub.topics import TopicMatcher


class Subscriber:
    def __init__(self, subscribed: list[str], granted: list[str]) -> None:
        self.subscribed = [compile_topic_matcher("topic", pattern) for pattern in subscribed]
        self.granted: list[TopicMatcher] = [compile_topic_matcher("topic", pattern) for pattern in granted]


class Connection:
    def __init__(self, subscribed: list[str], granted: list[str]) -> None:
        self.subscriber = Subscriber(subscribed, granted)


def receiver(*, subscribed: list[str], granted: list[str]) -> Receiver:
    return cast("Receiver", Connection(subscribed, granted))


def test_a_subscription_is_not_a_right_and_a_right_is_no_subscription() -> None:
    live: SkipFilter[Receiver, Key] = SkipFilter(_Interest())
    one = receiver(subscribed=["/books/{id}", "/{"], granted=["/films/1"])
    other = receiver(subscribed=["*"], granted=["/books/1"])
    live.add(one)
    live.add(other)
    assert live.match_any(("subscribed", "/books/1")) == [one, other]
    assert live.match_any(("granted", "/books/1")) == [other]
    assert live.match_any(("granted", "/films/1")) == [one]
    assert live.match_any(("subscribed", "/{")) == [one, other]
    live.remove(other)
    assert live.match_any(("subscribed", "/films/1"), ("granted", "/books/1")) == []
    live._check()


def test_who_cannot_be_taken_in_leaves_nothing_to_the_next() -> None:
    live: SkipFilter[Receiver, Key] = SkipFilter(_Interest())
    broken: Any = receiver(subscribed=["/secret"], granted=["/secret"])
    broken.subscriber.granted = [None]
    with pytest.raises(AttributeError):
        live.add(broken)
    next_one = receiver(subscribed=["/x"], granted=["/x"])
    live.add(next_one)
    assert live.match_any(("subscribed", "/secret"), ("granted", "/secret")) == []
    assert live.match_any(("subscribed", "/x")) == [next_one]
