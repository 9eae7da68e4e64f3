-- Reports that a node is alive, and forgets entries beyond the bounds.
--
-- Arguments: node, node_timeout in ms, the five bounds.  Returns how many subscribers
-- are present on the node, some subscribers of dead nodes with their matchers, and the
-- names of the other nodes that are alive.

local node, node_timeout, max_updates, max_bytes, max_age, presence_updates, presence_bytes = unpack(ARGV, 7)
call('SADD', nodes, node)
call('SET', alive .. node, '', 'PX', node_timeout)
-- If no node has reported for half of node_timeout, perhaps none could reach the
-- server: then every node gets a new node_timeout.
local heard = call('HGET', meta, 'heard')
local away = not heard or now - heard > node_timeout / 2
call('HSET', meta, 'heard', now)
-- A dead node stays in `nodes` until no subscriber of it is left.
local orphans = {}
for _, other in ipairs(call('SMEMBERS', nodes)) do
    if away then call('SET', alive .. other, '', 'PX', node_timeout) end
    if call('EXISTS', alive .. other) == 0 and #orphans < 2000 then
        local some = call('HRANDFIELD', present .. other, 1000, 'WITHVALUES')
        for _, part in ipairs(some) do orphans[#orphans + 1] = part end
        if #some == 0 then call('SREM', nodes, other) end
    end
end
trim(max_updates, max_bytes, max_age, presence_updates, presence_bytes, 1)
keep()
return reply({call('HLEN', present .. node), orphans, others_than(node)})
