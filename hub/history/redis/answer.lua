-- Stores what a node answers to a command, in a hash that ends by itself.
--
-- Arguments: node, the key of the hash, the text, and how many seconds the hash is kept.

local node, answers, text, age = unpack(ARGV, 7)
call('HSET', answers, node, text)
call('EXPIRE', answers, age)
return reply()
