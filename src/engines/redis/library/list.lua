-- The list variant: the elements of a queue are a Redis list, the next one at its right end. Calls have the form of
-- session.lua, but no session: they are sent once. Their keys are the list, then those of each lpush with dedup keys:
-- the key that exists if the queue was dropped (functions.lua), and the dedup keys in the order of their elements. An
-- item is maturity(6) tries(4) id(22), then the content.
--
-- While a slot is moving, Redis rejects calls with several keys of which one does not exist. A call with the list alone
-- is executed where the list is, or, if there is none, by the server to which the slot moves. But a function that
-- accesses a key after deleting it fails midway, so what a call takes is removed at its end.
--
-- lpush <window, '' without dedup keys> <count> <sizes>, then per element: <1 if it has a dedup key, else ''> <id and
--   fingerprint> <item>; sizes: the number of elements of each joined call; returns, as elements, the value of each
--   key: id and fingerprint of the first element that had it; '' for elements without a key. If a key was seen with
--   different content, nothing of its call is stored, and all other elements of the call have ''.
-- rpop <count> <byte limit for all items after the first, or ''>: the items, as many as fit in a reply; '' if `count`
--   was reached or no item is left, else 2 if the byte limit ended the pop, 4 if that of the call did, else 0(1), and
--   the maturity(6) of the next item
-- rpush <count> <items>: returns them to the right end; returns ''
-- lrange <skip> <limit>: items from the right, as many as fit in a reply; whether there are more(1)
-- llen: the length(6), then the maturity(6) of the next item if there is one
-- drop: takes all items; returns their number(6)

-- Maximum of items per read. The first read is of one item, the next ones of as many as would fit if they were as large
-- as those before: to read a megabyte from Lua takes 4 ms.
local ITEMS_AT_ONCE = 16
local ID_LENGTH = 22

-- Whether a dedup key was stored before its queue was dropped. Both keys have the same time to live.
local function isVoid(q, key)
  local dropped = db('PEXPIRETIME', q.dropped)
  return dropped > 0 and db('PEXPIRETIME', key) <= dropped
end

-- The value of a dedup key; nil if there is none or it is void.
local function valueOf(q, key)
  local value = db('GET', key)
  return value and not isVoid(q, key) and value or nil
end

-- Notes whether a push created the list: see `nameList` in session.lua.
local function notePush(q, length, added)
  if length == added then q.isNew = true end
end

local function pushOnce(q, window, item, identity)
  local key = q.keys[q.nextKey]
  q.nextKey = q.nextKey + 1
  local earlier = window ~= '0' and db('SET', key, identity, 'PX', window, 'NX', 'GET')
  if earlier and isVoid(q, key) then
    db('SET', key, identity, 'PX', window)
    earlier = nil
  end
  if earlier then return earlier end
  -- If it was stored in the same millisecond as the drop, it would count as stored before it.
  if window ~= '0' and isVoid(q, key) then db('PEXPIREAT', key, db('PEXPIRETIME', q.dropped) + 1) end
  notePush(q, db('LPUSH', q.list, item), 1)
  return identity
end

-- The value of the first key in a joined call that was seen with different content, in this call or before, and the
-- position of its element in the arguments; nil if there is none.
local function findMismatch(q, args, from, upTo)
  local known, nextKey = {}, q.nextKey
  for i = from, upTo, 3 do
    if args[i] ~= '' then
      local key, identity = q.keys[nextKey], args[i + 1]
      nextKey = nextKey + 1
      known[key] = known[key] or valueOf(q, key) or identity
      local first, fingerprint = sub(known[key], ID_LENGTH + 1), sub(identity, ID_LENGTH + 1)
      if first ~= '' and fingerprint ~= '' and first ~= fingerprint then return known[key], i end
    end
  end
end

local function pushCall(q, window, args, from, upTo, kept)
  local items, mismatch, place = {}, nil, nil
  -- The key of a single element is compared when the element is stored.
  if upTo - from >= 3 then mismatch, place = findMismatch(q, args, from, upTo) end
  for i = from, upTo, 3 do
    if mismatch then
      if args[i] ~= '' then q.nextKey = q.nextKey + 1 end
      kept[#kept + 1] = i == place and mismatch or ''
    elseif args[i] == '' then
      items[#items + 1] = args[i + 2]
      kept[#kept + 1] = ''
    else
      -- Elements are stored in their order.
      notePush(q, spreadCall('LPUSH', q.list, items), #items)
      items = {}
      kept[#kept + 1] = pushOnce(q, window, args[i + 2], args[i + 1])
    end
  end
  notePush(q, spreadCall('LPUSH', q.list, items), #items)
end

verbs.lpush = function(q, args, at)
  local window, count, sizes = args[at], tonumber(args[at + 1]), args[at + 2]
  if window ~= '' then q.dropped, q.nextKey = q.keys[q.nextKey], q.nextKey + 1 end
  local from, behind, kept = at + 3, at + 3 + 3 * count, {}
  for size in string.gmatch(sizes, '%d+') do
    pushCall(q, window, args, from, from + 3 * size - 1, kept)
    from = from + 3 * size
  end
  return '', behind, kept
end

-- How many items to read next, if the last `count` items had this many bytes.
local function nextStep(count, bytes, left)
  return math.max(1, math.min(ITEMS_AT_ONCE, math.floor(left * count / math.max(1, bytes))))
end

-- Reads up to `limit` items from the right, after `skip`, until `left` bytes are used up. Returns the items and the
-- bytes left. With `maxBytes`, no item after the first may exceed `left`, and whether one would have is returned as
-- well.
local function readItems(q, skip, limit, left, maxBytes)
  local items, isCut, step = {}, left <= 0, 1
  while #items < limit and (left > 0 or maxBytes) and not isCut do
    local seen, before = skip + #items, left
    local range = db('LRANGE', q.list, -seen - math.min(limit - #items, step), -seen - 1)
    if #range == 0 then break end
    for i = #range, 1, -1 do
      isCut = maxBytes and #items > 0 and #range[i] > left
      if isCut then break end
      items[#items + 1] = range[i]
      left = left - #range[i]
    end
    step = nextStep(#range, before - left, left)
  end
  return items, left, isCut
end

-- Removes the items that the call has taken so far.
function removeTaken(q)
  if q.taken == 0 then return end
  -- `UNLINK` frees many items in another thread.
  if q.taken > ITEMS_AT_ONCE and q.taken == db('LLEN', q.list) then
    db('UNLINK', q.list)
  else
    db('LTRIM', q.list, 0, -q.taken - 1)
  end
  q.taken = 0
end

verbs.rpop = function(q, args, at)
  local count, maxBytes = tonumber(args[at]), tonumber(args[at + 1])
  local largest = maxBytes or LARGEST_REPLY
  local capacity = math.min(largest, call.capacity)
  local items, left, isCut = readItems(q, q.taken, count, capacity, maxBytes)
  q.taken = q.taken + #items
  call.capacity = call.capacity - (capacity - left)
  local next = #items < count and db('LINDEX', q.list, -q.taken - 1)
  local isOwn = isCut and capacity == largest
  local flags = isOwn and 2 or (isCut or left <= 0) and 4 or 0
  return next and pack('>I1', flags) .. sub(next, 1, 6) or '', at + 2, items
end

verbs.rpush = function(q, args, at)
  local count, items = tonumber(args[at]), {}
  for i = 1, count do items[i] = args[at + i] end
  -- A placeholder at the other end keeps the list in existence.
  local isTaken = q.taken > 0
  if isTaken then
    db('LPUSH', q.list, '')
    removeTaken(q)
  end
  notePush(q, spreadCall('RPUSH', q.list, items), #items)
  if isTaken then db('LPOP', q.list) end
  return '', at + 1 + count
end

verbs.lrange = function(q, args, at)
  local skip, limit = q.taken + tonumber(args[at]), tonumber(args[at + 1])
  local items = readItems(q, skip, limit, LARGEST_REPLY / 8)
  return db('LLEN', q.list) > skip + #items and '1' or '0', at + 2, items
end

verbs.llen = function(q, _, at)
  local next = db('LINDEX', q.list, -q.taken - 1)
  return six(db('LLEN', q.list) - q.taken) .. (next and sub(next, 1, 6) or ''), at
end

verbs.drop = function(q, _, at)
  local count = db('LLEN', q.list) - q.taken
  q.taken = q.taken + count
  return six(count), at
end
