"""Messages: what a client sends and receives, as bytes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import httpx2

from hub.client.errors import NoAnswer, NotAHub, Refused, Unreachable, Unsendable
from hub.protocol.data import data_text, require_topics, to_json
from hub.protocol.updates import require_updates
from hub.proxies import hint_at_proxy

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from hub.protocol.data import Data
    from hub.protocol.updates import Update

SILENCE: Final = 120.0
"""Seconds without a byte before a stream is considered dead, if the hub has not said
how often it sends a heartbeat.

Some hubs send one only every 40 s.
"""
FORM: Final = (b"Content-Type", b"application/x-www-form-urlencoded")
LINES: Final = (b"Content-Type", b"application/x-ndjson")
IDENTITY: Final = (b"Accept-Encoding", b"identity")
MAX_REFUSAL: Final = 2**16
"""Bytes that are read of a refusal; more are dropped."""
_LONGEST_DETAIL: Final = 2_000


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    type: str
    """The type, which is "message" if the update has none."""
    data: str
    """The data, with LF as the end of each line."""
    id: str
    """The cursor after this event: its id or, without one, that of the last event."""
    retry: int | None
    """Milliseconds to wait before a reconnection, if the event says so.

    The hint at the start of a stream is on its first event, if the hub has no signals.
    """

    def json(self) -> Any:
        """Return the data as a value.  Raises ValueError if the data is not JSON."""
        return json.loads(self.data)


def form_of(
    topics: Sequence[str], data: Data, *, private: bool, id: str | None, type: str | None, retry: int | None
) -> bytes:
    """Return an update as a form.  Raises TypeError for a value of a wrong type."""
    require_topics(topics)
    fields = [("topic", topic) for topic in topics]
    fields += [("data", data_text(data))] + ([("private", "on")] if private else [])
    fields += [
        (name, str(value)) for name, value in (("id", id), ("type", type), ("retry", retry)) if value is not None
    ]
    return urlencode(fields).encode("ascii")


def lines_of(updates: Iterable[Update]) -> bytes:
    """Return updates as lines of JSON.  Raises TypeError for anything else."""
    updates = list(updates)
    require_updates(updates)
    names = ("data", "private", "id", "type", "retry")
    lines = (
        {"topic": update.topics} | {name: value for name in names if (value := getattr(update, name)) is not None}
        for update in updates
    )
    return "".join(to_json(line) + "\n" for line in lines).encode("utf-8")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was read of a response: all of it, or somewhat more than a limit."""

    status: int
    headers: httpx2.Headers
    reason: str
    """The reason phrase of the status."""
    content: bytes
    is_whole: bool

    @classmethod
    def of(cls, response: httpx2.Response, content: bytes | bytearray, *, is_whole: bool) -> Self:
        """Return what was read of a response."""
        return cls(response.status_code, response.headers, response.reason_phrase, bytes(content), is_whole)

    @property
    def text(self) -> str:
        """The content as text; "" if it is compressed, which nobody has asked for."""
        return "" if is_compressed(self.headers) else self.content.decode("utf-8", "replace")


def parts_of(response: httpx2.Response) -> Iterable[bytes]:
    """Return the parts of a response as they arrive, without decompressing them.

    A transport of a program may have read the response already.
    """
    return [response.content] if response.is_stream_consumed else response.iter_raw()


async def aparts_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the parts of a response as they arrive; see `parts_of`."""
    if response.is_stream_consumed:
        yield response.content
        return
    async for part in response.aiter_raw():
        yield part


def read(response: httpx2.Response, most: int) -> Answer:
    """Read a response, or somewhat more than `most` bytes of it."""
    content = bytearray()
    for part in parts_of(response):
        content += part
        if len(content) > most:
            return Answer.of(response, content, is_whole=False)
    return Answer.of(response, content, is_whole=True)


async def aread(response: httpx2.Response, most: int) -> Answer:
    """Read a response, or somewhat more than `most` bytes of it."""
    content = bytearray()
    async for part in aparts_of(response):
        content += part
        if len(content) > most:
            return Answer.of(response, content, is_whole=False)
    return Answer.of(response, content, is_whole=True)


def longest_answer(request: bytes) -> int:
    """Return how many bytes the answer to a request to publish may have.

    They are enough for the ids in the request, and for the ids that the hub makes.
    """
    return MAX_REFUSAL + len(request) + 64 * request.count(b"\n")


def is_compressed(headers: httpx2.Headers) -> bool:
    """Return whether a response is compressed, although that was not asked for."""
    return headers.get("Content-Encoding", "identity").lower() != "identity"


def ids_in(answer: Answer) -> list[str]:
    """Return the ids in the answer to lines of JSON.  Raises `Refused` or `NotAHub`."""
    return id_in(answer).split("\n")[:-1]


def id_in(answer: Answer) -> str:
    """Return the id in the answer to a form.  Raises `Refused` or `NotAHub`."""
    if answer.status != 200:
        raise refusal(answer)
    if not answer.is_whole:
        raise NotAHub(f"the answer to a publish has more than {len(answer.content):,} bytes")
    if is_compressed(answer.headers):
        raise NotAHub("the answer is compressed, which was not asked for")
    return answer.text


def note_reach(answer: Answer, on_reach: Callable[[str], object] | None) -> None:
    """Call a function with what the hub says of the receivers, if it says anything."""
    if on_reach is not None and (reach := answer.headers.get("Hub-Process-Reach")):
        on_reach(reach)


def refusal(answer: Answer) -> Refused:
    """Return the error for an answer: the hub's own words."""
    if answer.status // 100 == 3 and "Location" in answer.headers:
        return Refused(answer.status, "this is not the URL of a hub, which usually ends in /.well-known/mercure")
    try:
        detail = str(json.loads(answer.text)["detail"])[:_LONGEST_DETAIL]
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = " ".join(answer.text.split())[:200] or answer.reason
    return Refused(answer.status, detail, retry_after(answer.headers))


def retry_after(headers: httpx2.Headers) -> float:
    """Return the seconds of `Retry-After`, up to a minute; 0 if there is none."""
    text = headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0


def http_options(timeout: float, headers: Mapping[str, str] | None, context: ssl.SSLContext | None) -> dict[str, Any]:
    """Return what the client of httpx2 needs; see `Client`."""
    return {
        "timeout": httpx2.Timeout(timeout, read=SILENCE),
        "limits": httpx2.Limits(max_connections=None),  # a subscription keeps one
        "headers": headers,
        "verify": context or True,
    }


@contextmanager
def sending() -> Iterator[None]:
    """Raise the errors of a client for those of httpx2 inside of the context."""
    try:
        yield
    except (httpx2.LocalProtocolError, UnicodeError) as error:
        raise Unsendable(
            "a text has a character that cannot be sent: it must be UTF-8, and an id or a token has no line end"
        ) from error
    except httpx2.TimeoutException as error:
        raise NoAnswer("there is no answer") from error
    except httpx2.RequestError as error:
        hint = hint_at_proxy(str(error.request.url))
        raise Unreachable(f"there is no connection to a hub: {error or type(error).__name__}{hint}") from error
