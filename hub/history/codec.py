"""Entries as JSON, for exports, for the event log, and for Redis."""

from __future__ import annotations

from typing import Any

from hub.history.base import Entry
from hub.protocol.updates import Update


def record(entry: Entry) -> dict[str, Any]:
    """An entry as JSON has it, for export and for whoever keeps it.  What is not there is null."""
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
    """The entry of a record.  Raises KeyError, TypeError or ValueError for what is none."""
    update = Update(
        tuple(record["topics"]),
        record["data"],
        private=record["private"],
        id=record["id"],
        type=record["type"],
        retry=record["retry"],
    )
    return Entry(record["position"], update, record["time"])
