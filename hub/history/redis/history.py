"""The history in Redis: it calls Lua scripts, and detects lost entries.

A node sends its anchors with each script: the newest entry of each kind that it knows.
The script first looks for them.

1. If an anchor is absent or is another entry, the server has lost entries.  The script
   begins a new epoch, in which n continues after the newest entry that is left.  If a
   key is missing or the keys disagree, it deletes all entries, and n starts again at 1.
2. If an anchor was forgotten, the script cannot look for it.  For the published anchor,
   all positions before the newest forgotten update have expired anyway.  For the
   presence anchor, only presence updates may be missing, which the reply reports.
3. If both anchors were forgotten, and positions up to the presence anchor have not
   expired, the positions of this node may be wrong: it alone adds EPOCH to its offset.

If a reply names a newer epoch, the node adds EPOCH to its offset, so that all its
earlier positions raise PositionExpired.  `find` then ignores the entries up to `since`,
the n at which the epoch began, because entries may be missing after them.

Durability is that of the server.  With `appendfsync always`, entries survive if the
disk does.  With `everysec`, they survive the end of the server's process, but a power
failure may lose the last second.  Without an append-only file, the server returns to
its last snapshot.  Replicas receive entries after the answer, so a failover by Sentinel
may lose the newest ones.  A missing key is always detected.  If the server returns to
an older state, that is detected only if a node was running before and after it.
`maxmemory-policy` must be noeviction: if one key is evicted, all entries are lost.
A follower asks the server for its configuration, and logs what loses entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import structlog
from redis.exceptions import MovedError, NoPermissionError, NoScriptError, RedisError, ResponseError

from hub.control.commands import Command, News, Taken
from hub.control.ledger import ANSWERS_AGE, MAX_AGE, MAX_COMMANDS, Ledger
from hub.errors import ConfigurationError, HistoryUnavailable, ListFull, Outdated, PositionExpired
from hub.history import base, codec
from hub.history.base import EARLIEST, Beat, Entry, Page, Stats
from hub.history.node import new_node
from hub.history.opaque import Loss, Seal, new_key
from hub.history.redis import scripts, server
from hub.history.redis.url import CONNECT_TIMEOUT, open_client
from hub.protocol.data import to_json
from hub.protocol.subscriptions import Present

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Sequence
    from typing import Self

    from hub.history.base import Change, Retention
    from hub.history.redis.scripts import Script
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

TIMEOUT: Final = 5.0
"""Seconds that a command may take, including the wait for a connection."""
CONNECTIONS: Final = 16
"""Connections for ordinary calls.  Iterators of `follow`, beats and `leave` have
others."""
INFO_SECONDS: Final = 1.0
"""Seconds in which the server must say how it is configured; it is only for the log."""
CHECK_SECONDS: Final = 1.0
"""Seconds after which a waiting follower checks that the epoch has not changed."""
_LOADS: Final = "load", "moved"
"""The kinds of change for entries of another history: published, and presence."""
BACK_OFF: Final = 0.05, 2.0
"""Seconds between two attempts of a follower: at random, from the first number up to a
bound that doubles with each failure until it is the second number."""


class _Anchor(NamedTuple):
    """The newest entry of a kind that a node knows: n, and the hash of its mark."""

    n: int
    mark: bytes


class _Reply(NamedTuple):
    """The reply of a script, and the offset of the node for its numbers."""

    offset: int
    """The number that this node adds to n."""
    last: int
    """n of the newest entry."""
    published: int
    """n of the newest forgotten published entry."""
    presence: int
    """n of the newest forgotten presence update."""
    value: Any
    """The value that the script returns, as its file describes."""


class RedisHistory:
    """The newest updates, within the bounds of a `base.Retention`.

    There may be 1/256 more of each kind, so that not every append must forget.  All
    nodes of a hub need the same `name`, with which all keys begin.

    The first use raises ConfigurationError if the server can never serve: it is a node
    of a Cluster without the keys, or does not allow what a history needs.
    """

    has_time_limits = True

    def __init__(
        self,
        url: str,
        retention: Retention,
        *,
        name: str = "mercure",
        random: Random | None = None,
    ) -> None:
        self._client, self._sentinel, self._where = open_client(url)  # the URL for errors
        self._bounds = _bounds(retention)
        self._window = math.ceil(retention.idempotency_window * 1_000)  # ms
        self.node = new_node()
        self.ledger = Ledger()
        self._node = self.node, round(retention.node_timeout * 1_000)  # name, ms
        self._max_revocations = retention.revocations
        keys = ["log", "ids", "marks", "meta", "nodes", "alive:", "present:", "seen", "presence", "presence-marks"]
        self._keys = [f"{{{name}}}:{key}" for key in [*keys, "commands", "revoked"]]
        self._answers = f"{{{name}}}:answers:"
        self._random = random or Random()  # noqa: S311
        self._turns = asyncio.Semaphore(CONNECTIONS)  # held by ordinary calls
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._closed = False
        self._epoch = 0  # the epoch that this node knows; 0 before the first reply
        self._offset = 0  # the number that this node adds to n
        # The newest entry of each kind that this node knows: published, presence.
        self._anchors = _Anchor(0, b""), _Anchor(0, b"")
        self._key = new_key()  # of opaque cursors: this one counts if the history has none
        self._seal = Seal(self._key)
        self._warned: set[str] = set()  # what the log has said of the server

    @classmethod
    def from_url(cls, url: str, retention: Retention) -> Self:
        """Return the history of a URL.

        `?name=` is the prefix of the keys, and redis-py gets the rest of the query.
        Raises ConfigurationError if the URL is invalid.
        """
        plain, _, query = url.partition("?")
        options = query.split("&")
        name = next((unquote(option[5:]) for option in options if option.startswith("name=")), "mercure")
        if not name or "{" in name or "}" in name:
            raise ConfigurationError(f"history_url: name {name!r} must not be empty or contain braces")
        rest = "&".join(option for option in options if not option.startswith("name="))
        return cls(f"{plain}?{rest}", retention, name=name)

    # -- updates

    async def append(
        self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False, known: int | None = None
    ) -> list[Entry]:
        """Append `updates` in one script."""
        if known is not None and self.ledger.number > known:
            raise Outdated
        entries = [Entry(0, update) for update in updates]
        return await self._write([("more" if presence else "", None, entries)], publisher, asks=known is not None)

    async def load(self, entries: Sequence[Entry], presence: Container[int] = ()) -> None:
        """Append entries of another history, with their times."""
        runs = itertools.groupby(entries, key=lambda entry: entry.position in presence)
        await self._write([(_LOADS[is_presence], None, list(some)) for is_presence, some in runs])

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        """Change the list of present subscribers, and append updates, in one script."""
        return await self._write(
            [
                ("come" if active else "gone", subscriber, [Entry(0, update) for update in updates])
                for subscriber, active, updates in changes
            ]
        )

    async def _write(
        self,
        changes: Iterable[tuple[str, Present | None, Sequence[Entry]]],
        publisher: str = "",
        *,
        asks: bool = False,
    ) -> list[Entry]:
        """Send changes to append.lua, and return the new entries.

        A change is the kind of change, a subscriber or None, and the entries to append.
        append.lua describes the kinds.  If it `asks`, raises `Outdated` if there is a
        command that the ledger does not know yet.
        """
        arguments: list[str | bytes | float] = [*self._node, self._window, int(asks), *self._bounds]
        written: list[Update] = []
        for change, subscriber, entries in changes:
            about = (subscriber.id, subscriber.to_json()) if subscriber else ("", "")
            arguments += change, *about, len(entries)
            for entry in entries:
                text = to_json(codec.record(entry))
                arguments += entry.update.id, entry.size, text, entry.time if change in _LOADS else ""
                arguments.append(base.seen_as(publisher, entry.update.id) if self._window and not change else b"")
                written.append(entry.update)
        reply = await self._call(scripts.APPEND, *arguments)
        if reply.value is None:
            raise Outdated
        time, left_out = reply.value
        # Remove the updates that the script left out.  The others are the newest
        # entries, and have consecutive positions.
        for number in reversed(left_out):
            del written[number]
        first = reply.offset + reply.last - len(written) + 1
        return [Entry(position, update, time) for position, update in enumerate(written, first)]

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        """Return the position of the earliest entry with this id, from a sorted set."""
        reply = await self._call(scripts.FIND, id.encode("utf-8", "surrogatepass"), int(presence))
        return None if reply.value is None else reply.offset + reply.value

    def cursor(self, position: int, id: str = "") -> str:
        """Return a new opaque cursor for a position."""
        return self._seal.cursor(str(self._epoch), position - self._offset, id)

    def digest(self, text: str) -> str:
        """Return a digest of a text, with the key of the history."""
        return self._seal.digest(text)

    async def locate(self, cursor: str, *, presence: bool = False) -> int | Loss:
        """Return the position of an opaque cursor, or why updates are lost."""
        place = self._seal.place(cursor)
        if place is None:
            return Loss.UNKNOWN
        reply = await self._call(scripts.LOCATE, place.number)
        epoch, id = reply.value
        loss = place.loss(
            str(epoch),
            last=reply.last,
            there=id and id.decode("utf-8", "surrogatepass"),
            published=reply.published,
            presence=reply.presence if presence else None,
        )
        return loss or reply.offset + place.number

    async def newest(self) -> Entry | None:
        """Return the newest entry of either kind, or None."""
        reply = await self._call(scripts.NEWEST)
        return max(_entries(*reply.value, offset=reply.offset), key=_position, default=None)

    async def end(self) -> int:
        """Return the position of the newest entry."""
        reply = await self._call(scripts.END)
        return reply.offset + reply.last

    async def read(self, after: int) -> Page:
        """Return the next page after a position."""
        return (await self._page(after))[0]

    async def _page(self, after: int, *, at_once: bool = False) -> tuple[Page, int | None]:
        """Return the next page; and n of the newest entry, or None if pages follow."""
        offset, anywhere = self._offset, after == EARLIEST
        if anywhere or offset <= after < offset + base.EPOCH:
            n = after if anywhere else after - offset
            reply = await self._call(scripts.PAGE, n, base.PAGE_ENTRIES, base.PAGE_BYTES, at_once=at_once)
            # A position counts only if no epoch has begun since the call.
            if anywhere or reply.offset == offset:
                if not anywhere and n < reply.published:
                    raise base.position_expired(after, offset + reply.published)
                published, presence, full = reply.value
                announced = list(_entries(presence, offset=reply.offset))
                page = Page(
                    sorted([*_entries(published, offset=reply.offset), *announced], key=_position),
                    presence=frozenset(map(_position, announced)),
                    forgotten=reply.offset + reply.presence,
                    full=bool(full),
                )
                last = page[-1].position - reply.offset if page else reply.last
                return page, last if last == reply.last else None
        raise PositionExpired(f"position {after} is of an earlier epoch of the history")

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        """Yield pages after a position, and wait for new entries by a blocking read.

        Each iterator uses a connection of its own while it waits.  If the server is
        unavailable, it waits until the server is available again.  Raises
        HistoryUnavailable only if the history is closed.
        """
        end: int | None = None
        failures = 0
        heard = self.ledger.heard
        examined = False  # whether this is still the server whose configuration was looked at
        while True:
            try:
                if end is not None and self.ledger.heard == heard:
                    # XREAD only wakes this iterator: the page below has the entries,
                    # and its script checks the anchors.  XREAD does not return if the
                    # stream is deleted, so it waits for CHECK_SECONDS at most.
                    streams = self._keys[0], self._keys[8], self._keys[10]
                    ends = f"{end}-0", f"{end}-0", f"{self.ledger.number}-0"
                    wait = "BLOCK", round(CHECK_SECONDS * 1_000), "COUNT", 1, "STREAMS", *streams, *ends
                    async with self._reaching():
                        await self._execute("XREAD", *wait)
                page, end = await self._page(after, at_once=True)
                page.require_presence(after)
            except HistoryUnavailable as error:
                if self._closed:
                    raise
                # Log only the first of several failures.
                if not failures:
                    log.warning("the history is unavailable; following it waits", reason=error.reason)
                end, failures, examined = None, failures + 1, False
                self.ledger.lose()
                first, longest = BACK_OFF
                await asyncio.sleep(self._random.uniform(first, min(longest, first * 2 ** min(failures, 16))))
                continue
            if failures:
                log.info("the history is available; following it continues", failures=failures)
                failures = 0
            if not examined:
                await self._examine()
                examined = True
            if page or self.ledger.heard != heard:
                heard = self.ledger.heard
                yield page
            if page:
                after = page[-1].position

    async def _examine(self) -> None:
        """Log what in the server's configuration loses entries, each thing once."""
        warnings = set(server.warnings(await self._info()))
        for warning in sorted(warnings - self._warned):
            log.warning(warning, history=self._where)
        self._warned = warnings

    async def _info(self) -> dict[str, Any]:
        """Return how the server is configured; empty if it does not say."""
        try:
            async with asyncio.timeout(INFO_SECONDS):
                info: dict[str, Any] = await self._execute("INFO")
        except NoPermissionError:
            log.info("the Redis server does not allow INFO, so whether it keeps all entries is not known")
        except (RedisError, OSError, TimeoutError):  # the next call will say so
            pass
        else:
            return info
        return {}

    # -- presence

    async def present(self, *, own: bool = False) -> list[Present]:
        """Return the subscribers of all nodes, or of this one.

        A command fetches about 1,000 subscribers at a time.
        """
        client = self._client
        async with self._reaching(), self._turns:
            nodes: Iterable[Any] = [self._node[0].encode()] if own else await client.smembers(self._keys[4])
        present: dict[Any, Any] = {}
        for node in nodes:
            async with self._reaching(), self._turns:
                found = client.hscan_iter(self._keys[6].encode() + node, count=1_000)
                present |= {id: matchers async for id, matchers in found}
        return list(map(_present, present, present.values()))

    async def beat(self) -> Beat:
        """Report that this node is alive, and return some subscribers of dead nodes.

        It does not wait behind other calls.
        """
        reply = await self._call(scripts.BEAT, *self._node, *self._bounds, at_once=True)
        present, orphans, others = reply.value
        self.ledger.others = [other.decode() for other in others]
        return Beat(present, list(map(_present, orphans[::2], orphans[1::2])))

    # -- commands

    async def hear(self) -> None:
        """Report that this node is alive; each reply tells the ledger what is new.

        A server whose memory is full takes no report, and can still be read.
        """
        try:
            reply = await self._call(scripts.HEAR, *self._node, self._key, at_once=True)
            key, others = reply.value
            self.ledger.others = [other.decode() for other in others]
        except HistoryUnavailable:
            await self._call(scripts.END, at_once=True)
            async with self._reaching():
                key = await self._execute("HGET", self._keys[3], "cursor_key")
        if key:
            self._key, self._seal = key, Seal(key)

    async def command(self, command: Command) -> Taken:
        """Append a command to the list, in one script."""
        bounds = self._max_revocations, MAX_COMMANDS, 1_000 * MAX_AGE
        about = command.action, to_json(command.target), command.before, command.to_json()
        reply = await self._call(scripts.COMMAND, self.node, *bounds, *about, at_once=True)
        if reply.value is None:
            raise ListFull(self._max_revocations)
        number, others = reply.value
        self.ledger.others = [other.decode() for other in others]
        return Taken(number, reply.offset + reply.last, self.ledger.others)

    async def answer(self, number: int, text: str) -> None:
        """Write the answer into a hash that expires."""
        await self._call(scripts.ANSWER, self.node, f"{self._answers}{number}", text, ANSWERS_AGE)

    async def answers(self, number: int) -> dict[str, str]:
        """Return the answers so far."""
        async with self._reaching():
            found: dict[bytes, bytes] = await self._execute("HGETALL", f"{self._answers}{number}")
        return {node.decode(): text.decode() for node, text in found.items()}

    # -- operation

    async def check(self) -> None:
        """Write the time of the check."""
        await self._call(scripts.CHECK)

    async def stats(self) -> Stats:
        """Return the number and size of the updates, and the memory of all keys."""
        reply = await self._call(scripts.STATS)
        updates, size, presence_updates, presence_bytes, memory, present, found = reply.value
        ends = list(_entries(found, offset=reply.offset))
        return Stats(
            updates=updates,
            oldest=min(ends, key=_position, default=None),
            newest=max(ends, key=_position, default=None),
            bytes=size,
            presence_updates=presence_updates,
            presence_bytes=presence_bytes,
            size=memory,
            epoch=str(self._epoch),
            present=present,
        )

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        """Forget some thousands of the oldest updates."""
        bounds = _bounds(base.pruned_to(max_updates, max_bytes, max_age))
        forgotten: int = (await self._call(scripts.PRUNE, *bounds)).value
        return forgotten

    def would_create(self) -> str | None:
        """Return None: it has no file."""
        return None

    async def backup(self, target: str) -> None:
        """Raise ConfigurationError: Redis has its own backup."""
        raise ConfigurationError(
            "backup is for a history in SQLite; Redis has BGSAVE and its append-only file, or use export"
        )

    async def aclose(self) -> None:
        """Leave the history if the server answers, and close the connections.

        Takes a few seconds at most: each step has a timeout of CONNECT_TIMEOUT.
        """
        with contextlib.suppress(HistoryUnavailable, TimeoutError):
            if self._epoch:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._call(scripts.LEAVE, self._node[0], at_once=True)
        self._closed = True
        for close in (self._client.aclose, *([self._sentinel.aclose] if self._sentinel else [])):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await close()

    async def _call(self, script: Script, *arguments: str | bytes | float, at_once: bool = False) -> _Reply:
        """Call a script with the anchors, and return its reply.

        Also updates the epoch, the offset and the anchors of this node.  `at_once` is
        for calls that must not wait behind thousands of others.
        """
        offset, anchors = self._offset, self._anchors
        known = self._epoch, *anchors[0], *anchors[1], self.ledger.number
        rest = len(self._keys), *self._keys, *known, *arguments
        async with self._reaching(), contextlib.nullcontext() if at_once else self._turns:
            try:
                answer = await self._execute("EVALSHA", script.sha, *rest)
            except NoScriptError:
                answer = await self._execute("EVAL", script.text, *rest)
        epoch, last, strays, value, published, *newest, presence, presence_n, presence_mark = answer[:10]
        self.ledger.learn(_news(*answer[10:]))
        heard = _Anchor(*newest), _Anchor(presence_n, presence_mark)
        is_lost = 0 < self._epoch < epoch
        # 1. A newer epoch: all earlier positions expire.  At the first reply, there are
        #    none yet.
        if epoch > self._epoch:
            if is_lost:
                self._offset += base.EPOCH
            self._epoch, self._anchors = epoch, heard
        # 2. Both anchors were forgotten, so positions of this node may be wrong: they
        #    expire, unless another reply has moved the anchors meanwhile.
        elif strays and anchors == self._anchors:
            log.warning(
                "this node has missed too much of the history to know whether entries were lost; its positions expire"
            )
            self._offset += base.EPOCH
            self._anchors = heard
        # 3. The same epoch: the anchors only move forward, because an older reply may
        #    arrive later.
        elif epoch == self._epoch:
            self._anchors = max(self._anchors[0], heard[0]), max(self._anchors[1], heard[1])
        # A reply from an earlier epoch has numbers of that epoch: they need the offset
        # of that time.
        reply = _Reply(self._offset if epoch == self._epoch else offset, last, published, presence, value)
        if is_lost:  # at last, because other calls go on while the server is asked
            clues = server.clues(await self._info())
            log.warning("the history has lost entries; a new epoch begins", epoch=epoch, **clues)
        return reply

    @contextlib.asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Turn errors of the server, and a timeout, into HistoryUnavailable.

        Raises ConfigurationError if no call has succeeded, and the server's
        configuration is the reason.
        """
        if self._closed:
            raise HistoryUnavailable(f"{self._where} was closed")
        try:
            async with asyncio.timeout(TIMEOUT):
                yield
        except TimeoutError as error:
            raise HistoryUnavailable(f"{self._where} did not answer within {TIMEOUT:g} s") from error
        except (MovedError, NoPermissionError) as error:
            reason = f"{self._where}: {server.remedy(error)}"
            if self._epoch:  # it worked before
                raise HistoryUnavailable(reason) from error
            raise ConfigurationError(f"history_url: {reason}") from None
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError):
                # The server may have become a replica.  Drop the idle connections: new
                # ones ask Sentinel, or resolve the host name, and find the primary.
                with contextlib.suppress(RedisError, OSError):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            raise HistoryUnavailable(f"{self._where}: {error}") from error


def _bounds(retention: Retention) -> tuple[float, ...]:
    """Return the five bounds in the order of the scripts' arguments."""
    published = retention.max_updates, retention.max_bytes, retention.max_age * 1_000
    return *published, retention.presence_updates, retention.presence_bytes


def _news(number: int, commands: Sequence[Any] = (), revocations: Iterable[bytes] | None = None) -> News:
    """Return the news of a reply; see begin.lua.  The first command is known."""
    return News.read(number, ((int(id.partition(b"-")[0]), text) for id, (_, text) in commands[1:]), revocations)


def _position(entry: Entry) -> int:
    return entry.position


def _entries(*found: Iterable[tuple[bytes, list[bytes]]], offset: int) -> Iterator[Entry]:
    """Yield the entries of replies of XRANGE.

    Each of `found` is a list of (stream id, [b"t", time, b"u", update]).
    """
    for id, (_, time, _, update) in itertools.chain(*found):
        position = offset + int(id.partition(b"-")[0])
        yield codec.from_record(json.loads(update) | {"position": position, "time": int(time)})


def _present(id: bytes, matchers: bytes) -> Present:
    """Return the subscriber of a field of `present:<node>` and its value."""
    return Present.from_json(id.decode(), matchers)
