-- Functions without a session, for the registry (registry.ts), definitions and counters.

-- The registry's sorted sets: queue names by last use, and the lists of queues to sweep by time. They are changed by
-- functions, because Redis rejects plain commands when it is out of memory, and then nobody could reserve.
--
-- moments: key: a sorted set; arguments: moment and member, repeated. Adds them.
-- use: key: the names of a namespace; arguments: the current time or 0 for the server's, '1' to add unknown names,
--   names. Sets the last use of the known names; returns how many are known.
-- unname: the same key; arguments: name, its last use as the caller read it, '' or a moment to set instead. Without a
--   moment, the name is removed. Returns 1, or 0 if the queue was used since.
-- drop: keys: h, z, the counters and the list of a queue. Deletes a queue without deliveries and outbox entries, and
--   all else that it stores except the sessions and outbox marks, which keep calls and entries from being applied
--   twice. A queue of the list variant has one key more, which makes its dedup keys void (list.lua). Arguments: '1' to
--   delete the queue only if nothing at all is stored in it, or ''; how long dedup keys are kept, ms. Returns 1, or 0
--   if the queue was not deleted.
-- counts: keys: h and z of each queue; argument: the current time or 0 for the server's. Returns that time, and for
--   each queue what the verb `counts` returns for the whole queue; '' if that verb has to be called: a lease has
--   expired, the queue cannot be read, or the others had too many groups.
-- usage: keys: z, or the list, of each queue. Returns how many deliveries they hold, waiting and reserved ones.
-- rights: arguments: a key, then commands. Returns the commands that the user may not run on that key, or on the
--   channel of that name. A function that fails in the middle leaves a part of its changes, so a user without one of
--   them must run none.

register('_rights', function(_, args)
  local missing = {}
  for i = 2, #args do
    -- Of EXISTS and UNLINK, each argument is a key.
    if not redis.acl_check_cmd(args[i], args[1], args[1]) then missing[#missing + 1] = args[i] end
  end
  return missing
end, 'no-writes')

register('_moments', function(keys, args)
  spreadCall('ZADD', keys[1], args)
end)

-- The server's time, unless a test gives one.
local function timeOf(given)
  local time = db('TIME')
  return given ~= '0' and tonumber(given) or time[1] * 1000 + math.floor(time[2] / 1000)
end

register('_use', function(keys, args)
  local now, known = timeOf(args[1]), 0
  for i = 3, #args do
    if args[2] == '1' or db('ZSCORE', keys[1], args[i]) then
      useName(keys[1], args[i], now)
      known = known + 1
    end
  end
  return known
end)

register('_unname', function(keys, args)
  local name, seen, instead = args[1], tonumber(args[2]), args[3]
  if tonumber(db('ZSCORE', keys[1], name) or -1) ~= seen then return 0 end
  if instead ~= '' then db('ZADD', keys[1], instead, name) else db('ZREM', keys[1], name) end
  return 1
end)

-- The sessions and outbox marks of a queue, which outlive a drop: fields of h with their values, and members of z with
-- their scores. Calls and entries that were applied before the drop may be sent again after it.
local function keptOf(h, z)
  local fields, members = {}, {}
  for kind in string.gmatch('co', '.') do
    for _, member in ipairs(membersBetween(z, '[' .. kind, '(' .. kind .. LAST, -1)) do
      local field = kind .. sub(member, 8)
      local stored = db('HGET', h, field)
      if stored then
        fields[#fields + 1], fields[#fields + 2] = field, kind == 'c' and withoutTaken(stored) or stored
        members[#members + 1], members[#members + 2] = '0', member
      end
    end
  end
  return fields, members
end

-- Deliveries, stream elements and outbox entries prevent the drop. Dedup keys and the like are deleted.
register('_drop', function(keys, args)
  if db('EXISTS', keys[4]) == 1 then return 0 end
  -- z of a queue in which nothing is stored has only the member that keeps the key in existence.
  if args[1] == '1' and (db('ZCARD', keys[2]) > 1 or db('HEXISTS', keys[1], 'O') == 1) then return 0 end
  for prefix in string.gmatch('wlabp', '.') do
    if #membersBetween(keys[2], '[' .. prefix, '(' .. prefix .. LAST, 1) > 0 then return 0 end
  end
  local fields, members = keptOf(keys[1], keys[2])
  db('UNLINK', keys[1], keys[2], keys[3], keys[4])
  spreadCall('HSET', keys[1], fields)
  spreadCall('ZADD', keys[2], members)
  if keys[5] then
    local last = db('PEXPIRETIME', keys[5])
    db('SET', keys[5], '', 'PX', args[2])
    -- Dedup keys that were stored after an earlier drop in the same millisecond expire 1 ms after that drop's key
    -- (list.lua). They are void, too, only if this key expires as late.
    if db('PEXPIRETIME', keys[5]) <= last then db('PEXPIREAT', keys[5], last + 1) end
  end
  return 1
end)

register('_usage', function(keys)
  local count = 0
  for _, key in ipairs(keys) do
    if sub(key, -2) == ':l' then
      count = count + db('LLEN', key)
    else
      count = count + db('ZLEXCOUNT', key, '[w', '(x') + db('ZLEXCOUNT', key, '[l', '(m')
    end
  end
  return count
end, 'no-writes')

-- Counts read at once: a queue of a stream has one for each group with deliveries. 1,000 take about 5 ms.
local COUNTS_AT_ONCE = 1000

local function hasExpiredLease(q)
  local isExpired = false
  eachGroup(q, 'l', function(_, first)
    isExpired = fromSix(first, 4) <= call.now
    return isExpired
  end)
  return isExpired
end

local function countUnlessExpired(q)
  if hasExpiredLease(q) then return '', 0 end
  return countQueue(q)
end

register('_counts', function(keys, args)
  call = { now = timeOf(args[1]) }
  local texts, counted = {}, 0
  for i = 1, #keys, 2 do
    local isRead, text, count = counted < COUNTS_AT_ONCE, '', 0
    if isRead then isRead, text, count = pcall(countUnlessExpired, { h = keys[i], z = keys[i + 1] }) end
    texts[#texts + 1] = isRead and text or ''
    counted = counted + (isRead and count or 0)
  end
  return { call.now, texts }
end, 'no-writes')

-- Definitions: a hash per kind, key -> version, a space, JSON. The node generates a new version for each write, so that
-- a write which is sent again is recognized.
--
-- put: <key> <version> <JSON> <'any', '-' for none, '=' and a version> <channel> <message>: 1, or 0 on a conflict
-- delete: <key> <'any', '=' and a version> <channel> <message>: 1, 0 on a conflict, -1 if there is none

local function versionOf(document)
  return document and string.match(document, '^%S+') or nil
end

local function fits(stored, expected)
  if expected == 'any' then return true end
  local version = versionOf(stored)
  if expected == '-' then return version == nil end
  return version ~= nil and '=' .. version == expected
end

register('_put', function(keys, args)
  local stored = db('HGET', keys[1], args[1])
  if versionOf(stored) == args[2] then
    -- Write it again, so that `WAIT` covers it.
    db('HSET', keys[1], args[1], stored)
    return 1
  end
  if not fits(stored, args[4]) then return 0 end
  db('HSET', keys[1], args[1], args[2] .. ' ' .. args[3])
  db('PUBLISH', args[5], args[6])
  return 1
end)

register('_delete', function(keys, args)
  local stored = db('HGET', keys[1], args[1])
  if not fits(stored, args[2]) then return 0 end
  if not stored then return -1 end
  db('HDEL', keys[1], args[1])
  db('PUBLISH', args[3], args[4])
  return 1
end)

-- Statistics: a hash of counters for each queue, <counter>:<group> -> count.
--
-- count: keys: for each queue its counters, its h and its list; arguments: for each queue the number of its arguments,
--   then field and increment, repeated
-- counters: keys: the counters of queues. Returns for each its fields and values; none if something else is stored
--   there. There are fewer results than keys if the first queues had too many counters.

-- How long counters are kept after the last count if their queue is not stored here: it is in another engine, or was
-- deleted just before another node counted.
local GONE_MS = 30 * 24 * 3600 * 1000

-- As `MAX_COUNTED_GROUPS` in `engine/stats.ts`, in addition to the plain group.
local MAX_COUNTED = 1000

-- The named group of a field; nil for the plain group.
local function countedGroup(field)
  return string.match(field, '^%a+:(.+)$')
end

-- Producers choose group names, so the number of counted groups is bounded: those with the highest sums are kept.
local function forgetLeast(key)
  local flat, groups, sums, kept, least = db('HGETALL', key), {}, {}, {}, {}
  for i = 1, #flat, 2 do
    local group = countedGroup(flat[i])
    if group and not sums[group] then groups[#groups + 1] = group end
    if group then sums[group] = (sums[group] or 0) + tonumber(flat[i + 1]) end
  end
  table.sort(groups, function(a, b) return sums[a] > sums[b] end)
  for i = 1, math.min(#groups, MAX_COUNTED) do kept[groups[i]] = true end
  for i = 1, #flat, 2 do
    local group = countedGroup(flat[i])
    if group and not kept[group] then least[#least + 1] = flat[i] end
  end
  spreadCall('HDEL', key, least)
end

-- Counters read at once, except for those of one queue: 5,000 take about 4 ms.
local COUNTERS_AT_ONCE = 5000

register('_counters', function(keys)
  local found, count = {}, 0
  for i, key in ipairs(keys) do
    if count >= COUNTERS_AT_ONCE then break end
    local isRead, flat = pcall(db, 'HGETALL', key)
    found[i] = isRead and flat or {}
    count = count + #found[i] / 2
  end
  return found
end, 'no-writes')

local function count(counters, h, list, args, from, upTo)
  local isNew = false
  for i = from, upTo, 2 do
    local sum = db('HINCRBY', counters, args[i], args[i + 1])
    isNew = isNew or sum == tonumber(args[i + 1])
  end
  if isNew and db('HLEN', counters) > MAX_COUNTED then forgetLeast(counters) end
  local isStored = db('HEXISTS', h, 'm') + db('EXISTS', list) > 0
  if isStored then db('PERSIST', counters) else db('PEXPIRE', counters, GONE_MS) end
end

-- Counters that cannot be changed, because something else is stored under their key, must not stop the others.
register('_count', function(keys, args)
  local at = 1
  for i = 1, #keys, 3 do
    local behind = at + 1 + tonumber(args[at])
    pcall(count, keys[i], keys[i + 1], keys[i + 2], args, at + 1, behind - 1)
    at = behind
  end
end)
