-- Argument: n.  Returns the epoch, and the id of the entry n of either kind, or false.

local n = tonumber(ARGV[7])
local mark = call('ZRANGEBYSCORE', marks, n, n)[1] or call('ZRANGEBYSCORE', presence_marks, n, n)[1]
return reply({epoch, mark and mark:match('^%d+ %d+ %d+ (.*)$') or false})
