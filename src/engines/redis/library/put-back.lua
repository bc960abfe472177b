-- back <count>, then per delivery: <group> <tag(12) seq(6) maturity(6) tries(4)> <content>; answers
-- nothing, but '!' where the queue has more groups than fit: what is named from there on is not put back.
--
-- Undoes pops of this client. Its answers up to now are settled before any verb runs, so what they popped is
-- forgotten by then, and what comes back is stored anew.

local function restorePlain(q, seq, maturity, tries, content)
  db('HDEL', q.h, 'd' .. NO_LANE .. seq)
  db('HSET', q.h, 'e' .. seq, pack('>I6I4', maturity, tries) .. content)
  db('ZADD', q.z, 0, waitingMember(NO_LANE, maturity, seq, tries, false))
end

-- Where the other groups have finished, the record is made again: its age for retention begins anew.
local function restoreShared(q, lane, seq, maturity, tries, content)
  if db('HEXISTS', q.h, 'g' .. seq) == 0 then
    store(q, 'e' .. seq, pack('>I6I4', maturity, tries) .. content)
    newElement(q, seq, { lane }, maturity, tries)
    flush(q)
  end
  db('HSET', q.h, 'd' .. lane .. seq, deliveryText(maturity, tries, NO_TOKEN, 0, NOBODY))
  db('ZADD', q.z, 0, waitingMember(lane, maturity, seq, tries, true))
  changeLane(q, seq, lane, TOUCHED, maturity)
end

local function isThere(q, lane, seq)
  return findDelivery(q, lane, seq) ~= nil or waitsUntouched(q, lane, seq)
end

local function putBack(q, lane, named, content)
  local maturity, tries = unpackAt('>I6I4', named, 19)
  local seq = sub(named, 13, 18)
  if sub(named, 1, 12) ~= q.tag then
    -- The queue lost its data meanwhile: the element is new here.
    put(q, maturity, tries, lane ~= NO_LANE and { lane } or nil, content)
    flush(q)
  elseif isThere(q, lane, seq) then
    return
  elseif lane == NO_LANE then
    restorePlain(q, seq, maturity, tries, content)
  else
    restoreShared(q, lane, seq, maturity, tries, content)
  end
end

verbs.back = function(q, args, at)
  local count = tonumber(args[at])
  for i = at + 1, at + 3 * count, 3 do
    local lane = makeLane(q, args[i])
    if not lane then return '!', at + 1 + 3 * count end
    putBack(q, lane, args[i + 1], args[i + 2])
  end
  return '', at + 1 + 3 * count
end

-- postpone <delay> <members that waiting deliveries have or had before they were reserved>: returns nothing. Delays those
-- that still wait.
verbs.postpone = function(q, args, at)
  local maturity, members = call.now + tonumber(args[at]), args[at + 1]
  for from = 1, #members, 19 do
    local lane, before, seq, tries = unpackAt('>c2I6c6I4', members, from + 1)
    tries = math.floor(tries / 2)
    local untouched, touched = waitingMember(lane, before, seq, tries, false), waitingMember(lane, before, seq, tries, true)
    if db('ZREM', q.z, untouched, touched) > 0 then
      local held = readDelivery(q, lane, seq) or { token = NO_TOKEN, owner = NOBODY }
      release(q, lane, seq, { till = 0, owner = held.owner }, maturity, tries, held.token)
    end
  end
  return '', at + 2
end
