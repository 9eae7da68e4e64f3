"""Reader: the events of a hub after a cursor, for a job: blocking, tried again for a while, and then given up on.

    follow(after)    ─► GET  Last-Event-ID, Prefer: wait=0 ─► events, until the hub says that these are all

A connection that is lost goes on from where it was: an event that has been seen is not asked for again.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx2

from hub.protocol.events import Blocks, parse_block
from hub.protocol.updates import EARLIEST_ID
from hub.spark.errors import DataLoss, Refused, Silent
from hub.spark.options import OFF, REQUIRED, Connection
from hub.spark.retry import PASSING, Attempts, reason_of, retry_after, said
from skipfilter.spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hub.protocol.events import Block

_MILLISECONDS: Final = re.compile("[0-9]{1,18}")
"""What fits into 64 bits."""
_DECODE: Final = json.JSONDecoder().raw_decode
_MEMBERS: Final[Callable[..., Any]] = itemgetter("topics", "private", "time", "position", "epoch")
"""Of the metadata, in the order of its fields."""
_YEAR_10000: Final = 253_402_300_800_000
"""In ms; a timestamp of Spark is before it."""


# -- events


Event: TypeAlias = tuple[str, str, str, str, str]
"""Id, type, data and retry of an event, as its frame has them, and its metadata; "" for a field that it has not."""


Metadata: TypeAlias = tuple[list[str], bool, int, int, str] | tuple[None, None, None, None, None]
"""Topics, private, time (ms since 1970), position and epoch of an event, as hub.http.replay tells them; or nothing."""


def parse_metadata(comment: str) -> Metadata:
    """Return the metadata in a comment.

    A comment that is not wholly as this hub writes it says nothing: what it left out could pass for public.
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
                "".join([*topics, epoch]).encode("utf-8")  # which only texts without lone surrogates can be
                return found
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
    return None, None, None, None, None


class EventParser:
    """Bytes of an event stream -> its events, however the bytes are cut (N26).

    A comment in JSON before an event is its metadata if the hub has said that it applied the preference `metadata`.

    All its mutable state, beside the end of what has no blank line yet: `last_event_id`, which stays until an event
    has another; and whether the hub has said that this is all.
    """

    def __init__(self, *, metadata: bool = False) -> None:
        self._blocks = Blocks()
        self._metadata = metadata
        self.last_event_id = ""
        self.is_complete = False

    def feed(self, data: bytes) -> list[Event]:
        return [event for block in self._blocks.feed(data) if (event := self._event(parse_block(block))) is not None]

    def _event(self, block: Block) -> Event | None:
        metadata = ""
        for comment in block.comments:
            if comment == "all":
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
    connection: Connection, wanted: Sequence[tuple[str, str]], after: str, *, idle: float, metadata: str = OFF
) -> Iterator[list[Event]]:
    """What matches any of the parameters `wanted` and comes after an event, as it arrives, without gap or repetition.

    With `metadata` AUTO or REQUIRED, events have it if the hub tells it; with REQUIRED, BadInput is raised if not.
    Ends where the hub says that this is all that there is now.  A hub that does not say so is listened to for `idle`
    seconds without an event, and then Silent is raised.  Raises DataLoss where the hub does not know the event, also
    one that was the last before the connection was lost.
    """
    attempts = Attempts(connection.url, connection.retries)
    with connection.open(read=idle) as client:
        while True:
            begun = ends = False  # whether the hub has answered; and whether it says when that is all
            reason, wait = "the stream ended", 0.0
            try:
                with client.stream(
                    "GET", connection.url, params=list(wanted), headers=_cursor(after, metadata) + connection.headers()
                ) as response:
                    if response.status_code == 200:
                        told = metadata != OFF and _tells_metadata(response)
                        if metadata == REQUIRED and not told:
                            raise BadInput(_TELLS_NO_METADATA)
                        _require_known(response, after)
                        begun, ends = True, "wait=0" in response.headers.get("Preference-Applied", "")
                        parser, heard = EventParser(metadata=told), time.monotonic()
                        for chunk in response.iter_raw():
                            if events := parser.feed(chunk):
                                attempts.succeeded()
                                after = events[-1][0]
                                yield events
                                heard = time.monotonic()  # afterwards: who is slow to ask on has not waited for the hub
                            if parser.is_complete:
                                return
                            if not ends and time.monotonic() > heard + idle:  # a heartbeat is no event
                                raise Silent(f"no event has come for {idle:g} seconds")
                    elif response.status_code in PASSING:
                        reason, wait = f"{response.status_code}: {said(response)}", retry_after(response)
                    else:
                        raise Refused(response.status_code, said(response))
            except httpx2.ReadTimeout as error:
                if begun and not ends:
                    raise Silent(f"no event has come for {idle:g} seconds") from None
                reason = reason_of(error)
            except httpx2.TransportError as error:
                reason = reason_of(error)
            attempts.failed(reason, wait)


def _cursor(id: str, metadata: str = OFF) -> list[tuple[bytes, bytes]]:
    """Ids go out as UTF-8 (R77)."""
    preference = b"wait=0" if metadata == OFF else b"wait=0, metadata"
    return [(b"Last-Event-ID", id.encode("utf-8")), (b"Prefer", preference), (b"Accept-Encoding", b"identity")]


def _tells_metadata(response: httpx2.Response) -> bool:
    return "metadata" in response.headers.get("Preference-Applied", "")


_TELLS_NO_METADATA: Final = (
    "the hub does not tell the topics of its updates and whether they are private, as the option metadata=required "
    "demands: it is another hub than this project's, or an older one; with metadata=auto these columns are null"
)


def require_metadata(connection: Connection, wanted: Sequence[tuple[str, str]]) -> None:
    """Raise BadInput if the hub answers, and does not tell metadata.  What else is wrong, reading will report."""
    with contextlib.suppress(httpx2.TransportError), connection.open() as client:
        headers = _cursor(EARLIEST_ID, REQUIRED) + connection.headers()
        response = client.head(connection.url, params=list(wanted), headers=headers)
        if response.status_code == 200 and not _tells_metadata(response):
            raise BadInput(_TELLS_NO_METADATA)


def _require_known(response: httpx2.Response, after: str) -> None:
    """Raise DataLoss where what answers the cursor is another one (N108): then something is missing in between."""
    names = (b"mercure-last-event-id", b"last-event-id")  # the second is the classic one (V52)
    cursors = [value for name in names for key, value in response.headers.raw if key.lower() == name]
    answered = cursors[0].decode("utf-8", "replace") if cursors else None
    if after not in (answered, EARLIEST_ID):
        raise DataLoss(
            f"the hub no longer has the event {after!r}, so what came after it may be gone too: keep more history "
            "there (history_updates, history_bytes, history_age), read more often, or go on with what there is by "
            "failOnDataLoss=false"
        )


def knows(connection: Connection, wanted: Sequence[tuple[str, str]], id: str) -> bool:
    """Whether the hub still has the event with this id."""
    with connection.open() as client:
        response = client.head(connection.url, params=list(wanted), headers=_cursor(id) + connection.headers())
    if response.status_code != 200:
        raise Refused(response.status_code, "it does not say what it has")
    try:
        _require_known(response, id)
    except DataLoss:
        return False
    return True
