-- Names of queues by when they were last used, and the lists of those to sweep by when: sorted sets. Functions, as plain
-- commands would be rejected if Redis is out of memory, and then nobody could reserve.
--
-- moments: keys: a sorted set; arguments: moments, each with a member.
-- use: keys: the names of a namespace; arguments: moment, name. Returns whether the name is known, and notes the use if so.
-- unname: the same key; arguments: name, the moment of its last use, '' or a moment to note instead. Without one the name is
-- removed. Returns 1, or 0 if the queue was used since.
-- forget: keys: those of a queue (queue.lua), and others of its slot. Deletes an empty queue; returns 0 if it is not empty, or
-- was declared with options.

register('_moments', function(keys, args)
  return spreadCall('ZADD', keys[1], args)
end)

register('_use', function(keys, args)
  if not db('ZSCORE', keys[1], args[2]) then return 0 end
  db('ZADD', keys[1], args[1], args[2])
  return 1
end)

register('_unname', function(keys, args)
  local name, seen, instead = args[1], tonumber(args[2]), args[3]
  if tonumber(db('ZSCORE', keys[1], name) or -1) ~= seen then return 0 end
  if instead ~= '' then db('ZADD', keys[1], instead, name) else db('ZREM', keys[1], name) end
  return 1
end)

-- An empty queue has nothing in z but the member that keeps it in existence: no delivery, no dedup key, no session, no
-- outbox entry. A list, which has no such member, does not exist when it is empty.
register('_forget', function(keys)
  if db('ZCARD', keys[2]) > 1 or db('HEXISTS', keys[1], 'O') == 1 or db('EXISTS', keys[4]) == 1 then return 0 end
  db('UNLINK', unpack(keys))
  return 1
end)
