-- Argument: node.  Reports it as dead.  Its subscribers stay in the list, so that other
-- nodes announce their departure.

local node = ARGV[7]
call('DEL', alive .. node)
if call('HLEN', present .. node) == 0 then call('SREM', nodes, node) end
return reply()
