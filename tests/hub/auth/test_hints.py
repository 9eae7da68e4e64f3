"""Hints about tokens: in `skipfilter token`, and in the log when a client connects."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import structlog.testing

from hub.auth.claims import read
from hub.auth.grant import DETAIL_TYPE, CompiledGrant
from hub.auth.hints import MAX_HINTS, grant_hint, token_hints
from hub.development import DEVELOPMENT_KEY
from tests.asgi import application, bearer, follow
from tests.hub.commands import run
from tests.hub.signing import sign
from tests.hub.world import compiled

CURRENT = {"typ": "at+jwt"}
GRANT = {"mercure": {"publish": ["*"]}}
NOTHING = "it grants nothing: neither to publish, nor to read private updates"


def hints(claims: dict[str, Any], header: dict[str, Any] | None = None, granted: Any = (("topic", "a"),)) -> list[str]:
    return token_hints(read(sign(claims, header=header)), granted)


@pytest.mark.parametrize(
    ("claims", "header", "expected"),
    [
        (GRANT, {}, []),
        (GRANT | {"exp": 253_402_300_799, "role": "x", "scope": "a", "roles": [], "sub": "a", "jti": "b"}, {}, []),
        (
            GRANT | {"exp": 253_402_300_800},
            {},
            ["exp 253402300800 is after the year 9999: `exp` counts seconds, not milliseconds"],
        ),
        (
            GRANT | {"exp": 10**400},
            {},
            [f"exp 1{'0' * 79}… is after the year 9999: `exp` counts seconds, not milliseconds"],
        ),
        (GRANT | {"exp": True}, {}, []),
        (GRANT | {"Mercure": 1}, {}, ["claim 'Mercure' is unknown, and ignored: did you mean 'mercure'?"]),
        (
            GRANT | {"authorizationDetails": 1},
            CURRENT,
            ["claim 'authorizationDetails' is unknown, and ignored: did you mean 'authorization_details'?"],
        ),
        (
            {"mercure": {"publish": ["*"], "subcribe": ["*"]}},
            {},
            ["member 'subcribe' of the mercure claim is unknown, and ignored: did you mean 'subscribe'?"],
        ),
        ({"mercure": {"publish": ["*"], "other": 1}}, {}, []),
        (
            {"authorization_details": [{"type": DETAIL_TYPE, "actions": ["read"], "topics": [], "payloads": {}}]},
            CURRENT,
            [
                "member 'payloads' of a detail is unknown, and ignored: did you mean 'payload'?",
                "the action 'read' is ignored: there are 'publish' and 'subscribe'",
            ],
        ),
        (
            {"authorization_details": [{"type": "https://mercure.rocks/", "actions": []}, {"type": "other"}, 1]},
            CURRENT,
            [f"a detail has the type \"https://mercure.rocks/\", and is ignored: it must be '{DETAIL_TYPE}'"],
        ),
        ({"authorization_details": 1}, CURRENT, []),
        ({"mercure": 1}, {}, []),
    ],
)
def test_a_hint_names_the_mistake(claims: dict[str, Any], header: dict[str, Any], expected: list[str]) -> None:
    assert hints(claims, header) == expected


def test_a_token_that_grants_nothing_or_takes_braces_for_text_has_a_hint() -> None:
    assert hints(GRANT, granted=()) == [NOTHING]
    assert hints(GRANT, granted=[("exact", "/a/{b}"), ("exact", "/c/{d}")]) == [
        "the pattern '/a/{b}' is of the type exact, which takes braces as text: see uritemplate"
    ]
    assert hints(GRANT, granted=[("exact", "}{"), ("topic", "/a/{b}"), ("uritemplate", "/a/{b}")]) == []


def test_the_number_of_hints_is_bounded() -> None:
    assert len(hints({f"mercure{n}": n for n in range(200)}, granted=())) == MAX_HINTS


@pytest.mark.parametrize(
    ("granted", "wanted", "meets"),
    [
        (["/users/1"], [("exact", "/users/1")], True),
        ([("exact", "/user/1")], [("exact", "/users/1")], False),
        ([("exact", "/users/1")], ["/users/{id}"], True),
        ([("exact", "/user/1")], ["/users/{id}"], False),
        (["/user/{id}"], ["/users/{id}"], False),
        (["/users/42/{folder}"], ["/users/{id}/mail"], True),
        ([("mqtt", "users/#")], [("uritemplate", "users/{id}")], True),
        ([("mqtt", "a/+")], [("amqp", "b.*")], False),
        (["*"], [("exact", "a")], True),
        ([("exact", "a")], ["*"], True),
        ([("urlpattern", "https://e.com/:id")], [("exact", "a")], True),
        ([("exact", "b"), ("exact", "a")], [("exact", "c"), ("exact", "a")], True),
    ],
)
def test_a_grant_that_covers_none_of_the_matchers_has_a_hint(granted: Any, wanted: Any, meets: bool) -> None:
    grant = CompiledGrant(subscribe=tuple(compiled(granted)))
    assert (grant_hint(grant, compiled(wanted)) is None) == meets


def test_a_client_without_a_token_or_a_grant_to_read_has_no_such_hint() -> None:
    matchers = compiled(["a"])
    assert grant_hint(CompiledGrant(), matchers) is None
    assert grant_hint(CompiledGrant(publish=tuple(matchers)), matchers) is None
    text = grant_hint(CompiledGrant(subscribe=tuple(compiled(["b", "c"]))), matchers)
    assert text == (
        "it covers none of the matchers, so no private update arrives: the client wants 'a', and may read 'b' and 1 more"
    )


@pytest.mark.anyio
async def test_the_log_has_the_hints_when_a_client_connects(caplog: pytest.LogCaptureFixture) -> None:
    keys = {"publisher_key": DEVELOPMENT_KEY, "subscriber_key": DEVELOPMENT_KEY}
    good = sign({"mercure": {"subscribe": ["a"]}, "exp": 4_000_000_000})
    none = sign({"mercur": {"subscribe": ["a"]}, "exp": 4_000_000_000})
    other = sign({"mercure": {"subscribe": ["b"]}, "exp": 4_000_000_000})
    for chosen, level in (({}, "warning"), ({"dev": False, **keys}, "debug")):
        caplog.set_level(logging.DEBUG)
        async with application(**chosen) as app:
            with structlog.testing.capture_logs() as lines:
                for token in (good, none, other):
                    async with follow(app, ("match", "a"), headers=[bearer(token)]) as stream:
                        assert stream.status == 200
        found = [(line["event"], line["log_level"]) for line in lines if "is valid, but" in line["event"]]
        assert found == [
            ("a token or session is valid, but claim 'mercur' is unknown, and ignored: did you mean 'mercure'?", level),
            (f"a token or session is valid, but {NOTHING}", level),
            (
                "a token or session is valid, but it covers none of the matchers, so no private update arrives: "
                "the client wants 'a', and may read 'b'",
                level,
            ),
        ]


def test_the_commands_warn() -> None:
    ended = run("token", "--dev")
    assert ended.returncode == 0
    assert ended.stderr == f"skipfilter: warning: {NOTHING}\n"
    ended = run("token", "--dev", "--publish", "/a/{b}")
    assert ended.stderr == (
        "skipfilter: warning: the pattern '/a/{b}' is of the type exact, which takes braces as text: see uritemplate\n"
    )
    assert run("token", "--dev", "--classic", "--publish", "/a/{b}").stderr == ""
    wrong = sign({"mercur": {"subscribe": ["a"]}, "exp": 4_000_000_000_000})
    ended = run("token", "decode", "--dev", wrong)
    assert ended.returncode == 0
    assert [line for line in ended.stdout.splitlines() if line.startswith("Warning")] == [
        "Warning    exp 4000000000000 is after the year 9999: `exp` counts seconds, not milliseconds",
        "Warning    claim 'mercur' is unknown, and ignored: did you mean 'mercure'?",
        f"Warning    {NOTHING}",
    ]
    assert json.loads(run("token", "decode", "--dev", "--json", wrong).stdout)["hints"][-1] == NOTHING
