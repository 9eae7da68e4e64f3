"""Hints about requests that are valid, but hardly mean what was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from hub import Settings
from hub.protocol.hints import MAX_HINTS, publish_hints, subscribe_hints
from hub.protocol.requests import FORM, NDJSON
from tests.asgi import PATH, application, ask, bearer, classic_token

if TYPE_CHECKING:
    from typing import Any

LIMITS = Settings(dev=True)
CURRENT = Settings(dev=True, classic=False)


@pytest.mark.parametrize(
    ("query", "hints"),
    [
        ("topics=foo", ["parameter 'topics' is unknown, and ignored: did you mean 'topic'?"]),
        ("Match=a", ["parameter 'Match' is unknown, and ignored: did you mean 'match'?"]),
        ("lasteventId=a", ["parameter 'lasteventId' is unknown, and ignored: did you mean 'lastEventId'?"]),
        ("q=a&q=b", ["parameter 'q' is unknown, and ignored"]),
        ("topic=", ["the empty topic matches no update: leave it out, or use * for all topics"]),
        (
            "topic=https://example.com/{id",
            [
                "topic 'https://example.com/{id' is not a URI template, so it matches only this text: "
                "the expression at 20 is never closed"
            ],
        ),
        ("topic=a}&topic=b}", ["topic 'a}' is not a URI template, so it matches only this text: '}' at 1 may"]),
        ("topic=https://example.com/{id}&match=a&match_mqtt=b&last_event_id=c&lastEventID=d&Last-Event-ID=e", []),
        ("match=&match_uritemplate={id}&topic=*&topic=a+b", []),
        ("", []),
    ],
)
def test_a_hint_says_what_a_parameter_means(query: str, hints: list[str]) -> None:
    found = subscribe_hints(query.encode(), b"", LIMITS)
    assert [hint[: len(told)] for hint, told in zip(found, hints, strict=True)] == hints
    assert subscribe_hints(b"", query.encode(), LIMITS) == found


def test_parameters_of_a_dialect_that_is_off_are_unknown() -> None:
    assert subscribe_hints(b"match=a&lastEventId=b", b"", LIMITS) == []
    [hint] = subscribe_hints(b"match=a&lastEventId=b", b"", CURRENT)
    assert hint == "parameter 'lastEventId' is unknown, and ignored: did you mean 'lastEventID'?"


@pytest.mark.parametrize(
    ("body", "hints"),
    [
        ("topic=a&date=x", ["field 'date' is unknown, and ignored: did you mean 'data'?"]),
        *(
            (
                f"topic=a&private={value}",
                [
                    f"private is '{value}', and the update is private, because any value of this field makes it so; "
                    "leave the field out to publish to all"
                ],
            )
            for value in ("false", "0", "no", "off", "False")
        ),
        ("topic=a&data=x&private=on&id=b&type=c&retry=5", []),
        ("topic=a&private=", []),
        ("topic=a&%FF=x", ["field '\ufffd' is unknown, and ignored"]),
    ],
)
def test_a_hint_says_what_a_field_means(body: str, hints: list[str]) -> None:
    assert publish_hints(body.encode(), FORM) == hints


def test_a_hint_says_what_a_member_means() -> None:
    body = b'{"topic": "a", "date": "x"}\n\n{"topic": "a", "private": false, "date": 1, "kind": 2}\n'
    told = "member 'date' is unknown, and ignored: did you mean 'data'?"
    assert publish_hints(b'\x0b{"topic": "a", "date": "x"}\x0c\n', NDJSON) == [told]
    assert publish_hints(body, NDJSON) == [told, "member 'kind' is unknown, and ignored"]


def test_there_is_one_hint_for_a_name_and_a_maximum_for_a_request() -> None:
    assert len(subscribe_hints(b"topic=&topic=&topic={", b"", LIMITS)) == 1
    assert len(subscribe_hints("&".join(f"x{n}=1" for n in range(50)).encode(), b"", LIMITS)) == MAX_HINTS
    [hint] = publish_hints(b"x" * 5_000 + b"=1", FORM)
    assert len(hint) < 200


@pytest.mark.anyio
@pytest.mark.parametrize("dev", [True, False])
async def test_only_a_development_hub_logs_hints(dev: bool) -> None:
    own: dict[str, Any] = {"publisher_key": "!ChangeThisMercureHubJWTSecretKey!", "anonymous": True}
    token = bearer(classic_token(["*"]))
    async with application(dev=dev, **own) as app:
        with capture_logs() as lines:
            assert (await ask(app, "GET", f"{PATH}?topics=foo")).status == 400
            assert (await ask(app, "HEAD", f"{PATH}?topic=&x={'s' * 40}")).status == 200
            form = ("content-type", FORM)
            assert (await ask(app, "POST", PATH, [form, token], b"topic=a&date=x&private=false")).status == 200
    hints = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert [hint.split()[0] + " " + hint.split()[1] for hint in hints] == (
        ["parameter 'topics'", "the empty", "parameter 'x'", "field 'date'", "private is"] if dev else []
    )
    assert "ssss" not in repr(hints)
