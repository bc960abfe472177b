-- insert <count> <columns> <dedup window> [<room> <sizes>], then per element: <content> [<timing>] [<groups>] [<dedup key>]
--
-- columns: 't' where timings are given, 'g' where groups are, 'd' where dedup keys are. Groups are joined by commas.
-- room, sizes: with groups only. See lanes.lua; and how many elements each of the calls has that came together.
-- timing: '' for an element that is due now and was never tried, else maturity + 1 or 0(6) delay(6) tries(4).
-- dedup key: the key, and behind a zero byte the fingerprint(22) of the content, if there is one.
-- Answers the first number(6), then, where a dedup key may have met an earlier one, or there are groups, of each element
-- its number(6) and what became of it(1): STORED, REPEATED or MISMATCHED; the number 0 for those of a call whose groups
-- do not fit, of which nothing is stored.
-- room <room> <groups>: makes these groups; answers nothing, but '!' where they do not fit.

local function timingOf(text)
  if text == '' then return call.now, 0 end
  local maturity, delay, tries = unpackAt('>I6I6I4', text)
  return maturity == 0 and call.now + delay or maturity - 1, tries
end

-- The lanes of a list of groups, each once; nil where they do not fit.
local function makeLanes(q, groups, room)
  local lanes, seen = {}, {}
  for group in string.gmatch(groups, '[^,]+') do
    local lane = makeLane(q, group, room)
    if not lane then return nil end
    if not seen[lane] then
      seen[lane] = true
      lanes[#lanes + 1] = lane
    end
  end
  return lanes
end

-- Stores one element and answers its number. `lanes` is nil on a plain queue.
local function put(q, maturity, tries, lanes, content)
  q.seq = q.seq + 1
  local seq = six(q.seq)
  store(q, 'e' .. seq, pack('>I6I4', maturity, tries) .. content)
  if lanes then
    for _, lane in ipairs(lanes) do add(q, waitingMember(lane, maturity, seq, tries, false)) end
    newElement(q, seq, lanes, maturity, tries)
  else
    add(q, waitingMember(NO_LANE, maturity, seq, tries, false))
  end
  flushIfLarge(q)
  return seq
end

local STORED, REPEATED, MISMATCHED = '0', '1', '2'
local FINGERPRINT = 22

-- A key and its fingerprint, '' for none.
local function splitKey(text)
  local at = #text - FINGERPRINT
  if byte(text, at) ~= 0 then return text, '' end
  return sub(text, 1, at - 1), sub(text, at + 1)
end

-- The number of the element that this key made within the window, or nil; and the fingerprint that came with it.
local function findRepeat(q, key, window)
  local seen = db('HGET', q.h, 'k' .. key)
  if seen and fromSix(seen, 7) > call.now - window then return sub(seen, 1, 6), sub(seen, 13) end
end

local function rememberKey(q, key, seq, fingerprint)
  local before = db('HGET', q.h, 'k' .. key)
  if before then db('ZREM', q.z, 'k' .. sub(before, 7, 12) .. key) end
  db('HSET', q.h, 'k' .. key, seq .. six(call.now) .. fingerprint)
  db('ZADD', q.z, 0, 'k' .. six(call.now) .. key)
end

-- As `put`, unless the key was seen before. Returns what became of it as well.
local function putOnce(q, element, window)
  local key, fingerprint
  if element.key then
    key, fingerprint = splitKey(element.key)
    local earlier, seen = findRepeat(q, key, window)
    if earlier then
      local isSame = seen == '' or fingerprint == '' or seen == fingerprint
      return earlier, isSame and REPEATED or MISMATCHED
    end
  end
  local maturity, tries = timingOf(element.timing)
  local seq = put(q, maturity, tries, element.lanes, element.content)
  if key then rememberKey(q, key, seq, fingerprint) end
  return seq, STORED
end

-- Reads the elements of an argument list into tables. Nothing is stored yet.
local function readElements(args, at, count, columns)
  local hasTimings, hasGroups = string.find(columns, 't') ~= nil, string.find(columns, 'g') ~= nil
  local hasKeys = string.find(columns, 'd') ~= nil
  local elements = {}
  for i = 1, count do
    local element = { timing = '', groups = '', content = args[at] }
    at = at + 1
    if hasTimings then
      element.timing = args[at]
      at = at + 1
    end
    if hasGroups then
      element.groups = args[at]
      at = at + 1
    end
    if hasKeys then
      element.key = args[at] ~= '' and args[at] or nil
      at = at + 1
    end
    elements[i] = element
  end
  return elements, at
end

-- Gives the elements of one call their lanes. Where one has no room, none of them is stored.
local function addressElements(q, elements, from, upTo, room)
  for i = from, upTo do
    local element = elements[i]
    if element.groups ~= '' then element.lanes = makeLanes(q, element.groups, room) end
    if element.groups ~= '' and not element.lanes then
      for each = from, upTo do elements[each].isRefused = true end
      return
    end
  end
end

-- The usual batch, without groups and keys, goes straight from the arguments to Redis; and an element that is
-- due now, by strings that are the same for all of them. With timings each element has two arguments, else one.
local function insertPlain(q, args, at, count, width)
  local first = six(q.seq + 1)
  local head, front, back = pack('>I6I4', call.now, 0), 'w' .. NO_LANE .. six(call.now), pack('>I4', 0)
  flush(q)
  local stored, added, used = q.stored, q.added, 0
  for i = at, at + width * count - 1, width do
    if width == 1 or args[i + 1] == '' then
      q.seq = q.seq + 1
      local seq = pack('>I6', q.seq)
      stored[used + 1], stored[used + 2] = 'e' .. seq, head .. args[i]
      added[used + 1], added[used + 2] = '0', front .. seq .. back
    else
      local maturity, tries = timingOf(args[i + 1])
      put(q, maturity, tries, nil, args[i])
    end
    used = used + 2
    if used >= MOST_ARGUMENTS then
      flush(q)
      stored, added, used = q.stored, q.added, 0
    end
  end
  return first
end

verbs.insert = function(q, args, at)
  local count, columns, window = tonumber(args[at]), args[at + 1], tonumber(args[at + 2])
  at = at + 3
  local width = 1 + #columns
  if columns == '' or columns == 't' then return insertPlain(q, args, at, count, width), at + width * count end
  local room, sizes
  if string.find(columns, 'g') then
    room, sizes = args[at], args[at + 1]
    at = at + 2
  end
  local elements, behind = readElements(args, at, count, columns)
  if sizes then
    local from = 1
    for size in string.gmatch(sizes, '%d+') do
      addressElements(q, elements, from, from + size - 1, room)
      from = from + size
    end
  end
  local numbers = {}
  for i, element in ipairs(elements) do
    local seq, what = six(0), STORED
    if not element.isRefused then seq, what = putOnce(q, element, window) end
    numbers[i] = seq .. what
  end
  return sub(numbers[1], 1, 6) .. concat(numbers), behind
end

verbs.room = function(q, args, at)
  return makeLanes(q, args[at + 1], args[at]) and '' or '!', at + 2
end
