-- Names of queues, and the lists of those to look at. Functions, as plain commands would be refused where Redis
-- is out of memory, and then nobody could reserve.
--
-- name: keys: a set; arguments: names. list: keys: a sorted set; arguments: moment, member.

redis.register_function({
  function_name = '@RUN@_name',
  callback = function(keys, args)
    awake()
    return spreadCall('SADD', keys[1], args)
  end,
  flags = { 'allow-oom' },
})

redis.register_function({
  function_name = '@RUN@_list',
  callback = function(keys, args)
    awake()
    return db('ZADD', keys[1], args[1], args[2])
  end,
  flags = { 'allow-oom' },
})
