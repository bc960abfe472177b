-- Names of queues by when they were last used, and the lists of those to sweep by when: sorted sets. Functions, as plain
-- commands would be rejected if Redis is out of memory, and then nobody could reserve.
--
-- moments: keys: a sorted set; arguments: moments, each with a member.
-- use: keys: the names of a namespace; arguments: the time to go by or 0, '1' to make names known, names. Notes that those
-- that are known are used; returns how many they are.
-- unname: the same key; arguments: name, the moment of its last use, '' or a moment to note instead. Without one the name is
-- removed. Returns 1, or 0 if the queue was used since.
-- forget: keys: those of a queue (queue.lua), and others of its slot. Deletes an empty queue; returns 0 if it is not empty, or
-- was declared with options.
-- drop: the same keys. Deletes a queue that holds no delivery and no outbox entry, whatever else it remembers.

register('_moments', function(keys, args)
  return spreadCall('ZADD', keys[1], args)
end)

register('_use', function(keys, args)
  local now, time, known = tonumber(args[1]), db('TIME'), 0
  if now == 0 then now = time[1] * 1000 + math.floor(time[2] / 1000) end
  for i = 3, #args do
    if args[2] == '1' or db('ZSCORE', keys[1], args[i]) then
      db('ZADD', keys[1], now, args[i])
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

-- Deliveries, elements of streams and outbox entries keep a queue from being dropped. All other members of z are dedup keys,
-- sessions and the like, which go with it.
register('_drop', function(keys)
  if db('EXISTS', keys[4]) == 1 then return 0 end
  for prefix in string.gmatch('wlabp', '.') do
    if #membersBetween(keys[2], '[' .. prefix, '(' .. prefix .. LAST, 1) > 0 then return 0 end
  end
  db('UNLINK', unpack(keys))
  return 1
end)

-- An empty queue has nothing in z but the member that keeps it in existence: no delivery, no dedup key, no session, no
-- outbox entry. A list, which has no such member, does not exist when it is empty.
register('_forget', function(keys)
  if db('ZCARD', keys[2]) > 1 or db('HEXISTS', keys[1], 'O') == 1 or db('EXISTS', keys[4]) == 1 then return 0 end
  db('UNLINK', unpack(keys))
  return 1
end)
