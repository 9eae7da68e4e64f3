-- Writes something.

call('HSET', meta, 'checked', now)
return reply()
