"""Update: what nobody may publish."""

from __future__ import annotations

import pytest

from hub.errors import InvalidRequest
from hub.updates import Update, check_update, new_id

HUB = "/.well-known/mercure"


@pytest.mark.parametrize(
    "update",
    [
        Update(("a",)),
        Update(("https://example.com/1", "urn:b"), "data", private=True, id="urn:x", type="message", retry=0),
        Update(("a",), id="é 1", type="é"),
    ],
)
def test_what_may_be_published(update: Update) -> None:
    check_update(update, path=HUB)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (Update(()), 'missing "topic"'),  # N41
        (Update(("a\u200b",)), r"topic .* U\+200B"),  # N43
        (Update(("a", "/.well-known/mercure/x")), "topic '/.well-known/mercure/x' is reserved"),  # N44, an alternate
        (Update(("",)), "topic '' is reserved"),
        (Update(("a", "*")), r"topic '\*' is reserved"),  # N48
        (Update(("a",), id="a\nb"), r"id .* U\+000A"),  # N51
        (Update(("a",), id="#a"), "id '#a' is reserved"),
        (Update(("a",), id="earliest"), "id 'earliest' is reserved"),
        (Update(("a",), type="a\rb"), r"type .* U\+000D"),  # N52
        (Update(("a",), type="mercure"), "type 'mercure' is reserved"),
    ],
)
def test_what_may_not(update: Update, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_update(update, path=HUB)


def test_n51_ids_are_random_iris() -> None:
    assert len({new_id() for _ in range(100)}) == 100
    assert new_id().startswith("urn:uuid:")


def test_a_long_topic_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_update(Update(("\0" + "x" * 10_000,)), path=HUB)
    assert len(str(caught.value)) < 300
