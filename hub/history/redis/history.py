"""A log in Redis or Valkey, for nodes on many machines: a stream, and what finds and forgets its entries.

    {mercure}:log              stream      4-0 -> time, update    5-0 -> ...    6-0 -> ...        entry n has the id n-0
    {mercure}:ids              sorted set  "a 4 time"  "b 5 time"  "a 6 time"     find("a") is the first that begins so
    {mercure}:marks            sorted set  "4 time size a"  "5 time size b"  ...  what retention asks, by n
    {mercure}:presence         stream      the same of the entries about presence, which have numbers of the same row
    {mercure}:presence-marks   sorted set
    {mercure}:meta             hash        epoch, since, end; of each kind bytes, and what was forgotten last
    {mercure}:seen             sorted set  hashes of ids that are remembered, with their publishers, by time
    {mercure}:nodes            set         the names of nodes
    {mercure}:alive:<node>     string      expires `node_timeout` seconds after the node's last beat
    {mercure}:present:<node>   hash        id -> matchers of who is present on it

All that is asked or changed is one Lua script, so an update, its index and who is present never differ.  Positions n
count from 1, whatever the clock says, and entries of both kinds in one row; one node's positions are its offset + n.

Each script comes with the newest entry of each kind that its node has heard of, the anchors, and first looks for them.
If one is not there, or is another one, then the server has lost what it had taken: the script begins a new epoch in
which n goes on.  An anchor that was forgotten cannot be looked for.  If it was published, all places up to it are off
the log.  If it is about presence, what may be missing up to it is about presence too, which is told; unless both were
forgotten: then that node alone adds EPOCH to its offset.
A node that is told of another epoch than its own adds EPOCH to its offset, so that all places of before are
PositionExpired; and `find` knows only what came `since` the epoch began, as whatever is older may have a hole after
it.

It survives what the server survives.  With `appendfsync always`, whatever its disk survives; with `everysec`, the end
of the process, and after a power cut the last second may be gone; without an append-only file, the server comes back
with its last snapshot.  Replicas follow after the answer, so a failover by Sentinel may lose what they had not got.  A
loss begins a new epoch if a node has run on through it; one that no running node has heard of cannot be seen.
`maxmemory-policy` is to be noeviction: where one of the keys is gone, the whole log is.

Redis Cluster is not supported: by the name in braces all keys would be on one of its nodes, and nobody looks for which.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import re
from hashlib import sha1
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import structlog

from hub.errors import ConfigurationError, HistoryUnavailable, PositionExpired
from hub.history import base
from hub.history.base import EARLIEST, Beat, Entry, Page, Retention, Stats
from hub.protocol.subscriptions import Present, to_json

try:
    from redis.asyncio import Redis
    from redis.asyncio.connection import ConnectionPool, parse_url
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError, ResponseError
except ImportError:
    raise ConfigurationError("a history_url of redis needs its client: pip install skipfilter[redis]") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from hub.history.base import Change
    from hub.protocol.updates import Update

log = structlog.stdlib.get_logger("hub")

TIMEOUT: Final = 5.0
"""Seconds that anything may take, waiting for its turn included."""
CONNECT_TIMEOUT: Final = 2.0
CONNECTIONS: Final = 16
"""Connections that ask at a time, beside one for each `follow`."""
LOOK: Final = 1.0
"""Seconds between two looks of who waits for new entries at whether the log is still the same."""
BACK_OFF: Final = 0.05, 2.0
"""Seconds between two tries to reach the server again, the first and the longest; at random below that."""

_BEGIN: Final = r"""
local log, ids, marks, meta, nodes, alive, present, seen_ids, presence_log, presence_marks = unpack(KEYS)
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seen_epoch = tonumber(ARGV[1])
local about = call(
    'HMGET', meta, 'epoch', 'since', 'end', 'bytes', 'before', 'forgotten',
    'presence_bytes', 'presence_before', 'presence_forgotten'
)
local epoch, since, last = unpack(about)

-- What 0.1.0 has left: its marks were a list, and all entries were of one kind.
if epoch and not about[6] then
    local old = call('LRANGE', marks, 0, -1)
    call('DEL', marks)
    for i, mark in ipairs(old) do
        local n = last - #old + i
        call('ZADD', marks, n, n .. ' ' .. mark)
    end
    about[6] = last - #old
    if about[5] ~= '' then about[5] = about[6] .. ' ' .. about[5] end
    call('HSET', meta, 'before', about[5], 'forgotten', about[6])
end

-- The entries of one kind, with what is known of the newest that was forgotten, and of the newest that the node knows.
local function kind(log, marks, prefix, seen, seen_mark, bytes, before, forgotten)
    return {
        log = log, marks = marks, prefix = prefix, seen = tonumber(seen), seen_mark = seen_mark,
        count = call('ZCARD', marks), bytes = tonumber(bytes or 0),
        before = before or '', forgotten = tonumber(forgotten or 0),
    }
end
local published = kind(log, marks, '', ARGV[2], ARGV[3], unpack(about, 4, 6))
local presence = kind(presence_log, presence_marks, 'presence_', ARGV[4], ARGV[5], unpack(about, 7, 9))

local function is_whole(kind) return call('XLEN', kind.log) == kind.count end
if epoch and is_whole(published) and is_whole(presence) and call('ZCARD', ids) == published.count + presence.count then
    epoch, since, last = tonumber(epoch), tonumber(since), tonumber(last)
else  -- new, flushed, or evicted from
    call('DEL', log, ids, marks, meta, seen_ids, presence_log, presence_marks)
    epoch, since, last = 0, 0, 0
    for _, kind in ipairs({published, presence}) do
        kind.count, kind.bytes, kind.before, kind.forgotten = 0, 0, '', 0
    end
end

local function keep()
    call('HSET', meta, 'epoch', epoch, 'since', since, 'end', last)
    for _, kind in ipairs({published, presence}) do
        call('HSET', meta, kind.prefix .. 'bytes', kind.bytes)
        call('HSET', meta, kind.prefix .. 'before', kind.before, kind.prefix .. 'forgotten', kind.forgotten)
    end
end

-- Whether the anchor of a kind is as it was.  Of what is forgotten, the last is known.
local function holds(kind)
    if kind.seen > last then return false end
    if kind.seen < kind.forgotten then return true end
    local mark = kind.before
    if kind.seen > kind.forgotten then mark = call('ZRANGEBYSCORE', kind.marks, kind.seen, kind.seen)[1] end
    return mark and redis.sha1hex(mark) == kind.seen_mark
end
if epoch == 0 or seen_epoch > epoch or (seen_epoch == epoch and not (holds(published) and holds(presence))) then
    epoch, since = math.max(now, epoch + 1, seen_epoch + 1), last
    keep()
end

-- If both anchors are forgotten, it is unknown whether the log is still the one that the node knew.  The places of the
-- node up to the first anchor are off the log; those up to the second one must be too.
local strays = seen_epoch == epoch and published.seen < published.forgotten
    and published.forgotten <= presence.seen and presence.seen < presence.forgotten

local function member(id, n, time) return id .. '\0' .. string.format('%016d', n) .. time end

local function add(kind, id, size, record, time)
    last, kind.count, kind.bytes = last + 1, kind.count + 1, kind.bytes + size
    call('XADD', kind.log, last .. '-0', 't', time, 'u', record)
    call('ZADD', ids, 0, member(id, last, time))
    call('ZADD', kind.marks, last, last .. ' ' .. time .. ' ' .. size .. ' ' .. id)
end

-- Have the oldest of a kind forgotten for as long as it is to be, given n and time.  How many.
local function forget(kind, is_due)
    local forgotten = 0
    while kind.count > 0 do
        local mark = call('ZRANGE', kind.marks, 0, 0)[1]
        local n, time, size, id = mark:match('^(%d+) (%d+) (%d+) (.*)$')
        if not is_due(tonumber(n), time, forgotten) then break end
        call('ZREM', kind.marks, mark)
        call('ZREM', ids, member(id, n, time))
        kind.before, kind.forgotten, kind.count, kind.bytes = mark, tonumber(n), kind.count - 1, kind.bytes - size
        forgotten = forgotten + 1
    end
    if forgotten > 0 then call('XTRIM', kind.log, 'MINID', kind.forgotten + 1) end
    return forgotten
end

-- Slack is how far over its bounds a kind may be before it is cut down to them: few scripts do so, many at once.
local function trim_kind(kind, max_updates, max_bytes, max_age, slack)
    max_updates, max_bytes, max_age = tonumber(max_updates), tonumber(max_bytes), tonumber(max_age) or math.huge
    return forget(kind, function(n, time, forgotten)
        if kind.count <= 1 or forgotten == 2000 then return false end
        local over = kind.count > max_updates * slack or kind.bytes > max_bytes * slack or now - time > max_age * slack
        if over then slack = 1 end
        return over
    end)
end

-- With what was published goes what is about presence, and older than all that is left.
local function trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, slack)
    local forgotten = trim_kind(published, max_updates, max_bytes, max_age, slack)
    if forgotten > 0 then
        local first = tonumber(call('ZRANGE', marks, 0, 0, 'WITHSCORES')[2])
        forgotten = forgotten + forget(presence, function(n) return n < first end)
    end
    return forgotten + trim_kind(presence, presence_updates, presence_bytes, max_age, slack)
end

local function reply(value)
    local about = {epoch, last, strays and 1 or 0, value or false}
    for _, kind in ipairs({published, presence}) do
        local newest, n = unpack(call('ZRANGE', kind.marks, -1, -1, 'WITHSCORES'))
        about[#about + 1] = kind.forgotten
        about[#about + 1] = tonumber(n or kind.forgotten)
        about[#about + 1] = redis.sha1hex(newest or kind.before)
    end
    return about
end
"""


class _Script:
    def __init__(self, body: str) -> None:
        self.text = _BEGIN + body
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_WRITE: Final = _Script(r"""
local node, node_timeout, window = unpack(ARGV, 6, 8)
local max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 9, 13)
local left_out, number, i = {}, 0, 14

local is_presence = {come = true, gone = true, more = true}

-- Whether it was seen in the last `window` ms; now it is.
local function knows(one)
    local time = call('ZSCORE', seen_ids, one)
    if time and tonumber(time) > now - window then return true end
    call('ZADD', seen_ids, now, one)
    return false
end

while ARGV[i] do
    local change, subscriber, matchers, updates = unpack(ARGV, i, i + 3)
    local due = change ~= 'gone'
    if change == 'come' then
        call('SADD', nodes, node)
        call('SET', alive .. node, '', 'PX', node_timeout)
    end
    if subscriber ~= '' then
        for _, other in ipairs(call('SMEMBERS', nodes)) do
            due = call('HDEL', present .. other, subscriber) == 1 or due
        end
    end
    if change == 'come' then call('HSET', present .. node, subscriber, matchers) end
    i = i + 4
    for _ = 1, updates do
        local id, size, record, time, one = unpack(ARGV, i, i + 4)
        if due and (one == '' or not knows(one)) then
            add(is_presence[change] and presence or published, id, size, record, time == '' and now or time)
        else
            left_out[#left_out + 1] = number
        end
        number, i = number + 1, i + 5
    end
end
if window ~= '0' then
    local excess = call('ZCARD', seen_ids) - max_updates
    if excess > 0 then call('ZREMRANGEBYRANK', seen_ids, 0, excess - 1) end
    local old = call('ZRANGEBYSCORE', seen_ids, '-inf', now - window, 'LIMIT', 0, 2000)
    if #old > 0 then call('ZREMRANGEBYRANK', seen_ids, 0, #old - 1) end
end
trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 257 / 256)
keep()
return reply({now, left_out})
""")

_FIND: Final = _Script(r"""
local id, wants_presence = ARGV[6], ARGV[7] == '1'
local earliest = call('ZRANGEBYLEX', ids, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 1)[1]
local n = earliest and tonumber(earliest:sub(#id + 2, #id + 17))
return reply(n and n > since and not (wants_presence and n < presence.forgotten) and n)
""")

_NEWEST: Final = _Script(r"""
local function newest(log) return call('XREVRANGE', log, '+', '-', 'COUNT', 1) end
return reply({newest(log), newest(presence_log)})
""")

_PAGE: Final = _Script(r"""
local after, entries, size = unpack(ARGV, 6)
after, size = tonumber(after), tonumber(size)
local first
for _, marks in ipairs({marks, presence_marks}) do
    local n = tonumber(call('ZRANGEBYSCORE', marks, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
    if n and (not first or n < first) then first = n end
end
if not first or (0 <= after and after < published.forgotten) then return reply({{}, {}, 0}) end
local page_end = first - 1 - (first - 1) % entries + entries
local size_of, till, full = {}, first, page_end <= last
for _, marks in ipairs({marks, presence_marks}) do
    for _, mark in ipairs(call('ZRANGEBYSCORE', marks, first, page_end)) do
        local n, size = mark:match('^(%d+) %d+ (%d+)')
        size_of[tonumber(n)] = size
    end
end
for n = first, page_end do
    if size_of[n] then
        size = size - size_of[n]
        if size < 0 and n > first then
            full = false
            break
        end
        till = n
    end
end
return reply({call('XRANGE', log, first, till), call('XRANGE', presence_log, first, till), full and 1 or 0})
""")

_BEAT: Final = _Script(r"""
local node, node_timeout, max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 6)
call('SADD', nodes, node)
call('SET', alive .. node, '', 'PX', node_timeout)
-- If nobody was heard for long, it was the log that nobody could reach: all of them get their time again.
local heard = call('HGET', meta, 'heard')
local away = not heard or now - heard > node_timeout / 2
call('HSET', meta, 'heard', now)
local orphans = {}
for _, other in ipairs(call('SMEMBERS', nodes)) do
    if away then call('SET', alive .. other, '', 'PX', node_timeout) end
    if call('EXISTS', alive .. other) == 0 and #orphans < 2000 then
        local some = call('HRANDFIELD', present .. other, 1000, 'WITHVALUES')
        for _, part in ipairs(some) do orphans[#orphans + 1] = part end
        if #some == 0 then call('SREM', nodes, other) end
    end
end
trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 1)
keep()
return reply({call('HLEN', present .. node), orphans})
""")

_END: Final = _Script("return reply()")

_CHECK: Final = _Script("call('HSET', meta, 'checked', now) return reply()")

_STATS: Final = _Script(r"""
local size, here = 0, 0
local function weigh(key) size = size + (call('MEMORY', 'USAGE', key) or 0) end
for _, key in ipairs({log, ids, marks, meta, nodes, seen_ids, presence_log, presence_marks}) do weigh(key) end
for _, node in ipairs(call('SMEMBERS', nodes)) do
    weigh(present .. node)
    here = here + call('HLEN', present .. node)
end
local ends = {}
for _, log in ipairs({log, presence_log}) do
    for _, entry in ipairs(call('XRANGE', log, '-', '+', 'COUNT', 1)) do ends[#ends + 1] = entry end
    for _, entry in ipairs(call('XREVRANGE', log, '+', '-', 'COUNT', 1)) do ends[#ends + 1] = entry end
end
return reply({published.count, published.bytes, presence.count, presence.bytes, size, here, ends})
""")

_PRUNE: Final = _Script(r"""
local max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 6)
local forgotten = trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 1)
keep()
return reply(forgotten)
""")

_LEAVE: Final = _Script(r"""
local node = ARGV[6]
call('DEL', alive .. node)
if call('HLEN', present .. node) == 0 then call('SREM', nodes, node) end
return reply()
""")


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

    There may be one part in 256 more of each, so that not every append forgets.  All its mutable state: `_epoch`, that
    of the log as this node has last heard of it, 0 if never; `_offset`, what it adds to n; `_anchors`, of what is
    published and of what is about presence; and whether it is `_closed`.
    """

    def __init__(
        self,
        url: str,
        *,
        window: float = 0.0,
        node_timeout: float = 10.0,
        name: str = "mercure",
        random: Random | None = None,
        **bounds: Any,
    ) -> None:
        self._client, self._sentinel, self._where = _open(url)
        self._bounds = _bounds(Retention(**bounds))
        self._window = math.ceil(window * 1_000)
        self._node = base.new_node(), round(node_timeout * 1_000)
        keys = ["log", "ids", "marks", "meta", "nodes", "alive:", "present:", "seen", "presence", "presence-marks"]
        self._keys = [f"{{{name}}}:{key}" for key in keys]
        self._random = random or Random()  # noqa: S311
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._closed = False
        self._epoch = 0
        self._offset = 0
        self._anchors = _Anchor(0, b""), _Anchor(0, b"")

    @classmethod
    def from_url(cls, url: str, *, window: float, node_timeout: float, **bounds: Any) -> Self:
        """`?name=` is what the keys begin with; what else is in the query is for redis-py."""
        plain, _, query = url.partition("?")
        options = query.split("&")
        name = next((unquote(option[5:]) for option in options if option.startswith("name=")), "mercure")
        if not name or "{" in name or "}" in name:
            raise ConfigurationError(f"history_url: name {name!r} is empty, or has braces")
        return cls(
            f"{plain}?{'&'.join(option for option in options if not option.startswith('name='))}",
            window=window,
            node_timeout=node_timeout,
            name=name,
            **bounds,
        )

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
                text = to_json(base.record(entry))
                arguments += entry.update.id, entry.size, text, entry.time if change == "load" else ""
                arguments.append(base.seen_as(publisher, entry.update.id) if self._window and not change else b"")
                written.append(entry.update)
        reply = await self._call(_WRITE, *arguments)
        time, left_out = reply.value
        for number in reversed(left_out):
            del written[number]
        first = reply.offset + reply.last - len(written) + 1
        return [Entry(position, update, time) for position, update in enumerate(written, first)]

    async def find(self, id: str, *, presence: bool = False) -> int | None:
        reply = await self._call(_FIND, id.encode("utf-8", "surrogatepass"), int(presence))
        return None if reply.value is None else reply.offset + reply.value

    async def newest(self) -> Entry | None:
        reply = await self._call(_NEWEST)
        return max(_entries(*reply.value, offset=reply.offset), key=_position, default=None)

    async def end(self) -> int:
        reply = await self._call(_END)
        return reply.offset + reply.last

    async def read(self, after: int) -> Page:
        return (await self._page(after))[0]

    async def _page(self, after: int, *, at_once: bool = False) -> tuple[Page, int | None]:
        """The next page; and, if it is the last one, n of the log's newest entry."""
        offset, anywhere = self._offset, after == EARLIEST
        if anywhere or offset <= after < offset + base.EPOCH:
            n = after if anywhere else after - offset
            reply = await self._call(_PAGE, n, base.PAGE_ENTRIES, base.PAGE_BYTES, at_once=at_once)
            if anywhere or reply.offset == offset:
                if not anywhere and n < reply.published:
                    raise base.position_expired(after, offset + reply.published)
                published, presence, full = reply.value
                entries = sorted(_entries(published, presence, offset=reply.offset), key=_position)
                page = Page(entries, forgotten=reply.offset + reply.presence, full=bool(full))
                last = page[-1].position - reply.offset if page else reply.last
                return page, last if last == reply.last else None
        raise PositionExpired(f"position {after} is of an earlier epoch of the log")

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        end: int | None = None
        failures = 0
        while True:
            try:
                if end is not None:
                    # Only a bell: the page looks for the anchor too.  That also says when the log is flushed.
                    logs = self._keys[0], self._keys[8]
                    wait = "BLOCK", round(LOOK * 1_000), "COUNT", 1, "STREAMS", *logs, f"{end}-0", f"{end}-0"
                    async with self._reaching():
                        await self._execute("XREAD", *wait)
                page, end = await self._page(after, at_once=True)
                page.require_presence(after)
            except HistoryUnavailable as error:
                if self._closed:
                    raise
                if not failures:
                    log.warning("the log is out of reach; following it waits", reason=error.reason)
                end, failures = None, failures + 1
                first, longest = BACK_OFF
                await asyncio.sleep(self._random.uniform(first, min(longest, first * 2 ** min(failures, 16))))
                continue
            if failures:
                log.info("the log is back; following it goes on", failures=failures)
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
        reply = await self._call(_BEAT, *self._node, *self._bounds, at_once=True)
        present, orphans = reply.value
        return Beat(present, list(map(_present, orphans[::2], orphans[1::2])))

    # -- operation

    async def check(self) -> None:
        await self._call(_CHECK)

    async def stats(self) -> Stats:
        reply = await self._call(_STATS)
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
        forgotten: int = (await self._call(_PRUNE, *bounds)).value
        return forgotten

    async def aclose(self) -> None:
        with contextlib.suppress(HistoryUnavailable, TimeoutError):
            if self._epoch:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._call(_LEAVE, self._node[0], at_once=True)
        self._closed = True
        for close in (self._client.aclose, *([self._sentinel.aclose] if self._sentinel else [])):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await close()

    async def _call(self, script: _Script, *arguments: str | bytes | float, at_once: bool = False) -> _Reply:
        """What the script says, and what it says about the log; the anchors go with it.

        `at_once` is for what may not wait behind thousands who ask for their places.
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
                log.warning("the log has lost entries; a new epoch begins", epoch=epoch)
                self._offset += base.EPOCH
            self._epoch, self._anchors = epoch, heard
        elif strays and anchors == self._anchors:
            log.warning("this node does not know what became of the log while it heard nothing of it; it begins anew")
            self._offset += base.EPOCH
            self._anchors = heard
        elif epoch == self._epoch:  # it may be older than another answer that came before it
            self._anchors = max(self._anchors[0], heard[0]), max(self._anchors[1], heard[1])
        # An answer of before the epoch that another one has told of by now is about places of before.
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
        yield base.from_record(json.loads(update) | {"position": position, "time": int(time)})


def _present(id: bytes, matchers: bytes) -> Present:
    return Present.from_json(id.decode(), matchers)


def _open(url: str) -> tuple[Redis, Sentinel | None, str]:
    """The client of what a URL names, which connects when it is asked something; and the URL without its user.

    `redis+sentinel://user:password@host,host:port/service/database`: the user is the server's.  Sentinels that want one
    get it from `?sentinel_username=` and `?sentinel_password=`.
    """
    try:  # none of what these raise is told: it may have the password in it
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        addresses = [(host.hostname or "localhost", host.port or 26379) for host in map(urlsplit, _urls(hosts))]
    except ValueError:
        raise ConfigurationError("history_url: a host or port is none; in a password, write / as %2F") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError("history_url: in a password, write / as %2F, ? as %3F and # as %23")
    sentinel, where = parts.scheme == "redis+sentinel", f"{parts.scheme}://{hosts}{parts.path}"
    if sentinel and not re.fullmatch(r"/[^/]+(/\d*)?", parts.path):
        raise ConfigurationError(f"history_url {where}: after the hosts comes /service, or /service/database")
    if not sentinel and (len(addresses) > 1 or not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigurationError(f"history_url {where}: after one host comes nothing, or the number of a database")
    try:
        service, _, database = parts.path[1:].partition("/") if sentinel else ("", "", parts.path[1:])
        origin = f"redis://{user}{at}" if sentinel else f"{parts.scheme}://{parts.netloc}"
        options: dict[str, Any] = {**parse_url(f"{origin}/{database}?{parts.query}")}
        own = {key: options.pop(f"sentinel_{key}") for key in ("username", "password") if f"sentinel_{key}" in options}
        common: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,
            "max_connections": 2**31,
            "retry": Retry(NoBackoff(), 0),  # what failed may have been done: nothing is sent twice
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_timeout": None,  # TIMEOUT is ours; redis-py's goes by wait_for, in 3.11 deaf to a cancellation
        }
        if sentinel:
            quick = common | {"socket_timeout": 1.0} | own
            sentinels = Sentinel(addresses, sentinel_kwargs=quick, **common | options)  # type: ignore[no-untyped-call]
            client = sentinels.master_for(service)
        else:
            sentinels = None
            client = Redis.from_pool(ConnectionPool(**common | options))
        client.connection_pool.make_connection()
    except (RedisError, TypeError, ValueError) as error:
        raise ConfigurationError(f"history_url {where}: {error}") from None
    return client, sentinels, where


def _urls(hosts: str) -> list[str]:
    return [f"//{host}" for host in hosts.split(",")]
