"""Messages: what a client sends and receives, as bytes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import httpx2

from hub.client.errors import NoAnswer, Refused, Unreachable, Unsendable
from hub.protocol.data import data_text, require_topics, to_json
from hub.protocol.updates import require_updates

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hub.protocol.data import Data
    from hub.protocol.updates import Update

SILENCE: Final = 120.0
"""Seconds without a byte before a stream is considered dead.

Some hubs send a heartbeat only every 40 s.
"""
FORM: Final = (b"Content-Type", b"application/x-www-form-urlencoded")
LINES: Final = (b"Content-Type", b"application/x-ndjson")


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

    The hint at the start of a stream is on its first event.
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


def ids_in(response: httpx2.Response) -> list[str]:
    """Return the ids in the answer to lines of JSON.  Raises `Refused`."""
    check(response)
    return response.text.split("\n")[:-1]


def check(response: httpx2.Response) -> None:
    """Raise `Refused` unless the status of a response, which is read, is 200."""
    if response.status_code != 200:
        raise refusal(response)


def refusal(response: httpx2.Response) -> Refused:
    """Return the error for a response that was read: the hub's own words."""
    if response.is_redirect:
        return Refused(response.status_code, "this is not the URL of a hub, which usually ends in /.well-known/mercure")
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = " ".join(response.text.split())[:200] or response.reason_phrase
    return Refused(response.status_code, detail, retry_after(response))


def retry_after(response: httpx2.Response) -> float:
    """Return the seconds of `Retry-After`, up to a minute; 0 if there is none."""
    text = response.headers.get("Retry-After", "")
    return min(60.0, float(text)) if text.isascii() and text.isdigit() else 0.0


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
        raise Unreachable(f"there is no connection to a hub: {error or type(error).__name__}") from error
