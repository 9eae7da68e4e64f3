"""Keys that are withdrawn end the streams that they admitted; while a key is replaced, both
are valid.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from hub import Settings, create_app
from hub.auth.signing import sign_classic_token
from hub.delivery.seat import Ending
from hub.errors import ConfigurationError, InvalidToken
from hub.settings.sources import Sources
from tests.hub.serving import served
from tests.hub.signing import RESOURCE, SUBSCRIBER_KEY, authorizer, classic, settings, sign
from tests.waiting import until
from tests.wire import FORM, PATH, bearer, request, subscribe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio

OLD, NEW = "o" * 32, "n" * 32


def token(key: str) -> str:
    return sign_classic_token(key, publish=["*"], subscribe=["*"], seconds=3_600)


async def test_an_old_key_verifies_and_a_third_does_not() -> None:
    hub = authorizer(publisher_key=NEW, publisher_key_old=OLD)
    prints = set()
    for key in (NEW, OLD):
        grant = await hub.verify("publish", classic(["a"], key=key), resource=RESOURCE)
        assert grant.publish
        prints.add(grant.signed_by)
    assert len(prints) == 2
    with pytest.raises(InvalidToken):
        await hub.verify("publish", classic(["a"], key="x" * 32), resource=RESOURCE)
    with pytest.raises(InvalidToken):  # it is not for subscribers
        await hub.verify("subscribe", classic([], ["a"], key=OLD), resource=RESOURCE)


async def test_an_issuer_may_have_an_old_key_too() -> None:
    issuers = [{"id": "https://a", "keys": {"key": NEW, "old_key": OLD}}]
    hub = authorizer(issuers=issuers)
    for key in (NEW, OLD):
        claims = {"iss": "https://a", "aud": RESOURCE, "exp": 10**10}
        await hub.verify("publish", sign(claims, key=key, header={"typ": "at+jwt"}), resource=RESOURCE)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"publisher_key_old": OLD}, "`publisher_key_old` is the key before `publisher_key`, which must be set, too"),
        (
            {"subscriber_key_old": OLD, "subscriber_jwks_url": "https://x/keys"},
            "`subscriber_key_old` is the key before `subscriber_key`, which must be set, too",
        ),
        (
            {"issuers": [{"id": "a", "keys": {"old_key": OLD, "jwks_url": "https://x/keys"}}], "dev": True},
            "issuers.0.keys: old_key belongs to key: a key set may have several keys",
        ),
        ({"issuers": [{"id": "classic", "keys": {"key": NEW}}], "dev": True}, "no issuer may have the id 'classic'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings(**values)
    assert wrong in str(refused.value)


def test_a_weak_old_key_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^subscriber_key_old: this secret is shorter"):
        authorizer(subscriber_key_old="short")


async def test_a_key_that_is_taken_away_is_withdrawn_and_one_that_comes_back_is_not() -> None:
    hub = authorizer(subscriber_key=NEW, subscriber_key_old=OLD)
    new, old = [await hub.verify("subscribe", classic([], ["a"], key=key), resource=RESOURCE) for key in (NEW, OLD)]
    await hub.take_keys(settings(subscriber_key=NEW))
    assert (hub.trusts(new), hub.trusts(old)) == (True, False)
    assert hub.withdrawn.is_set()
    await hub.take_keys(settings(subscriber_key=OLD))
    assert (hub.trusts(new), hub.trusts(old)) == (False, True)
    await hub.take_keys(settings(subscriber_key=SUBSCRIBER_KEY))
    assert (hub.trusts(new), hub.trusts(old)) == (False, False)


async def test_a_key_of_publishers_ends_no_stream() -> None:
    hub = authorizer(publisher_key=NEW, publisher_key_old=OLD)
    await hub.take_keys(settings(publisher_key=NEW))
    assert not hub.withdrawn.is_set()


@pytest.mark.parametrize("drain", [0, 0.2])
async def test_r88_the_streams_of_a_withdrawn_key_end_and_the_others_go_on(
    drain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_SUBSCRIBER_KEY", NEW)
    chosen: dict[str, Any] = {"publisher_key": NEW, "anonymous": True, "max_lifetime": 0, "drain": drain}
    app = create_app(Settings(subscriber_key=NEW, subscriber_key_old=OLD, **chosen))
    async with served(app) as server:
        await until(lambda: app.hub.is_running)
        olds = [await subscribe(server, ("topic", "a"), token=token(OLD)) for _ in range(5)]
        others = [await subscribe(server, ("topic", "a"), token=one) for one in (token(NEW), None)]
        await until(lambda: app.hub.delivery.live_count == 7)
        app.read_keys_soon(lambda: Sources(chosen | {"subscriber_key": NEW}))
        for stream in olds:
            assert await stream.ends()  # cleanly
        await app.publish("a", data="x", private=False)
        for stream in others:
            assert (await stream.next_event()).data == "x"
            await stream.close()
        refused = await request(server, "GET", f"{PATH}?topic=a", [bearer(token(OLD))])
        assert refused.status == 401
        await refused.close()


async def test_a_stream_that_gets_its_seat_after_the_withdrawal_ends_at_once() -> None:
    app = create_app(Settings(publisher_key=NEW, subscriber_key=NEW, subscriber_key_old=OLD, max_lifetime=0))
    async with app.running():
        grant = await app.hub.authorizer.verify("subscribe", token(OLD), resource="")
        subscriber, _ = await app.hub.subscribing.admit([("exact", "a")], grant)
        await app.hub.authorizer.take_keys(Settings(publisher_key=NEW, subscriber_key=NEW))
        ended: list[Ending] = []

        class Holder:
            def is_lost(self) -> bool:
                return False

            def close(self, reason: Ending) -> bool:
                ended.append(reason)
                return len(ended) == 1

        with app.hub.delivery.reader_seat(subscriber, Holder()):
            assert ended == [Ending.KEY_WITHDRAWN]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
async def test_r88_a_rotation_by_sighup_has_no_gap(workers: int, start_hub: type[HubProcess], tmp_path: Path) -> None:
    key, old = tmp_path / "key", tmp_path / "old"
    key.write_text(OLD)
    old.write_text("")  # there is none
    hub = start_hub(
        *("--workers", str(workers)),
        dev=False,
        HUB_PUBLISHER_KEY_FILE=str(key),
        HUB_PUBLISHER_KEY_OLD_FILE=str(old),
        HUB_SUBSCRIBER_KEY_FILE=str(key),
        HUB_SUBSCRIBER_KEY_OLD_FILE=str(old),
        HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db",
        HUB_DRAIN="0.2",
    )

    async def status(one: str) -> set[int]:
        found = set()
        for _ in range(6):
            async with await request(hub, "POST", PATH, [FORM, bearer(token(one))], b"topic=b") as reply:
                found.add(reply.status)
        return found

    async def read_again(count: int) -> None:
        hub.process.send_signal(signal.SIGHUP)
        await until(lambda: hub.log().count("the keys were read again") == count * workers)

    streams = [await subscribe(hub, ("topic", "a"), token=token(OLD)) for _ in range(4)]
    assert (await status(OLD), await status(NEW)) == ({200}, {401})
    # 1. The new key comes, and the one before stays.
    key.write_text(NEW)
    old.write_text(OLD)
    await read_again(1)
    assert (await status(OLD), await status(NEW)) == ({200}, {200})
    fresh = await subscribe(hub, ("topic", "a"), token=token(NEW))
    async with await request(hub, "POST", PATH, [FORM, bearer(token(OLD))], b"topic=a&data=x") as reply:
        assert reply.status == 200
    for stream in (*streams, fresh):
        assert (await stream.next_event()).data == "x"
    # 2. The one before goes, and with it the streams that it admitted.
    old.write_text("\n")
    await read_again(2)
    for stream in streams:
        assert await stream.ends()
    assert (await status(OLD), await status(NEW)) == ({401}, {200})
    async with await request(hub, "POST", PATH, [FORM, bearer(token(NEW))], b"topic=a&data=y") as reply:
        assert reply.status == 200
    assert (await fresh.next_event()).data == "y"
    await fresh.close()
