-- node.  Its subscribers stay, so that other nodes announce them.

local node = ARGV[6]
call('DEL', alive .. node)
if call('HLEN', present .. node) == 0 then call('SREM', nodes, node) end
return reply()
