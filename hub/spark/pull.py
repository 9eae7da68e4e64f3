"""Pull: reads the events of a hub after a cursor, from a job; blocks, and retries.

    follow(after) ─► GET  Last-Event-ID, Prefer: wait=0 ─► events, until "all"

Parsers such as httpx-sse drop comments, in which a hub says that this is all, and what
an event's topics are.

If the connection is lost, the next one continues after the last event that was
received.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx2

from hub.client.messages import MAX_REFUSAL, read, retry_after
from hub.errors import EventTooLarge
from hub.protocol.events import ALL, MAX_EVENT, STREAM, WITH_SIGNALS, Blocks, parse_block, signal_in
from hub.protocol.updates import EARLIEST_ID
from hub.spark.errors import DataLoss, Refused, Silent
from hub.spark.options import OFF, REQUIRED, SparkOptions
from hub.spark.retry import PASSING, Attempts, reason_of, said
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hub.protocol.events import Block

_MILLISECONDS: Final = re.compile("[0-9]{1,18}")
"""Digits of a number that fits into 64 bits."""
_DECODE: Final = json.JSONDecoder().raw_decode
_MEMBERS: Final[Callable[..., Any]] = itemgetter("topics", "private", "time", "position", "epoch")
"""The fields of metadata, in their order."""
_YEAR_10000: Final = 253_402_300_800_000
"""In ms since 1970; a timestamp of Spark must be before it."""


# -- events


Event: TypeAlias = tuple[str, str, str, str, str]
"""Id, type, data, retry and metadata of an event; "" for an absent field."""


Metadata: TypeAlias = tuple[list[str], bool, int, int, str] | tuple[None, None, None, None, None]
"""Topics, private, time (ms since 1970), position and epoch of an event; or all
None."""


def parse_metadata(comment: str) -> Metadata:
    """Return the metadata in a comment.

    All None unless the comment is complete: an absent `private` could pass for public.
    """
    if comment:
        try:
            members, end = _DECODE(comment)
            found: Metadata
            found = topics, private, time, position, epoch = _MEMBERS(members)
            if (
                end == len(comment)
                and type(topics) is list
                and topics
                and type(private) is bool
                and type(time) is type(position) is int
                and 0 <= time < _YEAR_10000
                and 0 <= position < 2**63
            ):
                "".join([*topics, epoch]).encode("utf-8")  # raises for anything but Unicode text
                return found
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    return None, None, None, None, None


class EventParser:
    """Parses the bytes of an event stream, however they are split (N26).

    A comment in JSON before an event is its metadata, if `metadata` says that the hub
    has applied the preference `metadata`.  An event has at most `most` bytes.
    """

    def __init__(self, *, metadata: bool = False, most: int = MAX_EVENT) -> None:
        self._blocks = Blocks(most)
        self._metadata = metadata
        self.last_event_id = ""  # stays until another event has an id
        self.position = ""  # the cursor of the end, if the hub has said it (R93)
        self.is_complete = False  # whether the hub has said that this is all

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes.  Raises EventTooLarge."""
        blocks = map(parse_block, self._blocks.feed(data))
        events = [event for block in blocks if (event := self._event(block)) is not None]
        # The last line, which no blank line follows.
        if self._blocks.ends_with(ALL):
            self.is_complete = True
        return events

    def _event(self, block: Block) -> Event | None:
        if (signal := signal_in(block)) is not None:
            if signal["type"] == "position" and block.id:
                self.position = block.id
            return None
        metadata = ""
        for comment in block.comments:
            if comment == "all":  # of an earlier version, which ended it with a blank line
                self.is_complete = True
            elif self._metadata and comment.startswith("{"):
                metadata = comment
        if block.id is not None:
            self.last_event_id = block.id
        if block.data is None:
            return None
        retry = block.retry if _MILLISECONDS.fullmatch(block.retry) else ""
        return self.last_event_id, block.type, block.data, retry, metadata


def follow(
    connection: SparkOptions,
    wanted: Sequence[tuple[str, str]],
    after: str | None,
    *,
    idle: float,
    metadata: str = OFF,
    on_position: Callable[[str], object] | None = None,
) -> Iterator[list[Event]]:
    """Yield the events after an event that match any of the parameters `wanted`.

    If `after` is None, these are the events from now on.  Events come as they arrive,
    without gaps or repetitions.  Ends if the hub says that this is all.  With
    `metadata` AUTO or REQUIRED, events have metadata if the hub has it.  `on_position`
    is called with a cursor of the end, if the hub has signals.

    Raises Silent if the hub does not say that this is all, and sends no event for
    `idle` seconds; DataLoss if it does not know the event, or the last one before a
    lost connection; BadInput if metadata is REQUIRED and the hub has none, or if an
    event is too large; Refused; Unreachable.
    """
    attempts = Attempts(connection.url, connection.retries)
    params = tuple(wanted) if on_position is None else (*wanted, WITH_SIGNALS)
    with connection.open(read=idle) as client:
        while True:
            begun = ends = False  # whether the hub has answered, and whether it says "all"
            reason, wait = "the stream ended", 0.0
            try:
                with client.stream(
                    "GET", connection.url, params=params, headers=_cursor(after, metadata) + connection.headers()
                ) as response:
                    if response.status_code == 200:
                        told = metadata != OFF and _tells_metadata(response)
                        if metadata == REQUIRED and not told:
                            raise BadInput(_TELLS_NO_METADATA)
                        _require_known(response, after)
                        begun, ends = True, "wait=0" in response.headers.get("Preference-Applied", "")
                        parser, heard = EventParser(metadata=told, most=connection.max_event), time.monotonic()
                        for chunk in response.iter_raw():
                            if events := parser.feed(chunk):
                                attempts.succeeded()
                                after = events[-1][0]
                                yield events
                                # Now, because a slow caller has not waited for the hub.
                                heard = time.monotonic()
                            if parser.is_complete:
                                if on_position is not None and parser.position:
                                    on_position(parser.position)
                                return
                            # A heartbeat is not an event.
                            if not ends and time.monotonic() > heard + idle:
                                raise Silent(f"no event has come for {idle:g} seconds")
                    elif response.status_code in PASSING:
                        answer = read(response, MAX_REFUSAL)
                        reason, wait = f"{answer.status}: {said(answer)}", retry_after(answer.headers)
                    else:
                        raise Refused(response.status_code, said(read(response, MAX_REFUSAL)))
            except EventTooLarge as error:
                raise BadInput(f"{error}: set the option maxEventBytes") from None
            except httpx2.ReadTimeout as error:
                if begun and not ends:
                    raise Silent(f"no event has come for {idle:g} seconds") from None
                reason = reason_of(error)
            except httpx2.TransportError as error:
                reason = reason_of(error)
            attempts.failed(reason, wait)


def _cursor(id: str | None, metadata: str = OFF) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request: ids are sent as UTF-8 (R77)."""
    preference = b"wait=0" if metadata == OFF else b"wait=0, metadata"
    cursor = [] if id is None else [(b"Last-Event-ID", id.encode("utf-8"))]
    return [*cursor, (b"Prefer", preference), *STREAM]


def _tells_metadata(response: httpx2.Response) -> bool:
    return "metadata" in response.headers.get("Preference-Applied", "")


_TELLS_NO_METADATA: Final = (
    "the hub does not report the topics of its updates and whether they are private, as metadata=required "
    "demands: it is not this project's hub, or an older one; with metadata=auto these columns are null"
)


def require_metadata(connection: SparkOptions, wanted: Sequence[tuple[str, str]]) -> None:
    """Raise BadInput if the hub answers without metadata.

    Reading reports other errors.
    """
    with contextlib.suppress(httpx2.TransportError), connection.open() as client:
        headers = _cursor(EARLIEST_ID, REQUIRED) + connection.headers()
        response = client.head(connection.url, params=list(wanted), headers=headers)
        if response.status_code == 200 and not _tells_metadata(response):
            raise BadInput(_TELLS_NO_METADATA)


def _require_known(response: httpx2.Response, after: str | None) -> None:
    """Raise DataLoss if the response is to another cursor (N108): events are
    missing.
    """
    if after is None:
        return
    names = (b"mercure-last-event-id", b"last-event-id")  # the second is the classic one (V52)
    cursors = [value for name in names for key, value in response.headers.raw if key.lower() == name]
    answered = cursors[0].decode("utf-8", "replace") if cursors else None
    if after not in (answered, EARLIEST_ID):
        raise DataLoss(
            f"the hub no longer has the event {after!r}, so later events may be missing too: keep more history "
            "there (history_updates, history_bytes, history_age), read more often, or continue with what is left by "
            "failOnDataLoss=false"
        )


def knows(connection: SparkOptions, wanted: Sequence[tuple[str, str]], id: str) -> bool:
    """Return whether the hub still has the event with this id."""
    with connection.open() as client:
        response = client.head(connection.url, params=list(wanted), headers=_cursor(id) + connection.headers())
    if response.status_code != 200:
        raise Refused(response.status_code, "it does not report its events")
    try:
        _require_known(response, id)
    except DataLoss:
        return False
    return True
