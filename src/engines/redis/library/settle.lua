-- commit <groups> <references>; rollback <groups> <items>; extend <groups> <items>
--
-- groups: names, each with a comma behind it. A reference: tag(12) seq(6) token given(1) token(16) owner(6) number of
-- the group among them(2). A rollback adds delay(6) count the try(1), an extend the length of the lease(6). Each
-- answers an outcome per item; extend with the end of the lease(6) beside.

local REFERENCE = 43

-- The lanes of such a list of groups, false where no element ever named one.
local function lanesOf(q, groups)
  local lanes = {}
  for group in string.gmatch(groups, '([^,]*),') do lanes[#lanes + 1] = findLane(q, group) or false end
  return lanes
end

local function endLapsedIn(q, lanes)
  for _, lane in ipairs(lanes) do
    if lane then endLapsed(q, lane) end
  end
end

-- Whether a waiting delivery is there that no record tells of: one that was never reserved.
local function waitsUntouched(q, lane, seq)
  if lane == NO_LANE then
    local value = db('HGET', q.h, 'e' .. seq)
    if not value then return false end
    local maturity, tries = unpackAt('>I6I4', value)
    return db('ZSCORE', q.z, waitingMember(lane, maturity, seq, tries, false)) ~= false
  end
  local element = readElement(q, seq)
  return element ~= nil and element.states[lane] == WAITING
end

-- The record of a delivery that waits or is reserved: popped ones leave theirs until the client has heard.
local function findDelivery(q, lane, seq, text)
  local found = readDelivery(q, lane, seq, text)
  if not found or found.till > 0 then return found end
  local member = waitingMember(lane, found.maturity, seq, found.tries, true)
  return db('ZSCORE', q.z, member) and found or nil
end

-- What a reference names: its lane and number, the delivery that it may settle or nil, and why not.
local function readReference(q, lanes, items, at, text)
  local tag, seq, given, token, owner, group = unpackAt('>c12c6I1c16c6I2', items, at)
  local lane = lanes[group]
  if not lane or tag ~= q.tag then return lane, seq, nil, NOT_FOUND end
  local found = findDelivery(q, lane, seq, text)
  local refusal = given == 1 and LEASE_LOST or NOT_RESERVED
  if not found then return lane, seq, nil, waitsUntouched(q, lane, seq) and refusal or NOT_FOUND end
  if found.till == 0 and found.token == NO_TOKEN then return lane, seq, nil, refusal end
  -- A token that is not ours arrives as NO_TOKEN, which is also what a record without a token has.
  if given == 1 and (token == NO_TOKEN or token ~= found.token) then return lane, seq, nil, LEASE_LOST end
  local isOfAnother = given == 0 and owner ~= NOBODY and found.owner ~= NOBODY and found.owner ~= owner
  return lane, seq, found, refusal, isOfAnother
end

local function commitOne(q, lanes, items, at, text)
  local lane, seq, found, refusal, isOfAnother = readReference(q, lanes, items, at, text)
  if not found then return refusal end
  if isOfAnother then return TOKEN_REQUIRED end
  q.gone[#q.gone + 1] = found.till == 0 and waitingMember(lane, found.maturity, seq, found.tries, true)
    or leaseMember(lane, found.till, seq)
  finish(q, lane, seq)
  return DONE
end

-- The records of all deliveries that the references name, read in one go.
local function readRecords(q, lanes, items)
  local fields = {}
  for from = 1, #items, REFERENCE do
    local seq, _, _, group = unpackAt('>c6I1c22I2', items, from + 12)
    fields[#fields + 1] = 'd' .. (lanes[group] or '') .. seq
  end
  return fieldValues(q.h, fields), fields
end

verbs.commit = function(q, args, at)
  local lanes, items = lanesOf(q, args[at]), args[at + 1]
  local records, fields = readRecords(q, lanes, items)
  local outcomes, seen = {}, {}
  for i, field in ipairs(fields) do
    local record = records[i]
    if seen[field] then
      -- Named twice in one batch: what the first one did must be seen by the second.
      flush(q)
      record = nil
    end
    seen[field] = true
    outcomes[i] = commitOne(q, lanes, items, 1 + (i - 1) * REFERENCE, record)
  end
  flush(q)
  return concat(outcomes), at + 2
end

-- The reservation that the reference holds, or nil and why it holds none.
local function readHeld(q, lanes, items, at)
  local lane, seq, found, refusal, isOfAnother = readReference(q, lanes, items, at)
  if not found or found.till <= call.now then return lane, seq, nil, refusal end
  if isOfAnother then return lane, seq, nil, TOKEN_REQUIRED end
  return lane, seq, found
end

local function rollbackOne(q, lanes, items, at)
  local lane, seq, held, refusal = readHeld(q, lanes, items, at)
  if not held then return refusal end
  local delay, counts = unpackAt('>I6I1', items, at + REFERENCE)
  if counts == 1 then return endTry(q, lane, seq, held, call.now + delay, NO_TOKEN) and DEAD or DONE end
  release(q, lane, seq, held, delay > 0 and call.now + delay or held.maturity, held.tries, NO_TOKEN)
  return DONE
end

verbs.rollback = function(q, args, at)
  local lanes, items = lanesOf(q, args[at]), args[at + 1]
  local outcomes = {}
  endLapsedIn(q, lanes)
  for from = 1, #items, REFERENCE + 7 do outcomes[#outcomes + 1] = rollbackOne(q, lanes, items, from) end
  return concat(outcomes), at + 2
end

local function extendOne(q, lanes, items, at)
  local lane, seq, held, refusal = readHeld(q, lanes, items, at)
  if not held then return refusal .. six(0) end
  local till = call.now + fromSix(items, at + REFERENCE)
  db('ZREM', q.z, leaseMember(lane, held.till, seq))
  db('ZADD', q.z, 0, leaseMember(lane, till, seq))
  db('HSET', q.h, 'd' .. lane .. seq, deliveryText(held.maturity, held.tries, held.token, till, held.owner) .. six(call.now))
  return DONE .. six(till)
end

verbs.extend = function(q, args, at)
  local lanes, items = lanesOf(q, args[at]), args[at + 1]
  local outcomes = {}
  endLapsedIn(q, lanes)
  for from = 1, #items, REFERENCE + 6 do outcomes[#outcomes + 1] = extendOne(q, lanes, items, from) end
  return concat(outcomes), at + 2
end
