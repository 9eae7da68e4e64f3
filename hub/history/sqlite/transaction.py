"""Transactions of a history: what one can write, what one can read, and their rows.

    Writing            append             ─► log, presence, seen
                       trim, prune        ─► forget the oldest
                       arrives, departs   ─► present
                       beat, touch, leave ─► node
                       command, answer    ─► command, revoked, answer
    ReadTransaction    find, newest, end, read, present, news, answers, stats, back_up

Positions in the file count from 1; `offset` is added for the positions of this process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from hashlib import blake2b
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hub.control.commands import Command, News, Numbered
from hub.control.ledger import ANSWERS_AGE, MAX_AGE, MAX_COMMANDS
from hub.errors import PositionExpired
from hub.history import base
from hub.history.base import EARLIEST, Entry, Page, Retention, Stats
from hub.history.opaque import Loss
from hub.history.sqlite.file import (
    Unreadable,
    connect,
    files_of,
    first_position,
    forgotten_positions,
    last_position,
    next_position,
    renew,
)
from hub.protocol.data import to_json
from hub.protocol.subscriptions import Present
from hub.protocol.updates import Update

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hub.clocks import Dates
    from hub.history.sqlite.file import File

TRIM_ENTRIES: Final = 1_000
"""Entries of each kind that a transaction forgets, at most, plus two for each entry
that it appends.  So a history beyond its bounds shrinks even while updates arrive.

The same limit holds for remembered ids.  `prune` forgets up to four times as many.
"""
ORPHANS_PER_BEAT: Final = 1_000
"""Subscribers of dead nodes that one beat returns, at most."""
_ROW_BYTES: Final = 80
"""Bytes of a row in addition to its texts, with its share of the index."""
_SELECT: Final = "SELECT position, time, id, topics, private, type, retry, data FROM log "
_BEGINNING: Final = (
    "SELECT (SELECT max(position) FROM log), published, published_bytes, published_forgotten,"
    " presence, presence_bytes, presence_forgotten,"
    " (SELECT group_concat(bell) FROM node WHERE bell AND name <> ?), (SELECT max(number) FROM command) FROM state"
)
_ROWS: Final = 16
"""Rows that one statement inserts, at most."""
_INSERTS: Final = [
    "INSERT INTO log VALUES " + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)  # noqa: S608 - no value
    for count in range(_ROWS + 1)
]
"""The statement that inserts so many rows; there is none for 0."""
# The oldest entries of each kind after a position: position, time and size.
_PUBLISHED: Final = (
    "SELECT position, time, size FROM log WHERE position > ?"
    " AND NOT EXISTS (SELECT 1 FROM presence WHERE presence.position = log.position) ORDER BY position LIMIT ?"
)
_PRESENCE: Final = (
    "SELECT presence.position, time, size FROM presence CROSS JOIN log USING (position)"
    " WHERE presence.position > ? ORDER BY presence.position LIMIT ?"
)
_PRESENCE_AMONG: Final = "SELECT position FROM presence WHERE position BETWEEN ? AND ?"


class _Kept(NamedTuple):
    """The entries of one kind that the history has, in numbers."""

    updates: int
    bytes: int
    forgotten: int
    """The newest forgotten position."""

    def grown(self, sizes: Sequence[int]) -> _Kept:
        """Return the numbers after appending entries of these sizes."""
        return _Kept(self.updates + len(sizes), self.bytes + sum(sizes), self.forgotten)


class Writing:
    """What a transaction can write.

    The caller begins the transaction, makes this object, calls its methods and then
    `finish`, and commits.  If any of them raises, the caller must undo the transaction.
    `dates` gives the new entries their date, and `node` is the name of this node.  Use
    it in the writer's thread only.
    """

    def __init__(self, file: File, dates: Dates, node: str, known: int) -> None:
        self.entries: list[Entry] = []
        """The entries that this transaction appended."""
        self.forgotten = 0
        """The number of entries that it has forgotten."""
        self._connection = file.writer
        self._offset = file.offset
        self._past = dates.past
        self._now = dates.now()
        # One statement: at each of them, the thread may lose the global lock to the
        # event loop, and wait for it.
        row = file.writer.execute(_BEGINNING, (node,)).fetchone()
        self._end: int = row[0] or 0  # the newest entry's position in the file
        self._published, self._presence = _Kept(*row[1:4]), _Kept(*row[4:7])
        self.wake_ports = [int(port) for port in (row[7] or "").split(",") if port]
        """The ports of the wake sockets of all other nodes."""
        self.newest: int = row[8]
        """The number of the newest command."""
        self.news = news(file.writer, known) if self.newest > known else None
        """What the node does not know, as it knew `known`; None if it knows all."""
        self.has_told = False
        """Whether this transaction has a new command or answer."""
        self._stored = self._published, self._presence  # as the table `state` has them

    @property
    def end(self) -> int:
        """The position of the newest entry."""
        return self._offset + self._end

    def append(self, rows: Iterable[Row], *, presence: bool = False) -> list[Entry]:
        """Append the updates of the rows, as published or as presence updates.

        Returns the new entries, with the positions of this process.
        """
        entries = []
        parameters = []
        sizes = []
        for update, moment, size, *texts in rows:
            self._end += 1
            entries.append(Entry(self._offset + self._end, update, self._now if moment is None else moment))
            parameters.append((self._end, entries[-1].time, size, *texts))
            sizes.append(size)
        for first in range(0, len(parameters), _ROWS):
            some = parameters[first : first + _ROWS]
            self._connection.execute(_INSERTS[len(some)], [*chain.from_iterable(some)])
        if presence:
            self._connection.executemany("INSERT INTO presence VALUES (?)", [row[:1] for row in parameters])
            self._presence = self._presence.grown(sizes)
        else:
            self._published = self._published.grown(sizes)
        self.entries += entries
        return entries

    def append_new(self, rows: Sequence[Row], seen: Iterable[bytes], window: int, most: int) -> list[Entry]:
        """Append the rows whose ids were not seen in the last `window` ms.

        `seen` has the hash of each row's id, as `base.seen_as` makes it.  A repetition
        within `rows` is left out too.  At most about `most` hashes are remembered.
        """
        new = [row for row, known in zip(rows, self._knows(seen, window), strict=True) if not known]
        self._forget_seen(window, most, 2 * len(rows) + TRIM_ENTRIES)
        return self.append(new)

    def _knows(self, seen: Iterable[bytes], window: int) -> Iterator[bool]:
        """Yield for each hash if it was seen in the last `window` ms.

        If it was not, remember it as seen now.
        """
        before = self._past(window)
        for hashed in seen:
            found = self._connection.execute(
                "SELECT 1 FROM seen WHERE hash = ? AND time > ?", (hashed, before)
            ).fetchone()
            if found is None:
                self._connection.execute("INSERT OR REPLACE INTO seen (time, hash) VALUES (?, ?)", (self._now, hashed))
            yield found is not None

    def _forget_seen(self, window: int, most: int, limit: int) -> None:
        """Forget up to `limit` of the oldest hashes, if too old or more than `most`."""
        oldest = self._connection.execute(
            "SELECT number, time, (SELECT max(number) FROM seen) FROM seen ORDER BY number LIMIT ?", (limit,)
        )
        # The numbers have gaps, because a hash that is seen again gets a new number.
        # Therefore fewer than `most` hashes may be left.
        before = self._past(window)
        gone = takewhile(lambda row: row[1] <= before or row[0] <= row[2] - most, oldest.fetchall())
        self._connection.executemany("DELETE FROM seen WHERE number = ?", [row[:1] for row in gone])

    def trim(self, bounds: Retention, limit: int) -> int:
        """Forget the oldest entries beyond the bounds, up to `limit` of each kind.

        Keeps the newest entry of each kind.  If published updates go, all presence
        updates that are older than the oldest published one that is left go too, even
        beyond the limit.  Returns how many entries were forgotten, of both kinds.
        """
        # An entry is too old if its time, in ms, is before `oldest`.
        before, oldest = self._published.updates + self._presence.updates, self._past(bounds.max_age * 1_000)
        # 1. Published updates, and everything before the first one that is left.
        published = self._within(_PUBLISHED, self._published, bounds.max_updates, bounds.max_bytes, oldest, limit)
        if published != self._published:
            self._published = published
            first, *_ = self._connection.execute(_PUBLISHED, (published.forgotten, 1)).fetchone()
            self._forget_presence(first)
            self._connection.execute("DELETE FROM log WHERE position < ?", (first,))
        # 2. Presence updates, by their own bounds.
        kept = self._presence
        presence = self._within(_PRESENCE, kept, bounds.presence_updates, bounds.presence_bytes, oldest, limit)
        if presence != kept:
            self._forget_presence(presence.forgotten + 1)
        forgotten = before - self._published.updates - self._presence.updates
        self.forgotten += forgotten
        return forgotten

    def prune(self, bounds: Retention) -> int:
        """Forget as `trim` does, up to 4 * TRIM_ENTRIES of a kind; return how many."""
        return self.trim(bounds, 4 * TRIM_ENTRIES)

    def trim_some(self, bounds: Retention) -> bool:
        """Forget as `trim` does, and return whether more may have to be forgotten.

        The limit grows with the number of appended entries, as TRIM_ENTRIES says.
        """
        limit = TRIM_ENTRIES + 2 * len(self.entries)
        return self.trim(bounds, limit) >= limit

    def _within(self, rows_of_kind: str, kept: _Kept, most: int, most_bytes: int, oldest: float, limit: int) -> _Kept:
        """Return the numbers of a kind after forgetting up to `limit` of its oldest.

        Only counts; the caller deletes the rows.
        """
        updates, size, forgotten = kept
        if updates <= most and size <= most_bytes and oldest == -math.inf:
            return kept
        rows = self._connection.execute(rows_of_kind, (forgotten, limit))
        for position, moment, own in rows:
            if updates <= 1 or (updates <= most and size <= most_bytes and moment >= oldest):
                break
            updates, size, forgotten = updates - 1, size - own, position
        rows.close()
        return _Kept(updates, size, forgotten)

    def _forget_presence(self, before: int) -> None:
        """Delete the presence updates before a position, and update their numbers."""
        count, size, last = self._connection.execute(
            "SELECT count(*), ifnull(sum(size), 0), max(presence.position)"
            " FROM presence CROSS JOIN log USING (position) WHERE presence.position < ?",
            (before,),
        ).fetchone()
        if count:
            kept = self._presence
            self._presence = _Kept(kept.updates - count, kept.bytes - size, last)
            self._connection.execute(
                "DELETE FROM log WHERE position IN (SELECT position FROM presence WHERE position < ?)", (before,)
            )
            self._connection.execute("DELETE FROM presence WHERE position < ?", (before,))

    def finish(self) -> None:
        """Write the numbers of both kinds into `state`, if they have changed."""
        if (self._published, self._presence) != self._stored:
            self._connection.execute(
                "UPDATE state SET published = ?, published_bytes = ?, published_forgotten = ?,"
                " presence = ?, presence_bytes = ?, presence_forgotten = ?",
                (*self._published, *self._presence),
            )

    def arrives(self, subscriber: Present, node: str) -> bool:
        """Add a subscriber of a node to the list, or replace it.  Returns True."""
        self._connection.execute(
            "INSERT OR REPLACE INTO present VALUES (?, ?, ?)", (subscriber.id, node, subscriber.to_json())
        )
        return True

    def departs(self, id: str) -> bool:
        """Remove a subscriber from the list; return whether it was there."""
        return self._connection.execute("DELETE FROM present WHERE id = ?", (id,)).rowcount > 0

    def command(self, command: Command, most: int) -> int | None:
        """Append a command to the list, and return its number.

        Returns None, and changes nothing, if `most` other revocations are in force.
        """
        target = to_json(command.target)
        if command.action == "revoke":
            # `before` is a little later than now; `until` has room for that.
            self._connection.execute("DELETE FROM revoked WHERE until < ?", (command.before,))
            (others,) = self._connection.execute("SELECT count(*) FROM revoked WHERE target <> ?", (target,)).fetchone()
            if others >= most:
                return None
            row = target, command.until, command.to_json()
            self._connection.execute("INSERT OR REPLACE INTO revoked VALUES (?, ?, ?)", row)
        elif command.action == "lift":
            self._connection.execute("DELETE FROM revoked WHERE target = ?", (target,))
        self.newest = max(self.newest + 1, self._now)
        numbered = Numbered(self.newest, command)
        self._connection.execute("INSERT INTO command VALUES (?, ?)", (self.newest, command.to_json()))
        self._connection.execute(
            "DELETE FROM command WHERE number < ? OR number <="
            " (SELECT number FROM command ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (self.newest - 1_000 * MAX_AGE, MAX_COMMANDS),
        )
        news = self.news or News(self.newest, [])
        self.news = news._replace(number=self.newest, commands=[*news.commands, numbered])
        self.has_told = True
        return self.newest

    def others(self, node: str, now: float, timeout: float) -> list[str]:
        """Return the names of the other nodes that have reported in `timeout`
        seconds."""
        rows = self._connection.execute(
            "SELECT name FROM node WHERE name <> ? AND seen BETWEEN ? AND ?", (node, now - timeout, now)
        )
        return [name for (name,) in rows]

    def answer(self, number: int, node: str, text: str) -> None:
        """Write the answer of a node to a command, and forget old answers."""
        self._connection.execute("DELETE FROM answer WHERE number < ?", (self._now - 1_000 * ANSWERS_AGE,))
        self._connection.execute("INSERT OR REPLACE INTO answer VALUES (?, ?, ?)", (number, node, text))
        self.has_told = True

    def touch(self, node: str, now: float, port: int) -> None:
        """Write that a node is alive at `now`, and the port of its wake socket.

        Here and below, `now` is in seconds of a clock since boot.
        """
        self._connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?)", (node, now, port))

    def give_time(self, now: float, timeout: float) -> None:
        """Count all nodes as alive at `now` if none has reported for half of `timeout`.

        Then it is likely that no node could write, and not that all of them are dead.
        """
        (heard,) = self._connection.execute("SELECT max(seen) FROM node WHERE seen <= ?", (now,)).fetchone()
        if heard is None or now - heard > timeout / 2:
            self._connection.execute("UPDATE node SET seen = ?", (now,))

    def beat(self, node: str, now: float, timeout: float) -> tuple[int, list[tuple[str, str]]]:
        """Remove the nodes that have not reported for `timeout` seconds.

        Returns the number of subscribers of `node`, and some orphans as rows of id and
        matchers.  An orphan is a row of `present` whose node does not exist.
        """
        # A time after `now` is from an earlier boot of the system.
        self._connection.execute("DELETE FROM node WHERE seen NOT BETWEEN ? AND ?", (now - timeout, now))
        (present,) = self._connection.execute("SELECT count(*) FROM present WHERE node = ?", (node,)).fetchone()
        orphans = self._connection.execute(
            "SELECT id, matchers FROM present WHERE node NOT IN (SELECT name FROM node) LIMIT ?", (ORPHANS_PER_BEAT,)
        )
        return present, orphans.fetchall()

    def leave(self, node: str) -> None:
        """Remove a node.  Its subscribers stay, so that other nodes announce them."""
        self._connection.execute("DELETE FROM node WHERE name = ?", (node,))
        # The last process to leave writes everything to disk when it closes the file.
        self._connection.execute("UPDATE state SET boot = '' WHERE boot <> '' AND NOT EXISTS (SELECT 1 FROM node)")


class ReadTransaction:
    """What a transaction can read, on its own connection: the history at one moment.

    The methods do what those of `base.History` with the same names do.
    """

    def __init__(self, file: File, connection: sqlite3.Connection) -> None:
        self._path = file.path
        self._epoch = file.epoch
        self._seal = file.seal
        self._offset = file.offset
        self._since = file.since
        self._connection = connection

    def find(self, id: str, *, presence: bool) -> int | None:
        """Return the position of the earliest entry with this id, or None.

        The index has hashes of ids, so the id is compared too.  Entries before `since`
        are ignored, because later ones may have been lost.
        """
        found = self._connection.execute(
            "SELECT position FROM log WHERE hash = ? AND id = ? AND position >= ? ORDER BY position LIMIT 1",
            (hash_of(id), id, self._since),
        ).fetchone()
        if found is None or (presence and found[0] < forgotten_positions(self._connection)[1]):
            return None
        return self._offset + int(found[0])

    def locate(self, cursor: str, *, presence: bool) -> int | Loss:
        """Return the position of an opaque cursor, or why updates after it are lost."""
        place = self._seal.place(cursor)
        if place is None:
            return Loss.UNKNOWN
        there = self._connection.execute("SELECT id FROM log WHERE position = ?", (place.number,)).fetchone()
        published, forgotten = forgotten_positions(self._connection)
        loss = place.loss(
            self._epoch,
            last=last_position(self._connection),
            there=there and there[0],
            published=published,
            presence=forgotten if presence else None,
        )
        return loss or self._offset + place.number

    def newest(self) -> Entry | None:
        """Return the newest entry, or None."""
        row = self._connection.execute(_SELECT + "ORDER BY position DESC LIMIT 1").fetchone()
        return None if row is None else entry_of(row, self._offset)

    def end(self) -> int:
        """Return the position of the newest entry."""
        return self._offset + last_position(self._connection)

    def read(self, after: int) -> Page:
        """Return the next page after a position.

        Raises PositionExpired also if the position is after the newest entry.
        """
        published, presence = forgotten_positions(self._connection)
        last, own_position = last_position(self._connection), 0 if after == EARLIEST else after - self._offset
        # 1. Refuse a position of an earlier epoch, before forgotten published updates,
        #    or after the newest entry.
        if own_position < 0:
            raise PositionExpired(f"position {after} is of an earlier epoch of the history")
        if after != EARLIEST and own_position < published:
            raise base.position_expired(after, self._offset + published)
        if own_position > last:
            raise PositionExpired(f"position {after} is after {self._offset + last}, the last of the history")
        # 2. The page begins with the next entry, and ends at a multiple of PAGE_ENTRIES
        #    or when it would exceed PAGE_BYTES.
        page = Page(forgotten=self._offset + presence)
        first = next_position(self._connection, own_position)
        if first is None:
            return page
        end = base.page_end(first - 1)
        rows = self._connection.execute(_SELECT + "WHERE position BETWEEN ? AND ? ORDER BY position", (first, end))
        size = 0
        for row in rows:
            entry = entry_of(row, self._offset)
            size += entry.size
            if page and size > base.PAGE_BYTES:
                break
            page.append(entry)
        else:
            page.full = end <= last  # later entries come after `end`
        # 3. Which of them are presence updates.
        found = self._connection.execute(_PRESENCE_AMONG, (first, page[-1].position - self._offset))
        page.presence = frozenset(self._offset + position for (position,) in found)
        return page

    def present(self, node: str, *, own: bool) -> list[Present]:
        """Return the subscribers of all nodes, or of this one."""
        rows = self._connection.execute("SELECT id, matchers FROM present WHERE node = ? OR NOT ?", (node, own))
        return list(map(present_of, rows))

    def news(self, known: int) -> News:
        """Return what a node does not know that knows the command `known`."""
        (newest,) = self._connection.execute("SELECT max(number) FROM command").fetchone()
        return news(self._connection, known) if newest > known else News(newest, [])

    def answers(self, number: int) -> dict[str, str]:
        """Return the answers to a command, by the names of their nodes."""
        return dict(self._connection.execute("SELECT node, text FROM answer WHERE number = ?", (number,)).fetchall())

    def stats(self) -> Stats:
        """Return the size and age of the history."""
        first, last = first_position(self._connection), last_position(self._connection)
        rows = self._connection.execute(_SELECT + "WHERE position IN (?, ?) ORDER BY position", (first, last))
        ends = [entry_of(row, self._offset) for row in rows]
        epoch, updates, size, presence_updates, presence_bytes = self._connection.execute(
            "SELECT epoch, published, published_bytes, presence, presence_bytes FROM state"
        ).fetchone()
        (present,) = self._connection.execute("SELECT count(*) FROM present").fetchone()
        oldest, newest = (ends[0], ends[-1]) if ends else (None, None)
        return Stats(
            updates=updates,
            oldest=oldest,
            newest=newest,
            bytes=size,
            presence_updates=presence_updates,
            presence_bytes=presence_bytes,
            size=sum(os.path.getsize(path) for path in files_of(self._path) if os.path.exists(path)),
            epoch=epoch,
            present=present,
        )

    def back_up(self, target: str) -> None:
        """Write a copy into a new file: in a new epoch, and without subscribers.

        `target` must not exist: the file there is removed if the copy fails.  Raises
        sqlite3.Error.
        """
        try:
            with contextlib.closing(connect(self._path)) as connection:
                connection.execute("VACUUM INTO ?", (target,))
            with contextlib.closing(connect(target)) as copy:
                copy.execute("DELETE FROM present")
                renew(copy)
        except sqlite3.Error:
            Path(target).unlink(missing_ok=True)
            raise


def news(connection: sqlite3.Connection, known: int) -> News:
    """Return the commands after the one with the number `known`.

    If the list does not have that one, it may have dropped others after it, or it is
    another list: then the result has all revocations instead.
    """
    rows = connection.execute("SELECT number, text FROM command WHERE number >= ? ORDER BY number", (known,)).fetchall()
    if rows and rows[0][0] == known:
        return News.read(rows[-1][0], rows[1:])
    (newest,) = connection.execute("SELECT max(number) FROM command").fetchone()
    return News.read(newest, (), (text for (text,) in connection.execute("SELECT text FROM revoked")))


class Row(NamedTuple):
    """An update and the columns of its row in `log`, except the position."""

    update: Update
    time: int | None
    """ms since 1970, or None for the time of the append."""
    size: int
    hash: int
    id: str
    topics: str
    private: bool
    type: str | None
    retry: str | None
    data: str


def row_of(update: Update, time: int | None = None) -> Row:
    """Return the row of an update.

    Raises UnicodeEncodeError if a text contains a lone surrogate: here, and not in the
    transaction, which other calls share.
    """
    topics = to_json(update.topics)
    texts = (update.id, topics, update.type or "", update.data)
    size = _ROW_BYTES + sum(len(text.encode("utf-8")) for text in texts)
    retry = None if update.retry is None else str(update.retry)
    return Row(
        update, time, size, hash_of(update.id), update.id, topics, update.private, update.type, retry, update.data
    )


def entry_of(row: tuple[Any, ...], offset: int) -> Entry:
    """Return the entry of a row of `log`; `offset` is added to its position.

    Raises Unreadable if the row is damaged.
    """
    position, time, id, topics, private, type, retry, data = row
    try:
        digits = None if retry is None else int(retry)
        update = Update(tuple(json.loads(topics)), data, private=bool(private), id=id, type=type, retry=digits)
        return Entry(offset + position, update, time)
    except (ValueError, TypeError):
        raise Unreadable("a row is damaged") from None


def present_of(row: tuple[str, str]) -> Present:
    """Return the subscriber of a row of `present`, which has its id and matchers.

    If the matchers are damaged, returns a subscriber without matchers, so that its
    departure can still be announced.
    """
    try:
        return Present.from_json(*row)
    except (ValueError, TypeError):
        return Present(row[0], ())


def hash_of(id: str) -> int:
    """Return the hash of an id that the index stores: 64 bits, signed as in SQLite."""
    return int.from_bytes(blake2b(id.encode("utf-8"), digest_size=8).digest(), "big", signed=True)
