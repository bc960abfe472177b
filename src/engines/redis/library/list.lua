-- The list variant: a queue is a list, the next element at its right end.
--
-- push: keys: the list, then those of dedup keys. Arguments: window, then per element: number of its key or 0,
-- id and fingerprint, item. Returns ids and fingerprints, those of earlier elements if a key was seen.
-- drop: returns how many elements went.

redis.register_function('@RUN@_push', function(keys, args)
  bind()
  local ids = {}
  for at = 2, #args, 3 do
    local key, id = keys[tonumber(args[at]) + 1], args[at + 1]
    local earlier = args[at] ~= '0' and db('SET', key, id, 'PX', args[1], 'NX', 'GET')
    ids[#ids + 1] = earlier or id
    if not earlier then db('LPUSH', keys[1], args[at + 2]) end
  end
  return ids
end)

redis.register_function({
  function_name = '@RUN@_drop',
  callback = function(keys)
    bind()
    local count = db('LLEN', keys[1])
    db('UNLINK', keys[1])
    return count
  end,
  flags = { 'allow-oom' },
})
