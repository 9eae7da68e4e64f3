"""Update: what is published; and what may not be."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field
from typing import Final

from hub.errors import InvalidRequest
from hub.protocol.topics import WILDCARD, check_text, is_reserved
from skipfilter.text import shown

EARLIEST_ID: Final = "earliest"
"""As a cursor, it stands for the position before all that the history has (N110); no update has it (N116)."""


def new_id() -> str:
    """A random IRI (N27, N51).  Random through and through: a v7 would tell the time to who may not read (N111)."""
    return uuid.uuid4().urn


@dataclass(frozen=True, slots=True)
class Update:
    """What a publisher sends.  The first topic is the canonical one, the others are alternates (N4)."""

    topics: tuple[str, ...]
    data: str = ""
    private: bool = False
    id: str = field(default_factory=new_id)
    """A cursor for every client, which so learns whether the log has it: a private update's should be random (N111)."""
    type: str | None = None
    retry: int | None = None
    """Milliseconds (N53); those of a request are at most a day."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes: its texts, and its frame, where each line of data has a prefix."""
        lines = self.data.count("\n") + self.data.count("\r")
        frame = len(self.data.encode("utf-8")) + 6 * lines
        return frame + sum(map(sys.getsizeof, (self.data, self.id, self.type, *self.topics)))


def check_topic(topic: str, *, path: str) -> None:
    """Raise InvalidRequest unless a publisher may send updates of `topic` to the hub at `path` (N43, N44, N48)."""
    check_text("topic", topic)
    if topic == WILDCARD:
        raise InvalidRequest("topic '*' is reserved: it is the pattern that matches every topic")
    if is_reserved(topic, path):
        raise InvalidRequest(f"topic {shown(topic)} is reserved: it resolves to {path}, which is the hub's own")


def check_fields(update: Update) -> None:
    """Raise InvalidRequest unless a publisher may send the rest of `update`, whatever its token and its topics.

    Id: N51.  Type: N52.  Retry: N53.
    """
    if not update.topics:
        raise InvalidRequest('missing "topic" field')
    check_text("id", update.id)
    if update.id.startswith("#") or update.id == EARLIEST_ID:
        raise InvalidRequest(f"id {shown(update.id)} is reserved")
    if update.id != update.id.strip(" ") or not update.id:
        # A header, which brings it back as a cursor, loses the spaces around it (R77).
        raise InvalidRequest(f"id {shown(update.id)} is empty, or begins or ends with a space")
    if update.type is not None:
        check_text("type", update.type)
        if update.type == "mercure":
            raise InvalidRequest("type 'mercure' is reserved: it marks the hub's own events")
    if update.retry is not None and update.retry < 0:
        raise InvalidRequest(f"retry {update.retry} is no number of milliseconds")
