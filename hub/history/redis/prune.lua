-- The five bounds.  Returns how many entries were forgotten.

local max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 6)
local forgotten = trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 1)
keep()
return reply(forgotten)
