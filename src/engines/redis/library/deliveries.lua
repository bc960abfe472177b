-- Changes of one delivery's state, each keeping z, the delivery record and a stream's record in step.

-- `text`: the record, false where there is none, or nil where it was not read yet.
local function readDelivery(q, lane, seq, text)
  if text == nil then text = db('HGET', q.h, 'd' .. lane .. seq) end
  if not text then return nil end
  local maturity, tries, token, till = unpackAt('>I6I4I6I6', text)
  return { maturity = maturity, tries = tries, token = token, till = till }
end

local function deliveryText(maturity, tries, token, till)
  return pack('>I6I4I6I6', maturity, tries, token, till)
end

local function leaseMember(lane, till, seq)
  return 'l' .. lane .. six(till) .. seq
end

-- reserved -> waiting. A token other than 0 stays good for a late commit.
local function release(q, lane, seq, held, maturity, tries, token)
  db('ZREM', q.z, leaseMember(lane, held.till, seq))
  db('ZADD', q.z, 0, waitingMember(lane, maturity, seq, tries, true))
  db('HSET', q.h, 'd' .. lane .. seq, deliveryText(maturity, tries, token, 0))
  if lane ~= NO_LANE then changeLane(q, seq, lane, TOUCHED, maturity) end
end

-- Forgets a delivery whose member in z is gone, and the element with its last delivery.
local function finish(q, lane, seq)
  local deleted = q.deleted
  deleted[#deleted + 1] = 'd' .. lane .. seq
  if lane == NO_LANE then
    deleted[#deleted + 1] = 'e' .. seq
  else
    changeLane(q, seq, lane, nil)
  end
end
