-- remove <references: tag(12) seq(6)>, answers an outcome each
-- purge <states: any of w (ready), s (scheduled), r (reserved)> <limit>, answers how many went(6), more(1)

local function removePlain(q, seq)
  if readDelivery(q, NO_LANE, seq) then
    local found = findDelivery(q, NO_LANE, seq)
    if not found then return NOT_FOUND end
    if found.till > 0 then return RESERVED end
    db('ZREM', q.z, waitingMember(NO_LANE, found.maturity, seq, found.tries, true))
  else
    local value = db('HGET', q.h, 'e' .. seq)
    if not value then return NOT_FOUND end
    local maturity, tries = unpackAt('>I6I4', value)
    if db('ZREM', q.z, waitingMember(NO_LANE, maturity, seq, tries, false)) == 0 then return NOT_FOUND end
  end
  finish(q, NO_LANE, seq)
  return DONE
end

-- Takes the waiting deliveries of a stream's element away. Answers how many there were.
local function dropWaiting(q, seq, element)
  local dropped = 0
  for _, lane in ipairs(element.order) do
    local state = element.states[lane]
    if state == WAITING or state == TOUCHED then
      local touched = state == TOUCHED
      local tries = touched and readDelivery(q, lane, seq).tries or element.tries
      db('ZREM', q.z, waitingMember(lane, element.dues[lane], seq, tries, touched))
      if touched then db('HDEL', q.h, 'd' .. lane .. seq) end
      element.states[lane] = nil
      dropped = dropped + 1
    end
  end
  return dropped
end

local function removeShared(q, seq, element)
  for _, state in pairs(element.states) do
    if state == HELD then return RESERVED end
  end
  local before = elementMember(element, seq)
  if dropWaiting(q, seq, element) == 0 then return NOT_FOUND end
  writeElement(q, seq, element, before)
  return DONE
end

verbs.remove = function(q, args, at)
  local references, outcomes = args[at], {}
  endAllLapsed(q)
  for from = 1, #references, 18 do
    local seq = sub(references, from + 12, from + 17)
    local outcome = NOT_FOUND
    if sub(references, from, from + 11) == q.tag then
      local element = readElement(q, seq)
      outcome = element and removeShared(q, seq, element) or removePlain(q, seq)
      flush(q)
    end
    outcomes[#outcomes + 1] = outcome
  end
  return concat(outcomes), at + 1
end

-- Notes that an element of the plain lane goes, and its delivery's record if it has one.
local function forgetPlain(q, member)
  local deleted = q.deleted
  deleted[#deleted + 1] = 'e' .. sub(member, 10, 15)
  if byte(member) ~= 119 or isTouched(member) then deleted[#deleted + 1] = 'd' .. NO_LANE .. sub(member, 10, 15) end
end

-- Whether a member is a lease of which the delivery knows nothing: only the member is removed then.
local function isStaleLease(q, lane, member)
  if byte(member) ~= 108 then return false end
  return not isHeldAt(readDelivery(q, lane, sub(member, 10, 15)), fromSix(member, 4))
end

local function purgeRange(q, lane, low, high, limit)
  local members = membersBetween(q.z, low, high, limit)
  if #members == 0 then return 0 end
  removeFirst(q, members, #members)
  for i = 1, #members do
    if not isStaleLease(q, lane, members[i]) then
      if lane == NO_LANE then
        forgetPlain(q, members[i])
      else
        finish(q, lane, sub(members[i], 10, 15))
      end
    end
  end
  flush(q)
  return #members
end

local function purgeLane(q, lane, states, limit)
  local now, last = six(call.now + 1), '\255\255\255\255\255\255\255'
  local removed = 0
  local function range(state, low, high)
    if removed < limit and string.find(states, state) then
      removed = removed + purgeRange(q, lane, low, high, limit - removed)
    end
  end
  range('w', '[w' .. lane, '(w' .. lane .. now)
  range('s', '[w' .. lane .. now, '(w' .. lane .. last)
  range('r', '[l' .. lane, '(l' .. lane .. last)
  return removed
end

verbs.purge = function(q, args, at)
  local states, limit, removed = args[at], tonumber(args[at + 1]), 0
  endAllLapsed(q)
  for _, lane in ipairs(allLanes(q)) do
    if removed < limit then removed = removed + purgeLane(q, lane[1], states, limit - removed) end
  end
  return pack('>I6I1', removed, removed >= limit and 1 or 0), at + 2
end
