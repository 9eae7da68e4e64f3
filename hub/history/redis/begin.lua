-- The beginning of every script: reads the state, and begins a new epoch if entries
-- were lost.
--
-- __init__.py in this directory explains KEYS.  ARGV[1..6] are the knowledge of the
-- node: the epoch, n of the published anchor, the hash of its mark, the same two of the
-- presence anchor, and the number of the newest command.  A script's own arguments begin
-- at ARGV[7].
--
-- Each script ends with `return reply(value)`: the epoch, n of the newest entry,
-- whether the node strays, and the value.  Then for each kind of entry: n of the newest
-- forgotten entry, n of the newest entry, and the hash of its mark.  Then the number of
-- the newest command, the one that the node knows with those that it does not know, and
-- all revocations, if the list does not have that one; otherwise false.

local log, ids, marks, meta, nodes, alive, present, seen_ids, presence_log, presence_marks, commands, revoked =
    unpack(KEYS)
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seen_epoch = tonumber(ARGV[1])
local about = call(
    'HMGET', meta, 'epoch', 'since', 'end', 'bytes', 'before', 'forgotten',
    'presence_bytes', 'presence_before', 'presence_forgotten'
)
local epoch, since, last = unpack(about)

-- Upgrade from version 0.1.0, in which marks were a list and all entries of one kind.
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

-- Returns the state of one kind of entries.  `before` is the mark of the newest
-- forgotten entry, `forgotten` its n; `seen` and `seen_mark` are the anchor of the
-- node.
local function kind(log, marks, prefix, seen, seen_mark, bytes, before, forgotten)
    return {
        log = log, marks = marks, prefix = prefix, seen = tonumber(seen), seen_mark = seen_mark,
        count = call('ZCARD', marks), bytes = tonumber(bytes or 0),
        before = before or '', forgotten = tonumber(forgotten or 0),
    }
end
local published = kind(log, marks, '', ARGV[2], ARGV[3], unpack(about, 4, 6))
local presence = kind(presence_log, presence_marks, 'presence_', ARGV[4], ARGV[5], unpack(about, 7, 9))

-- The streams and their indexes must have equally many entries.
local function is_whole(kind) return call('XLEN', kind.log) == kind.count end
if epoch and is_whole(published) and is_whole(presence) and call('ZCARD', ids) == published.count + presence.count then
    epoch, since, last = tonumber(epoch), tonumber(since), tonumber(last)
else  -- the history is new, or was flushed, or a key was evicted
    call('DEL', log, ids, marks, meta, seen_ids, presence_log, presence_marks)
    epoch, since, last = 0, 0, 0
    for _, kind in ipairs({published, presence}) do
        kind.count, kind.bytes, kind.before, kind.forgotten = 0, 0, '', 0
    end
end

-- Writes the state into `meta`.
local function keep()
    call('HSET', meta, 'epoch', epoch, 'since', since, 'end', last)
    for _, kind in ipairs({published, presence}) do
        call('HSET', meta, kind.prefix .. 'bytes', kind.bytes)
        call('HSET', meta, kind.prefix .. 'before', kind.before, kind.prefix .. 'forgotten', kind.forgotten)
    end
end

-- Returns whether the anchor of a kind is still the same entry.  If it was forgotten,
-- only the newest forgotten entry can be compared; an older anchor counts as the same.
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

-- If both anchors were forgotten, it is unknown whether this is still the history that
-- the node knew.  The node's positions up to the published anchor have expired.  Those
-- up to the presence anchor must expire too.
local strays = seen_epoch == epoch and published.seen < published.forgotten
    and published.forgotten <= presence.seen and presence.seen < presence.forgotten

-- Returns the member of `ids` for an entry: members of an id sort by n.
local function member(id, n, time) return id .. '\0' .. string.format('%016d', n) .. time end

-- Forgets the oldest entries of a kind as long as `is_due(n, time, forgotten)`, and
-- returns how many.
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

-- Forgets up to 2,000 entries of a kind, to get within bounds.  It only begins if a
-- bound times `slack` is exceeded, so that few scripts forget entries, and many at
-- once.
local function trim_kind(kind, max_updates, max_bytes, max_age, slack)
    max_updates, max_bytes, max_age = tonumber(max_updates), tonumber(max_bytes), tonumber(max_age) or math.huge
    return forget(kind, function(n, time, forgotten)
        if kind.count <= 1 or forgotten == 2000 then return false end
        local over = kind.count > max_updates * slack or kind.bytes > max_bytes * slack or now - time > max_age * slack
        if over then slack = 1 end
        return over
    end)
end

-- Forgets entries of both kinds, to get within bounds.  If published updates go, the
-- presence updates that are older than all published ones that are left go too.
local function trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, slack)
    local forgotten = trim_kind(published, max_updates, max_bytes, max_age, slack)
    if forgotten > 0 then
        local first = tonumber(call('ZRANGE', marks, 0, 0, 'WITHSCORES')[2])
        forgotten = forgotten + forget(presence, function(n) return n < first end)
    end
    return forgotten + trim_kind(presence, presence_updates, presence_bytes, max_age, slack)
end

-- The number of the newest command; 0 if there is no list.
local function newest_number()
    local newest = call('XREVRANGE', commands, '+', '-', 'COUNT', 1)[1]
    return newest and tonumber(newest[1]:match('^%d+')) or 0
end
local newest_command = newest_number()

-- Appends a command to the list, whose first row is none, and returns its number.
local function append_command(text)
    newest_command = math.max(now, newest_command + 1)
    call('XADD', commands, string.format('%d-0', newest_command), 't', text)
    return newest_command
end

-- Returns the names of the nodes that are alive, but this one.
local function others_than(node)
    local others = {}
    for _, other in ipairs(call('SMEMBERS', nodes)) do
        if other ~= node and call('EXISTS', alive .. other) == 1 then others[#others + 1] = other end
    end
    return others
end

-- Returns the reply that the top of this file describes.
local function reply(value)
    local about = {epoch, last, strays and 1 or 0, value or false}
    for _, kind in ipairs({published, presence}) do
        local newest, n = unpack(call('ZRANGE', kind.marks, -1, -1, 'WITHSCORES'))
        about[#about + 1] = kind.forgotten
        about[#about + 1] = tonumber(n or kind.forgotten)
        about[#about + 1] = redis.sha1hex(newest or kind.before)
    end
    about[#about + 1] = newest_command
    if newest_command > tonumber(ARGV[6]) then
        local known = ARGV[6] .. '-0'
        local found = call('XRANGE', commands, known, '+')
        local first = found[1] or {'', {'t', ''}}
        -- A node that knows none has missed none if the list still has its first row.
        local is_whole = first[1] ~= known and not (ARGV[6] == '0' and first[1] ~= '' and first[2][2] == '')
        about[#about + 1] = is_whole and {} or found
        about[#about + 1] = is_whole and call('HVALS', revoked)
    end
    return about
end
