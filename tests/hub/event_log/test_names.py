"""What the event log says of persons, in each mode, and the key of its digests."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from hub import ConfigurationError, Grant, Settings, create_app
from hub.auth.claims import read
from hub.event_log.names import digest, read_key, read_or_make_key
from tests.asgi import bearer, current_token, follow
from tests.hub.event_log.test_recorder import lines_of
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

pytestmark = pytest.mark.anyio

KEY = "the key of the names in the log, of 32 bytes"
ISSUER = "https://issuer.example"


async def recorded(path: Path, **settings: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Return the lines of the beginnings and ends of three connections: with a token,
    anonymous, and of a session of the application; and the id of the token.
    """

    def authorize(request: Request) -> Grant | None:
        return Grant(subject="session") if "x-session" in request.headers else None

    chosen: dict[str, Any] = {"dev": True, "max_lifetime": 0, "retry": 0, "event_log": str(path)}
    app = create_app(Settings(**chosen | settings), authorize=authorize)
    signed = current_token(subject="42")
    async with app.running():
        for headers in ([bearer(signed)], [], [("x-session", "1")]):
            async with follow(app, ("match", "a"), headers=headers) as stream:
                assert stream.status == 200
        await until(lambda: app.hub.delivery.connection_count == 0)
    lines = lines_of(path / "sessions")
    come, gone = ([line for line in lines if line["event"] == event] for event in ("connect", "disconnect"))
    return come, gone, read(signed).claims["jti"]


def named(lines: list[dict[str, Any]]) -> list[list[str | None]]:
    return [[line[name] for name in ("issuer", "subject", "token_id", "address")] for line in lines]


async def test_a_line_names_who_connects_by_digests_under_the_key(tmp_path: Path) -> None:
    come, gone, id = await recorded(tmp_path, event_log_key=KEY)
    token = digest(KEY.encode(), "token", ISSUER, id)
    assert named(come) == [
        [ISSUER, digest(KEY.encode(), "subject", ISSUER, "42"), token, "127.0.0.1"],
        ["anonymous", None, None, "127.0.0.1"],
        ["application", digest(KEY.encode(), "subject", "application", "session"), None, "127.0.0.1"],
    ]
    assert [line["reason"] for line in gone] == ["client_left"] * 3
    assert not (tmp_path / "key").exists()
    text = "".join(path.read_text() for path in (tmp_path / "sessions").iterdir())
    assert '"42"' not in text
    assert id not in text


async def test_a_line_has_the_names_or_none_if_the_setting_says_so(tmp_path: Path) -> None:
    come, _, id = await recorded(tmp_path / "plain", event_log_subject="plain")
    assert named(come) == [
        [ISSUER, "42", id, "127.0.0.1"],
        ["anonymous", None, None, "127.0.0.1"],
        ["application", "session", None, "127.0.0.1"],
    ]
    come, *_ = await recorded(tmp_path / "none", event_log_subject="none", log_clients=False)
    assert named(come) == [[None] * 4] * 3
    assert not (tmp_path / "plain" / "key").exists()
    assert not (tmp_path / "none" / "key").exists()


async def test_a_user_has_one_digest_until_the_key_is_destroyed(tmp_path: Path) -> None:
    first = named((await recorded(tmp_path))[0])
    key = tmp_path / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert first[0][1] == digest(read_key(str(tmp_path)), "subject", ISSUER, "42")
    again = named((await recorded(tmp_path))[0])
    assert [line[:2] for line in again] == [line[:2] for line in first * 2]
    key.unlink()
    last = named((await recorded(tmp_path))[0])
    assert last[:6] == again
    assert last[6][1] != first[0][1]


def test_a_digest_depends_on_all_that_it_names() -> None:
    one = digest(b"k", "subject", "i", "42")
    others = [
        digest(b"l", "subject", "i", "42"),
        digest(b"k", "token", "i", "42"),
        digest(b"k", "subject", "j", "42"),
        digest(b"k", "subject", "i", "43"),
        digest(b"k", "subject", "i4", "2"),
    ]
    assert len({one, *others}) == 6
    assert one.startswith("blake2b:")
    assert len(one) == 8 + 32
    # The key may be longer than BLAKE2b takes.
    assert len({digest(b"k" * size, "subject", "i", "42") for size in (32, 64, 65, 200)}) == 4
    assert digest(b"k", "subject", "\ud800", "é")


def test_processes_that_begin_together_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: read_or_make_key(str(tmp_path)), range(32)))
    assert len(keys) == 1
    assert os.listdir(tmp_path) == ["key"]


async def test_a_key_that_is_no_key_stops_the_log_and_not_the_hub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("short")
    come, *_ = await recorded(tmp_path)
    assert come == []
    assert f"{tmp_path}/key has no key of 32 bytes" in caplog.text


def test_a_weak_key_is_refused() -> None:
    weak: Any = {"event_log": "/nowhere", "publisher_key": KEY, "subscriber_key": KEY, "event_log_key": "short"}
    with pytest.raises(ConfigurationError, match="event_log_key: "):
        create_app(Settings(**weak))
    assert json.dumps(KEY) not in repr(Settings(dev=True, event_log_key=KEY))
