-- sizes <group or *>: ready(6) scheduled(6) reserved(6) next known(1) next(6), then the same per group that has
-- anything, before each the length of its name(2) and the name; of one group, or for * of the whole queue
-- due <group>: known(1) moment(6)
-- browse <group> <state: w, s or r> <after: a member or ''> <limit>: per delivery the member that it stands
-- at, then maturity(6) tries(4); the elements beside

local LAST = '\255\255\255\255\255\255\255'

local function countBetween(q, low, high)
  return db('ZLEXCOUNT', q.z, low, high)
end

-- Counts under a prefix what is due and what is not.
local function countDue(q, prefix)
  local now = six(call.now + 1)
  return countBetween(q, '[' .. prefix, '(' .. prefix .. now), countBetween(q, '[' .. prefix .. now, '(' .. prefix .. LAST)
end

local function sizesOf(q, lane)
  local ready, scheduled = countDue(q, 'w' .. lane)
  local sizes = { ready = ready, scheduled = scheduled, reserved = countBetween(q, '[l' .. lane, '(l' .. lane .. LAST) }
  if ready + scheduled > 0 then sizes.due = firstDue(q, lane) end
  return sizes
end

local function sizesText(sizes)
  return pack('>I6I6I6I1I6', sizes.ready, sizes.scheduled, sizes.reserved, sizes.due and 1 or 0, sizes.due or 0)
end

-- Elements, each once: those of the plain group, and those of streams by their own members.
local function wholeSizes(q)
  local whole = sizesOf(q, NO_LANE)
  local ready, scheduled = countDue(q, 'a')
  whole.ready, whole.scheduled = whole.ready + ready, whole.scheduled + scheduled
  whole.reserved = whole.reserved + countBetween(q, '[b', '(b' .. LAST)
  local first = membersBetween(q.z, '[a', '(a' .. LAST, 1)[1]
  local due = first and fromSix(first, 2)
  if due and (not whole.due or due < whole.due) then whole.due = due end
  return whole
end

verbs.sizes = function(q, args, at)
  endAllLapsed(q)
  if args[at] ~= '*' then
    local lane = findLane(q, sub(args[at], 2))
    return sizesText(lane and sizesOf(q, lane) or { ready = 0, scheduled = 0, reserved = 0 }), at + 1
  end
  local parts = { sizesText(wholeSizes(q)) }
  for _, lane in ipairs(allLanes(q)) do
    local sizes = lane[2] ~= '' and sizesOf(q, lane[1])
    if sizes and sizes.ready + sizes.scheduled + sizes.reserved > 0 then
      parts[#parts + 1] = pack('>I2', #lane[2]) .. lane[2] .. sizesText(sizes)
    end
  end
  return concat(parts), at + 1
end

verbs.due = function(q, args, at)
  local lane = findLane(q, args[at])
  if lane then endLapsed(q, lane) end
  local due = lane and firstDue(q, lane)
  return pack('>I1I6', due and 1 or 0, due or 0), at + 1
end

local function browseRange(lane, state)
  local now = six(call.now + 1)
  if state == 'w' then return 'w' .. lane, '(w' .. lane .. now end
  if state == 's' then return 'w' .. lane .. now, '(w' .. lane .. LAST end
  return 'l' .. lane, '(l' .. lane .. LAST
end

-- What a page shows of the delivery at a member of z, and whether it is there.
local function shownAt(q, lane, member)
  if sub(member, 1, 1) == 'w' then
    local maturity, _, tries = unpackAt('>I6I6I4', member, 4)
    return pack('>I6I4', maturity, math.floor(tries / 2)), true
  end
  local held = readDelivery(q, lane, sub(member, 10, 15))
  if not isHeldAt(held, fromSix(member, 4)) then return pack('>I6I4', 0, 0), false end
  return pack('>I6I4', held.maturity, held.tries), true
end

-- Whether a page may go on behind `after`. Strings are not compared here: Lua would ask the server's locale.
local function isBookmark(after, low, state)
  if #after < 15 or sub(after, 1, 3) ~= sub(low, 1, 3) then return false end
  return state ~= 's' or fromSix(after, 4) > call.now
end

verbs.browse = function(q, args, at)
  local group, state, after, limit = args[at], args[at + 1], args[at + 2], tonumber(args[at + 3])
  local lane, parts, bodies, room = findLane(q, group), {}, {}, LARGEST_ANSWER
  if not lane then return '', at + 4, {} end
  endLapsed(q, lane)
  local low, high = browseRange(lane, state)
  low = isBookmark(after, low, state) and '(' .. after or '[' .. low
  while #bodies < limit and room > 0 do
    local members = membersBetween(q.z, low, high, math.min(PAGE, limit - #bodies))
    if #members == 0 then break end
    local page
    page, room = readBodies(q, members, room)
    for i = 1, #page do
      local shown, isThere = shownAt(q, lane, members[i])
      parts[#parts + 1] = members[i] .. shown
      bodies[#bodies + 1] = isThere and page[i]
    end
    low = '(' .. members[#page]
  end
  local more = #bodies > 0 and #membersBetween(q.z, low, high, 1) > 0
  return (more and '+' or '-') .. concat(parts), at + 4, bodies
end
