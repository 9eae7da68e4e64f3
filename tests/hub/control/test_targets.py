"""Whom a command means, and what its text can be."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.control.commands import MAX_TEXT, NOBODY, Command, Identity, News, Target
from hub.control.ledger import Ledger
from hub.errors import InvalidRequest

ALICE = Identity("https://issuer", "alice", "token-1", "key-1", 1_000.0)
CLASSIC = Identity("classic", "alice")
SESSION = Identity("application", "alice")


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("subject", "alice"), [ALICE, CLASSIC, SESSION]),
        (Target("subject", "alice", "https://issuer"), [ALICE]),
        (Target("subject", "alice", "classic"), [CLASSIC]),
        (Target("subject", "alice", "application"), [SESSION]),
        (Target("subject", "https://issuer alice"), []),
        (Target("subject", "Alice"), []),
        (Target("token_id", "token-1"), [ALICE]),
        (Target("token_id", "token-1", "classic"), []),
        (Target("key_id", "key-1"), [ALICE]),
        (Target("key_id", "key-1", "https://issuer"), [ALICE]),
        (Target("subscriber", "urn:1"), [ALICE, CLASSIC, SESSION, NOBODY]),
        (Target("subscriber", "urn:1", "anonymous"), [NOBODY]),
        (Target("subscriber", "urn:2"), []),
    ],
)
def test_a_kick_ends_whom_its_target_names(target: Target, met: list[Identity]) -> None:
    kick = Command("kick", target)
    assert [one for one in (ALICE, CLASSIC, SESSION, NOBODY) if kick.ends("urn:1", one)] == met


@pytest.mark.parametrize(("issued", "met"), [(None, True), (0, True), (110.0, True), (110.5, False)])
def test_a_revocation_meets_the_tokens_that_were_issued_before(issued: float | None, met: bool) -> None:
    revocation = Command("revoke", Target("subject", "alice"), before=110.0)
    for issuer in ("https://issuer", "classic"):
        one = Identity(issuer, "alice", issued=issued)
        ledger = Ledger(is_current=True)
        ledger.note(revocation)
        assert revocation.ends("urn:1", one) is met
        assert (ledger.revoking(one) is not None) is met


def test_a_revoked_token_is_refused_whenever_it_was_issued() -> None:
    revocation = Command("revoke", Target("token_id", "token-1"), before=10.0)
    ledger = Ledger(is_current=True)
    ledger.note(revocation)
    assert ledger.revoking(ALICE) == revocation
    assert ledger.revoking(ALICE._replace(issuer="another")) == revocation
    assert ledger.revoking(ALICE._replace(token_id="token-2")) is None
    narrow = Command("revoke", Target("token_id", "token-2", "https://issuer"), before=10.0)
    ledger.note(narrow)
    assert ledger.revoking(ALICE._replace(token_id="token-2")) == narrow
    assert ledger.revoking(ALICE._replace(token_id="token-2", issuer="another")) is None


def test_a_session_of_the_application_ends_with_a_revocation_and_is_not_revoked() -> None:
    revocation = Command("revoke", Target("subject", "alice"), before=10.0)
    assert revocation.ends("urn:1", SESSION)
    assert not revocation.ends("urn:1", ALICE)  # issued later


def test_lifting_ends_nobody() -> None:
    assert not Command("lift", Target("subject", "alice")).ends("urn:1", CLASSIC)


def test_a_lifted_revocation_counts_no_more() -> None:
    ledger = Ledger(is_current=True)
    ledger.note(Command("revoke", Target("subject", "alice"), before=10.0))
    ledger.note(Command("revoke", Target("subject", "alice", "classic"), before=10.0))
    ledger.note(Command("lift", Target("subject", "alice", "classic")))
    assert ledger.revoking(CLASSIC) is not None
    ledger.note(Command("lift", Target("subject", "alice")))
    assert ledger.revoking(CLASSIC) is None
    assert not ledger.revoked


def test_a_later_revocation_replaces_an_earlier_one() -> None:
    ledger = Ledger(is_current=True)
    for before in (10.0, 20.0):
        ledger.note(Command("revoke", Target("subject", "alice"), before))
    assert ledger.revoking(CLASSIC._replace(issued=15.0)) is not None
    assert len(ledger.revoked) == 1


@pytest.mark.parametrize(
    ("action", "target", "wrong"),
    [
        ("kick", Target("subject", ""), "subject '' has 0 characters"),
        ("kick", Target("subject", "x" * (MAX_TEXT + 1)), "has 1025 characters; it must have 1 to 1024"),
        ("kick", Target("subject", "x", ""), "issuer '' has 0 characters"),
        ("kick", Target("subject", "\ud800"), "lone surrogate"),
        ("kick", Target("token_id", "eyJhbGciOiJIUzI1NiJ9.eyJhIjoxfQ.c2ln"), "this is a token, which is a secret"),
        ("revoke", Target("subscriber", "urn:1"), "a subscriber cannot be revoked"),
        ("revoke", Target("key_id", "k"), "a key_id cannot be revoked"),
        ("lift", Target("key_id", "k"), "a key_id cannot be revoked"),
        ("freeze", Target("key_id", "k"), "'freeze' by 'key_id' is no command"),
        ("kick", Target("address", "k"), "'kick' by 'address' is no command"),  # type: ignore[arg-type]
    ],
)
def test_a_command_that_means_nobody_is_refused(action: Any, target: Target, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(wrong)):
        Command(action, target)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)


@given(texts, st.none() | texts, st.floats(0, 1e12), st.none() | st.floats(0, 1e12))
def test_the_text_of_a_command_is_read_as_it_was_written(
    value: str, issuer: str | None, before: float, until: float | None
) -> None:
    command = Command("revoke", Target("subject", value, issuer), before, until, "urn:é")
    assert Command.from_json(command.to_json()) == command
    assert Command.from_json(command.to_json().encode()) == command


def test_an_inquiry_of_a_later_version_is_no_command_that_was_missed() -> None:
    known, later = Command("top", None), '["?dream",null,0.0,null,"of sheep"]'
    assert known.to_json().startswith('["?top"')
    assert Command.from_json(known.to_json()) == known
    news = News.read(7, [(5, ""), (6, later), (7, known.to_json())])
    assert news.is_whole
    assert [(number, command.action) for number, command in news.commands] == [(7, "top")]
    assert not News.read(6, [(5, ""), (6, later.replace("?", ""))]).is_whole  # it may end streams


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    )
)
def test_any_other_text_is_no_command(value: Any) -> None:
    news = News.read(7, [(5, ""), (6, json.dumps(value)), (7, Command("kick", Target("key_id", "k")).to_json())])
    assert [number for number, _ in news.commands] == [7]
    assert not news.is_whole
