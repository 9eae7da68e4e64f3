"""`skipfilter token decode`, and the reason that a client is told in development."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from hub.auth.signing import sign_classic_token, sign_token
from hub.development import DEVELOPMENT_ISSUER, DEVELOPMENT_KEY, DEVELOPMENT_TOKEN, DEVELOPMENT_URL
from tests.hub.commands import run
from tests.hub.signing import sign
from tests.wire import FORM, PATH, bearer, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import HubProcess

KEY = "a key of the operator, which is long enough"


def current(**chosen: Any) -> str:
    options: dict[str, Any] = {
        "issuer": DEVELOPMENT_ISSUER,
        "resource": DEVELOPMENT_URL,
        "publish": [("exact", "*")],
        "subscribe": [("mqtt", "sensors/+"), ("exact", "a")],
        "seconds": 60,
        "now": time.time(),
    }
    return sign_token(chosen.pop("key", DEVELOPMENT_KEY), "HS256", **options | chosen)


def test_a_token_is_printed_with_its_dialect_its_claims_and_what_it_allows() -> None:
    ended = run("token", "decode", current())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(
        'Dialect    current\nHeader     {"alg":"HS256","typ":"at+jwt"}\nClaims     {\n  "iss": '
    )
    assert "\nPublish    *\nSubscribe  mqtt=sensors/+, a\n" in ended.stdout
    assert " UTC, in " in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith(
        "Not checked, because no hub's settings are given: no publisher is "
    )
    ended = run("token", "decode", stdin=DEVELOPMENT_TOKEN + "\n")
    assert ended.stdout.startswith("Dialect    classic\n")
    assert "\nExpires    never\nPublish    *\nSubscribe  *\n" in ended.stdout


def test_a_hub_accepts_it_or_each_reason_is_named() -> None:
    ended = run("token", "decode", "--dev", current())
    assert ended.returncode == 0
    assert ended.stdout.endswith("To publish, this hub accepts it\nTo subscribe, this hub accepts it\n")
    wrong = current(key=KEY, resource="https://other.example", seconds=-60)
    ended = run("token", "decode", "--dev", wrong)
    assert (ended.returncode, ended.stderr) == (1, "")
    verdict = ended.stdout.partition("To publish, this hub refuses it:\n")[2].splitlines()
    assert verdict[0].startswith("  - the signature matches no HS256 key of issuer 'https://issuer.example'")
    assert verdict[1] == f"  - aud \"https://other.example\" lacks '{DEVELOPMENT_URL}'"
    assert verdict[2].startswith("  - exp ")
    assert verdict[3] == "To subscribe, this hub refuses it:"
    assert verdict[4:] == verdict[:3]


def test_the_settings_and_the_url_choose_the_hub() -> None:
    token = sign_classic_token(KEY, "HS256", publish=["*"], subscribe=[], seconds=60, now=time.time())
    settings = {"HUB_PUBLISHER_KEY": KEY, "HUB_SUBSCRIBER_KEY": "s" * 32}
    ended = run("token", "decode", token, **settings)
    assert ended.returncode == 0
    assert ended.stdout.endswith(
        "To publish, this hub accepts it\nTo subscribe, this hub refuses it:\n"
        "  - the signature matches no HS256 key of subscriber_key\n"
    )
    elsewhere = current(resource="https://hub.example/.well-known/mercure")
    assert run("token", "decode", "--dev", elsewhere).returncode == 1
    assert run("token", "decode", "--dev", "--url", "https://hub.example/x", elsewhere).returncode == 0
    ended = run("token", "decode", token, HUB_HEARTBEAT="often")  # a wrong setting is not silent
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("skipfilter: HUB_HEARTBEAT: 'often' should be ")


def test_json_has_the_same_for_programs() -> None:
    found = json.loads(run("token", "decode", "--dev", "--json", current(seconds=-60)).stdout)
    assert found["dialect"] == "current"
    assert found["header"] == {"alg": "HS256", "typ": "at+jwt"}
    assert found["allowed"]["subscribe"] == [
        {"match_type": "mqtt", "match": "sensors/+"},
        {"match_type": "exact", "match": "a"},
    ]
    assert found["accepted"] == {"publish": False, "subscribe": False}
    assert [reason[:3] for reason in found["faults"]["publish"]] == ["exp"]
    assert json.loads(run("token", "decode", "--json", current()).stdout)["accepted"] is None


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "é.é.é", DEVELOPMENT_TOKEN[:-90]])
def test_what_is_no_token_is_one_sentence(text: str) -> None:
    ended = run("token", "decode", "--dev", stdin=text)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("skipfilter: this is not a token that a hub can read: ")
    assert ended.stderr.count("\n") == 1


def test_a_claim_cannot_steer_the_terminal() -> None:
    token = sign({"mercure": {"publish": ["a\x1b[2J\u202e\x9b"], "subscribe": ["\ud800"]}, "exp": "\x1b"}, key=KEY)
    for options in ([], ["--json"]):
        ended = run("token", "decode", "--dev", *options, token)
        assert ended.returncode == 1
        assert all(line.isprintable() for line in ended.stdout.splitlines())
    assert "Expires    '\\x1b', which is no time" in run("token", "decode", "--dev", token).stdout


def test_options_before_the_name_of_a_command_below_are_refused() -> None:
    for words in (["token", "--dev", "decode", "x"], ["settings", "--dev", "check"]):
        ended = run(*words)
        assert (ended.returncode, ended.stdout) == (2, "")
        below = f"{words[0]} {words[2]}"
        assert f"after its name, as in: {below} --dev ..." in ended.stderr.replace("skipfilter ", "").replace(
            "root ", ""
        )


def test_a_key_of_the_settings_that_does_not_fit_is_a_sentence() -> None:
    ended = run("token", "decode", DEVELOPMENT_TOKEN, HUB_PUBLISHER_KEY="short", HUB_ANONYMOUS="1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("skipfilter: HUB_PUBLISHER_KEY: this secret is shorter than 32 bytes")


def test_a_token_may_be_pasted_with_its_scheme() -> None:
    assert run("token", "decode", "--dev", stdin=f"Bearer {DEVELOPMENT_TOKEN}\n").returncode == 0


# -- what a client is told


@pytest.mark.anyio
async def test_n91_a_client_is_told_why_its_token_is_refused_in_development_only(
    start_hub: Callable[..., HubProcess],
) -> None:
    wrong = sign_classic_token(KEY, "HS256", publish=["*"], subscribe=[], seconds=60, now=time.time())
    common = "the token is not valid here; the hub's log says why"
    reason = "the signature matches no HS256 key of publisher_key"
    development = f"the token is not valid here: {reason} (this reason is given in development mode only)"
    production = {"dev": False, "HUB_PUBLISHER_KEY": "p" * 32, "HUB_ANONYMOUS": "1"}
    for hub, told in ((start_hub(), development), (start_hub(**production), common)):
        async with await request(hub, "POST", PATH, [FORM, bearer(wrong)], b"topic=a") as answer:
            assert answer.status == 401
            assert json.loads(await answer.body())["detail"] == told
