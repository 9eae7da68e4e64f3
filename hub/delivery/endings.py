"""Endings: why connections end, as log lines and metrics name it."""

from __future__ import annotations

from enum import StrEnum


class Ending(StrEnum):
    """Why a connection ended: a text for the log, and a name for metrics."""

    CLIENT_LEFT = "the client went away"
    CONNECTION_LOST = "its connection is lost"
    SENT_MORE = "the client has sent more data"
    EXPIRED = "its token expires"
    MAX_LIFETIME = "it has reached the maximum lifetime"
    SHUTDOWN = "the hub is shutting down"
    TOO_FAR_BEHIND = "the history has forgotten updates that it had not received"
    UPDATES_LOST = "the history has lost updates"
    FAILED = "it failed"
