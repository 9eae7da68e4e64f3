"""The history in Redis: scripts are called, and their replies say whether the log is still the one that the node knew.

Each script comes with the newest entry of each kind that its node has heard of, the anchors, and first looks for them.
If one is not there, or is another one, then the server has lost what it had taken: the script begins a new epoch in
which n goes on.  An anchor that was forgotten cannot be looked for.  If it was published, all positions up to it are
off the log.  If it is about presence, what may be missing up to it is about presence too, which is told; unless both
were forgotten: then that node alone adds EPOCH to its offset.
A node that is told of another epoch than its own adds EPOCH to its offset, so that all positions of before are
PositionExpired; and `find` knows only what came `since` the epoch began, as whatever is older may have a hole after
it.

It survives what the server survives.  With `appendfsync always`, whatever its disk survives; with `everysec`, the end
of the process, and after a power cut the last second may be gone; without an append-only file, the server comes back
with its last snapshot.  Replicas follow after the answer, so a failover by Sentinel may lose what they had not got.  A
loss begins a new epoch if a node has run on through it; one that no running node has heard of cannot be seen.
`maxmemory-policy` is to be noeviction: where one of the keys is gone, the whole log is.
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
from redis.exceptions import NoScriptError, RedisError, ResponseError

from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import base, codec
from hub.history.base import EARLIEST, Beat, Entry, Page, Stats
from hub.history.node import new_node
from hub.history.redis import scripts
from hub.history.redis.url import CONNECT_TIMEOUT, open_client
from hub.protocol.subscriptions import Present, to_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from hub.history.base import Change, Retention
    from hub.history.redis.scripts import Script
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

TIMEOUT: Final = 5.0
"""Seconds that anything may take, waiting for its turn included."""
CONNECTIONS: Final = 16
"""Connections that ask at a time, beside one for each `follow`."""
CHECK_SECONDS: Final = 1.0
"""Seconds between two looks of who waits for new entries at whether the log is still the same."""
BACK_OFF: Final = 0.05, 2.0
"""Seconds between two tries to reach the server again, the first and the longest; at random below that."""


class _Anchor(NamedTuple):
    """The newest entry of a kind that a node has heard of: n, and the hash of its mark."""

    n: int
    mark: bytes


class _Reply(NamedTuple):
    offset: int
    """What this node adds to n."""
    last: int
    """n of the newest entry."""
    published: int
    """n of the newest published entry that is forgotten."""
    presence: int
    """n of the newest entry about presence that is forgotten."""
    value: Any


class RedisHistory:
    """The newest updates, within the bounds of a `base.Retention`.

    There may be one part in 256 more of each, so that not every append forgets.
    """

    def __init__(
        self,
        url: str,
        retention: Retention,
        *,
        name: str = "mercure",
        random: Random | None = None,
    ) -> None:
        self._client, self._sentinel, self._where = open_client(url)
        self._bounds = _bounds(retention)
        self._window = math.ceil(retention.idempotency_window * 1_000)
        self._node = new_node(), round(retention.node_timeout * 1_000)
        keys = ["log", "ids", "marks", "meta", "nodes", "alive:", "present:", "seen", "presence", "presence-marks"]
        self._keys = [f"{{{name}}}:{key}" for key in keys]
        self._random = random or Random()  # noqa: S311
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._closed = False
        self._epoch = 0  # of the log as this node has last heard of it; 0 if never
        self._offset = 0  # what this node adds to n
        self._anchors = _Anchor(0, b""), _Anchor(0, b"")  # of published entries, and of those about presence

    @classmethod
    def from_url(cls, url: str, retention: Retention) -> Self:
        """`?name=` is what the keys begin with; what else is in the query is for redis-py."""
        plain, _, query = url.partition("?")
        options = query.split("&")
        name = next((unquote(option[5:]) for option in options if option.startswith("name=")), "mercure")
        if not name or "{" in name or "}" in name:
            raise ConfigurationError(f"history_url: name {name!r} is empty, or has braces")
        rest = "&".join(option for option in options if not option.startswith("name="))
        return cls(f"{plain}?{rest}", retention, name=name)

    # -- updates

    async def append(self, updates: Sequence[Update], *, publisher: str = "", presence: bool = False) -> list[Entry]:
        entries = [Entry(0, update) for update in updates]
        return await self._write([("more" if presence else "", None, entries)], publisher)

    async def load(self, entries: Sequence[Entry]) -> None:
        await self._write([("load", None, entries)])

    async def announce(self, changes: Sequence[Change]) -> list[Entry]:
        return await self._write(
            [
                ("come" if active else "gone", subscriber, [Entry(0, update) for update in updates])
                for subscriber, active, updates in changes
            ]
        )

    async def _write(
        self, changes: Iterable[tuple[str, Present | None, Sequence[Entry]]], publisher: str = ""
    ) -> list[Entry]:
        arguments: list[str | bytes | float] = [*self._node, self._window, *self._bounds]
        written: list[Update] = []
        for change, subscriber, entries in changes:
            about = (subscriber.id, subscriber.to_json()) if subscriber else ("", "")
            arguments += change, *about, len(entries)
            for entry in entries:
                text = to_json(codec.record(entry))
                arguments += entry.update.id, entry.size, text, entry.time if change == "load" else ""
                arguments.append(base.seen_as(publisher, entry.update.id) if self._window and not change else b"")
                written.append(entry.update)
        reply = await self._call(scripts.APPEND, *arguments)
        time, left_out = reply.value
        for number in reversed(left_out):
            del written[number]
        first = reply.offset + reply.last - len(written) + 1
        return [Entry(position, update, time) for position, update in enumerate(written, first)]

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        reply = await self._call(scripts.FIND, id.encode("utf-8", "surrogatepass"), int(presence))
        return None if reply.value is None else reply.offset + reply.value

    async def newest(self) -> Entry | None:
        reply = await self._call(scripts.NEWEST)
        return max(_entries(*reply.value, offset=reply.offset), key=_position, default=None)

    async def end(self) -> int:
        reply = await self._call(scripts.END)
        return reply.offset + reply.last

    async def read(self, after: int) -> Page:
        return (await self._page(after))[0]

    async def _page(self, after: int, *, at_once: bool = False) -> tuple[Page, int | None]:
        """The next page; and, if it is the last one, n of the log's newest entry."""
        offset, anywhere = self._offset, after == EARLIEST
        if anywhere or offset <= after < offset + base.EPOCH:
            n = after if anywhere else after - offset
            reply = await self._call(scripts.PAGE, n, base.PAGE_ENTRIES, base.PAGE_BYTES, at_once=at_once)
            if anywhere or reply.offset == offset:
                if not anywhere and n < reply.published:
                    raise base.position_expired(after, offset + reply.published)
                published, presence, full = reply.value
                entries = sorted(_entries(published, presence, offset=reply.offset), key=_position)
                page = Page(entries, forgotten=reply.offset + reply.presence, full=bool(full))
                last = page[-1].position - reply.offset if page else reply.last
                return page, last if last == reply.last else None
        raise PositionExpired(f"position {after} is of an earlier epoch of the history")

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        end: int | None = None
        failures = 0
        while True:
            try:
                if end is not None:
                    # Only a bell: the page looks for the anchor too.  That also says when the log is flushed.
                    logs = self._keys[0], self._keys[8]
                    wait = "BLOCK", round(CHECK_SECONDS * 1_000), "COUNT", 1, "STREAMS", *logs, f"{end}-0", f"{end}-0"
                    async with self._reaching():
                        await self._execute("XREAD", *wait)
                page, end = await self._page(after, at_once=True)
                page.require_presence(after)
            except HistoryUnavailable as error:
                if self._closed:
                    raise
                if not failures:
                    log.warning("the history is out of reach; following it waits", reason=error.reason)
                end, failures = None, failures + 1
                first, longest = BACK_OFF
                await asyncio.sleep(self._random.uniform(first, min(longest, first * 2 ** min(failures, 16))))
                continue
            if failures:
                log.info("the history is back; following it goes on", failures=failures)
                failures = 0
            if page:
                yield page
                after = page[-1].position

    # -- presence

    async def present(self, *, own: bool = False) -> list[Present]:
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
        reply = await self._call(scripts.BEAT, *self._node, *self._bounds, at_once=True)
        present, orphans = reply.value
        return Beat(present, list(map(_present, orphans[::2], orphans[1::2])))

    # -- operation

    async def check(self) -> None:
        await self._call(scripts.CHECK)

    async def stats(self) -> Stats:
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
        bounds = _bounds(base.pruned_to(max_updates, max_bytes, max_age))
        forgotten: int = (await self._call(scripts.PRUNE, *bounds)).value
        return forgotten

    def would_create(self) -> str | None:
        return None

    async def backup(self, target: str) -> None:
        raise ConfigurationError(
            "backup is for a history in SQLite: Redis has its own, as BGSAVE and its append-only file; or use export"
        )

    async def aclose(self) -> None:
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
        """What the script says, and what it says about the log; the anchors go with it.

        `at_once` is for what may not wait behind thousands who ask for their positions.
        """
        offset, anchors = self._offset, self._anchors
        rest = len(self._keys), *self._keys, self._epoch, *anchors[0], *anchors[1], *arguments
        async with self._reaching(), contextlib.nullcontext() if at_once else self._turns:
            try:
                answer = await self._execute("EVALSHA", script.sha, *rest)
            except NoScriptError:
                answer = await self._execute("EVAL", script.text, *rest)
        epoch, last, strays, value, published, *newest, presence, presence_n, presence_mark = answer
        heard = _Anchor(*newest), _Anchor(presence_n, presence_mark)
        if epoch > self._epoch:
            if self._epoch:
                log.warning("the history has lost entries; a new epoch begins", epoch=epoch)
                self._offset += base.EPOCH
            self._epoch, self._anchors = epoch, heard
        elif strays and anchors == self._anchors:
            log.warning(
                "this node does not know what became of the history while it heard nothing of it; it begins anew"
            )
            self._offset += base.EPOCH
            self._anchors = heard
        elif epoch == self._epoch:  # it may be older than another answer that came before it
            self._anchors = max(self._anchors[0], heard[0]), max(self._anchors[1], heard[1])
        # An answer of before the epoch that another one has told of by now is about positions of before.
        return _Reply(self._offset if epoch == self._epoch else offset, last, published, presence, value)

    @contextlib.asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Have what is done in it raise HistoryUnavailable if the server cannot be reached, or says that it cannot."""
        if self._closed:
            raise HistoryUnavailable(f"{self._where} is left")
        try:
            async with asyncio.timeout(TIMEOUT):
                yield
        except TimeoutError as error:
            raise HistoryUnavailable(f"{self._where} does not answer within {TIMEOUT:g} s") from error
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError):
                # It may be a replica by now: new connections ask Sentinel, or the name of the host, who is not.
                with contextlib.suppress(RedisError, OSError):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            raise HistoryUnavailable(f"{self._where}: {error}") from error


def _bounds(retention: Retention) -> tuple[float, ...]:
    """Bounds as the scripts take them."""
    published = retention.max_updates, retention.max_bytes, retention.max_age * 1_000
    return *published, retention.presence_updates, retention.presence_bytes


def _position(entry: Entry) -> int:
    return entry.position


def _entries(*found: Iterable[tuple[bytes, list[bytes]]], offset: int) -> Iterator[Entry]:
    for id, (_, time, _, update) in itertools.chain(*found):
        position = offset + int(id.partition(b"-")[0])
        yield codec.from_record(json.loads(update) | {"position": position, "time": int(time)})


def _present(id: bytes, matchers: bytes) -> Present:
    return Present.from_json(id.decode(), matchers)
