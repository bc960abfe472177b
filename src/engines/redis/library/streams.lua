-- What the groups of one element do with it, as one record in addition to the element:
--
--   inserted at(6) age(1) tries(4) expires at(6), then per group that has not finished it: gid(2) state(1) maturity(6)
--
-- From it follow when the element may be deleted, and where it stands among the elements of the queue, which
-- is one member in z: `a` with its earliest maturity while any group waits for it, else `b` while any holds
-- it. So counting the elements of a stream is counting members, whatever the number of groups.

-- `string` is not there when a library is loaded.
local NEVER = '\0\0\0\0\0\0'
local WAITING, TOUCHED, HELD, POPPED = 0, 1, 2, 3
-- Age: not subject to retention; listed under `r`; past it, and reserved when that was found.
local AGELESS, AGING, OVERDUE = 0, 1, 2

local ELEMENT_LENGTH, ENTRY_LENGTH = 17, 9

local function readElement(q, seq)
  local text = db('HGET', q.h, 'g' .. seq)
  if not text then return nil end
  local element = { order = {}, states = {}, maturities = {} }
  element.insertedAt, element.age, element.tries, element.expiresAt = unpackAt('>I6I1I4c6', text)
  for at = ELEMENT_LENGTH + 1, #text, ENTRY_LENGTH do
    local gid = sub(text, at, at + 1)
    element.order[#element.order + 1] = gid
    element.states[gid], element.maturities[gid] = unpackAt('>I1I6', text, at + 2)
  end
  return element
end

local function elementText(element)
  local parts = { pack('>I6I1I4', element.insertedAt, element.age, element.tries) .. element.expiresAt }
  for _, gid in ipairs(element.order) do
    if element.states[gid] then
      parts[#parts + 1] = gid .. pack('>I1I6', element.states[gid], element.maturities[gid])
    end
  end
  return concat(parts), #parts - 1
end

-- The element's own member in z, or nil if no group waits for it or holds it.
local function elementMember(element, seq)
  local first, isHeld = nil, false
  for gid, state in pairs(element.states) do
    if state == WAITING or state == TOUCHED then
      local own = element.maturities[gid]
      if first == nil or own < first then first = own end
    elseif state == HELD then
      isHeld = true
    end
  end
  if first then return 'a' .. six(first) .. seq end
  return isHeld and 'b' .. seq or nil
end

local function ageMember(element, seq)
  return 'r' .. six(element.insertedAt) .. seq
end

local function writeElement(q, seq, element, before)
  local after = elementMember(element, seq)
  if before ~= after then
    if before then db('ZREM', q.z, before) end
    if after then db('ZADD', q.z, 0, after) end
  end
  local text, left = elementText(element)
  if left > 0 then
    db('HSET', q.h, 'g' .. seq, text)
  else
    db('HDEL', q.h, 'g' .. seq, 'e' .. seq)
    if element.age == AGING then db('ZREM', q.z, ageMember(element, seq)) end
    if element.expiresAt ~= NEVER then db('ZREM', q.z, 'x' .. element.expiresAt .. seq) end
  end
end

-- Notes the new state of one group's delivery; nil: it is finished.
local function changeGroup(q, seq, gid, state, maturity)
  local element = readElement(q, seq)
  if not element then return end
  local before = elementMember(element, seq)
  if state and not element.states[gid] then element.order[#element.order + 1] = gid end
  element.states[gid], element.maturities[gid] = state, maturity
  if state == WAITING or state == TOUCHED then
    if element.age == OVERDUE then
      element.age = AGING
      db('ZADD', q.z, 0, ageMember(element, seq))
    end
    if element.expiresAt ~= NEVER then noteExpiry(q, element.expiresAt, seq) end
  end
  writeElement(q, seq, element, before)
end

-- The first record of an element that these groups wait for.
local function newElement(q, seq, gids, maturity, tries, expiresAt)
  local element = { order = gids, states = {}, maturities = {}, insertedAt = call.now, age = AGELESS }
  element.tries, element.expiresAt = tries, expiresAt
  for _, gid in ipairs(gids) do
    element.states[gid], element.maturities[gid] = WAITING, maturity
  end
  add(q, 'a' .. six(maturity) .. seq)
  if retentionOf(q) > 0 then
    element.age = AGING
    add(q, ageMember(element, seq))
  end
  store(q, 'g' .. seq, (elementText(element)))
end
