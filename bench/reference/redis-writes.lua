#!lua name=reference
-- The least that the work of the Redis engine can cost inside Redis: the same two keys per queue, the same
-- fields, members and commands a batch, and nothing else. No repeats, leases, groups or checks.

local function six(n)
  return struct.pack('>I6', n)
end

-- keys: h, z; arguments: bodies
redis.register_function('reference_insert', function(keys, args)
  local first = redis.call('HINCRBY', keys[1], 's', #args) - #args
  local stored, added = {}, {}
  local head = struct.pack('>I6I4', 1700000000000, 0)
  for i, body in ipairs(args) do
    local seq = six(first + i)
    stored[2 * i - 1], stored[2 * i] = 'e' .. seq, head .. body
    added[2 * i - 1], added[2 * i] = 0, 'w\0\0' .. six(1700000000000) .. seq .. '\0\0\0\0'
  end
  redis.call('ZADD', keys[2], unpack(added))
  redis.call('HSET', keys[1], unpack(stored))
  return first
end)

-- keys: h, z; argument: how many
redis.register_function('reference_take', function(keys, args)
  local members = redis.call('ZRANGE', keys[2], '[w', '(x', 'BYLEX', 'LIMIT', 0, args[1])
  if #members == 0 then return redis.error_reply('ERR nothing is left') end
  local fields = {}
  for i = 1, #members do fields[i] = 'e' .. string.sub(members[i], 10, 15) end
  local bodies = redis.call('HMGET', keys[1], unpack(fields))
  redis.call('ZREMRANGEBYLEX', keys[2], '[' .. members[1], '[' .. members[#members])
  redis.call('HDEL', keys[1], unpack(fields))
  return bodies
end)
