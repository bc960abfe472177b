-- sweep <dedup window>: released(1) ready(1) more(1) next lease or retention(6) next housekeeping(6); 0 for never
-- bye: the client will not ask for its last answer again; answers nothing. In a call that is counted that answer has
-- made way already, and the one of the call itself is kept, and listed, where it was.

local AT_ONCE = 500
-- A client's answer is forgotten when it has not called for this long: it gives a call up far sooner.
local IDLE_MS = 60000
-- A parcel that nobody brought over by then is brought by whoever sweeps.
local PARCEL_MS = 1000

-- Drops what waits past its retention. What is held then is dropped when it comes back.
local function dropOld(q)
  if q.retention == 0 then return 0 end
  local old = membersBetween(q.z, '[r', '(r' .. six(math.max(0, call.now - q.retention + 1)), AT_ONCE)
  for _, member in ipairs(old) do
    local seq = sub(member, 8, 13)
    local element = readElement(q, seq)
    db('ZREM', q.z, member)
    if element then
      local before = elementMember(element, seq)
      dropWaiting(q, seq, element)
      element.age = OVERDUE
      writeElement(q, seq, element, before)
    end
  end
  return #old
end

local function forgetKeys(q, window)
  for _, member in ipairs(membersBetween(q.z, '[k', '(k' .. six(math.max(0, call.now - window + 1)), AT_ONCE)) do
    db('ZREM', q.z, member)
    db('HDEL', q.h, 'k' .. sub(member, 8))
  end
end

-- What a silent client popped is its own by now: whether it ever heard of it, nobody can say.
local function forgetClients(q)
  for _, member in ipairs(membersBetween(q.z, '[c', '(c' .. six(math.max(0, call.now - IDLE_MS)), AT_ONCE)) do
    local client = sub(member, 8)
    local answer = db('HGET', q.h, 'c' .. client)
    local lastUse = answer and fromSix(answer, 7) or 0
    db('ZREM', q.z, member)
    if lastUse > call.now - IDLE_MS then
      db('ZADD', q.z, 0, 'c' .. six(lastUse) .. client)
      db('HSET', q.h, 'c' .. client, sub(answer, 1, 12) .. six(lastUse) .. sub(answer, 19))
    else
      for _, taken in ipairs(answer and takesIn(answer) or {}) do finishPops(q, taken) end
      q.deleted[#q.deleted + 1] = 'c' .. client
    end
  end
  flush(q)
end

local function resendParcels(q)
  for _, member in ipairs(membersBetween(q.z, '[p', '(p' .. six(math.max(0, call.now - PARCEL_MS + 1)), 20)) do
    local id = sub(member, 8)
    call.resent[#call.resent + 1] = readParcel(q, id)
  end
end

-- The moment in the first member under a prefix, and `later` beyond it; infinity where there is none.
local function firstMoment(q, prefix, later)
  local first = membersBetween(q.z, '[' .. prefix, '(' .. prefix .. LAST, 1)[1]
  return first and fromSix(first, #prefix + 1) + later or math.huge
end

local function nextEnd(q)
  local nextAt = q.retention > 0 and firstMoment(q, 'r', q.retention) or math.huge
  for _, lane in ipairs(allLanes(q)) do nextAt = math.min(nextAt, firstMoment(q, 'l' .. lane[1], 0)) end
  return nextAt
end

local function nextHousekeeping(q, window)
  return math.min(
    firstMoment(q, 'k', window), firstMoment(q, 'c', IDLE_MS),
    firstMoment(q, 'p', PARCEL_MS), firstMoment(q, 'x', ARRIVED_MS)
  )
end

local function momentText(moment)
  return six(moment < math.huge and moment or 0)
end

local function hasReady(q)
  for _, lane in ipairs(allLanes(q)) do
    local due = firstDue(q, lane[1])
    if due and due <= call.now then return true end
  end
  return false
end

verbs.sweep = function(q, args, at)
  local window = tonumber(args[at])
  local more = endAllLapsed(q) >= LEASES_AT_ONCE
  more = dropOld(q) >= AT_ONCE or more
  forgetKeys(q, window)
  forgetClients(q)
  resendParcels(q)
  forgetArrived(q)
  return concat({
    call.released and '\1' or '\0',
    hasReady(q) and '\1' or '\0',
    more and '\1' or '\0',
    momentText(nextEnd(q)),
    momentText(nextHousekeeping(q, window)),
  }), at + 1
end

verbs.bye = function(q, _, at)
  local answer = q.repeated
  if call.number == 0 and answer and fromSix(answer, 1) <= call.received then
    settlePrevious(q)
    db('HDEL', q.h, 'c' .. call.client)
    db('ZREM', q.z, 'c' .. sub(answer, 13, 18) .. call.client)
  end
  return '', at
end
