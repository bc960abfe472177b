-- insert <count> <columns> <dedup window> [<limit>] [<sizes>] [<request keys>] <contents> [<timings>] [<groups>]
-- [<dedup keys>]
--
-- Of contents, timings, groups and dedup keys there is one for each element.
-- columns: 't' if timings are given, 'g' if groups are, 'd' if dedup keys are, 'r' if request keys are. Groups are
-- joined by commas.
-- limit: with groups only, see groups.lua.
-- sizes: with groups or keys: how many elements each of the calls has that were joined.
-- request keys: of each call one that is for all its elements, as a dedup key; '' for none.
-- timing: '' for an element that is ready now, was never tried and does not expire, else maturity + 1 or 0(6) delay(6)
-- tries(4) expires at(6).
-- dedup key: the key, and behind a zero byte the fingerprint(22) of the content, if there is one.
-- Returns the first number(6), then, if a dedup key may have met an earlier one, or there are groups, of each element
-- its number(6) and what became of it(1): STORED, REPEATED or MISMATCHED; the number 0 for those of a call of which
-- nothing is stored: its groups do not fit, or it has one that is MISMATCHED. Of a call with a request key there is one
-- such record, with the number of its first element; the others follow that one. A call without elements stores
-- nothing, its key neither.

function timingOf(text)
  if text == '' then return call.now, 0, NEVER end
  local maturity, delay, tries, expiresAt = unpackAt('>I6I6I4c6', text)
  return maturity == 0 and call.now + delay or maturity - 1, tries, expiresAt
end

function timingText(maturity, tries, expiresAt)
  return pack('>I6I6I4', maturity + 1, 0, tries) .. expiresAt
end

-- Stores one element and returns its number. `gids` is nil on a plain queue.
function put(q, maturity, tries, expiresAt, gids, content)
  q.seq = q.seq + 1
  local seq = six(q.seq)
  storeElement(q, seq, pack('>I6I4I6', maturity, tries, call.now) .. expiresAt .. content)
  if gids then
    local behind = behindGroup(maturity, seq, tries, false)
    for _, gid in ipairs(gids) do add(q, 'w' .. gid .. behind) end
    newElement(q, seq, gids, maturity, tries, expiresAt)
  else
    add(q, waitingMember(PLAIN, maturity, seq, tries, false))
  end
  if expiresAt ~= NEVER then noteExpiry(q, expiresAt, seq) end
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

-- The number of the element that this key made within the window, or nil; the fingerprint that came with it; and what
-- is stored of the key, even if it is past the window.
local function findRepeat(q, key, window)
  local stored = db('HGET', q.h, 'k' .. key)
  if stored and fromSix(stored, 7) > call.now - window then return sub(stored, 1, 6), sub(stored, 13), stored end
  return nil, nil, stored
end

-- before: what is stored of the key
local function rememberKey(q, key, seq, fingerprint, before)
  if before then db('ZREM', q.z, 'k' .. sub(before, 7, 12) .. key) end
  db('HSET', q.h, 'k' .. key, seq .. six(call.now) .. fingerprint)
  db('ZADD', q.z, 0, 'k' .. six(call.now) .. key)
end

-- As `put`, unless the key was seen before. Returns what became of it as well.
-- element: { timing, content, groups, dedup key, the reason of a dead letter or nil }
function putOnce(q, element, window)
  local key, fingerprint, earlier, seen, before
  if element[4] ~= '' then
    key, fingerprint = splitKey(element[4])
    earlier, seen, before = findRepeat(q, key, window)
    if earlier then
      local isSame = seen == '' or fingerprint == '' or seen == fingerprint
      return earlier, isSame and REPEATED or MISMATCHED
    end
  end
  local maturity, tries, expiresAt = timingOf(element[1])
  local seq = put(q, maturity, tries, expiresAt, element.gids, element[2])
  if key then rememberKey(q, key, seq, fingerprint, before) end
  if (element[5] or '') ~= '' then
    for _, gid in ipairs(element.gids or { PLAIN }) do
      local d = { maturity = maturity, tries = tries, owner = NOBODY, ends = 0, isUntouched = true }
      d.expiresAt, d.reason = expiresAt, element[5]
      flush(q)
      release(q, gid, seq, d, maturity, tries, NO_TOKEN)
    end
  end
  return seq, STORED
end

-- Where what a column has stands in an element.
local PLACES = { t = 1, g = 3, d = 4 }

-- Reads the elements of an argument list into tables. Nothing is stored yet.
local function readElements(args, at, count, columns)
  local places, elements = {}, {}
  for column in string.gmatch(columns, '[tgd]') do places[#places + 1] = PLACES[column] end
  for i = 1, count do
    local element = { '', args[at + i - 1], '', '' }
    for column, place in ipairs(places) do element[place] = args[at + column * count + i - 1] end
    elements[i] = element
  end
  return elements
end

-- Gives the elements of one call their groups. If one does not fit, none of them is stored.
local function resolveGroups(q, elements, from, upTo, limit)
  for i = from, upTo do
    local element = elements[i]
    if element[3] ~= '' then
      element.gids = createGroups(q, element[3], limit)
      if not element.gids then
        for each = from, upTo do elements[each].isRejected = true end
        return
      end
    end
  end
end

-- Looks for a key of one call that was seen with other content, in this call or before: then none of its elements is
-- stored.
local function findMismatch(q, elements, from, upTo, window)
  local known = {}
  for i = from, upTo do
    if elements[i][4] ~= '' then
      local key, fingerprint = splitKey(elements[i][4])
      local first = known[key]
      if not first then
        local earlier, seen = findRepeat(q, key, window)
        first = earlier and seen or fingerprint
        known[key] = first
      end
      if first ~= '' and fingerprint ~= '' and first ~= fingerprint then
        for each = from, upTo do elements[each].isRejected = true end
        elements[i].isMismatched = true
        return
      end
    end
  end
end

-- Bytes as texts, made at the first insert: `string` is not there when a library is loaded.
local BYTES = {}

local function makeBytes()
  for i = 0, 255 do BYTES[i] = string.char(i) end
end

-- The usual batch, without groups and keys, goes straight from the arguments to Redis; and a small element that is
-- ready now, by strings that are the same for all of them.
-- at: where the contents are; timings: how far behind its content the timing of an element is, nil without timings
local function insertPlain(q, args, at, count, timings)
  local first = six(q.seq + 1)
  local now = six(call.now)
  local head, front, back = now .. '\0\0\0\0' .. now .. NEVER, 'w' .. PLAIN .. now, '\0\0\0\0'
  flush(q)
  local stored, added, used, listed = q.stored, q.added, 0, 0
  if not BYTES[0] then makeBytes() end
  -- Of the number of an element: the last byte, and those before it, which seldom change.
  local field, member, low = nil, nil, 255
  for i = at, at + count - 1 do
    local timing = timings and args[i + timings] or ''
    if timing == '' and #args[i] <= LARGE then
      local seq = q.seq + 1
      q.seq = seq
      low = low + 1
      if low == 256 or not field then
        low = seq % 256
        local high = pack('>I5', (seq - low) / 256)
        field, member = 'e' .. high, front .. high
      end
      local last = BYTES[low]
      stored[used + 1], stored[used + 2] = field .. last, head .. args[i]
      added[listed + 1], added[listed + 2] = '0', member .. last .. back
      used, listed = used + 2, listed + 2
    else
      local maturity, tries, expiresAt = timingOf(timing)
      put(q, maturity, tries, expiresAt, nil, args[i])
      field = nil
      stored, added = q.stored, q.added
      used, listed = #stored, #added
    end
    if used >= MAX_ARGUMENTS then
      flush(q)
      stored, added, used, listed = q.stored, q.added, 0, 0
    end
  end
  return first
end

-- Stores the elements of a call by `store`, which returns the number of the first one, unless the key of the call was
-- seen before.
local function putRequest(q, request, window, count, store)
  local key, fingerprint = splitKey(request)
  local earlier, seen, before = findRepeat(q, key, window)
  if earlier then return earlier .. (seen == fingerprint and REPEATED or MISMATCHED) end
  if count == 0 then return six(0) .. STORED end
  local first = store()
  if first ~= six(0) then rememberKey(q, key, first, fingerprint, before) end
  return first .. STORED
end

verbs.insert = function(q, args, at)
  local count, columns, window = tonumber(args[at]), args[at + 1], tonumber(args[at + 2])
  local hasGroups, hasKeys = string.find(columns, 'g') ~= nil, string.find(columns, 'd') ~= nil
  local isPlain, hasRequests = not hasGroups and not hasKeys, string.find(columns, 'r') ~= nil
  local width = 1 + #columns - (hasRequests and 1 or 0)
  local timings = string.find(columns, 't') and count or nil
  at = at + 3
  if count > 0 then createQueue(q) end
  if isPlain and not hasRequests then return insertPlain(q, args, at, count, timings), at + width * count end
  local limit
  if hasGroups then
    limit = args[at]
    at = at + 1
  end
  local sizes, requests = args[at], {}
  at = at + 1
  if hasRequests then
    for _ in string.gmatch(sizes, '%d+') do
      requests[#requests + 1] = args[at]
      at = at + 1
    end
  end
  local elements = isPlain and {} or readElements(args, at, count, columns)
  local numbers, from, nextCall = {}, 1, 1
  if limit then
    for size in string.gmatch(sizes, '%d+') do
      resolveGroups(q, elements, from, from + size - 1, limit)
      from = from + size
    end
    from = 1
  end
  for text in string.gmatch(sizes, '%d+') do
    local size, request = tonumber(text), requests[nextCall] or ''
    local upTo = from + size - 1
    local function putPlain()
      return insertPlain(q, args, at + from - 1, size, timings)
    end
    -- What the key of a single element holds shows when it is stored.
    if size ~= 1 and hasKeys then findMismatch(q, elements, from, upTo, window) end
    if request ~= '' then
      numbers[#numbers + 1] = putRequest(q, request, window, size, isPlain and putPlain or function()
        if elements[from].isRejected then return six(0) end
        local first = six(q.seq + 1)
        for i = from, upTo do putOnce(q, elements[i], window) end
        return first
      end)
    elseif isPlain then
      local first = fromSix(putPlain(), 1)
      for i = 0, size - 1 do numbers[#numbers + 1] = six(first + i) .. STORED end
    else
      for i = from, upTo do
        local element = elements[i]
        local seq, what = six(0), element.isMismatched and MISMATCHED or STORED
        if not element.isRejected then seq, what = putOnce(q, element, window) end
        numbers[#numbers + 1] = seq .. what
      end
    end
    from, nextCall = upTo + 1, nextCall + 1
  end
  return sub(numbers[1], 1, 6) .. concat(numbers), at + width * count
end
