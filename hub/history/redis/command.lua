-- Appends a command to the list, and makes or lifts its revocation.
--
-- Arguments: node, the bounds: revocations, commands, and their age in ms; the action,
-- its target, `before`, and the text of the command.  Returns its number and the names
-- of the other nodes that are alive; false if there are too many revocations.

local node, max_revocations, max_commands, max_age, action, target, before, text = unpack(ARGV, 7)

-- Returns whether there is room for one more, after those that have ended are removed.
local function has_room()
    local function is_below() return call('HLEN', revoked) < tonumber(max_revocations) end
    if is_below() or call('HEXISTS', revoked, target) == 1 then return true end
    local all = call('HGETALL', revoked)
    for i = 1, #all, 2 do
        -- `before` is a little later than now; the end of a revocation has room for that.
        local ends = cjson.decode(all[i + 1])[4]
        if ends ~= cjson.null and ends < tonumber(before) then call('HDEL', revoked, all[i]) end
    end
    return is_below()
end

if action == 'revoke' then
    if not has_room() then return reply() end
    call('HSET', revoked, target, text)
elseif action == 'lift' then
    call('HDEL', revoked, target)
end
if newest_command == 0 then append_command('') end
local number = append_command(text)
call('XTRIM', commands, 'MAXLEN', max_commands)
call('XTRIM', commands, 'MINID', string.format('%d-0', now - max_age))
return reply({number, others_than(node)})
