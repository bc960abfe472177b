-- What becomes of the takes of a client's earlier call.

-- The client has what it popped: nothing more is kept of it.
local function finishPops(q, taken)
  if string.byte(taken) ~= 80 then return end
  local lane = string.sub(taken, 2, 3)
  eachTaken(taken, function(piece)
    local seq = string.sub(piece, 7, 12)
    if lane == NO_LANE and not isTouched(piece) then
      q.deleted[#q.deleted + 1] = 'e' .. seq
    else
      finish(q, lane, seq)
    end
  end)
end

local function undoPop(q, lane, piece)
  local seq = string.sub(piece, 7, 12)
  if db('HEXISTS', q.h, 'e' .. seq) == 0 then return end
  db('ZADD', q.z, 0, 'w' .. lane .. piece)
  if lane == NO_LANE then return end
  changeLane(q, seq, lane, isTouched(piece) and TOUCHED or WAITING, fromSix(piece, 1))
end

local function undoReserve(q, lane, piece, till, token)
  local seq = string.sub(piece, 7, 12)
  local held = readDelivery(q, lane, seq)
  if held and held.till == till and held.token == token then
    release(q, lane, seq, held, held.maturity, held.tries, 0)
  end
end

-- The client never heard what it got: all of it goes back to its place, and no try is counted.
local function undoTake(q, taken)
  local lane = string.sub(taken, 2, 3)
  local till, token = unpackAt('>I6I6', taken, 4)
  eachTaken(taken, function(piece, index)
    if string.byte(taken) == 80 then
      undoPop(q, lane, piece)
    else
      undoReserve(q, lane, piece, till, token + index)
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
