"""Replay: what the log has for a subscriber, and then the end, for a job that reads a part at a time.

    GET HUB?match=a                    200
    Last-Event-ID: urn:1               Mercure-Last-Event-ID: urn:1
    Prefer: wait=0, metadata           Preference-Applied: wait=0, metadata

                                       : {"topics":["a"],"private":true,"time":1764000000000,"position":2,"epoch":"…"}
                                       id: urn:2
                                       data: what came after urn:1, at least up to the end of the log at that moment

                                       : all

Both are preferences (RFC 7240), which other hubs do not know: there the stream stays open, and the answer does not say
that they were applied.  The last comment, `all`, says that nothing is missing: a response may end early, as a stream
does, if the token expires or the hub shuts down.

With `metadata`, a comment in front of each event says in one line of JSON what the event itself does not.  EventSource
skips it.

    topics      of a public update, all of them, the canonical one first: anyone may subscribe to them.  Of a private
                one, those that the token may read; there is at least one (N81).
    private     a boolean
    time        when the update came into the log: ms since 1970
    position    in an epoch of the log; with `epoch`, the same as in the event log (hub.event_log)

A reader is not present: no subscription is announced, and the subscription API does not list it.  So a job that reads
again and again does not find its own coming and going in the log.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from json.encoder import encode_basestring as quote  # a string of JSON, in which line ends are escaped
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from hub.errors import PositionExpired
from hub.history import base
from hub.http.response import SERVER_SEND
from hub.http.sockets import tune
from hub.http.uvicorn_connection import UvicornLink, link_of
from hub.protocol import events
from hub.reading import CHUNK_BYTES
from hub.shutdown import SHUTTING_DOWN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from hub.history.base import Entry
    from hub.hub import Hub
    from hub.protocol.updates import Update
    from hub.subscriber import Subscriber

_SILENCE: Final = 1.0  # seconds
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ReplayResponse(StreamingResponse):
    """The response to a subscribe request that waits for nothing."""

    def __init__(
        self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]], *, metadata: bool = False
    ) -> None:
        self.replay = Replay(hub, subscriber, metadata=metadata)
        applied = {"Preference-Applied": "wait=0, metadata" if metadata else "wait=0"}
        super().__init__(self.replay.chunks(), headers=_HEADERS | applied, media_type="text/event-stream")
        self.raw_headers += headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.replay.run(super().__call__, scope, receive, send)


class Replay:
    """A connection that reads what there is: the broadcaster has it in the index, and it is never live."""

    def __init__(self, hub: Hub, subscriber: Subscriber, *, metadata: bool = False) -> None:
        self.subscriber = subscriber
        self.position = subscriber.start
        self.written = 0.0
        self.number = -1
        self.live = False
        self._hub = hub
        self._metadata = metadata
        """Whether a comment with its metadata comes before each event."""
        self._link: UvicornLink | None = None
        """What the server knows of the connection; None if it is not known."""
        self._timeout: asyncio.Timeout | None = None
        """What interrupts the response."""
        self._is_sending = True
        """Whether the server has the head, or a chunk, and has not taken it yet."""
        self._closed = SHUTTING_DOWN if hub.shutdown.is_closing else ""
        """Why it is to end; "" while it is not."""

    async def run(self, respond: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, for as long as it may take."""
        with self._hub.connected(self):  # before the head, as it may refuse
            self._link = link_of(scope.get(SERVER_SEND, send))
            if self._link is not None:  # so that the system gives up a client that does not read
                tune(self._link.transport, self._hub.settings)
            try:
                async with asyncio.timeout(None) as self._timeout:
                    await respond(scope, receive, send)
            except TimeoutError:
                if not self._is_sending:
                    await send({"type": "http.response.body", "body": b""})
                elif self._link is not None:  # it does not read
                    self._link.abort()
            finally:
                self._timeout = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """What the subscriber wants, from its position to where the log ends now, at least; as chunks of frames.

        If entries are gone before they were read, or it may read no longer, it ends without `events.ALL`.
        """
        hub, reading = self._hub, self._hub.reading(self)
        self._is_sending = False
        leap, epoch = await base.current_epoch(hub.history) if self._metadata else (0, "")
        end = await hub.history.end()
        frames: list[bytes] = []
        size = 0
        now = asyncio.get_running_loop().time
        sent = now()
        while self.position < end and not self._closed:
            try:
                part = await reading.next()
            except PositionExpired:
                return
            if part is None:  # the rest was appended, and is not dispatched yet
                await hub.broadcaster.moved()
                continue
            if self._metadata:
                if part.end // base.EPOCH != leap:  # a new epoch began since it was asked for its name
                    return
                comments = await self._comments(part.wanted, epoch)
                frames += chain.from_iterable(zip(comments, (entry.frame for entry in part.wanted), strict=True))
                size += sum(map(len, comments))
            else:
                frames += [entry.frame for entry in part.wanted]
            size += part.size
            self.position = part.end
            if size >= CHUNK_BYTES or now() > sent + _SILENCE:  # of a long log, of which little is wanted
                self._is_sending = True
                yield b"".join(frames) or events.HEARTBEAT
                self._is_sending = False
                frames, size = [], 0
                sent = now()
        if not self._closed:
            self._is_sending = True
            yield b"".join([*frames, events.ALL])

    async def _comments(self, entries: list[Entry], epoch: str) -> list[bytes]:
        """Return the metadata of entries of one epoch, a comment each."""
        comments = []
        slices, epoch = self._hub.slices, quote(epoch)
        async with slices:
            for entry in entries:
                topics = ",".join(map(quote, await self._topics(entry.update)))
                private = "true" if entry.update.private else "false"
                comments.append(
                    f': {{"topics":[{topics}],"private":{private},"time":{entry.time},'
                    f'"position":{entry.position % base.EPOCH},"epoch":{epoch}}}\n'.encode()
                )
                if slices.is_over():
                    await slices.pause()
        return comments

    async def _topics(self, update: Update) -> Sequence[str]:
        """Return the topics that the subscriber may know; to be called within a slice."""
        if not update.private:
            return update.topics
        slices, topics = self._hub.slices, []
        for topic in update.topics:
            if self._hub.broadcaster.passes(self, ("granted", topic)):
                topics.append(topic)
            if slices.is_over():
                await slices.pause()
        return topics

    # -- for the broadcaster

    def write(self, body: bytes, position: int) -> None:
        raise AssertionError("it is not live")

    def delivered(self) -> tuple[int, int]:
        return self.position, 0

    def is_lost(self) -> bool:
        return self._link is not None and self._link.is_closing()

    def close(self, reason: str) -> None:
        """End the response soon."""
        self._closed = reason
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
