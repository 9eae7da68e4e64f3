-- node.  Its subscribers stay, for other nodes to announce.

local node = ARGV[6]
call('DEL', alive .. node)
if call('HLEN', present .. node) == 0 then call('SREM', nodes, node) end
return reply()
