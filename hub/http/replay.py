"""Replay: send the stored updates that a subscriber wants, then end the response.

Batch jobs use it to read the history a part at a time.

    GET HUB?match=a              200
    Last-Event-ID: urn:1         Mercure-Last-Event-ID: urn:1
    Prefer: wait=0, metadata     Preference-Applied: wait=0, metadata

                                 : {"topics":["a"],"private":true,"time":1764000000000…}
                                 id: urn:2
                                 data: …

                                 : all

The response has the updates after the cursor, up to the end of the history at the time
of the request, or somewhat further.  The last comment, `all`, reports that it is
complete: a response may end early, for example if the token expires or the hub shuts
down.

A client that asks for signals (R91) gets identity and gap first, and position before
`all`.

Both preferences (RFC 7240) are extensions of this hub.  If another hub does not know
them, it keeps the stream open and sends no `Preference-Applied`.  With `metadata`, a
comment before each event holds one line of JSON, which EventSource skips:

    topics      all topics of a public update, the canonical one first, because anyone
                may subscribe to them; those topics of a private update that the token
                may read, of which there is at least one (N81)
    private     a boolean
    time        when the update was appended to the history, in ms since 1970
    position    the position within `epoch`; both are the same as in `hub.event_log`

A reader is not announced, and the subscription API does not list it, so that a job that
polls does not find its own visits in the history.
"""

from __future__ import annotations

import asyncio
from json.encoder import encode_basestring as quote  # a string of JSON, in which line ends are escaped
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from hub.delivery.reading import CHUNK_BYTES
from hub.delivery.seat import Ending
from hub.errors import PositionExpired, RequestError
from hub.history import base
from hub.http import problems
from hub.http.request import Request
from hub.http.response import SERVER_SEND, STREAM_FIELDS, tuned_link
from hub.protocol import events
from hub.timeouts import expire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from hub.delivery.delivery import Delivery
    from hub.delivery.seat import Seat
    from hub.delivery.subscriber import Subscriber
    from hub.history.base import Entry, History
    from hub.hub import Hub
    from hub.server.connection import UvicornLink
    from hub.settings import Settings

_HEARTBEAT_SECONDS: Final = 1.0
"""If no chunk was sent for longer than this, a smaller one or a heartbeat is sent."""


class ReplayResponse(StreamingResponse):
    """The response to a subscribe request with `Prefer: wait=0`."""

    def __init__(
        self, hub: Hub, subscriber: Subscriber, headers: list[tuple[bytes, bytes]], *, metadata: bool = False
    ) -> None:
        self._hub = hub
        self.replay = Replay(hub.delivery, hub.history, hub.settings, subscriber, metadata=metadata)
        applied = {"Preference-Applied": "wait=0, metadata" if metadata else "wait=0"}
        super().__init__(self.replay.chunks(), headers=STREAM_FIELDS | applied, media_type="text/event-stream")
        self.raw_headers += headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, or a refusal if its patterns are too similar to others."""
        try:
            await self.replay.run(self._respond, scope, receive, send)
        except RequestError as error:
            await problems.respond(error, Request(scope, receive, send), self._hub)(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Instead of the task group of the base class, whose cancelled task is part of a
        # reference cycle: with it, the patterns and the last chunk would stay until the
        # next garbage collection.
        watcher = asyncio.create_task(self.listen_for_disconnect(receive))
        watcher.add_done_callback(self._left)
        try:
            await self.stream_response(send)
        finally:
            watcher.cancel()

    def _left(self, watcher: asyncio.Task[None]) -> None:
        """End the response, unless it is complete already."""
        if not watcher.cancelled():
            watcher.result()  # an error of the server goes to the log of the event loop
            self.replay.close(Ending.CLIENT_LEFT)


class Replay:
    """One reader: the holder of a seat that never becomes live."""

    def __init__(
        self,
        delivery: Delivery,
        history: History,
        settings: Settings,
        subscriber: Subscriber,
        *,
        metadata: bool = False,
    ) -> None:
        self._delivery = delivery
        self._history = history
        self._settings = settings
        self._subscriber = subscriber
        self._metadata = metadata  # whether a comment with metadata precedes each event
        self._seat: Seat | None = None  # None before `run`
        self._link: UvicornLink | None = None  # the server's connection; None if the server is unknown
        self._timeout: asyncio.Timeout | None = None  # interrupts the response when it expires
        self._is_sending = True  # whether the server is still sending the head or a chunk
        self._reason = delivery.closing  # why it should end early; None if it should not
        self._position = subscriber.start  # everything up to here is sent
        self._is_cut = False  # whether it must end without its end, and without what is buffered

    async def run(self, respond: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response by calling `respond`, until it is complete or closed.

        Raises `LimitExceeded`, before anything is sent, if its patterns are too similar
        to others.
        """
        with self._delivery.reader_seat(self._subscriber, self) as self._seat:
            # The kernel then drops a client that does not read.
            self._link = tuned_link(scope.get(SERVER_SEND, send), self._settings)
            try:
                async with asyncio.timeout(None) as self._timeout:
                    await respond(scope, receive, send)
            except TimeoutError:
                if self._timeout is None or not self._timeout.expired():
                    raise  # it is not ours
                # `close` was called.  If a chunk is stuck, the client does not read, so
                # the end of the response would not reach it either.
                if not self._is_sending and not self._is_cut:
                    await send({"type": "http.response.body", "body": self._goodbye()})
                elif self._link is not None:
                    self._link.abort(reset=self._is_cut)
            finally:
                self._timeout = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the frames that the subscriber wants, in chunks below 2 * CHUNK_BYTES.

        They begin at its start, and reach at least to the present end of the history.
        The last chunk ends with `events.ALL`, unless the reader is closed, or the
        history has forgotten entries that it had not read yet, or metadata is wanted
        and a new epoch has begun.
        """
        self._is_sending = False
        async for body in self._bodies():
            start = 0
            while start < len(body):
                # A client that does not read costs no more than such a chunk.
                stop = start + CHUNK_BYTES if len(body) - start >= 2 * CHUNK_BYTES else len(body)
                self._is_sending = True
                yield body[start:stop]
                self._is_sending = False
                start = stop
        self._is_sending = True  # the end of the response follows

    async def _bodies(self) -> AsyncIterator[bytes]:
        """Yield frames joined to CHUNK_BYTES or somewhat more; a frame may be large."""
        assert self._seat is not None
        seat, start, signals = self._seat, self._subscriber.signals, self._delivery.signals
        position = self._position  # everything up to here is sent, or in the body to come
        reading = self._delivery.reading(seat, position)
        leap, epoch = await base.current_epoch(self._history) if self._metadata else (0, "")
        end = await self._history.end()
        frames: list[bytes] = [] if start is None else [signals.first(start, self._subscriber.grant)]
        size = 0
        now = asyncio.get_running_loop().time
        sent = now()
        while position < end and self._reason is None:
            try:
                part = await reading.next()
            except PositionExpired:
                self._reason = Ending.TOO_FAR_BEHIND
                break
            if part is None:  # the rest is appended, but not dispatched yet
                await self._delivery.moved()
                continue
            if self._metadata and part.end // base.EPOCH != leap:  # a new epoch has begun; its name is not known
                return
            self._delivery.observer.sent(len(part.wanted), part.size)
            comments = await self._comments(seat, part.wanted, epoch) if self._metadata else [b""] * len(part.wanted)
            for comment, entry in zip(comments, part.wanted, strict=True):
                frames += (comment, entry.frame) if comment else (entry.frame,)
                size += len(comment) + len(entry.frame)
                if size >= CHUNK_BYTES:
                    yield b"".join(frames)
                    frames, size, self._position = [], 0, entry.position
                    sent = now()
            position = part.end
            # If little of a long history is wanted, send what there is, or a heartbeat,
            # so that the response is never silent for long.
            if now() > sent + _HEARTBEAT_SECONDS:
                beat = events.HEARTBEAT if start is None else signals.heartbeat(position)
                yield b"".join(frames) or beat
                frames, size, self._position = [], 0, position
                sent = now()
        if self._reason is None:
            frames += [events.ALL] if start is None else [signals.position(position), events.ALL]
            yield b"".join(frames)
        elif start is not None and not self._is_cut:
            self._position = position
            yield b"".join([*frames, self._goodbye()])

    def _goodbye(self) -> bytes:
        """Return the last signal of a response that ends early, if it is wanted."""
        start, reason = self._subscriber.signals, self._reason
        if start is None or reason is None:
            return b""
        return self._delivery.signals.goodbye(start, self._position, reason, self._delivery.hint())

    async def _comments(self, seat: Seat, entries: list[Entry], epoch: str) -> list[bytes]:
        """Return one comment with metadata for each entry; all are of one epoch."""
        comments = []
        slices, epoch = self._delivery.slices, quote(epoch)
        async with slices:
            for entry in entries:
                topics = ",".join(map(quote, await self._delivery.audience.readable(seat, entry.update, slices)))
                private = "true" if entry.update.private else "false"
                comments.append(
                    f': {{"topics":[{topics}],"private":{private},"time":{entry.time},'
                    f'"position":{entry.position % base.EPOCH},"epoch":{epoch}}}\n'.encode()
                )
                if slices.is_over():
                    await slices.pause()
        return comments

    # -- for delivery

    def is_lost(self) -> bool:
        """Return whether the connection is closing; False if the server is unknown."""
        return self._link is not None and self._link.is_closing()

    def close(self, reason: Ending) -> bool:
        """End the response soon, and interrupt a send that does not finish.

        Returns False if it is ending already.
        """
        is_new, self._reason = self._reason is None, self._reason or reason
        self._is_cut = self._is_cut or reason is Ending.KICKED
        expire(self._timeout)
        return is_new
