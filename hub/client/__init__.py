"""Publish and subscribe over HTTP from Python.

async with Client("http://localhost:3000/.well-known/mercure", token=token) as hub:
    await hub.publish("https://example.com/books/1", data="…")
    async for event in hub.subscribe("https://example.com/books/{id}"):
        print(event.id, event.data)

`SyncClient` has the same methods without `async`.

    asynchronous, synchronous    the two clients: they send, receive and wait
    following                    one subscription, over all its connections
    messages                     requests and answers, as bytes
    errors                       each with the hub's own words
"""

from hub.client.asynchronous import Client
from hub.client.errors import ClientError, NoAnswer, NotAHub, Refused, Unreachable, Unsendable
from hub.client.messages import Event
from hub.client.synchronous import SyncClient
from hub.errors import EventTooLarge

__all__ = [
    "Client",
    "ClientError",
    "Event",
    "EventTooLarge",
    "NoAnswer",
    "NotAHub",
    "Refused",
    "SyncClient",
    "Unreachable",
    "Unsendable",
]
