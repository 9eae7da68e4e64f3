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
import json
import sys
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

from cachetools import LRUCache
from pyroaring import BitMap64, FrozenBitMap64

from hub.auth.grant import CompiledGrant
from hub.delivery.audience import Audience
from hub.delivery.subscriber import Subscriber
from hub.event_log.lines import files_of, lines_of, over_parts, parsed
from hub.event_log.names import digest, read_key
from hub.event_log.records import Connection, Mark, NodeEnds, Selectors, Update, Window, selectors_of
from hub.protocol.topics import TopicMatcher
from skipfilter import compile_matcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hub.event_log.lines import Note
    from skipfilter import Matcher

Log: TypeAlias = "tuple[str | None, str | None]"
"""A hub and an epoch, whose positions are comparable."""
Intervals: TypeAlias = "tuple[list[int], list[float]]"
"""Disjoint intervals of positions; see `_union`."""
Known: TypeAlias = "tuple[Intervals, Intervals]"
"""What is known, and what may be."""

Fate: TypeAlias = Literal["received", "open", "perhaps", "denied"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
MAX_UNIONS: Final = 10_000
"""Sets of groups whose times together are remembered."""
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
    marks: NodeEnds = field(default_factory=NodeEnds)

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
    open: list[Connection]
    """Those that are open: they have it, or it is on its way."""
    perhaps: list[Connection]
    """Those of which it is not known, because their process was killed."""
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
    by_fate: defaultdict[Fate, list[Connection]] = defaultdict(list)
    for one, may_read in wanting:
        has_end = one.number in seen.gone[one.node]
        by_fate[_fate(one.node, has_end=has_end, marks=seen.marks) if may_read else "denied"].append(one)
    others = sum(map(len, there.values())) - len(wanting)
    received, still_open, perhaps, denied = (by_fate[fate] for fate in FATES)
    return Who(update, received, still_open, perhaps, denied, others, seen.marks.of(update))


def _fate(node: str, *, has_end: bool, marks: NodeEnds) -> Fate:
    """Return what is known of an update that a connection wants, and may read."""
    if has_end or (node in marks.ends and node not in marks.killed):
        return "received"
    return "perhaps" if node in marks.killed else "open"


def _seen(part: list[Path], update: Update) -> Seen:
    """Return what files of sessions say of an update."""
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


@lru_cache(MAX_UNIONS)
def _compiled(type: str, pattern: str, hub: str | None) -> Matcher:
    """Return the matcher of a selector, without limits: the hub has accepted it."""
    return compile_matcher(type, pattern, base_url=hub, regexp_groups=True)


# -- what a user received


class Session(NamedTuple):
    """A connection with its end."""

    connection: Connection
    window: Window
    fate: Fate
    """What is known of the updates that it wants, and may read."""


class Received(NamedTuple):
    """An update that a connection received."""

    update: Update
    subscriber: str
    fate: Fate


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
    marks = NodeEnds()
    for part, its in over_parts(_ends, paths, note, "ends of connections", dict(numbers)):
        windows |= part
        marks.merge(its)
    sessions = [
        Session(
            one,
            _window(one, windows, marks),
            _fate(one.node, has_end=(one.node, one.number) in windows, marks=marks),
        )
        for one in connections
    ]
    found = over_parts(_received, files_of(directory, "updates"), note, "updates", sessions)
    received = [one for part in found for one in part]
    # A mark matters if a session of its node may have received something after it, or
    # if updates themselves are missing.
    nodes = {one.node for one in connections}
    return Day(sessions, received, [mark for mark in marks.found if mark.updates or mark.node in nodes])


def _window(one: Connection, windows: dict[tuple[str, int], Window], marks: NodeEnds) -> Window:
    """Return the end of a connection: its own, or that of its node."""
    own = windows.get((one.node, one.number))
    until = marks.last(one.node, one.after, own and own.until)
    if own is not None:
        return own._replace(until=until)
    if one.node in marks.ends:
        return Window(until, marks.ends[one.node][1], "its process has ended")
    return Window(until, None, None)


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


def _ends(part: list[Path], numbers: dict[str, set[int]]) -> tuple[dict[tuple[str, int], Window], NodeEnds]:
    """Return how connections end in some files, and its marks."""
    windows: dict[tuple[str, int], Window] = {}
    marks = NodeEnds()
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
    of_epoch: defaultdict[Log, list[Session]] = defaultdict(list)
    for session in sessions:
        of_epoch[session.connection.hub, session.connection.epoch].append(session)
    verdicts = lru_cache(CACHED)(_receives)
    found = []
    for line in map(parsed, lines_of(part)):
        position = line["position"]
        for session in of_epoch.get((line.get("hub"), line.get("epoch")), ()):
            one, window, fate = session
            if one.after < position <= window.until and verdicts(
                one.selectors, one.authorised, tuple(line["topics"]), line["private"], one.hub
            ):
                found.append(Received(Update.of(line), one.subscriber, fate))
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


class Unread(NamedTuple):
    """The private updates of a log, without those that announce who is connected."""

    total: int
    """How many there are."""
    unread: int
    """How many of them no connection received, ..."""
    wanted: int
    """... and how many of these at least one wanted, and might not read."""
    unsure: int
    """Of how many more this is not known: their deliveries may be missing."""
    updates: list[tuple[Update, bool, bool]]
    """The first of them, each with whether it was wanted, and whether it is unsure."""


class Group(NamedTuple):
    """All connections of a log that declared and were granted the same."""

    selectors: Selectors
    authorised: Selectors
    times: Intervals
    """When at least one of them was there."""
    perhaps: Intervals
    """The same of those whose process was killed, and which may have received less."""


def unread(directory: str, note: Note, *, limit: int = 1_000) -> Unread:
    """Return the private updates that no connection received, and the first `limit`.

    Connections that declared the same are taken together: for each topic, they are
    found once.  Keeps some 300 bytes for each connection.  Raises the errors of `who`.
    """
    groups, marks = _groups(directory, note)
    found = list(over_parts(_unread, files_of(directory, "updates"), note, "updates", groups, marks, limit))
    first = [one for part in found for one in part.updates]
    total, unread, wanted, unsure = (sum(getattr(part, name) for part in found) for name in Unread._fields[:4])
    return Unread(total, unread, wanted, unsure, first[:limit])


def _groups(directory: str, note: Note) -> tuple[dict[Log, list[Group]], NodeEnds]:
    """Return the groups of each log, and the marks."""
    began: dict[tuple[str, int], _Began] = {}
    ends: dict[tuple[str, int], float] = {}
    marks = NodeEnds()
    same: dict[object, Any] = {}
    for some, its_ends, its_marks in over_parts(_began, files_of(directory, "sessions"), note, "connections"):
        for key, one in some.items():
            began[key] = one._replace(declared=same.setdefault(one.declared, one.declared))
        ends |= its_ends
        marks.merge(its_marks)
    times: defaultdict[Log, defaultdict[tuple[Selectors, Selectors], tuple[_Times, _Times]]]
    times = defaultdict(lambda: defaultdict(lambda: ([], [])))
    for (node, number), one in began.items():
        own = ends.get((node, number))
        is_sure = _fate(node, has_end=own is not None, marks=marks) != "perhaps"
        times[one.log][one.declared][not is_sure].append((one.after, marks.last(node, one.after, own)))
    groups = {
        log: [Group(*declared, *map(_union, both)) for declared, both in of_log.items()]
        for log, of_log in times.items()
    }
    return groups, marks


_Times: TypeAlias = "list[tuple[int, float]]"


class _Began(NamedTuple):
    """The beginning of a connection."""

    log: Log
    declared: tuple[Selectors, Selectors]
    after: int


def _began(part: list[Path]) -> tuple[dict[tuple[str, int], _Began], dict[tuple[str, int], float], NodeEnds]:
    """Return the connections that begin in some files, ends of some, and marks."""
    began: dict[tuple[str, int], _Began] = {}
    ends: dict[tuple[str, int], float] = {}
    marks = NodeEnds()
    same: dict[object, Any] = {}  # equal values as one object, which takes memory once
    for line in map(parsed, lines_of(part)):
        if line["event"] == "connect":
            log, declared = (
                (line["hub"], line["epoch"]),
                (selectors_of(line["selectors"]), selectors_of(line["authorised"])),
            )
            one = _Began(same.setdefault(log, log), same.setdefault(declared, declared), line["after"])
            began[same.setdefault(line["node"], line["node"]), line["number"]] = one
        elif line["event"] == "disconnect":
            ends[same.setdefault(line["node"], line["node"]), line["number"]] = line["until"]
        else:
            marks.note(line)
    return began, ends, marks


def _union(times: Iterable[tuple[int, float]]) -> Intervals:
    """Return disjoint intervals with the same positions, in order: two lists, of the
    positions after which one begins, and up to which it lasts.
    """
    afters: list[int] = []
    untils: list[float] = []
    for after, until in sorted(times):
        if untils and after <= untils[-1]:
            untils[-1] = max(untils[-1], until)
        elif after < until:
            afters.append(after)
            untils.append(until)
    return afters, untils


def _has(times: Intervals, position: int) -> bool:
    """Return whether a position lies in one of the intervals."""
    afters, untils = times
    place = bisect_left(afters, position) - 1  # the last one that begins before it
    return place >= 0 and position <= untils[place]


def _unread(part: list[Path], groups: Mapping[Log, Sequence[Group]], marks: NodeEnds, limit: int) -> Unread:
    """Return the private updates of some files that no connection received."""
    return asyncio.run(_found_unread(part, groups, marks, limit))


async def _found_unread(part: list[Path], groups: Mapping[Log, Sequence[Group]], marks: NodeEnds, limit: int) -> Unread:
    crowds: dict[Log, _Crowd] = {}
    total = count = wanted = unsure = 0
    first: list[tuple[Update, bool, bool]] = []
    for text in lines_of(part):
        if b'"private":false' in text:
            continue
        line = parsed(text)
        if not line["private"] or line.get("presence", False):
            continue
        total += 1
        log = line.get("hub"), line.get("epoch")
        if (crowd := crowds.get(log)) is None:
            crowd = crowds[log] = _Crowd(groups.get(log, ()), line.get("hub"))
        topics = tuple(line["topics"])
        wanting, (receiving, perhaps) = crowd.known.get(topics) or await crowd.times_of(topics)
        position = line["position"]
        if _has(receiving, position):
            continue
        update, is_wanted = None, any(_has(times, position) for times in wanting)
        is_unsure = _has(perhaps, position) or (bool(marks.found) and bool(marks.of(update := Update.of(line))))
        unsure += is_unsure
        count += not is_unsure
        wanted += is_wanted and not is_unsure
        if len(first) < limit:
            first.append((update or Update.of(line), is_wanted, is_unsure))
    return Unread(total, count, wanted, unsure, first)


class _Crowd:
    """The groups of a log: when is anyone there who wants, or receives, a topic?"""

    def __init__(self, groups: Sequence[Group], hub: str | None) -> None:
        self._audience = Audience(hub or "", max_alike=sys.maxsize)
        self._times: dict[int, tuple[Intervals, Intervals]] = {}
        for group in groups:
            subscribed, granted = (
                [TopicMatcher(*one, ((one[0], _compiled(*one, hub)),), 0, 0) for one in some]
                for some in (group.selectors, group.authorised)
            )
            seat = self._audience.seat(Subscriber(subscribed, CompiledGrant(subscribe=tuple(granted)), 0))
            self._times[seat.id] = group.times, group.perhaps
        self._all = BitMap64(self._times)
        self.known: dict[tuple[str, ...], tuple[Known, Known]] = {}
        """What `times_of` has found, by topics."""
        # Many topics have the same groups.
        self._of_ids: LRUCache[FrozenBitMap64, Known] = LRUCache(MAX_UNIONS)

    async def times_of(self, topics: tuple[str, ...]) -> tuple[Known, Known]:
        """Return when anyone wants a private update of these topics, and gets it."""
        wanting = await self._audience.of(topics, False, self._all, ALL_AT_ONCE)
        receiving = await self._audience.of(topics, True, wanting, ALL_AT_ONCE)
        if len(self.known) == CACHED:
            self.known.clear()
        times = self.known[topics] = self._united(wanting), self._united(receiving)
        return times

    def _united(self, ids: BitMap64) -> Known:
        """Return when any of these groups is there, and perhaps is."""
        same = FrozenBitMap64(ids)
        found = self._of_ids.get(same)
        if found is None:
            times, perhaps = (
                _union(chain.from_iterable(zip(*self._times[id][which], strict=True) for id in ids)) for which in (0, 1)
            )
            found = self._of_ids[same] = times, perhaps
        return found


class _AllAtOnce:
    """The pace of a process with one task."""

    def is_over(self) -> bool:
        return False

    async def pause(self) -> None:
        raise AssertionError


ALL_AT_ONCE: Final = _AllAtOnce()
