-- Names of queues, and the lists of those to sweep. Functions, as plain commands would be rejected if Redis
-- is out of memory, and then nobody could reserve.
--
-- name: keys: a set of names, and a sorted set of the same by when they were last used; arguments: the time to go by
-- or 0, names. Makes them known, and notes that they are used.
-- use: the same keys; arguments: time, name. Returns whether the name is known, and notes the use if so.
-- unused: the same keys; arguments: time, age, limit, cursor. Returns the next cursor, then names that were not used for
-- that long, each with the moment of its last use.
-- unname: the same keys; arguments: name, the moment that was returned with it, '' or a moment to note instead. Without
-- one the name is removed. Returns 1, or 0 if the queue was used since.
-- moments: keys: a sorted set; arguments: moments, each with a member.
-- forget: keys: those of a queue (queue.lua), and others of its slot. Deletes an empty queue; returns 0 if it is not empty, or
-- was declared with options.

local function timeOr(given)
  if tonumber(given) > 0 then return tonumber(given) end
  local time = db('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

redis.register_function({
  function_name = '@RUN@_name',
  callback = function(keys, args)
    bind()
    local now, names, used = timeOr(args[1]), {}, {}
    for i = 2, #args do
      names[i - 1] = args[i]
      used[2 * i - 3], used[2 * i - 2] = now, args[i]
    end
    spreadCall('ZADD', keys[2], used)
    return spreadCall('SADD', keys[1], names)
  end,
  flags = { 'allow-oom' },
})

redis.register_function({
  function_name = '@RUN@_use',
  callback = function(keys, args)
    bind()
    local isKnown = db('SISMEMBER', keys[1], args[2])
    if isKnown == 1 then db('ZADD', keys[2], timeOr(args[1]), args[2]) end
    return isKnown
  end,
  flags = { 'allow-oom' },
})

-- Names of a version that noted no use count as used now: a few are read each time.
local NAMES_AT_ONCE = 200

redis.register_function({
  function_name = '@RUN@_unused',
  callback = function(keys, args)
    bind()
    local now, cursor = timeOr(args[1]), args[4]
    local scanned = db('SSCAN', keys[1], cursor, 'COUNT', NAMES_AT_ONCE)
    local noted = {}
    for _, name in ipairs(scanned[2]) do
      noted[#noted + 1] = now
      noted[#noted + 1] = name
    end
    for from = 1, #noted, MAX_ARGUMENTS do
      db('ZADD', keys[2], 'NX', spread(noted, from, math.min(from + MAX_ARGUMENTS - 1, #noted)))
    end
    local found = db('ZRANGE', keys[2], '-inf', now - args[2], 'BYSCORE', 'LIMIT', 0, args[3], 'WITHSCORES')
    return { scanned[1], unpack(found) }
  end,
  flags = { 'allow-oom' },
})

redis.register_function({
  function_name = '@RUN@_unname',
  callback = function(keys, args)
    bind()
    local name, seen, instead = args[1], tonumber(args[2]), args[3]
    if tonumber(db('ZSCORE', keys[2], name) or -1) ~= seen then return 0 end
    if instead ~= '' then
      db('ZADD', keys[2], instead, name)
    else
      db('SREM', keys[1], name)
      db('ZREM', keys[2], name)
    end
    return 1
  end,
  flags = { 'allow-oom' },
})

-- An empty queue has nothing in z but the member that keeps it in existence: no delivery, no dedup key, no session, no
-- outbox entry. A list, which has no such member, does not exist when it is empty.
redis.register_function({
  function_name = '@RUN@_forget',
  callback = function(keys)
    bind()
    if db('ZCARD', keys[2]) > 1 or db('HEXISTS', keys[1], 'O') == 1 or db('EXISTS', keys[4]) == 1 then return 0 end
    db('UNLINK', unpack(keys))
    return 1
  end,
  flags = { 'allow-oom' },
})

redis.register_function({
  function_name = '@RUN@_moments',
  callback = function(keys, args)
    bind()
    return db('ZADD', keys[1], unpack(args))
  end,
  flags = { 'allow-oom' },
})
