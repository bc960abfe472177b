-- What the groups of one element do with it, as one record beside the element:
--
--   insertion(6) age(1) tries(4), then per group that has not finished it: lane(2) state(1) maturity(6)
--
-- From it follow when the element may be deleted, and where it stands among the elements of the queue, which
-- is one member in z: `a` with its earliest maturity while any group waits for it, else `b` while any holds
-- it. So counting the elements of a stream is counting members, whatever the number of groups.

local WAITING, TOUCHED, HELD, POPPED = 0, 1, 2, 3
-- Age: not subject to retention; listed under `r`; past it, and held when that was found.
local AGELESS, AGING, OVERDUE = 0, 1, 2

local HEAD_LENGTH, ENTRY_LENGTH = 11, 9

local function readElement(q, seq)
  local text = db('HGET', q.h, 'g' .. seq)
  if not text then return nil end
  local element = { order = {}, states = {}, dues = {} }
  element.insertedAt, element.age, element.tries = unpackAt('>I6I1I4', text)
  for at = HEAD_LENGTH + 1, #text, ENTRY_LENGTH do
    local lane = sub(text, at, at + 1)
    element.order[#element.order + 1] = lane
    element.states[lane], element.dues[lane] = unpackAt('>I1I6', text, at + 2)
  end
  return element
end

local function elementText(element)
  local parts = { pack('>I6I1I4', element.insertedAt, element.age, element.tries) }
  for _, lane in ipairs(element.order) do
    if element.states[lane] then
      parts[#parts + 1] = lane .. pack('>I1I6', element.states[lane], element.dues[lane])
    end
  end
  return concat(parts), #parts - 1
end

-- The element's own member in z, or nil where no group waits for it or holds it.
local function elementMember(element, seq)
  local due, held = nil, false
  for lane, state in pairs(element.states) do
    if state == WAITING or state == TOUCHED then
      local own = element.dues[lane]
      if due == nil or own < due then due = own end
    elseif state == HELD then
      held = true
    end
  end
  if due then return 'a' .. six(due) .. seq end
  return held and 'b' .. seq or nil
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
  end
end

-- Notes the new state of one group's delivery; nil: it is finished.
local function changeLane(q, seq, lane, state, due)
  local element = readElement(q, seq)
  if not element then return end
  local before = elementMember(element, seq)
  if state and not element.states[lane] then element.order[#element.order + 1] = lane end
  element.states[lane], element.dues[lane] = state, due
  if element.age == OVERDUE and (state == WAITING or state == TOUCHED) then
    element.age = AGING
    db('ZADD', q.z, 0, ageMember(element, seq))
  end
  writeElement(q, seq, element, before)
end

-- The first record of an element that these lanes wait for.
local function newElement(q, seq, lanes, maturity, tries)
  local element = { order = lanes, states = {}, dues = {}, insertedAt = call.now, age = AGELESS, tries = tries }
  for _, lane in ipairs(lanes) do
    element.states[lane], element.dues[lane] = WAITING, maturity
  end
  add(q, 'a' .. six(maturity) .. seq)
  if q.retention > 0 then
    element.age = AGING
    add(q, ageMember(element, seq))
  end
  store(q, 'g' .. seq, (elementText(element)))
end
