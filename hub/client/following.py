"""Following: one subscription over all its connections, without input or output.

    headers ─► the client connects ─► begin, feed … ─► end ─► pause ─┐
       ▲                         └──► refused, lost ────┘            │
       └─────────────────────────────────────────────────────────────┘

The client asks for signals (hub.delivery.signals), which it does not pass on.  Other
hubs send none.

Belongs here: the cursor, the reconnection time, and which refusal ends a subscription.
Does not belong here: sockets and sleeping, which differ in the two clients.
"""

from __future__ import annotations

import logging
import time
from random import uniform
from typing import TYPE_CHECKING, Any, Final

from hub.client.errors import NotAHub
from hub.client.messages import SILENCE, Event, is_compressed
from hub.protocol.data import patterns_of, require_topics
from hub.protocol.events import ALL, STREAM, WITH_SIGNALS, Blocks, parse_block, signal_in
from hub.protocol.topics import WILDCARD
from hub.protocol.updates import EARLIEST_ID
from skipfilter.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    import httpx2

    from hub.client.errors import Refused
    from hub.protocol.data import Matchers
    from hub.protocol.events import Block

log = logging.getLogger("hub.client")

LONGEST_PAUSE: Final = 30.0
"""Seconds between attempts at most, unless the hub asks for more."""
LONGEST_RETRY: Final = 3_600.0
"""The most seconds that an event may make the client wait."""
SHORTEST_PAUSE: Final = 0.1
"""Seconds between attempts at least, whatever a hub or an update asks for."""
SHORT_SECONDS: Final = 1.0
"""A stream that ends within this time, without an event, counts as a failure."""
JITTER: Final = 1.0, 1.5
"""A pause is lengthened by a random factor between these, so that clients which have
lost the same hub do not return together."""
SILENT_BEATS: Final = 2
"""The number of heartbeats that a stream misses before it is considered dead, ..."""
LATE_BEAT: Final = 5.0
"""... and the seconds by which the last of them may come late."""
_MAX_RETRY_DIGITS: Final = 18
_ALL: Final = ALL.decode().strip(": \n")  # the comment at the end of a complete batch
_CURSORS: Final = b"mercure-last-event-id", b"last-event-id"  # of the current and the classic dialect


class Following:
    """One subscription.

    `retry` is the seconds before a reconnection, unless the hub says otherwise.  If it
    does not `wait` for new updates, it is over when it has those of the history.  An
    event has at most `max_event` bytes.  `on_open` is called when the hub has accepted
    the subscription, `on_gap` with the last id, or "", if updates may be missing, and
    `on_heartbeat` for each heartbeat that the hub sends as a signal.
    `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        topics: Sequence[str],
        matchers: Matchers,
        last_event_id: str | None,
        *,
        wait: bool,
        retry: float,
        max_event: int,
        on_open: Callable[[], object] | None = None,
        on_gap: Callable[[str], object] | None = None,
        on_heartbeat: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_topics(topics)
        self.params = (*(("topic", topic) for topic in topics), *patterns_of(matchers), WITH_SIGNALS)
        self.cursor = last_event_id or ""
        """The id of the last event or signal."""
        self.silence = SILENCE
        """Seconds without a byte before this connection is considered dead."""
        self.usual_silence = SILENCE
        """The same for a connection of a hub that has said how often it sends one."""
        self._wait = wait
        self._retry = retry
        self._on_open = on_open
        self._on_gap = on_gap
        self._on_heartbeat = on_heartbeat
        self._max_event = max_event
        self._clock = clock
        self._blocks = Blocks(max_event)
        self._has_begun = False  # whether the hub has ever accepted the subscription
        self._opened: float | None = None  # when it has, on this connection
        self._has_event = False  # whether this connection has brought an event
        self._failures = 0  # the number of attempts since a stream brought an event, or lasted
        self._reason = ""  # why the hub has ended this connection, for the log
        self._least = 0.0  # the pause that a refusal asks for, in seconds

    @classmethod
    def of_position(cls, *, retry: float, max_event: int) -> Self:
        """Return one that receives no update, and ends with a cursor for now."""
        return cls((), {"match": WILDCARD}, None, wait=False, retry=retry, max_event=max_event)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the next request."""
        headers = [*STREAM]
        if self.cursor:
            headers.append((b"Last-Event-ID", self.cursor.encode("utf-8")))
        if not self._wait:
            headers.append((b"Prefer", b"wait=0"))
        return headers

    def begin(self, response: httpx2.Response) -> None:
        """Begin a stream.  Raises NotAHub if the response is none, or has no end."""
        type = response.headers.get("Content-Type", "")
        if type.partition(";")[0].strip().lower() != "text/event-stream":
            raise NotAHub(f"the response is not an event stream: its type is {shown(type)}")
        if is_compressed(response.headers):
            raise NotAHub("the stream is compressed, which was not asked for")
        if not (self._wait or "wait=0" in response.headers.get("Preference-Applied", "")):
            raise NotAHub("the hub does not know `Prefer: wait=0`, so its stream would not end")
        had_begun, self._has_begun = self._has_begun, True
        self._opened, self._has_event, self.silence = self._clock(), False, SILENCE
        self._least = 0.0
        self._blocks = Blocks(self._max_event)
        raw = {name.lower(): value for name, value in reversed(response.headers.raw)}
        answered = next((raw[name] for name in _CURSORS if name in raw), None)
        asked = self.cursor
        is_gap = answered is not None and asked not in ("", EARLIEST_ID) and answered != asked.encode("utf-8")
        if is_gap:
            log.warning("the hub cannot continue after %s, so updates may be missing", shown(asked))
        # Without a cursor, it is not known what was published during the pause.
        if self._on_gap is not None and (is_gap or (had_begun and not asked)):
            self._on_gap(asked)
        if self._on_open is not None:
            self._on_open()

    def feed(self, part: bytes) -> Iterator[Event]:
        """Yield the events that end in a part of the stream."""
        for block in map(parse_block, self._blocks.feed(part)):
            if block.id is not None:
                self.cursor = block.id
            milliseconds = self._note_retry(block)
            if (signal := signal_in(block)) is not None:
                self._note(signal)
            elif block.data is not None:  # otherwise it is no event
                self._has_event = True
                yield Event(block.type or "message", block.data, self.cursor, milliseconds)

    def _note(self, signal: dict[str, Any]) -> None:
        """Take a signal.  The header has told of a gap already."""
        match signal["type"]:
            case "position":
                interval = signal.get("heartbeat")
                if isinstance(interval, int) and 0 < interval <= LONGEST_RETRY * 1_000:
                    self.silence = self.usual_silence = SILENT_BEATS * interval / 1_000 + LATE_BEAT
            case "heartbeat":
                if self._on_heartbeat is not None:
                    self._on_heartbeat()
            case "goodbye":
                self._reason = f": {shown(str(signal.get('reason')))}"

    def end(self) -> bool:
        """Note that the connection is over, and return whether nothing is left."""
        # The lines after the last event count too.
        block = parse_block(self._blocks.unfinished())
        self._note_retry(block)
        if self._opened is not None:
            lasted = self._has_event or self._clock() - self._opened >= SHORT_SECONDS
            self._failures = 0 if lasted else self._failures + 1
        self._blocks, self._opened = Blocks(self._max_event), None
        return not self._wait and _ALL in block.comments

    def refused(self, error: Refused) -> None:
        """Note a refusal; raise it unless the hub may accept the subscription later."""
        if not (self._has_begun and error.may_pass):
            raise error
        self._failures += 1
        self._least = error.retry_after

    def lost(self, error: Exception) -> None:
        """Note that the connection is lost; raise the error if there never was one."""
        if not self._has_begun:
            raise error
        self._failures += self._opened is None

    def require_cursor(self) -> str:
        """Return the cursor.  Raises NotAHub if the hub has given none."""
        if not self.cursor:
            raise NotAHub("the hub does not say its position: it has no signals")
        return self.cursor

    def pause(self) -> float:
        """Return the seconds before the next connection."""
        longest, first = max(LONGEST_PAUSE, self._retry), max(self._retry, SHORTEST_PAUSE)
        grown = min(longest, first * 2.0 ** min(self._failures, 16))
        seconds = max(self._least, grown) * uniform(*JITTER)  # noqa: S311
        log.info("the connection has ended; the next one begins in %.1f s%s", seconds, self._reason)
        self._reason = ""
        return seconds

    def _note_retry(self, block: Block) -> int | None:
        """Note the `retry` of a block, and return it; None if it has none, or a very
        long one.
        """
        if not 0 < len(block.retry) <= _MAX_RETRY_DIGITS:
            return None
        self._retry = min(int(block.retry) / 1000, LONGEST_RETRY)
        return int(block.retry)
