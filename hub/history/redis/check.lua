-- Writes the time of the check.

call('HSET', meta, 'checked', now)
return reply()
