"""The project's own client against a real hub; test_server tests how it reconnects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx2
import pytest

from hub.client import Client

if TYPE_CHECKING:
    from tests.conftest import HubProcess

pytestmark = pytest.mark.anyio


async def test_a_batch_is_published_wholly_or_not_at_all(hub: HubProcess) -> None:
    async with Client(hub.url, token=hub.token) as client:
        ids = await client.publish_all(
            {"topic": "a", "data": "é", "id": "urn:1"}, {"topic": ["b", "a"], "private": True, "retry": 5}
        )
        assert ids[0] == "urn:1"
        with pytest.raises(httpx2.HTTPStatusError, match="update 2: topic"):
            await client.publish_all({"topic": "a"}, {"topic": "*"})
        assert await client.publish("a", data="end")
        got = []
        async for event in client.subscribe("a", last_event_id="earliest"):
            got.append((event.id, event.data, event.retry))
            if event.data == "end":
                break
    # The first event also has the retry hint of the hub.
    assert [one[:2] for one in got[:-1]] == [("urn:1", "é"), (ids[1], "")]
    assert got[1][2] == 5


@pytest.mark.parametrize(
    "matchers",
    [
        {"match": "a/b"},
        {"match_mqtt": "a/+"},
        {"match_uritemplate": ["{x}/b", "c"]},
        {"match_urlpattern": "/.well-known/a/:x"},
    ],
)
async def test_the_client_subscribes_in_the_current_dialect(
    hub: HubProcess, matchers: dict[str, str | list[str]]
) -> None:
    async with Client(hub.url, token=hub.token) as client:
        await client.publish("a/b", data="x")
        async for event in client.subscribe(last_event_id="earliest", **matchers):
            assert event.data == "x"
            break


async def test_the_client_sends_one_json_object_per_line(hub: HubProcess) -> None:
    async with Client(hub.url, token=hub.token) as client:
        (id,) = await client.publish_all({"topic": "a", "data": json.dumps({"lines": "a\nb\u2028c"})})
        async for event in client.subscribe("a", last_event_id="earliest"):
            assert (event.id, json.loads(event.data)) == (id, {"lines": "a\nb\u2028c"})
            break


async def test_data_is_text_or_becomes_compact_json(hub: HubProcess) -> None:
    async with Client(hub.url, token=hub.token) as client:
        await client.publish("a", data={"n": 1, "é": None})
        await client.publish("a", data='{"n": 1}')
        await client.publish_all({"topic": "a", "data": [1, "x"]}, {"topic": "a"})
        data = []
        async for event in client.subscribe("a", last_event_id="earliest"):
            data.append(event.data)
            if len(data) == 4:
                break
        assert data == ['{"n":1,"é":null}', '{"n": 1}', '[1,"x"]', ""]
        with pytest.raises(TypeError, match=r"^data is of type bytes: "):
            await client.publish("a", data=b"raw")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^data is of type NoneType: "):
            await client.publish_all({"topic": "a"}, {"topic": "a", "data": None})


async def test_the_client_reads_every_update_that_the_hub_accepts(hub: HubProcess) -> None:
    # As an event it is larger than as a request, which may have 1 MiB: each line of the
    # data gets a prefix of six bytes.
    data = "\n" * 300_000
    async with Client(hub.url, token=hub.token) as client:
        id = await client.publish("a", data=data)
        event = await anext(client.subscribe("a", last_event_id="earliest"))
        assert (event.id, event.data == data) == (id, True)
