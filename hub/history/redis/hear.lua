-- Reports that a node is alive.
--
-- Arguments: node, node_timeout in ms.  Returns the names of the other nodes that are
-- alive.  Every reply has the news.

local node, node_timeout = unpack(ARGV, 7)
call('SADD', nodes, node)
call('SET', alive .. node, '', 'PX', node_timeout)
return reply(others_than(node))
