-- insert <count> <columns> <dedup window> <limit> <sizes> [<request keys>] <contents> [<timings>] [<groups>]
-- [<dedup keys>]
--
-- There is one content, timing, list of groups and dedup key for each element.
-- columns: which of the optional columns are given: 't' timings, 'g' groups, 'd' dedup keys, 'r' request keys.
-- groups: separated by commas
-- limit: of the queue's groups, see groups.lua
-- sizes: the number of elements of each joined call
-- request keys: one for each joined call, in the form of a dedup key, for all elements of the call; '' for none
-- timing: '' for an element that is ready now, was never tried and does not expire, else maturity + 1 or 0(6) delay(6)
--   tries(4) expires at(6)
-- dedup key: the key; if the content has a fingerprint, followed by a zero byte and the fingerprint(22)
--
-- Returns the first seq(6). With groups or keys, a record follows for each element: its seq(6) and its outcome(1):
-- STORED, REPEATED or MISMATCHED. The seq is 0 if nothing of its call is stored, because a group does not fit or a key
-- is MISMATCHED. A call with a request key has only one record, that of its first element; the others follow
-- consecutively. A call without elements stores nothing, not even its key. The first stored element creates the queue.

function timingOf(text)
  if text == '' then return call.now, 0, NEVER end
  local maturity, delay, tries, expiresAt = unpackAt('>I6I6I4c6', text)
  return maturity == 0 and call.now + delay or maturity - 1, tries, expiresAt
end

function timingText(maturity, tries, expiresAt)
  return pack('>I6I6I4', maturity + 1, 0, tries) .. expiresAt
end

-- Stores one element and returns its seq. `gids` is nil on a plain queue.
function put(q, maturity, tries, expiresAt, gids, content)
  createQueue(q)
  q.seq = q.seq + 1
  local seq = six(q.seq)
  storeElement(q, seq, pack('>I6I4I6', maturity, tries, call.now) .. expiresAt .. content)
  if gids then
    local behind = memberTail(maturity, seq, tries, false)
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

-- Splits a key and its fingerprint, '' for none.
local function splitKey(text)
  local at = #text - FINGERPRINT
  if byte(text, at) ~= 0 then return text, '' end
  return sub(text, 1, at - 1), sub(text, at + 1)
end

-- Returns the seq of the element that was stored with this key within the window, or nil; the fingerprint that came
-- with it; and the stored value of the key, even if it is past the window.
local function findRepeat(q, key, window)
  local stored = db('HGET', q.h, 'k' .. key)
  if stored and fromSix(stored, 7) > call.now - window then return sub(stored, 1, 6), sub(stored, 13), stored end
  return nil, nil, stored
end

-- before: the stored value of the key
local function rememberKey(q, key, seq, fingerprint, before)
  if before then db('ZREM', q.z, 'k' .. sub(before, 7, 12) .. key) end
  db('HSET', q.h, 'k' .. key, seq .. six(call.now) .. fingerprint)
  db('ZADD', q.z, 0, 'k' .. six(call.now) .. key)
end

-- Like `put`, unless the dedup key was seen before. Returns a seq, and STORED, REPEATED or MISMATCHED. element: {
-- timing, content, groups, dedup key, the reason of a dead letter or nil }
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
    flush(q)
    for _, gid in ipairs(element.gids or { PLAIN }) do
      release(q, gid, seq, untouched(maturity, tries, expiresAt, element[5]), maturity, tries, NO_TOKEN)
    end
  end
  return seq, STORED
end

-- The index of each column's value in an element.
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

-- Sets the groups of the elements of one joined call. If they do not all fit, none of the elements is stored.
local function resolveGroups(q, elements, from, upTo, limit)
  local lists, seen = {}, {}
  for i = from, upTo do
    local names = elements[i][3]
    if not seen[names] then
      seen[names] = true
      lists[#lists + 1] = names
    end
  end
  local isRejected = not createGroups(q, concat(lists, ','), limit)
  for i = from, upTo do
    local element = elements[i]
    if isRejected then
      element.isRejected = true
    elseif element[3] ~= '' then
      element.gids = createGroups(q, element[3])
    end
  end
end

-- Looks for a key of one joined call that was seen with different content, in this call or before. If there is one, no
-- element of the call is stored.
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

-- One-byte strings, created at the first insert, as `string` is not available while Redis loads the library.
local BYTES = {}

local function makeBytes()
  for i = 0, 255 do BYTES[i] = string.char(i) end
end

-- The fast path without groups and keys: contents are passed from the arguments to Redis as they are, and the names of
-- small elements that are ready now are made of shared strings, which saves 3,500 of the 23,700 instructions of an
-- insert. at: the position of the first content; timings: the distance from a content to its timing, nil without timings
local function insertPlain(q, args, at, count, timings)
  createQueue(q)
  local first = six(q.seq + 1)
  local now = six(call.now)
  local head, front, back = now .. '\0\0\0\0' .. now .. NEVER, 'w' .. PLAIN .. now, '\0\0\0\0'
  flush(q)
  local stored, added, used, listed = q.stored, q.added, 0, 0
  if not BYTES[0] then makeBytes() end
  -- `field` and `member` end with the upper bytes of the seq, which seldom change; `low` is its last byte.
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

-- Unless the request key was seen before, stores the elements of a call with `store`, which returns the seq of the
-- first one, or 0. Returns the call's record.
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
  local limit, sizes = args[at + 3], args[at + 4]
  local hasGroups, hasKeys = string.find(columns, 'g') ~= nil, string.find(columns, 'd') ~= nil
  local isPlain, hasRequests = not hasGroups and not hasKeys, string.find(columns, 'r') ~= nil
  local width = 1 + #columns - (hasRequests and 1 or 0)
  local timings = string.find(columns, 't') and count or nil
  at = at + 5
  if isPlain and not hasRequests then return insertPlain(q, args, at, count, timings), at + width * count end
  local joined, from = {}, 1
  for size in string.gmatch(sizes, '%d+') do
    joined[#joined + 1] = { from = from, upTo = from + size - 1, request = hasRequests and args[at] or '' }
    from = from + size
    if hasRequests then at = at + 1 end
  end
  local elements = isPlain and {} or readElements(args, at, count, columns)
  if hasGroups then
    for _, each in ipairs(joined) do resolveGroups(q, elements, each.from, each.upTo, limit) end
  end
  local records = {}
  for _, each in ipairs(joined) do
    local size = each.upTo - each.from + 1
    local function putPlain()
      return insertPlain(q, args, at + each.from - 1, size, timings)
    end
    local function putAll()
      if elements[each.from].isRejected then return six(0) end
      local first = six(q.seq + 1)
      for i = each.from, each.upTo do putOnce(q, elements[i], window) end
      return first
    end
    -- The key of a single element is compared when the element is stored.
    if size ~= 1 and hasKeys then findMismatch(q, elements, each.from, each.upTo, window) end
    if each.request ~= '' then
      records[#records + 1] = putRequest(q, each.request, window, size, isPlain and putPlain or putAll)
    elseif isPlain then
      local first = fromSix(putPlain(), 1)
      for i = 0, size - 1 do records[#records + 1] = six(first + i) .. STORED end
    else
      for i = each.from, each.upTo do
        local element = elements[i]
        local seq, outcome = six(0), element.isMismatched and MISMATCHED or STORED
        if not element.isRejected then seq, outcome = putOnce(q, element, window) end
        records[#records + 1] = seq .. outcome
      end
    end
  end
  return sub(records[1], 1, 6) .. concat(records), at + width * count
end
