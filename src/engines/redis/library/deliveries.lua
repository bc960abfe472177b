-- Changes of one delivery's state, each keeping z, the delivery record and a stream's record in step.

-- `string` is not there when a library is loaded.
local NO_TOKEN, NOBODY = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0'
local DELIVERY = 38

-- A record of the version before tokens had 16 bytes and reservations belonged to users.
local function readOldDelivery(text)
  local maturity, tries, _, till = unpackAt('>I6I4I6I6', text)
  return { maturity = maturity, tries = tries, token = NO_TOKEN, till = till, owner = NOBODY }
end

-- `text`: the record, false where there is none, or nil where it was not read yet.
local function readDelivery(q, lane, seq, text)
  if text == nil then text = db('HGET', q.h, 'd' .. lane .. seq) end
  if not text then return nil end
  if #text < DELIVERY then return readOldDelivery(text) end
  local maturity, tries, token, till, owner = unpackAt('>I6I4c16I6c6', text)
  return { maturity = maturity, tries = tries, token = token, till = till, owner = owner, record = text }
end

local function deliveryText(maturity, tries, token, till, owner)
  return pack('>I6I4', maturity, tries) .. token .. six(till) .. owner
end

-- Since when a delivery is reserved, by its record.
local function leasedAt(held)
  return held.record and #held.record > DELIVERY and fromSix(held.record, DELIVERY + 1) or 0
end

local function leaseMember(lane, till, seq)
  return 'l' .. lane .. six(till) .. seq
end

-- Whether a lease's member in z belongs to this record. A member without its record, as another version or a manual
-- repair may leave it, says nothing of the delivery: it is removed as it is found.
local function isHeldAt(held, till)
  return held and held.till == till
end

-- reserved -> waiting. A token other than NO_TOKEN stays good for a late commit.
local function release(q, lane, seq, held, maturity, tries, token)
  db('ZREM', q.z, leaseMember(lane, held.till, seq))
  db('ZADD', q.z, 0, waitingMember(lane, maturity, seq, tries, true))
  db('HSET', q.h, 'd' .. lane .. seq, deliveryText(maturity, tries, token, 0, held.owner))
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
