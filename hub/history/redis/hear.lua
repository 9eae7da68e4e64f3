-- Reports that a node is alive.
--
-- Arguments: node, node_timeout in ms, and the key of opaque cursors if there is none yet.
-- Returns that key, and the names of the other nodes that are alive.  Every reply has
-- the news.

local node, node_timeout, key = unpack(ARGV, 7)
call('SADD', nodes, node)
call('SET', alive .. node, '', 'PX', node_timeout)
call('HSETNX', meta, 'cursor_key', key)
return reply({call('HGET', meta, 'cursor_key'), others_than(node)})
