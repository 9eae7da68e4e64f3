-- Returns the key of opaque cursors, if there is one.  Every reply has n of the newest
-- entry.

return reply(call('HGET', meta, 'cursor_key'))
