-- Arguments: n after which the page begins, entries of a page, bytes of a page.
-- Returns the entries of each kind, and 1 if the page is full, else 0.
--
-- First the range of the page, then the sizes of its entries, then how many of them
-- fit.

local after, entries, size = unpack(ARGV, 7)
after, size = tonumber(after), tonumber(size)
local first
for _, marks in ipairs({marks, presence_marks}) do
    local n = tonumber(call('ZRANGEBYSCORE', marks, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
    if n and (not first or n < first) then first = n end
end
if not first or (0 <= after and after < published.forgotten) then return reply({{}, {}, 0}) end
local page_end = first - 1 - (first - 1) % entries + entries
local size_of, till, full = {}, first, page_end <= last
for _, marks in ipairs({marks, presence_marks}) do
    for _, mark in ipairs(call('ZRANGEBYSCORE', marks, first, page_end)) do
        local n, size = mark:match('^(%d+) %d+ (%d+)')
        size_of[tonumber(n)] = size
    end
end
for n = first, page_end do
    if size_of[n] then
        size = size - size_of[n]
        if size < 0 and n > first then
            full = false
            break
        end
        till = n
    end
end
return reply({call('XRANGE', log, first, till), call('XRANGE', presence_log, first, till), full and 1 or 0})
