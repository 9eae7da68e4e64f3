-- Returns nothing: n of the newest entry is in each reply.

return reply()
