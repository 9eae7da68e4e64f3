-- Arguments: the five bounds.  Forgets entries beyond them, up to 2,000 of each kind
-- and the presence updates before the published ones, and returns how many.

local max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 7)
local forgotten = trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 1)
keep()
return reply(forgotten)
