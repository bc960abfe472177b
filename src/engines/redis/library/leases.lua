-- Ends leases that ran out. Done before anything looks at a lane, so no verb depends on a sweep.

local LEASES_AT_ONCE = 1000

local function lapsedIn(q, lane)
  return membersBetween(q.z, '[l' .. lane, '(l' .. lane .. six(call.now + 1), LEASES_AT_ONCE)
end

-- Whether a lease ran out while nobody could settle or extend it. A client that reaches the server ends a lease when it
-- runs out. So one that is found by a client which could not reach the server then, no client could: the server was
-- away. The same holds for a little longer, as those who hold leases need a moment to return.
local function isExcused(held, till)
  return till < call.excused and leasedAt(held) < call.contact
end

local function endLease(q, member)
  local lane, till, seq = sub(member, 2, 3), fromSix(member, 4), sub(member, 10, 15)
  local held = readDelivery(q, lane, seq)
  if not isHeldAt(held, till) then
    db('ZREM', q.z, member)
    return
  end
  if isExcused(held, till) then
    release(q, lane, seq, held, held.maturity, held.tries, held.token)
    call.released = true
    return
  end
  if not endTry(q, lane, seq, held, till, held.token) then call.released = true end
end

-- Ends up to LEASES_AT_ONCE leases of a lane, in the order of their ends.
local function endLapsed(q, lane)
  for _, member in ipairs(lapsedIn(q, lane)) do endLease(q, member) end
end

local function endsBefore(a, b)
  local first, second = fromSix(a, 4), fromSix(b, 4)
  if first ~= second then return first < second end
  return fromSix(a, 10) < fromSix(b, 10)
end

-- The same over all lanes: what goes to the dead-letter queue goes in the order in which it died. Answers
-- how many leases ended.
local function endAllLapsed(q)
  local lapsed = {}
  for _, lane in ipairs(allLanes(q)) do
    for _, member in ipairs(lapsedIn(q, lane[1])) do lapsed[#lapsed + 1] = member end
  end
  table.sort(lapsed, endsBefore)
  local count = math.min(#lapsed, LEASES_AT_ONCE)
  for i = 1, count do endLease(q, lapsed[i]) end
  return count
end
