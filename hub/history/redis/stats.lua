-- Returns the number of entries and their bytes for each kind, then the bytes of
-- memory, the number of present subscribers, and the first and the last entry of each
-- kind.

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
