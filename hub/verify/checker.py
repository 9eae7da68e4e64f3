"""Checks the sequences that clients received against the updates that were published.

    publisher ──► node ──┐             ┌──► node ──► client    each client records what
    publisher ──► node ──┴── history ──┴──► node ──► client    it received, and when

Only times and sequences are compared.  The hub's history is read once, at the end, from
`earliest`: the *final read*.

    began ──────── known ──────────► time    known: acknowledged or first received
      may be stored     │ is stored          if one is known before another began, it
                                             must come before the other

    first id ── a ── b ─╫─ c ── d ─── interrupted ─── e ── f ──► end    two stretches
                        ╫  the hub answered a cursor with `earliest`: an announced gap

A publisher's update is *acknowledged* (200 and an id), *refused* (another status, or no
connection: its number is sent again in a new update), or *uncertain* (sent, but without
an answer: it may be stored or not, and is not sent again).

A *stretch* is what a client received without an announced gap.  It continues over all
connections that continue from its cursor, the id of the last event that it processed.
In a stretch, these are violations:

    loss            an acknowledged update is missing.  A stretch must contain every
                    update that began after it, and every update that the final read
                    places after its first event or cursor.  If it was interrupted, only
                    up to its last event
    disagreement    the same for an unacknowledged update that some client received
    duplicate       an update comes twice
    reordering      an update comes after one that the final read places later (or, if
                    both have expired there, the stretch with the most expired updates);
                    or after one that began when this one was already known.  So the
                    numbers of one publisher must grow
    corruption      other data than was sent, or another id than the publisher was given

and over all clients:

    lost            an acknowledged update that no client received; or one that the
                    final read lacks although it has earlier ones.  No violation for a
                    history that may lose updates (`may_lose`), if a gap was announced
    unfinished      a client did not reach the last update in time, for any reason

Updates that a client never received, and that no stretch had to contain, fell into an
announced gap; they are counted.

All times are of one clock in one process.  A client stores 4 bytes for each event.
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
"""The number of violations of each kind that are shown in full."""


# -- observations


@dataclass(slots=True)
class Published:
    """One attempt to publish a number.

    Its serial is its index among all updates, which are in order of `began`.
    """

    publisher: int
    number: int
    began: float
    acknowledged: float = math.inf
    seen: float = math.inf
    """When the first client received it."""
    told: str = ""
    """The id that the publisher was given."""
    id: str = ""
    """The id with which the first client received it."""

    @property
    def known(self) -> float:
        """When it was acknowledged or first received, whichever came first."""
        return min(self.acknowledged, self.seen)

    def __str__(self) -> str:
        return f"publisher {self.publisher} number {self.number} ({self.told or self.id or 'no id'})"


@dataclass(slots=True)
class Stretch:
    """The serials that a client received without an announced gap, in their order."""

    since: float
    """It must contain updates that began later."""
    after: int | None = None
    """The serial of its first cursor, if the hub continued from that."""
    announced: bool = False
    """Whether it began with an announced gap."""
    serials: array[int] = field(default_factory=lambda: array("I"))


class Corrupted(NamedTuple):
    """An event with wrong data or a wrong id, and its position in the client's
    history.
    """

    position: int
    what: str


@dataclass(slots=True)
class Seen:
    """All that one client received.

    Its events are counted from 0 over its stretches.
    """

    client: str
    stretches: list[Stretch] = field(default_factory=list)
    corrupted: list[Corrupted] = field(default_factory=list)


# -- the check


class Violation(NamedTuple):
    """A broken rule, with the client that noticed it."""

    client: str
    position: int | None
    """The number of events that the client had received before; None if it has no
    client."""
    what: str


class Findings:
    """The number of violations of each kind, the first examples, and the announced
    gaps.
    """

    def __init__(self) -> None:
        self.counts: Counter[Kind] = Counter()
        self.examples: dict[Kind, list[Violation]] = {kind: [] for kind in KINDS}
        self.gaps = 0
        self.missed = 0
        """Updates that clients missed in announced gaps, summed over the clients."""

    def note(self, kind: Kind, client: str, position: int | None, what: str) -> None:
        """Count a violation, and keep it if it is one of the first."""
        self.counts[kind] += 1
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(Violation(client, position, what))

    def violations(self, *, may_lose: bool) -> int:
        """Return the number of violations; without `lost` ones if updates may
        be lost.
        """
        return self.counts.total() - (self.counts["lost"] if may_lose else 0)


def check(updates: Sequence[Published], histories: Iterable[Seen], last: Seen, closing: int) -> Findings:
    """Return the violations in `histories`, given the final read of the hub's history.

    `closing` is the serial of the last update, which all clients must reach; what they
    received after it does not count.
    """
    return _Check(updates, [*histories, last], last, closing).findings


class _Check:
    """One check: each client's stretches, and then the history as a whole."""

    def __init__(self, updates: Sequence[Published], histories: list[Seen], last: Seen, closing: int) -> None:
        self.findings = Findings()
        self._updates, self._closing = updates, closing
        self._began = [update.began for update in updates]  # ascending
        for history in histories:
            _end(history, closing)
        # The serials that any client received, and those that were acknowledged too.
        stretches = [stretch for history in histories for stretch in history.stretches]
        self._had = set[int]().union(*(stretch.serials for stretch in stretches))
        acknowledged = {n for n, update in enumerate(updates) if update.acknowledged < math.inf}
        self._known = sorted(self._had | acknowledged)

        # The order of updates: by the final read, and for updates that have expired
        # there by the stretch that has the most of them.
        self._order = last.stretches[-1].serials if last.stretches else array("I")
        self._places: dict[int | None, int] = {n: place for place, n in enumerate(self._order)}
        gone = self._had - self._places.keys()
        witness = max(stretches, key=lambda stretch: len(gone.intersection(stretch.serials)), default=Stretch(0))
        self._gone: dict[int | None, int] = {n: place for place, n in enumerate(witness.serials) if n in gone}

        for history in histories:
            self._check_history(history)
        self._check_log()

    def _check_history(self, history: Seen) -> None:
        """Find the violations of one client."""
        note, client, position, missed = self.findings.note, history.client, 0, set[int]()
        for corrupted in history.corrupted:
            note("corruption", client, *corrupted)
        # Each stretch; it was interrupted if the client did not go on to the closing
        # update.
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
        # The client must have reached the closing update.
        if not history.stretches or self._closing not in history.stretches[-1].serials:
            note("unfinished", client, position, "did not come to the last update")
        # The rest of what it never received fell into announced gaps.
        if history.stretches:
            had = missed.union(*(stretch.serials for stretch in history.stretches))
            self.findings.missed += len(self._since(history.stretches[0].since) - had)

    def _since(self, time: float) -> set[int]:
        """Return the known updates that began after `time`."""
        return set(self._known[bisect_left(self._known, bisect_right(self._began, time)) :])

    def _missing(self, stretch: Stretch, *, ends: bool) -> set[int]:
        """Return the updates that a stretch lacks.

        If it `ends`, because it was interrupted or finished, it need not contain
        anything after its last event.
        """
        had = set(stretch.serials)
        # 1. By the final read: all between its first event, or its cursor, and its end.
        places = [self._places[n] for n in had if n in self._places]
        first = self._places.get(stretch.after, min(places, default=len(self._order)))
        end = max(places, default=-1) + 1 if ends else len(self._order)
        # 2. By time: all that began after the stretch, and were known before its last
        #    event began.
        latest = math.inf if not ends else self._began[max(had)] if had else -math.inf
        by_time = {n for n in self._since(stretch.since) - had if self._updates[n].known < latest}
        return by_time.union(self._order[first:end]) - had - {stretch.after}

    def _duplicates(self, serials: array[int]) -> Iterator[tuple[int, str]]:
        """Yield (index, description) of each update that came before."""
        if len(set(serials)) == len(serials):
            return
        first: dict[int, int] = {}
        for index, n in enumerate(serials):
            if first.setdefault(n, index) != index:
                yield index, f"{self._updates[n]} comes again, {index - first[n]} events later"

    def _disorder(self, serials: array[int]) -> Iterator[tuple[int, int]]:
        """Yield (update, other) pairs: the update came after the other, but
        must not.
        """
        # The final read defines the order, so a part of it is in order (the final read
        # itself is checked by time alone).
        start = self._places.get(serials[0], 0) if serials else 0
        if serials is not self._order and serials == self._order[start : start + len(serials)]:
            return
        # `latest` is the update with the latest beginning so far; `tops` are the
        # updates that are furthest in the two orders.
        latest, tops = -1, [(-1, -1), (-1, -1)]
        for n in dict.fromkeys(serials):
            # 1. By time: it was known before an update began that has come already.
            before = latest if latest >= 0 and self._updates[n].known < self._began[latest] else None
            # 2. By each order: an update that is placed later has come already.
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
        """Find updates that are lost, or had two ids."""
        # An update that began after the first of the final read was known must be in
        # it.  An unfinished final read proves nothing.
        whole = self._order if self._closing in self._places else ()
        floor = min((self._updates[n].known for n in whole), default=math.inf)
        for n in self._known:
            update = self._updates[n]
            if n not in self._had:
                self.findings.note("lost", "", None, f"{update} was acknowledged, and no client received it")
            elif n not in self._places and update.began > floor:
                self.findings.note("lost", "", None, f"{update} is missing from the history, which has earlier ones")
            if update.told and update.id and update.told != update.id:
                self.findings.note("corruption", "", None, f"{update} came with the id {update.id}")


def _end(history: Seen, closing: int) -> None:
    """Drop the events after the closing update: unanswered attempts, or a replay."""
    for index, stretch in enumerate(history.stretches):
        if closing in stretch.serials:
            del stretch.serials[stretch.serials.index(closing) + 1 :]
            del history.stretches[index + 1 :]
