"""Commands, while processes are stopped, killed and told to read their keys again."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.conftest import HubProcess, suspend
from tests.hub.control.test_kick import rest, token
from tests.hub.control.test_nodes import KINDS
from tests.hub.control.test_operator import over
from tests.wire import FORM, PATH, bearer, publish, request, subscribe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.processes]


async def command(place: Path, action: str, name: str) -> dict[str, Any]:
    """Give a command; again, if the process that takes it is killed."""
    while True:
        with suppress(httpx2.TransportError):
            async with over(place) as client:
                reply = await client.post(f"/{action}", json={"subject": name}, timeout=30)
                assert reply.status_code == 200, reply.text
                answer: dict[str, Any] = reply.json()
                return answer


async def is_refused(hub: HubProcess, name: str) -> bool:
    """Return whether the hub refuses to publish; it must not accept."""
    with suppress(OSError, asyncio.IncompleteReadError):  # the process is killed
        async with await request(hub, "POST", PATH, [FORM, bearer(token(name))], b"topic=a") as reply:
            assert reply.status != 200
            return reply.status == 401
    return False


@pytest.mark.parametrize("kind", KINDS)
async def test_r81_a_process_that_was_stopped_ends_the_streams_before_it_goes_on(
    kind: str, url_of: Callable[[str], str], start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    place = tmp_path / "hub.sock"
    one = start_hub(HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=url_of(kind))
    other = start_hub(HUB_HISTORY_URL=url_of(kind))
    one.may_fail = other.may_fail = True
    alice = [await subscribe(hub, ("topic", "a"), token=token("alice")) for hub in (one, other)]
    bob = await subscribe(other, ("topic", "a"), token=token("bob"))
    if kind == "sqlite":
        suspend(other.process.pid, tmp_path / "log.db")
    else:
        os.kill(other.process.pid, signal.SIGSTOP)
    try:
        answer = await command(place, "kick", "alice")
        assert (answer["ended"], len(answer["silent"]), answer["stored"]) == ({"classic": 1}, 1, True)
        await publish(one, ("topic", "a"), ("data", "later"), ("private", "on"))
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
    assert (await bob.next_event()).data == "later"
    for stream in alice:
        assert await rest(stream) == []
    await bob.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_that_was_down_knows_what_was_revoked(
    kind: str, url_of: Callable[[str], str], start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    place = tmp_path / "hub.sock"
    start_hub(HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=url_of(kind))
    down = start_hub(HUB_HISTORY_URL=url_of(kind))
    assert await publish(down, ("topic", "a"), token=token("alice"))
    down.stop(signal.SIGKILL)
    assert (await command(place, "revoke", "alice"))["stored"]
    again = start_hub(HUB_HISTORY_URL=url_of(kind))
    assert await is_refused(again, "alice")
    async with await request(again, "GET", f"{PATH}?topic=a", [bearer(token("alice"))]) as reply:
        assert reply.status == 401
    assert await publish(again, ("topic", "a"), token=token("bob"))


@pytest.mark.parametrize("signals", ["killed", "told to read keys"])
async def test_what_was_revoked_is_refused_while_processes_are(
    signals: str, start_hub: Callable[..., HubProcess], tmp_path: Path
) -> None:
    place = tmp_path / "hub.sock"
    hub = start_hub("--workers", "3", HUB_OPERATOR_SOCKET=str(place), HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db")
    hub.may_fail = True
    stays = await subscribe(hub, ("topic", "b"), token=token("bob"))
    for turn in range(4):
        name = f"user {turn}"
        streams = [await subscribe(hub, ("topic", "a"), token=token(name)) for _ in range(3)]
        revoking = asyncio.ensure_future(command(place, "revoke", name))
        await asyncio.sleep(turn * 0.002)  # at different moments of it
        if signals == "killed":
            await hub.kill_worker(hub.workers[turn % 3])
        else:
            hub.process.send_signal(signal.SIGHUP)
        await revoking
        assert sum([await is_refused(hub, name) for _ in range(9)]) > 0
        for stream in streams:
            assert await rest(stream) == []
    for turn in range(4):  # the new processes know all of it, too
        assert all([await is_refused(hub, f"user {turn}") for _ in range(9)])
    if signals != "killed":
        await publish(hub, ("topic", "b"), ("data", "still here"))
        assert (await stays.next_event()).data == "still here"
    await stays.close()
