"""Answers: who received an update, what a user received, and what no one did.

An update at a position p of an epoch was sent to a connection of that epoch if

    after < p <= until      of the connection; until is infinite while it is open
    its selectors match and, if the update is private, its grants match too

This is what a connection's lines mean (`hub.event_log`).  The pipeline answers the same
from its tables, and a test compares both.

Belongs here: the questions.  Does not belong here: files and processes (`lines`), and
how an answer is printed.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroaring import BitMap64

from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.subscriber import Subscriber
from hub.event_log.lines import files_of, lines_in, lines_of, opened, over_parts, parsed
from hub.event_log.names import digest, read_key
from hub.event_log.records import OPEN, Connection, Mark, Marks, Selectors, Update, Window
from hub.protocol.topics import TopicMatcher
from skipfilter import Everything, UrlPattern, compile_matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hub.event_log.lines import Note
    from skipfilter import Matcher

CACHED: Final = 100_000
"""Verdicts of selectors, and of updates with the same topics, that are remembered."""


# -- who received an update


@dataclass
class Seen:
    """What files say of the connections that were there at an update."""

    began: defaultdict[str, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    """By node: the numbers of those that had begun, ..."""
    gone: defaultdict[str, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    """... that have an end, ..."""
    before: defaultdict[str, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    """... and that ended before it."""
    wanting: list[tuple[Connection, bool]] = field(default_factory=list)
    """Those of the first that want it, and whether they may read it."""
    marks: Marks = field(default_factory=Marks)

    def merge(self, other: Seen) -> None:
        """Add what later files say."""
        for mine, its in ((self.began, other.began), (self.gone, other.gone), (self.before, other.before)):
            for node, numbers in its.items():
                mine[node] |= numbers
        self.wanting += other.wanting
        self.marks.merge(other.marks)


class Who(NamedTuple):
    """Who was there when an update was sent."""

    update: Update
    received: list[Connection]
    denied: list[Connection]
    """Those that want it and may not read it."""
    others: int
    """How many others were connected."""
    marks: list[Mark]
    """Why some may be missing."""


def who(directory: str, id: str, note: Note) -> list[Who]:
    """Return who received the updates with an id: usually one, in the order of the log.

    Raises ConfigurationError if the directory is no event log, OSError, and ValueError
    for a line that is no record.
    """
    updates = [
        update
        for found in over_parts(_with_id, files_of(directory, "updates"), note, "updates", id)
        for update in found
    ]
    return [_who(directory, update, note) for update in updates]


def _with_id(part: list[Path], id: str) -> list[Update]:
    """Return the updates of some files with an id."""
    wanted = json.dumps(id, ensure_ascii=False).encode("utf-8", "surrogatepass")
    lines = (parsed(line) for line in lines_of(part) if wanted in line)
    return [Update.of(line) for line in lines if line["id"] == id]


def _who(directory: str, update: Update, note: Note) -> Who:
    seen = Seen()
    for part in over_parts(_seen, files_of(directory, "sessions"), note, "connections", update):
        seen.merge(part)
    there = {}
    for node, began in seen.began.items():
        there[node] = began - seen.before[node]
        if node in seen.marks.ends and seen.marks.ends[node][0] < update.position:
            there[node] &= seen.gone[node]  # all others have ended with their node
    wanting = [(one, may_read) for one, may_read in seen.wanting if one.number in there[one.node]]
    received = [one for one, may_read in wanting if may_read]
    denied = [one for one, may_read in wanting if not may_read]
    others = sum(map(len, there.values())) - len(wanting)
    return Who(update, received, denied, others, seen.marks.of(update))


def _seen(part: list[Path], update: Update) -> Seen:
    """Return what files of sessions says of an update."""
    seen = Seen()
    matches = lru_cache(CACHED)(partial(_matches, topics=update.topics, hub=update.hub))

    def any_matches(selectors: Iterable[dict[str, str]]) -> bool:
        return any(matches(one["type"], one["pattern"]) for one in selectors)

    for line in map(parsed, lines_of(part)):
        event = line["event"]
        if event == "connect":
            if line["epoch"] == update.epoch and line["hub"] == update.hub and line["after"] < update.position:
                seen.began[line["node"]].add(line["number"])
                if any_matches(line["selectors"]):
                    may_read = not update.private or any_matches(line["authorised"])
                    seen.wanting.append((Connection.of(line), may_read))
        elif event == "disconnect":
            seen.gone[line["node"]].add(line["number"])
            if line["until"] < update.position:
                seen.before[line["node"]].add(line["number"])
        else:
            seen.marks.note(line)
    return seen


def _matches(type: str, pattern: str, topics: Iterable[str], hub: str | None) -> bool:
    matcher = _compiled(type, pattern, hub)
    return any(matcher.match(topic) for topic in topics)


def _compiled(type: str, pattern: str, hub: str | None) -> Matcher:
    """Return the matcher of a selector that the hub has accepted."""
    if type == "everything":
        return Everything(pattern)
    if type == "urlpattern":  # without limits
        return UrlPattern(pattern, hub, regexp_groups=True)
    return compile_matcher(type, pattern)


# -- what a user received


class Session(NamedTuple):
    """A connection with its end."""

    connection: Connection
    window: Window


class Received(NamedTuple):
    """An update that a connection received."""

    update: Update
    subscriber: str


class Day(NamedTuple):
    """What a user's connections received."""

    sessions: list[Session]
    received: list[Received]
    marks: list[Mark]
    """Why some may be missing."""


def of_subject(directory: str, subject: str, note: Note, *, key: bytes | None = None) -> Day:
    """Return the connections of a subject, and what each received.

    `subject` is a name, or a digest as the log has it.  `key` is that of the log, if it
    is not in the directory.  Raises the errors of `who`.
    """
    if key is None:
        try:
            key = read_key(directory)
        except OSError:
            key = b""
    paths = files_of(directory, "sessions")
    connections = [one for part in over_parts(_of_subject, paths, note, "connections", subject, key) for one in part]
    if not connections:
        return Day([], [], [])
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for one in connections:
        numbers[one.node].add(one.number)
    windows: dict[tuple[str, int], Window] = {}
    marks = Marks()
    for part, its in over_parts(_ends, paths, note, "ends of connections", dict(numbers)):
        windows |= part
        marks.merge(its)
    sessions = [Session(one, _window(one, windows, marks)) for one in connections]
    found = over_parts(_received, files_of(directory, "updates"), note, "updates", sessions)
    received = [one for part in found for one in part]
    # A mark matters if a session of its node may have received something after it.
    nodes = {one.node for one in connections}
    return Day(sessions, received, [mark for mark in marks.found if mark.node in nodes])


def _window(one: Connection, windows: dict[tuple[str, int], Window], marks: Marks) -> Window:
    """Return the end of a connection: its own, or that of its node."""
    window = windows.get((one.node, one.number))
    if window is None and one.node in marks.ends:
        until, time = marks.ends[one.node]
        window = Window(until, time, "its process has ended")
    if window is None:
        return OPEN
    return window._replace(until=max(window.until, one.after))


def _of_subject(part: list[Path], subject: str, key: bytes) -> list[Connection]:
    """Return the connections of a subject that begin in some files."""
    digests = lru_cache(CACHED)(lambda issuer: digest(key, "subject", issuer, subject) if key else None)
    found = []
    for text in lines_of(part):
        if b'"connect"' not in text:
            continue
        line = parsed(text)
        name = line.get("subject")
        if line["event"] == "connect" and name is not None and name in (subject, digests(line["issuer"])):
            found.append(Connection.of(line))
    return found


def _ends(part: list[Path], numbers: dict[str, set[int]]) -> tuple[dict[tuple[str, int], Window], Marks]:
    """Return how connections end in some files, and its marks."""
    windows: dict[tuple[str, int], Window] = {}
    marks = Marks()
    for text in lines_of(part):
        if b'"connect"' in text:
            continue
        line = parsed(text)
        if line["event"] != "disconnect":
            marks.note(line)
        elif line["number"] in numbers.get(line["node"], ()):
            windows[line["node"], line["number"]] = Window(line["until"], line["time"], line.get("reason"))
    return windows, marks


def _received(part: list[Path], sessions: Sequence[Session]) -> list[Received]:
    """Return what sessions received of the updates of some files."""
    of_epoch: defaultdict[tuple[str | None, str | None], list[Session]] = defaultdict(list)
    for session in sessions:
        of_epoch[session.connection.hub, session.connection.epoch].append(session)
    verdicts = lru_cache(CACHED)(_receives)
    found = []
    for line in map(parsed, lines_of(part)):
        position = line["position"]
        for session in of_epoch.get((line.get("hub"), line.get("epoch")), ()):
            one, window = session
            if one.after < position <= window.until and verdicts(
                one.selectors, one.authorised, tuple(line["topics"]), line["private"], one.hub
            ):
                found.append(Received(Update.of(line), one.subscriber))
    return found


def _receives(
    selectors: Selectors,
    authorised: Selectors,
    topics: tuple[str, ...],
    private: bool,
    hub: str | None,
) -> bool:
    return any(_matches(*one, topics, hub) for one in selectors) and (
        not private or any(_matches(*one, topics, hub) for one in authorised)
    )


# -- what no one received


class Place(NamedTuple):
    """A connection, in few bytes: where its line is, and when it was there."""

    hub: str | None
    epoch: str | None
    after: int
    until: float
    path: str
    offset: int


class Unread(NamedTuple):
    """Private updates of a log, without those that announce who is connected."""

    total: int
    """How many there are."""
    unread: list[tuple[Update, bool]]
    """Those that no connection received, and whether any wanted it."""
    unsure: list[tuple[Update, bool]]
    """The same of those whose deliveries may be missing from the log."""


def unread(directory: str, note: Note) -> Unread:
    """Return the private updates that no connection received.

    Keeps some 300 bytes for each connection of the log, and the patterns of those that
    are there at the same time.  Raises the errors of `who`.
    """
    began: dict[tuple[str, int], Place] = {}
    windows: dict[tuple[str, int], float] = {}
    marks = Marks()
    for places, ends, its in over_parts(_places, files_of(directory, "sessions"), note, "connections"):
        began |= places
        windows |= ends
        marks.merge(its)
    of_log: defaultdict[tuple[str | None, str | None], list[Place]] = defaultdict(list)
    for key, place in began.items():
        until = windows.get(key)
        if until is None:
            until = marks.ends[key[0]][0] if key[0] in marks.ends else math.inf
        of_log[place.hub, place.epoch].append(place._replace(until=max(until, place.after)))
    for each in of_log.values():
        each.sort(key=lambda place: place.after)
    parts = over_parts(_unread, files_of(directory, "updates"), note, "updates", dict(of_log))
    found = [one for _, some in parts for one in some]
    is_unsure = [bool(marks.of(update)) for update, _ in found]
    return Unread(
        sum(count for count, _ in parts),
        [one for one, unsure in zip(found, is_unsure, strict=True) if not unsure],
        [one for one, unsure in zip(found, is_unsure, strict=True) if unsure],
    )


def _places(part: list[Path]) -> tuple[dict[tuple[str, int], Place], dict[tuple[str, int], float], Marks]:
    """Return the connections that begin in some files, ends of some, and marks."""
    places: dict[tuple[str, int], Place] = {}
    windows: dict[tuple[str, int], float] = {}
    marks = Marks()
    for path in part:
        offset = 0
        for text in lines_in(path):
            line = parsed(text)
            if line["event"] == "connect":
                key = line["node"], line["number"]
                places[key] = Place(line["hub"], line["epoch"], line["after"], math.inf, str(path), offset)
            elif line["event"] == "disconnect":
                windows[line["node"], line["number"]] = line["until"]
            else:
                marks.note(line)
            offset += len(text) + 1
    return places, windows, marks


def _unread(
    part: list[Path], of_log: dict[tuple[str | None, str | None], list[Place]]
) -> tuple[int, list[tuple[Update, bool]]]:
    """Return how many private updates some files has, and those that no connection
    received.
    """
    return asyncio.run(_sweep(part, of_log))


async def _sweep(
    part: list[Path], of_log: dict[tuple[str | None, str | None], list[Place]]
) -> tuple[int, list[tuple[Update, bool]]]:
    """Go through the updates of a file, with the connections that were there."""
    crowds: dict[tuple[str | None, str | None], _Crowd] = {}
    count, found = 0, []
    for text in lines_of(part):
        if b'"private":false' in text:
            continue
        line = parsed(text)
        if not line["private"] or line.get("presence", False):
            continue
        count += 1
        update = Update.of(line)
        log = update.hub, update.epoch
        if log not in crowds:
            crowds[log] = _Crowd(of_log.get(log, []), update.hub)
        crowd = crowds[log]
        crowd.move_to(update.position)
        wanting, receiving = await crowd.of(update)
        if not receiving:
            found.append((update, bool(wanting)))
    for crowd in crowds.values():
        crowd.close()
    return count, found


class _Crowd:
    """The connections that are there at a position, which only grows."""

    def __init__(self, places: Sequence[Place], hub: str | None) -> None:
        self._places = places  # by their beginning
        self._hub = hub
        self._next = 0
        self._audience = Audience(hub or "", max_alike=sys.maxsize)
        self._there: list[tuple[float, int, Any]] = []  # a heap: until, and the seat
        self._files: dict[str, Any] = {}
        self._ids = BitMap64()

    def move_to(self, position: int) -> None:
        """Let those go that ended before a position, and those in that began before."""
        places = self._places
        while self._next < len(places) and places[self._next].after < position:
            place = places[self._next]
            self._next += 1
            if place.until >= position:
                seat = self._audience.seat(self._subscriber(place))
                self._ids.add(seat.id)
                heapq.heappush(self._there, (place.until, seat.id, seat))
        while self._there and self._there[0][0] < position:
            _, id, seat = heapq.heappop(self._there)
            self._audience.remove(seat)
            self._ids.discard(id)

    async def of(self, update: Update) -> tuple[BitMap64, BitMap64]:
        """Return the ids of those that want an update, and of those that receive it."""
        wanting = await self._audience.of(update.topics, False, self._ids, ALL_AT_ONCE)
        return wanting, await self._audience.of(update.topics, update.private, wanting, ALL_AT_ONCE)

    def _subscriber(self, place: Place) -> Subscriber:
        if place.path not in self._files:
            self._files[place.path] = opened(Path(place.path))
        file = self._files[place.path]
        file.seek(place.offset)
        line = parsed(file.readline())
        selectors, authorised = ([self._matcher(**one) for one in line[name]] for name in ("selectors", "authorised"))
        return Subscriber(selectors, CompiledGrant(subscribe=tuple(authorised)), place.after)

    def _matcher(self, type: str, pattern: str) -> TopicMatcher:
        return TopicMatcher(type, pattern, ((type, _compiled(type, pattern, self._hub)),), 0, 0)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _AllAtOnce:
    """The pace of a process with one task."""

    def is_over(self) -> bool:
        return False

    async def pause(self) -> None:
        raise AssertionError


ALL_AT_ONCE: Final = _AllAtOnce()
