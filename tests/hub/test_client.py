"""The project's own client against a real hub; test_server tests how it reconnects."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from hub import Update
from hub.client import Client, NoAnswer, Refused, SyncClient, Unreachable, Unsendable
from hub.development import DEVELOPMENT_TOKEN
from tests.asgi import PATH, application, current_token
from tests.hub.clients import CLIENTS, Threaded
from tests.hub.serving import served
from tests.hub.signing import certified
from tests.waiting import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hub.pytest_plugin import MercureServer


@pytest.fixture
def hub(mercure_server: MercureServer) -> MercureServer:
    return mercure_server


pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("new", CLIENTS)]


async def test_a_batch_is_published_wholly_or_not_at_all(hub: MercureServer, new: Callable[..., Any]) -> None:
    async with new(hub.url, token=hub.token) as client:
        ids = await client.publish_many(
            [Update(("a",), "é", id="urn:1"), Update(("b", "a"), private=True, retry=5, type="t")]
        )
        assert ids[0] == "urn:1"
        with pytest.raises(Refused, match=r"^400: update 2: topic"):
            await client.publish_many([Update(("a",)), Update(("*",))])
        assert await client.publish("a", data="end")
        got = []
        async for event in client.subscribe("a", last_event_id="earliest"):
            got.append((event.id, event.data, event.retry, event.type))
            if event.data == "end":
                break
    # The first event also has the retry hint of the hub.
    assert [one[:2] for one in got[:-1]] == [("urn:1", "é"), (ids[1], "")]
    assert got[1][2:] == (5, "t")


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
    hub: MercureServer, matchers: Any, new: Callable[..., Any]
) -> None:
    async with new(hub.url, token=hub.token) as client:
        await client.publish("a/b", data="x")
        async for event in client.subscribe(last_event_id="earliest", **matchers):
            assert event.data == "x"
            break


async def test_the_client_sends_one_json_object_per_line(hub: MercureServer, new: Callable[..., Any]) -> None:
    async with new(hub.url, token=hub.token) as client:
        (id,) = await client.publish_many([Update(("a",), {"lines": "a\nb\u2028c"})])
        async for event in client.subscribe("a", last_event_id="earliest"):
            assert (event.id, json.loads(event.data)) == (id, {"lines": "a\nb\u2028c"})
            break


async def test_data_is_text_or_becomes_compact_json(hub: MercureServer, new: Callable[..., Any]) -> None:
    async with new(hub.url, token=hub.token) as client:
        await client.publish("a", data={"n": 1, "é": None})
        await client.publish("a", data='{"n": 1}')
        await client.publish_many([Update(("a",), [1, "x"]), Update(("a",))])
        data = []
        async for event in client.subscribe("a", last_event_id="earliest"):
            data.append(event.data)
            if len(data) == 4:
                break
        assert data == ['{"n":1,"é":null}', '{"n": 1}', '[1,"x"]', ""]
        with pytest.raises(TypeError, match=r"^data is of type bytes: "):
            await client.publish("a", data=b"raw")


async def test_the_client_reads_every_update_that_the_hub_accepts(hub: MercureServer, new: Callable[..., Any]) -> None:
    # As an event it is larger than as a request, which may have 1 MiB: each line of the
    # data gets a prefix of six bytes.
    data = "\n" * 300_000
    async with new(hub.url, token=hub.token) as client:
        id = await client.publish("a", data=data)
        events = client.subscribe("a", last_event_id="earliest")
        event = await anext(events)
        await events.aclose()
        assert (event.id, event.data == data) == (id, True)


async def test_a_batch_of_what_there_is_ends(hub: MercureServer, new: Callable[..., Any]) -> None:
    async with new(hub.url, token=hub.token) as client:
        ids = [await client.publish("a", data=str(number)) for number in range(5)]
        read = client.subscribe("a", last_event_id="earliest", wait=False)
        assert [event.id async for event in read] == ids
        assert [event.data async for event in client.subscribe("a", last_event_id=ids[2], wait=False)] == ["3", "4"]
        assert [event async for event in client.subscribe("b", wait=False)] == []


async def test_a_token_is_asked_for_before_each_request(hub: MercureServer, new: Callable[..., Any]) -> None:
    tokens = ["wrong", hub.token, hub.token]

    async def fetched() -> str:
        return tokens.pop(0)

    async with new(hub.url, token=fetched if new is Client else lambda: tokens.pop(0)) as client:
        with pytest.raises(Refused, match=r"^401: the token is not valid here") as caught:
            await client.publish("a")
        assert (caught.value.status, caught.value.detail[:9]) == (401, "the token")
        id = await client.publish("a", private=True)
        assert [event.id async for event in client.subscribe("a", last_event_id="earliest", wait=False)] == [id]
    assert tokens == []


async def test_errors_say_what_is_wrong(hub: MercureServer, new: Callable[..., Any]) -> None:
    async with new(hub.url, token=hub.token) as client:
        with pytest.raises(Refused, match=r"400: topic '\*' is reserved"):
            await client.publish("*")
        with pytest.raises(Unsendable, match="a text has a character that cannot be sent"):
            await client.subscribe("a", last_event_id="a\nb").__anext__()
    async with new("http://127.0.0.1:9") as client:
        for call in (client.publish("a"), client.subscribe("a").__anext__()):
            with pytest.raises(Unreachable, match="there is no connection to a hub"):
                await call


async def test_an_answer_that_does_not_come_is_an_error(new: Callable[..., Any]) -> None:
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with new(f"http://127.0.0.1:{port}/", timeout=0.05) as client:
            with pytest.raises(NoAnswer, match="there is no answer"):
                await client.publish("a")
        over.set()


async def test_a_certificate_authority_of_ones_own(tmp_path: Path, new: Callable[..., Any]) -> None:
    certificate, key = certified(tmp_path)
    async with application() as app, served(app, ssl_certfile=certificate, ssl_keyfile=key, lifespan="off") as server:
        url = f"https://127.0.0.1:{server.port}{PATH}"
        async with new(url, token=DEVELOPMENT_TOKEN) as client:
            with pytest.raises(Unreachable, match="certificate"):
                await client.publish("a")
        async with new(
            url, token=DEVELOPMENT_TOKEN, ssl_context=ssl.create_default_context(cafile=certificate)
        ) as client:
            id = await client.publish("a")
            event = await asyncio.wait_for(anext(client.subscribe("a", last_event_id="earliest")), HANG)
            assert event.id == id


async def test_a_transport_replaces_the_network(new: Callable[..., Any]) -> None:
    if new is Threaded:
        answers = httpx2.MockTransport(lambda request: httpx2.Response(200, text=request.url.host))
        with SyncClient("http://hub.example/", transport=answers) as client:
            assert client.publish("a") == "hub.example"
        return
    async with application() as app:
        transport = httpx2.ASGITransport(app)
        token = current_token(["*"])
        async with Client(f"https://hub.example{PATH}", token=token, transport=transport) as there:
            id = await there.publish("a")
            assert [event.id async for event in there.subscribe("a", last_event_id="earliest", wait=False)] == [id]


async def test_from_its_position_a_client_receives_all_that_follows(
    hub: MercureServer, new: Callable[..., Any]
) -> None:
    async with new(hub.url, token=hub.token) as client:
        await client.publish("a", data="before")
        position = await client.position()
        assert position.startswith("#")
        await client.publish("a", data="1", private=True)
        await client.publish("a", data="2")
        events = client.subscribe("a", last_event_id=position, wait=False)
        assert [event.data async for event in events] == ["1", "2"]


async def test_a_link_has_the_url_of_the_client_or_another_one(new: Callable[..., Any]) -> None:
    async with new("http://hub:3000/x") as client:
        assert client.link("#a") == '<http://hub:3000/x>; rel="mercure"; last-event-id="#a"'
        assert client.link('"\\', url="/y") == '</y>; rel="mercure"; last-event-id="\\"\\\\"'
