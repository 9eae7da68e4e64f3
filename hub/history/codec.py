"""Entries as JSON, for exports, the event log, and Redis."""

from __future__ import annotations

from typing import Any

from hub.history.base import Entry
from hub.protocol.updates import Update


def record(entry: Entry) -> dict[str, Any]:
    """Return an entry as a JSON object; a missing type or retry is null."""
    update = entry.update
    return {
        "position": entry.position,
        "time": entry.time,
        "id": update.id,
        "topics": list(update.topics),
        "private": update.private,
        "type": update.type,
        "retry": update.retry,
        "data": update.data,
    }


def from_record(record: dict[str, Any]) -> Entry:
    """Return the entry of a JSON object.

    Raises KeyError if a field is absent.  The types of the values are not checked.
    """
    update = Update(
        tuple(record["topics"]),
        record["data"],
        private=record["private"],
        id=record["id"],
        type=record["type"],
        retry=record["retry"],
    )
    return Entry(record["position"], update, record["time"])
