-- take <group> <count> <lease, ms; 0 to pop> <of a reserve: first token(16) owner(6)>
-- Answers as repeats.lua says, and the elements beside it.

local PAGE = 64
-- A take stops at this many bytes: a thousand elements of a megabyte would be a gigabyte in one answer.
local LARGEST_ANSWER = 16 * 1024 * 1024

-- The elements of these members, or of as many as fit.
local function readBodies(q, members, room)
  local fields = {}
  for i = 1, #members do fields[i] = 'e' .. sub(members[i], 10, 15) end
  local bodies = db('HMGET', q.h, spread(fields))
  for i = 1, #bodies do
    if room <= 0 then
      for j = #bodies, i, -1 do bodies[j] = nil end
      break
    end
    room = room - (bodies[i] and #bodies[i] or 0)
  end
  return bodies, room
end

local function removeFirst(q, members, count)
  if count == 1 then
    db('ZREM', q.z, members[1])
  else
    db('ZREMRANGEBYLEX', q.z, '[' .. members[1], '[' .. members[count])
  end
end

-- Reserves. Tokens are counted on from the first, `index` deliveries of the take being done.
local function hold(q, lane, members, count, till, holder, index)
  local ends, record, counter = six(till), 'd' .. lane, unpackAt('>I4', holder) + index - 1
  local lease, stored, added = 'l' .. lane .. ends, {}, {}
  local rest = sub(holder, 5, 16) .. ends .. sub(holder, 17) .. six(call.now)
  for i = 1, count do
    local member, at = members[i], 2 * i
    local maturity, seq, tries = unpackAt('>c6c6I4', member, 4)
    added[at - 1], added[at] = '0', lease .. seq
    stored[at - 1] = record .. seq
    stored[at] = maturity .. pack('>I4I4', math.floor(tries / 2), (counter + i) % 4294967296) .. rest
  end
  q.stored, q.added = stored, added
  flush(q)
end

local function noteInStream(q, lane, members, count, state)
  for i = 1, count do
    changeLane(q, sub(members[i], 10, 15), lane, state, fromSix(members[i], 4))
  end
end

local function takePage(q, lane, members, count, till, holder, index)
  removeFirst(q, members, count)
  if till > 0 then hold(q, lane, members, count, till, holder, index) end
  if lane ~= NO_LANE then noteInStream(q, lane, members, count, till > 0 and HELD or POPPED) end
end

-- The earliest maturity of what waits in a lane, or nil.
local function firstDue(q, lane)
  local first = membersBetween(q.z, '[w' .. lane, '(w' .. lane .. '\255\255\255\255\255\255\255', 1)[1]
  return first and fromSix(first, 4)
end

local function takeFrom(q, lane, count, till, holder)
  local taken, bodies, got, room = {}, {}, 0, LARGEST_ANSWER
  local low, high = '[w' .. lane, '(w' .. lane .. six(call.now + 1)
  while got < count and room > 0 do
    local limit = math.min(PAGE, count - got)
    local members = membersBetween(q.z, low, high, limit)
    if #members == 0 then break end
    local page
    page, room = readBodies(q, members, room)
    takePage(q, lane, members, #page, till, holder, got)
    for i = 1, #page do taken[got + i], bodies[got + i] = members[i], page[i] end
    got = got + #page
    if #members < limit then break end
  end
  return taken, bodies
end

verbs.take = function(q, args, at)
  local group, count, lease = args[at], tonumber(args[at + 1]), tonumber(args[at + 2])
  local lane, holder = findLane(q, group), args[at + 3]
  local till = lease > 0 and call.now + lease or 0
  local taken, bodies, due = {}, {}, nil
  if lane then
    endLapsed(q, lane)
    taken, bodies = takeFrom(q, lane, count, till, holder)
    if #taken < count then due = firstDue(q, lane) end
  end
  local head = pack('>I1c2I6I6I1I6', lease > 0 and 82 or 80, lane or NO_LANE, till, 0, due and 1 or 0, due or 0)
  return head .. concat(taken) .. sub(holder, 1, 16), at + 4, bodies
end
