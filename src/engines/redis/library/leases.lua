-- Ends leases that ran out. Done before anything looks at a lane, so no verb depends on a sweep.

local LEASES_AT_ONCE = 1000

-- Ends up to LEASES_AT_ONCE leases of a lane; answers how many.
local function endLapsed(q, lane)
  local lapsed = membersBetween(q.z, '[l' .. lane, '(l' .. lane .. six(call.now + 1), LEASES_AT_ONCE)
  for _, member in ipairs(lapsed) do
    local till, seq = fromSix(member, 4), string.sub(member, 10, 15)
    local held = readDelivery(q, lane, seq)
    if not endTry(q, lane, seq, held, till, held.token) then call.released = true end
  end
  return #lapsed
end

local function endAllLapsed(q)
  local ended = 0
  for _, lane in ipairs(allLanes(q)) do ended = ended + endLapsed(q, lane[1]) end
  return ended
end
