-- Returns no value: every reply has n of the newest entry.

return reply()
