"""Tests of applications that publish to a hub, or contain one.

    def test_a_vote_is_published(mercure_hub):
        app = create_application(mercure_hub.app)
        with TestClient(app) as client:
            client.post("/vote")
        mercure_hub.assert_published("/votes", data="1")

`hub.pytest_plugin` has the fixtures.

    memory_hub     a hub in memory: an application, a record, a clock; or on a port
    recording      what was published, and assertions about it
    subscriber     a subscriber with a time-out, for tests with and without `async`
    transport      requests to an ASGI application whose responses may never end
    server         any ASGI application on a real port
"""

from hub.testing.memory_hub import Clock, MemoryHub
from hub.testing.recording import RecordedUpdates, record_updates
from hub.testing.server import serve
from hub.testing.subscriber import BlockingSubscriber, Subscriber, blocking
from hub.testing.transport import StreamingTransport, client_of

__all__ = [
    "BlockingSubscriber",
    "Clock",
    "MemoryHub",
    "RecordedUpdates",
    "StreamingTransport",
    "Subscriber",
    "blocking",
    "client_of",
    "record_updates",
    "serve",
]
