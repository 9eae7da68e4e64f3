-- Returns the newest entry of each kind.

local function newest(log) return call('XREVRANGE', log, '+', '-', 'COUNT', 1) end
return reply({newest(log), newest(presence_log)})
