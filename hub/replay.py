"""What the log has for a subscriber, and then the end: for who reads a part at a time, as a job does.

    GET HUB?match=a                    200
    Last-Event-ID: urn:1               Mercure-Last-Event-ID: urn:1
    Prefer: wait=0                     Preference-Applied: wait=0
                                       …what came after urn:1, at least as far as it was there then…
                                       : all

To wait for no more is a preference (RFC 7240), which other hubs do not know: there the stream stays open, and the
answer does not say that it was applied.  The last line, a comment, says that nothing is missing: a response may end
early, as a stream does, where the token expires or the hub shuts down.

Who reads so is not there: no subscription is announced, and none is found in the subscription API.  So a job that reads
again and again does not find its own coming and going in the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from hub import sse
from hub.errors import OffTheLog
from hub.parking import SERVER_SEND, cut_off, cycle_of
from hub.sockets import tune

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from hub.hub import Hub
    from hub.subscriber import Subscriber

ALL: Final = b": all\n\n"

_CHUNK: Final = 2**16  # bytes of frames that are joined into one write
_SILENCE: Final = 1.0  # seconds
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Preference-Applied": "wait=0"}


class ReplayResponse(StreamingResponse):
    """The response to a subscribe request that waits for nothing; to a HEAD, its headers alone."""

    def __init__(self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]]) -> None:
        super().__init__(_replay(hub, subscriber), headers=_HEADERS, media_type="text/event-stream")
        self.raw_headers += headers
        self._hub = hub
        self._subscriber = subscriber

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        left = self._hub.time_left(self._subscriber)
        with self._hub.reading(self._subscriber):  # before the head, as it may refuse
            cycle = cycle_of(scope.get(SERVER_SEND, send))
            if cycle is not None:  # so that the system gives up who does not read
                tune(cycle.transport, self._hub.settings)
            try:
                async with asyncio.timeout(left):
                    await super().__call__(scope, receive, send)
            except TimeoutError:  # it does not read, and its time is up
                if cycle is not None:
                    cut_off(cycle)


async def _replay(hub: Hub, subscriber: Subscriber) -> AsyncIterator[bytes]:
    """What `subscriber` wants, from its place to where the log ends now, at least; as chunks of frames.

    Where entries are gone before they were read, or it may read no longer, it ends without ALL.
    """
    end = await hub.transport.end()
    frames: list[bytes] = []
    size = 0
    now = asyncio.get_running_loop().time
    sent = now()
    while subscriber.position < end:
        if hub.is_over(subscriber):
            return
        dispatched = hub.broadcaster.position
        try:
            page = await hub.read(subscriber)
        except OffTheLog:
            return
        wanted: dict[tuple[tuple[str, ...], bool], bool] = {}  # many are of one topic, and it need be asked once
        for entry in page:
            asked = entry.update.topics, entry.update.private
            if asked not in wanted:
                wanted[asked] = subscriber.wants(entry.update)
            if wanted[asked]:
                frames.append(entry.frame)
                size += len(entry.frame)
        if page:
            subscriber.position = page[-1].position
        elif dispatched == hub.broadcaster.position:  # what there is to read was appended and not yet dispatched
            await hub.broadcaster.moved()
        if size >= _CHUNK or now() > sent + _SILENCE:  # of a long log, where little is wanted
            yield b"".join(frames) or sse.HEARTBEAT
            frames, size = [], 0
            sent = now()
        await asyncio.sleep(0)
    yield b"".join([*frames, ALL])
