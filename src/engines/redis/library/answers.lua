-- What becomes of the takes of a client's earlier call.

local POPPED_MARK = 80

-- The client has what it popped: nothing more is kept of it.
local function finishPops(q, taken)
  if byte(taken) ~= POPPED_MARK then return end
  local lane, deleted = sub(taken, 2, 3), q.deleted
  local count = #deleted
  for at = TAKE_HEAD + 1, #taken - TAKE_STEP + 1, TAKE_STEP do
    local seq = sub(taken, at + 9, at + 14)
    if lane == NO_LANE and byte(taken, at + 18) % 2 == 0 then
      count = count + 1
      deleted[count] = 'e' .. seq
    else
      finish(q, lane, seq)
      count = #deleted
    end
  end
end

local function undoPop(q, lane, member)
  local seq = sub(member, 10, 15)
  if db('HEXISTS', q.h, 'e' .. seq) == 0 then return end
  db('ZADD', q.z, 0, member)
  if lane == NO_LANE then return end
  changeLane(q, seq, lane, isTouched(member) and TOUCHED or WAITING, fromSix(member, 4))
end

local function undoReserve(q, lane, member, till, token)
  local seq = sub(member, 10, 15)
  local held = readDelivery(q, lane, seq)
  if held and held.till == till and held.token == token then
    release(q, lane, seq, held, held.maturity, held.tries, NO_TOKEN)
  end
end

-- The elements of a take that is answered again, false where one is not the client's any more: a lease may have ended
-- meanwhile, or others may have settled or removed what it held.
local function takenAgain(q, taken)
  local lane, token = sub(taken, 2, 3), sub(taken, -16)
  local bodies, records = {}, {}
  eachTaken(taken, function(member)
    bodies[#bodies + 1] = 'e' .. sub(member, 10, 15)
    records[#records + 1] = 'd' .. lane .. sub(member, 10, 15)
  end)
  bodies = fieldValues(q.h, bodies)
  if byte(taken) == POPPED_MARK then return bodies end
  for i, text in ipairs(fieldValues(q.h, records)) do
    local held = readDelivery(q, lane, '', text)
    if not held or held.token ~= tokenAt(token, i - 1) or held.till <= call.now then bodies[i] = false end
  end
  return bodies
end

-- The client never heard what it got: all of it goes back to its place, and no try is counted.
local function undoTake(q, taken)
  local lane = sub(taken, 2, 3)
  local till, token = fromSix(taken, 4), sub(taken, -16)
  eachTaken(taken, function(member, index)
    if byte(taken) == POPPED_MARK then
      undoPop(q, lane, member)
    else
      undoReserve(q, lane, member, till, tokenAt(token, index))
    end
  end)
end

-- Ends the client's previous call for good.
local function settlePrevious(q)
  local received = fromSix(q.repeated, 1) <= call.received
  for _, taken in ipairs(takesIn(q.repeated)) do
    if received then finishPops(q, taken) else undoTake(q, taken) end
  end
  flush(q)
end
