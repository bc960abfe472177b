-- counts <* for the whole queue, or = and a group>: ready(6) scheduled(6) reserved(6) next known(1) next maturity(6);
--   for *, then for each group with deliveries: length of its name(2), the name, and the same of the group
-- scan <group> <states: any of w, s, r, in this order> <after: a cursor or ''> <limit> <bodies: 1 or ''> <ids>: the
--   length of the next cursor(1) and the cursor, the group's gid(2), then per delivery its state(1) maturity(6)
--   tries(4) lease end(6) seq(6) body length(6) reserved at(6) length of the reason(2) length of the holder(2) the
--   reason, the holder; and the elements. A cursor is a state and a member of z.

local function countBetween(q, low, high)
  return db('ZLEXCOUNT', q.z, low, high)
end

-- Counts the mature members with a prefix, and the others.
local function countWaiting(q, prefix)
  local now = six(call.now + 1)
  local low, middle, high = prefix, prefix .. now, prefix .. LAST
  return countBetween(q, '[' .. low, '(' .. middle), countBetween(q, '[' .. middle, '(' .. high)
end

-- first: the first waiting member of the group, if the caller knows it
local function countsOf(q, gid, first)
  local ready, scheduled = countWaiting(q, 'w' .. gid)
  local counts = { ready = ready, scheduled = scheduled, reserved = countBetween(q, '[l' .. gid, '(l' .. gid .. LAST) }
  if ready + scheduled > 0 then counts.next = first and fromSix(first, 4) or firstMaturity(q, gid) end
  return counts
end

local function countsText(counts)
  return pack('>I6I6I6I1I6', counts.ready, counts.scheduled, counts.reserved, counts.next and 1 or 0, counts.next or 0)
end

-- Counts each element once: those of the plain group, and those of streams by their own members. Returns the counts,
-- and whether there are elements of streams.
local function countElements(q)
  local whole = countsOf(q, PLAIN)
  -- A listing of 100,000 plain queues saves a third of the commands.
  if not membersBetween(q.z, '[a', '(c', 1)[1] then return whole, false end
  local ready, scheduled = countWaiting(q, 'a')
  local reserved = countBetween(q, '[b', '(b' .. LAST)
  whole.ready, whole.scheduled = whole.ready + ready, whole.scheduled + scheduled
  whole.reserved = whole.reserved + reserved
  local first = firstMember(q.z, 'a')
  local next = first and fromSix(first, 2)
  if next and (not whole.next or next < whole.next) then whole.next = next end
  return whole, true
end

-- The counts of a group, nothing without deliveries.
local function countGroup(q, name)
  local gid = findGroup(q, name)
  if not gid or q.tag == '' then return { ready = 0, scheduled = 0, reserved = 0 } end
  endLeases(q, gid)
  return countsOf(q, gid)
end

-- The counts of the whole queue and of its groups, as the verb `counts` returns them, and how many there are.
function countQueue(q)
  local whole, hasGroups = countElements(q)
  local parts, seen = { countsText(whole) }, { [PLAIN] = true }
  local function addGroup(gid, first)
    if seen[gid] then return end
    seen[gid] = true
    local name = groupName(q, gid)
    if name ~= '' then parts[#parts + 1] = pack('>I2', #name) .. name .. countsText(countsOf(q, gid, first)) end
  end
  if hasGroups then
    eachGroup(q, 'w', addGroup)
    -- Groups in which nothing waits.
    eachGroup(q, 'l', function(gid) addGroup(gid) end)
  end
  return concat(parts), #parts
end

verbs.counts = function(q, args, at)
  if args[at] ~= '*' then return countsText(countGroup(q, sub(args[at], 2))), at + 1 end
  if q.tag ~= '' then endAllLeases(q) end
  return (countQueue(q)), at + 1
end

-- Adds the delivery of a member of z to a page. value: its element; if bodies are not wanted, its front suffices.
local function addToPage(q, page, gid, member, value)
  local isReserved, seq = byte(member) == 108, sub(member, 10, 15)
  local d = (isReserved or isTouched(member)) and readRecord(q, gid, seq)
  if not value or (isReserved and not isReservedUntil(d, fromSix(member, 4))) then return end
  local state, maturity, tries = 'r', fromSix(member, 4), 0
  local reason, holder = d and d.reason or '', isReserved and d.holder or ''
  if isReserved then
    maturity, tries = d.maturity, d.tries
  else
    state, tries = maturity <= call.now and 'w' or 's', math.floor(unpackAt('>I4', member, 16) / 2)
  end
  local short, length = withoutBody(value)
  if length == 0 and q.hasFronts then length = math.max(0, db('HSTRLEN', q.h, 'e' .. seq) - #value) end
  page[#page + 1] = pack('>c1I6I4I6c6I6I6I2I2', state, maturity, tries, isReserved and d.ends or 0, seq, length,
    isReserved and d.reservedAt or 0, #reason, #holder) .. reason .. holder
  page.elements[#page] = page.bodies and value or short
end

-- Whether a scan of this state may continue after `after`.
local function isCursor(after, low, state)
  if #after < 15 or sub(after, 1, 3) ~= sub(low, 1, 3) then return false end
  return state ~= 's' or fromSix(after, 4) > call.now
end

-- Adds deliveries of a state to a page until it is full. Returns the last member that was read; nil if there are no
-- more.
local function scanState(q, page, gid, state, after)
  local low, high = rangeOf(gid, state)
  local last = nil
  low, high = isCursor(after, low, state) and '(' .. after or '[' .. low, '(' .. high
  while page.looked < page.limit and page.left > 0 do
    local members = membersBetween(q.z, low, high, math.min(PAGE, page.limit - page.looked))
    if #members == 0 then return nil end
    local values
    values, page.left = readElementsAt(q, members, { left = page.left, isFront = not page.bodies })
    for i = 1, #values do addToPage(q, page, gid, members[i], values[i]) end
    page.looked = page.looked + #values
    last = members[#values]
    low = '(' .. last
  end
  return #membersBetween(q.z, low, high, 1) > 0 and (last or after) or nil
end

local function scanStates(q, page, gid, states, after)
  local from = after ~= '' and string.find(states, sub(after, 1, 1), 1, true) or 1
  for i = from, #states do
    local state = sub(states, i, i)
    local last = scanState(q, page, gid, state, i == from and sub(after, 2) or '')
    if last then return state .. last end
    if i < #states and (page.looked >= page.limit or page.left <= 0) then return sub(states, i + 1, i + 1) end
  end
  return ''
end

-- Adds the deliveries with these ids to a page, in the order of states and members.
local function scanIds(q, page, gid, states, ids)
  local found, seen = { w = {}, s = {}, r = {} }, {}
  for at = 1, #ids, 18 do
    local seq = sub(ids, at + 12, at + 17)
    local isNew = sub(ids, at, at + 11) == q.tag and not seen[seq]
    local d = isNew and findDelivery(q, gid, seq)
    if d then
      seen[seq] = true
      local of = found[d.ends > 0 and 'r' or d.maturity <= call.now and 'w' or 's']
      of[#of + 1] = memberOf(gid, seq, d)
    end
  end
  for state in string.gmatch(states, '.') do
    sortMembers(found[state])
    for _, member in ipairs(found[state]) do
      local seq = sub(member, 10, 15)
      addToPage(q, page, gid, member, page.bodies and db('HGET', q.h, 'e' .. seq) or readFront(q, seq))
    end
  end
end

verbs.scan = function(q, args, at)
  local gid, states, after, ids = findGroup(q, args[at]), args[at + 1], args[at + 2], args[at + 5]
  local page = { elements = {}, looked = 0, left = LARGEST_REPLY / 8 }
  page.limit, page.bodies = tonumber(args[at + 3]), args[at + 4] ~= ''
  local cursor = ''
  if gid and q.tag ~= '' then
    endLeases(q, gid)
    if ids ~= '' then scanIds(q, page, gid, states, ids) else cursor = scanStates(q, page, gid, states, after) end
  end
  return string.char(#cursor) .. cursor .. (gid or PLAIN) .. concat(page), at + 6, page.elements
end
