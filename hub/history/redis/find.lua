-- Arguments: id, and '1' if the reader may want presence updates.
-- Returns n of the earliest entry with this id, or false.

local id, wants_presence = ARGV[7], ARGV[8] == '1'
local earliest = call('ZRANGEBYLEX', ids, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 1)[1]
local n = earliest and tonumber(earliest:sub(#id + 2, #id + 17))
return reply(n and n > since and not (wants_presence and n < presence.forgotten) and n)
