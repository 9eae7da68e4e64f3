-- Appends updates, and changes the list of present subscribers, in one step.
--
-- Arguments: node, node_timeout in ms, window in ms, '1' if nothing may be appended
-- while there is a command that the node does not know, the five bounds, and then any
-- number of changes, each with its updates:
--   kind of change, subscriber or '', its matchers, number of updates
--     id, size, record, time or '' for now, hash of id and publisher, or ''
-- The kinds of change:
--   ''      published updates           'load'  published updates of another history
--   'more'  presence updates            'moved' presence updates of another history
--   'come'  a subscriber arrives        'gone'  a subscriber departs
-- Returns the time, and the numbers, from 0, of the updates that were left out; false if
-- there is such a command.

-- Adds an entry to the stream and the indexes of its kind.
local function add(kind, id, size, record, time)
    last, kind.count, kind.bytes = last + 1, kind.count + 1, kind.bytes + size
    call('XADD', kind.log, last .. '-0', 't', time, 'u', record)
    call('ZADD', ids, 0, member(id, last, time))
    call('ZADD', kind.marks, last, last .. ' ' .. time .. ' ' .. size .. ' ' .. id)
end

local node, node_timeout, window, asks = unpack(ARGV, 7, 10)
local max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 11, 15)
local left_out, number, i = {}, 0, 16
if asks == '1' and newest_command > tonumber(ARGV[6]) then return reply() end

local is_presence = {come = true, gone = true, more = true, moved = true}

-- Returns whether a hash was seen in the last `window` ms.  If not, remembers it.
local function knows(one)
    local time = call('ZSCORE', seen_ids, one)
    if time and tonumber(time) > now - window then return true end
    call('ZADD', seen_ids, now, one)
    return false
end

-- Each change: first the list of present subscribers, then its updates.  The updates of
-- a departure are left out if the subscriber is in no node's list.
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
-- Forget the oldest remembered ids if there are too many, and up to 2,000 of those that
-- are before the window.
if window ~= '0' then
    local excess = call('ZCARD', seen_ids) - max_updates
    if excess > 0 then call('ZREMRANGEBYRANK', seen_ids, 0, excess - 1) end
    local old = call('ZRANGEBYSCORE', seen_ids, '-inf', now - window, 'LIMIT', 0, 2000)
    if #old > 0 then call('ZREMRANGEBYRANK', seen_ids, 0, #old - 1) end
end
trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 257 / 256)
keep()
return reply({now, left_out})
