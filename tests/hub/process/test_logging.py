"""The log of a server: all lines of all loggers in one format."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.hub.commands import uvicorn_hub
from tests.waiting import HANG, until
from tests.wire import PATH, publish, request, subscribe

if TYPE_CHECKING:
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


def parsed(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


async def test_all_lines_of_a_server_are_json(start_hub: type[HubProcess], tmp_path: Any) -> None:
    hub = start_hub(
        *("--workers", "2"), HUB_LOG_FORMAT="json", HUB_NONSENSE="1", HUB_HISTORY_URL=f"sqlite:///{tmp_path}/log.db"
    )
    async with await subscribe(hub, ("topic", "a")) as reader:
        await publish(hub, ("topic", "a"), ("data", "x"))
        await reader.next_event()
    async with await request(hub, "GET", f"{PATH}/nothing") as reply:
        assert reply.status == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)  # type: ignore[assignment]
    writer.write(b"nonsense\r\n\r\n")
    await writer.drain()
    await until(lambda: hub.log().count("request refused") == 2 and "disconnected" in hub.log())
    writer.close()
    hub.stop()
    lines = parsed(hub.log())
    assert {line["event"] for line in lines} >= {
        "this variable is not a setting of the hub, and is ignored",
        "Application startup complete.",
        "subscriber disconnected",
    }
    assert len({line["process"] for line in lines}) == 3
    assert all({"time", "level", "process", "event"} <= line.keys() for line in lines)
    refused = [line for line in lines if line["event"] == "request refused"]
    assert [(line["status"], line["address"]) for line in refused] == [(404, "127.0.0.1"), (400, "127.0.0.1")]


@pytest.mark.processes
@pytest.mark.parametrize("http", ["auto", "hub.server:HubProtocol"])
async def test_uvicorn_s_own_lines_have_the_format_of_the_hub(http: str) -> None:
    with uvicorn_hub("--http", http, HUB_LOG_FORMAT="json", HUB_LOG_CLIENTS="0") as log:
        await until(lambda: "Uvicorn running on" in log())
        [started] = (line["event"] for line in parsed(log()) if "Uvicorn running on" in line["event"])
        port = int(started.partition("127.0.0.1:")[2].split()[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {PATH}?match=a HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG)
        writer.close()
        await until(lambda: "subscriber disconnected" in log())
        lines = parsed(log())
    assert {line.get("logger") for line in lines} == {"uvicorn.error", "uvicorn.access", None}
    assert not any("address" in line for line in lines)
    [access] = (line["event"] for line in lines if line.get("logger") == "uvicorn.access")
    assert access == f'- - "GET {PATH}?match=a HTTP/1.1" 200'
