"""Records: the lines of an event log as values.

Belongs here: what a line says.  Does not belong here: what several lines say together
(`answers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Selectors: TypeAlias = "tuple[tuple[str, str], ...]"
"""Matcher types and patterns, in the terms of the library."""


class Update(NamedTuple):
    """An update in the log."""

    hub: str | None
    epoch: str | None
    position: int
    id: str
    topics: tuple[str, ...]
    private: bool
    time: int
    """When it was published, in ms since 1970."""
    presence: bool

    @classmethod
    def of(cls, line: dict[str, Any]) -> Update:
        """Return the update of a line."""
        return cls(
            line.get("hub"),
            line.get("epoch"),
            line["position"],
            line["id"],
            tuple(line["topics"]),
            line["private"],
            line["time"],
            line.get("presence", False),
        )


class Connection(NamedTuple):
    """A connection in the log."""

    hub: str | None
    epoch: str | None
    node: str
    number: int
    subscriber: str
    issuer: str | None
    subject: str | None
    token_id: str | None
    address: str | None
    time: int
    """When it began, in µs since 1970."""
    after: int
    selectors: Selectors
    authorised: Selectors

    @classmethod
    def of(cls, line: dict[str, Any]) -> Connection:
        """Return the connection of a line about its beginning."""
        return cls(
            line["hub"],
            line["epoch"],
            line["node"],
            line["number"],
            line["subscriber"],
            line.get("issuer"),
            line.get("subject"),
            line.get("token_id"),
            line.get("address"),
            line["time"],
            line["after"],
            selectors_of(line["selectors"]),
            selectors_of(line["authorised"]),
        )


def selectors_of(given: Iterable[dict[str, str]]) -> Selectors:
    """Return the selectors of a line."""
    return tuple((one["type"], one["pattern"]) for one in given)


class Mark(NamedTuple):
    """A mark: deliveries, and perhaps updates, may be missing after a position."""

    epoch: str | None
    node: str
    time: int
    after: int
    cause: str
    updates: bool
    """Whether updates may be missing, too."""

    def covers(self, update: Update, found: int | None) -> bool:
        """Return whether deliveries of an update may be missing; the mark ends when it
        was `found`.
        """
        is_of_epoch = self.epoch is None or self.epoch == update.epoch
        return is_of_epoch and update.position > self.after and (found is None or update.time * 1_000 <= found)


class Window(NamedTuple):
    """The end of a connection."""

    until: float
    """It was sent what it wants up to this position; inf while it is open."""
    time: int | None
    """When it ended, in µs since 1970; None while it is open."""
    reason: str | None


@dataclass
class NodeEnds:
    """The ends of nodes, and what may be missing."""

    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By node: up to which position, and when."""
    killed: set[str] = field(default_factory=set)
    """The nodes that did not end cleanly."""
    found: dict[Mark, int | None] = field(default_factory=dict)

    def note(self, line: dict[str, Any]) -> None:
        """Note an end of a node, or a gap."""
        node = line["node"]
        if line["event"] == "end":
            end = line["until"], line["time"]
            self.ends[node] = min(end, self.ends.get(node, end))
            if line.get("clean", False):
                return
            self.killed.add(node)
        mark = Mark(
            line.get("epoch"),
            node,
            line["time"],
            line["after"] if line["event"] == "gap" else line["until"],
            line.get("cause") or "ended uncleanly",
            line.get("updates", True),
        )
        self.found[mark] = line.get("found")

    def last(self, node: str, after: int, own: float | None) -> float:
        """Return the position up to which a connection was sent what it wants.

        It began after `after`; `own` is where its own end says that it ended, if there
        is one.
        """
        if own is None:
            own = self.ends[node][0] if node in self.ends else math.inf
        return max(own, after)

    def merge(self, other: NodeEnds) -> None:
        """Add what later files say."""
        for node, end in other.ends.items():
            self.ends[node] = min(end, self.ends.get(node, end))
        self.killed |= other.killed
        self.found |= other.found

    def of(self, update: Update) -> list[Mark]:
        """Return the marks because of which deliveries of an update may be missing."""
        return [mark for mark, found in self.found.items() if mark.covers(update, found)]
