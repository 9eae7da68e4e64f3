"""A log in Redis or Valkey, for nodes on many machines: a stream, and what finds and forgets its entries.

    {mercure}:log              stream      4-0 -> time, update    5-0 -> ...    6-0 -> ...        entry n has the id n-0
    {mercure}:ids              sorted set  "a 4 time"  "b 5 time"  "a 6 time"     find("a") is the first that begins so
    {mercure}:marks            list        "time size a"  "time size b"  ...      what retention asks, without payloads
    {mercure}:meta             hash        epoch, since, end, bytes, before       what the log has become
    {mercure}:seen             sorted set  hashes of ids that are remembered, with their publishers, by time
    {mercure}:nodes            set         the names of nodes
    {mercure}:alive:<node>     string      expires `node_timeout` seconds after the node's last beat
    {mercure}:present:<node>   hash        id -> matchers of who is present on it

All that is asked or changed is one Lua script, so an update, its index and who is present never differ.  Positions n
count from 1 without gaps, whatever the clock says; one node's positions are its offset + n.

Each script comes with the newest entry that its node has heard of, the anchor, and first looks for it.  If it is not
there, or is another one, then the server has lost what it had taken: the script begins a new epoch in which n goes on.
A node that is told of another epoch than its own adds EPOCH to its offset, so that all places of before are OffTheLog;
and `find` knows only what came `since` the epoch began, as whatever is older may have a hole after it.

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
import json
import math
import re
from hashlib import sha1
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import structlog

from hub.errors import ConfigurationError, LogUnavailable, OffTheLog
from hub.subscriber import EARLIEST
from hub.subscriptions import Present, to_json
from hub.transports import base
from hub.transports.base import Beat, Entry, Stats

try:
    from redis.asyncio import Redis
    from redis.asyncio.connection import ConnectionPool, parse_url
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisError, ResponseError
except ImportError:
    raise ConfigurationError("a transport_url of redis needs its client: pip install skipfilter[redis]") from None

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from hub.transports.base import Change
    from hub.updates import Update

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
local log, ids, marks, meta, nodes, alive, present, seen_ids = unpack(KEYS)
local seen_epoch, seen, seen_mark = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch, since, last, bytes, before = unpack(call('HMGET', meta, 'epoch', 'since', 'end', 'bytes', 'before'))
local count = call('LLEN', marks)

if epoch and call('XLEN', log) == count and call('ZCARD', ids) == count then
    epoch, since, last, bytes = tonumber(epoch), tonumber(since), tonumber(last), tonumber(bytes)
else  -- new, flushed, or evicted from
    call('DEL', log, ids, marks, meta, seen_ids)
    epoch, since, last, bytes, before, count = 0, 0, 0, 0, '', 0
end
local first = last - count + 1

-- Whether the anchor is as it was.  Of what is forgotten, the last is known: who has a place there may still read on.
local function holds()
    if seen > last then return false end
    if seen < first - 1 then return true end
    return redis.sha1hex(seen < first and before or call('LINDEX', marks, seen - first)) == seen_mark
end
if epoch == 0 or seen_epoch > epoch or (seen_epoch == epoch and not holds()) then
    epoch, since = math.max(now, epoch + 1, seen_epoch + 1), last
    call('HSET', meta, 'epoch', epoch, 'since', since, 'end', last, 'bytes', bytes, 'before', before)
end

local function member(id, n, time) return id .. '\0' .. string.format('%016d', n) .. time end

local function add(id, size, record, time)
    last, count, bytes = last + 1, count + 1, bytes + size
    call('XADD', log, last .. '-0', 't', time, 'u', record)
    call('ZADD', ids, 0, member(id, last, time))
    call('RPUSH', marks, time .. ' ' .. size .. ' ' .. id)
end

-- Slack is how far over its bounds the log may be before it is cut down to them: few scripts do so, many at once.
local function trim(max_updates, max_bytes, max_age, slack)
    max_updates, max_bytes, max_age = tonumber(max_updates), tonumber(max_bytes), tonumber(max_age) or math.huge
    local forgotten = 0
    while count > 1 and forgotten < 2000 do
        local mark = call('LINDEX', marks, 0)
        local time, size, id = mark:match('^(%d+) (%d+) (.*)$')
        if count <= max_updates * slack and bytes <= max_bytes * slack and now - time <= max_age * slack then break end
        call('LPOP', marks)
        call('ZREM', ids, member(id, first, time))
        slack, before, forgotten, first, count, bytes = 1, mark, forgotten + 1, first + 1, count - 1, bytes - size
    end
    if forgotten > 0 then call('XTRIM', log, 'MAXLEN', count) end
    return forgotten
end

local function keep() call('HSET', meta, 'end', last, 'bytes', bytes, 'before', before) end
local function reply(value)
    return {epoch, first, last, redis.sha1hex(count > 0 and call('LINDEX', marks, -1) or before), value or false}
end
"""


class _Script:
    def __init__(self, body: str) -> None:
        self.text = _BEGIN + body
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_WRITE: Final = _Script(r"""
local node, node_timeout, window, max_updates, max_bytes, max_age = unpack(ARGV, 4, 9)
local left_out, number, i = {}, 0, 10

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
            add(id, size, record, time == '' and now or time)
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
trim(max_updates, max_bytes, max_age, 257 / 256)
keep()
return reply({now, left_out})
""")

_FIND: Final = _Script(r"""
local id = ARGV[4]
local earliest = call('ZRANGEBYLEX', ids, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 1)[1]
local n = earliest and tonumber(earliest:sub(#id + 2, #id + 17))
return reply(n and n > since and n)
""")

_NEWEST: Final = _Script("return reply(call('XREVRANGE', log, '+', '-', 'COUNT', 1))")

_PAGE: Final = _Script(r"""
local after, entries, size = unpack(ARGV, 4)
after, size = tonumber(after), tonumber(size)
if after < 0 then after = first - 1 end
local page = {}
if first - 1 <= after and after < last then
    local page_end, fits = after - after % entries + entries, 0
    for _, mark in ipairs(call('LRANGE', marks, after + 1 - first, page_end - first)) do
        size = size - mark:match('^%d+ (%d+)')
        if size < 0 and fits > 0 then break end
        fits = fits + 1
    end
    page = call('XRANGE', log, after + 1, '+', 'COUNT', fits)
end
return reply(page)
""")

_BEAT: Final = _Script(r"""
local node, node_timeout, max_updates, max_bytes, max_age = unpack(ARGV, 4)
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
trim(max_updates, max_bytes, max_age, 1)
keep()
return reply({call('HLEN', present .. node), orphans})
""")

_END: Final = _Script("return reply()")

_CHECK: Final = _Script("call('HSET', meta, 'checked', now) return reply()")

_STATS: Final = _Script(r"""
local size, here = 0, 0
local function weigh(key) size = size + (call('MEMORY', 'USAGE', key) or 0) end
for _, key in ipairs({log, ids, marks, meta, nodes}) do weigh(key) end
for _, node in ipairs(call('SMEMBERS', nodes)) do
    weigh(present .. node)
    here = here + call('HLEN', present .. node)
end
local newest = call('XREVRANGE', log, '+', '-', 'COUNT', 1)
return reply({count, bytes, size, here, call('XRANGE', log, '-', '+', 'COUNT', 1), newest})
""")

_PRUNE: Final = _Script("local forgotten = trim(ARGV[4], ARGV[5], ARGV[6], 1) keep() return reply(forgotten)")

_LEAVE: Final = _Script(r"""
local node = ARGV[4]
call('DEL', alive .. node)
if call('HLEN', present .. node) == 0 then call('SREM', nodes, node) end
return reply()
""")


class _Reply(NamedTuple):
    offset: int
    """What this node adds to n."""
    first: int
    """n of the oldest entry."""
    last: int
    """n of the newest one."""
    value: Any


class RedisTransport:
    """The newest `max_updates` updates, of `max_bytes` together, none older than `max_age` seconds; the newest always.

    There may be one part in 256 more of each, so that not every append forgets.  All its mutable state: `_epoch`, that
    of the log as this node has last heard of it, 0 if never; `_offset`, what it adds to n; and `_anchor`, n and the
    hash of the mark of the newest entry that it has heard of; and whether it is `_closed`.
    """

    def __init__(
        self,
        url: str,
        *,
        max_updates: int,
        max_bytes: int,
        max_age: float = math.inf,
        window: float = 0.0,
        node_timeout: float = 10.0,
        name: str = "mercure",
        random: Random | None = None,
    ) -> None:
        self._client, self._sentinel, self._where = _open(url)
        self._bounds = max_updates, max_bytes, max_age * 1_000
        self._window = math.ceil(window * 1_000)
        self._node = base.new_node(), round(node_timeout * 1_000)
        keys = "log", "ids", "marks", "meta", "nodes", "alive:", "present:", "seen"
        self._keys = [f"{{{name}}}:{key}" for key in keys]
        self._random = random or Random()  # noqa: S311
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        self._closed = False
        self._epoch = 0
        self._offset = 0
        self._anchor: tuple[int, bytes] = 0, b""

    @classmethod
    def from_url(
        cls, url: str, *, max_updates: int, max_bytes: int, max_age: float, window: float, node_timeout: float
    ) -> Self:
        """`?name=` is what the keys begin with; what else is in the query is for redis-py."""
        plain, _, query = url.partition("?")
        options = query.split("&")
        name = next((unquote(option[5:]) for option in options if option.startswith("name=")), "mercure")
        if not name or "{" in name or "}" in name:
            raise ConfigurationError(f"transport_url: name {name!r} is empty, or has braces")
        return cls(
            f"{plain}?{'&'.join(option for option in options if not option.startswith('name='))}",
            max_updates=max_updates,
            max_bytes=max_bytes,
            max_age=max_age,
            window=window,
            node_timeout=node_timeout,
            name=name,
        )

    # -- updates

    async def append(self, updates: Sequence[Update], *, publisher: str = "") -> list[Entry]:
        return await self._write([("", None, [Entry(0, update) for update in updates])], publisher)

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

    async def find(self, id: str) -> int | None:
        reply = await self._call(_FIND, id.encode("utf-8", "surrogatepass"))
        return None if reply.value is None else reply.offset + reply.value

    async def newest(self) -> Entry | None:
        reply = await self._call(_NEWEST)
        return next(_entries(reply.value, reply.offset), None)

    async def end(self) -> int:
        reply = await self._call(_END)
        return reply.offset + reply.last

    async def read(self, after: int) -> list[Entry]:
        return (await self._page(after))[0]

    async def _page(self, after: int, *, at_once: bool = False) -> tuple[list[Entry], int | None]:
        """The next page; and, if it is the last one, n of the log's newest entry."""
        offset, anywhere = self._offset, after == EARLIEST
        if anywhere or offset <= after < offset + base.EPOCH:
            n = after if anywhere else after - offset
            reply = await self._call(_PAGE, n, base.PAGE_ENTRIES, base.PAGE_BYTES, at_once=at_once)
            if anywhere or reply.offset == offset:
                if not anywhere and n < reply.first - 1:
                    oldest = offset + reply.first
                    raise OffTheLog(f"position {after} is before {oldest}, the oldest that the log still holds")
                page = list(_entries(reply.value, reply.offset))
                last = page[-1].position - reply.offset if page else reply.last
                return page, last if last == reply.last else None
        raise OffTheLog(f"position {after} is of an earlier epoch of the log")

    async def follow(self, after: int) -> AsyncIterator[list[Entry]]:
        end: int | None = None
        failures = 0
        while True:
            try:
                if end is not None:
                    # Only a bell: the page looks for the anchor too.  That also says when the log is flushed.
                    wait = "BLOCK", round(LOOK * 1_000), "COUNT", 1, "STREAMS", self._keys[0], f"{end}-0"
                    async with self._reaching():
                        await self._execute("XREAD", *wait)
                page, end = await self._page(after, at_once=True)
            except LogUnavailable as error:
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
        count, size, memory, present, *ends = reply.value
        oldest, newest = (next(_entries(end, reply.offset), None) for end in ends)
        return Stats(count, oldest, newest, size, memory, str(self._epoch), present)

    async def prune(self, *, max_updates: int, max_bytes: int, max_age: float) -> int:
        forgotten: int = (await self._call(_PRUNE, max_updates, max_bytes, max_age * 1_000)).value
        return forgotten

    async def aclose(self) -> None:
        with contextlib.suppress(LogUnavailable, TimeoutError):
            if self._epoch:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await self._call(_LEAVE, self._node[0], at_once=True)
        self._closed = True
        for close in (self._client.aclose, *([self._sentinel.aclose] if self._sentinel else [])):
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await close()

    async def _call(self, script: _Script, *arguments: str | bytes | float, at_once: bool = False) -> _Reply:
        """What the script says, and what it says about the log; the anchor goes with it.

        `at_once` is for what may not wait behind thousands who ask for their places.
        """
        offset = self._offset
        rest = len(self._keys), *self._keys, self._epoch, *self._anchor, *arguments
        async with self._reaching(), contextlib.nullcontext() if at_once else self._turns:
            try:
                answer = await self._execute("EVALSHA", script.sha, *rest)
            except NoScriptError:
                answer = await self._execute("EVAL", script.text, *rest)
        epoch, first, last, mark, value = answer
        if epoch > self._epoch:
            if self._epoch:
                log.warning("the log has lost entries; a new epoch begins", epoch=epoch)
                self._offset += base.EPOCH
            self._epoch, self._anchor = epoch, (last, mark)
        elif epoch == self._epoch and last > self._anchor[0]:
            self._anchor = last, mark
        # An answer of before the epoch that another one has told of by now is about places of before.
        return _Reply(self._offset if epoch == self._epoch else offset, first, last, value)

    @contextlib.asynccontextmanager
    async def _reaching(self) -> AsyncIterator[None]:
        """Have what is done in it raise LogUnavailable where the server cannot be reached, or says that it cannot."""
        if self._closed:
            raise LogUnavailable(f"{self._where} is left")
        try:
            async with asyncio.timeout(TIMEOUT):
                yield
        except TimeoutError as error:
            raise LogUnavailable(f"{self._where} does not answer within {TIMEOUT:g} s") from error
        except (RedisError, OSError) as error:
            if isinstance(error, ResponseError):
                # It may be a replica by now: new connections ask Sentinel, or the name of the host, who is not.
                with contextlib.suppress(RedisError, OSError):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
            raise LogUnavailable(f"{self._where}: {error}") from error


def _entries(found: Iterable[tuple[bytes, list[bytes]]], offset: int) -> Iterator[Entry]:
    for id, (_, time, _, update) in found:
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
        raise ConfigurationError("transport_url: a host or port is none; in a password, write / as %2F") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError("transport_url: in a password, write / as %2F, ? as %3F and # as %23")
    sentinel, where = parts.scheme == "redis+sentinel", f"{parts.scheme}://{hosts}{parts.path}"
    if sentinel and not re.fullmatch(r"/[^/]+(/\d*)?", parts.path):
        raise ConfigurationError(f"transport_url {where}: after the hosts comes /service, or /service/database")
    if not sentinel and (len(addresses) > 1 or not re.fullmatch(r"/?\d*", parts.path)):
        raise ConfigurationError(f"transport_url {where}: after one host comes nothing, or the number of a database")
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
        raise ConfigurationError(f"transport_url {where}: {error}") from None
    return client, sentinels, where


def _urls(hosts: str) -> list[str]:
    return [f"//{host}" for host in hosts.split(",")]
