"""Whether a hub keeps its promises: publish through its nodes, follow with clients that come and go, compare.

    publisher ──► node ──┐         ┌──► node ──► client     every one of them notes what it knew, and when
    publisher ──► node ──┴── log ──┴──► node ──► client

What is compared is times and sequences; nothing is asked of the log but one last reading, from `earliest`.

    began ──────── known ───────────► time        known: acknowledged, or had by a client, whichever was first
      may be in the log │ is in the log           so of two updates, one known before the other began is before it

    first id ── a ── b ─╫─ c ── d ─── cut off ─── e ── f ───► end      what a client had: two stretches
                        ╫  the hub answered a cursor with another one, `earliest`: an announced gap

A publisher's update is *acknowledged* (200 and an id), *refused* (another answer, or no connection: the number is sent
again, as another update), or *uncertain* (sent, and no answer: it may be in the log or not, and is not sent again).

A *stretch* is what a client had without a gap announced to it; it goes on over all connections that go on from its
cursor, the id of the last event that it has processed.  Within one these are violations:

    loss            an acknowledged update is missing.  To have are all that began after the stretch had begun, and all
                    that come in the last reading after the first one that the client had, or named as its cursor; and,
                    where a stretch was broken off, before the last one that it had
    disagreement    the same of one that was not acknowledged, and that somebody had
    duplicate       an update comes twice
    reordering      an update comes after one that is behind it in the last reading or, where both are gone from there,
                    in the stretch that had the most of those; or after one that began when it was already known, and
                    so is behind it by any order.  Numbers of one publisher grow by this
    corruption      data that is not what was sent, or an id that is not the one that the publisher was told

and over all

    lost            an acknowledged update that nobody had; or one that is not in the last reading, which has earlier
                    ones.  No violation for a log that may lose (`may_lose`), as long as a gap was announced
    unfinished      a client did not come to the last update in time, for whatever reason

What a client never had and no stretch had to have was missed by an announced gap; it is counted.

All times are of one clock, in one process, so no clock has to agree with another.  A client keeps 4 bytes for an event.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Kind: TypeAlias = Literal["loss", "disagreement", "duplicate", "reordering", "corruption", "lost", "unfinished"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

EXAMPLES: Final = 5
"""Violations of a kind that are told in full."""


# -- what was seen


@dataclass(slots=True)
class Update:
    """A number as it was sent once.  Its serial is its index among all updates, which are in order of `began`."""

    publisher: int
    number: int
    began: float
    acknowledged: float = math.inf
    seen: float = math.inf
    """When the first client had it."""
    told: str = ""
    """The id that the publisher was told."""
    id: str = ""
    """The id that the first client had it with."""

    @property
    def known(self) -> float:
        return min(self.acknowledged, self.seen)

    def __str__(self) -> str:
        return f"publisher {self.publisher} number {self.number} ({self.told or self.id or 'no id'})"


@dataclass(slots=True)
class Stretch:
    """What a client had without an announced gap: serials, in the order in which they came."""

    since: float
    """What began later is to come."""
    after: int | None = None
    """The serial of its cursor when it began, if it named one that the hub went on from."""
    announced: bool = False
    """Whether it began with an announced gap."""
    serials: array[int] = field(default_factory=lambda: array("I"))


class Corrupted(NamedTuple):
    position: int
    what: str


@dataclass(slots=True)
class History:
    """All that one client had.  A position in it counts the events of its stretches, from 0."""

    client: str
    stretches: list[Stretch] = field(default_factory=list)
    corrupted: list[Corrupted] = field(default_factory=list)


# -- what is wrong with it


class Violation(NamedTuple):
    client: str
    position: int | None
    """How many events the client had before; None where it is nobody's."""
    what: str


class Findings:
    """How often each kind of violation was found, with the first examples, and what was announced."""

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[Violation]] = {kind: [] for kind in KINDS}
        self.gaps = 0
        self.missed = 0
        """Updates that a client never had, and need not have had; summed up over the clients."""

    def note(self, kind: Kind, client: str, position: int | None, what: str) -> None:
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(Violation(client, position, what))

    def violations(self, *, may_lose: bool) -> int:
        return self.counts.total() - (self.counts["lost"] if may_lose else 0)


def check(updates: Sequence[Update], histories: Iterable[History], last: History, closing: int) -> Findings:
    """What is wrong with `histories`, given the `last` reading of the log from `earliest`.

    `closing` is the serial of the last update, which all have to come to; what they had after it does not count.
    """
    return _Check(updates, [*histories, last], last, closing).findings


class _Check:
    def __init__(self, updates: Sequence[Update], histories: list[History], last: History, closing: int) -> None:
        self.findings = Findings()
        self._updates, self._closing = updates, closing
        self._began = [update.began for update in updates]
        for history in histories:
            _end(history, closing)
        stretches = [stretch for history in histories for stretch in history.stretches]
        self._had = set[int]().union(*(stretch.serials for stretch in stretches))
        acknowledged = {n for n, update in enumerate(updates) if update.acknowledged < math.inf}
        self._known = sorted(self._had | acknowledged)

        self._order = last.stretches[-1].serials if last.stretches else array("I")
        self._places: dict[int | None, int] = {n: place for place, n in enumerate(self._order)}
        gone = self._had - self._places.keys()
        witness = max(stretches, key=lambda stretch: len(gone.intersection(stretch.serials)), default=Stretch(0))
        self._gone: dict[int | None, int] = {n: place for place, n in enumerate(witness.serials) if n in gone}

        for history in histories:
            self._check_history(history)
        self._check_log()

    def _check_history(self, history: History) -> None:
        note, client, position, missed = self.findings.note, history.client, 0, set[int]()
        for corrupted in history.corrupted:
            note("corruption", client, *corrupted)
        for stretch in history.stretches:
            serials = stretch.serials
            ends = self._closing in serials or stretch is not history.stretches[-1]
            self.findings.gaps += stretch.announced
            for index, what in self._duplicates(serials):
                note("duplicate", client, position + index, what)
            for n, other in self._disorder(serials):
                what = f"{self._updates[n]} comes after {self._updates[other]}"
                note("reordering", client, position + serials.index(n), what)
            for n in sorted(missing := self._missing(stretch, ends=ends)):
                kind: Kind = "loss" if self._updates[n].acknowledged < math.inf else "disagreement"
                index = sum(other < n for other in serials) if self.findings.counts[kind] < EXAMPLES else 0
                note(kind, client, position + index, f"{self._updates[n]} is missing")
            missed |= missing
            position += len(serials)
        if not history.stretches or self._closing not in history.stretches[-1].serials:
            note("unfinished", client, position, "did not come to the last update")
        if history.stretches:
            had = missed.union(*(stretch.serials for stretch in history.stretches))
            self.findings.missed += len(self._since(history.stretches[0].since) - had)

    def _since(self, time: float) -> set[int]:
        """Those known that began later."""
        return set(self._known[bisect_left(self._known, bisect_right(self._began, time)) :])

    def _missing(self, stretch: Stretch, *, ends: bool) -> set[int]:
        """What it had to have; where it `ends`, nothing after the last one that it had."""
        had = set(stretch.serials)
        places = [self._places[n] for n in had if n in self._places]
        first = self._places.get(stretch.after, min(places, default=len(self._order)))
        end = max(places, default=-1) + 1 if ends else len(self._order)
        latest = math.inf if not ends else self._began[max(had)] if had else -math.inf
        by_time = {n for n in self._since(stretch.since) - had if self._updates[n].known < latest}
        return by_time.union(self._order[first:end]) - had - {stretch.after}

    def _duplicates(self, serials: array[int]) -> Iterator[tuple[int, str]]:
        if len(set(serials)) == len(serials):
            return
        first: dict[int, int] = {}
        for index, n in enumerate(serials):
            if first.setdefault(n, index) != index:
                yield index, f"{self._updates[n]} comes again, {index - first[n]} events later"

    def _disorder(self, serials: array[int]) -> Iterator[tuple[int, int]]:
        """Pairs of which the first is to come before the second, and does not."""
        start = self._places.get(serials[0], 0) if serials else 0
        if serials is not self._order and serials == self._order[start : start + len(serials)]:
            return  # it is a part of the last reading, which is looked at by itself
        latest, tops = -1, [(-1, -1), (-1, -1)]
        for n in dict.fromkeys(serials):
            before = latest if latest >= 0 and self._updates[n].known < self._began[latest] else None
            for line, places in enumerate((self._places, self._gone)):
                if (place := places.get(n)) is not None:
                    if place < tops[line][0]:
                        before = tops[line][1]
                    else:
                        tops[line] = place, n
            if before is not None:
                yield n, before
            latest = max(latest, n)

    def _check_log(self) -> None:
        # What began later is behind the beginning of the log; a reading that was not finished tells nothing of it.
        whole = self._order if self._closing in self._places else ()
        floor = min((self._updates[n].known for n in whole), default=math.inf)
        for n in self._known:
            update = self._updates[n]
            if n not in self._had:
                self.findings.note("lost", "", None, f"{update} was acknowledged, and nobody had it")
            elif n not in self._places and update.began > floor:
                self.findings.note("lost", "", None, f"{update} is in the history no more, which has earlier ones")
            if update.told and update.id and update.told != update.id:
                self.findings.note("corruption", "", None, f"{update} came with the id {update.id}")


def _end(history: History, closing: int) -> None:
    """Drop what came after the last update: what no publisher had an answer to, or, after a gap, a replay."""
    for index, stretch in enumerate(history.stretches):
        if closing in stretch.serials:
            del stretch.serials[stretch.serials.index(closing) + 1 :]
            del history.stretches[index + 1 :]
