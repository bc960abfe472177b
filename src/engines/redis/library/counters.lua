-- Counters for people to read: a hash, <counter>:<group> -> count. Arguments: fields and what to add to each.

redis.register_function({
  function_name = '@RUN@_count',
  callback = function(keys, args)
    awake()
    for i = 1, #args, 2 do db('HINCRBY', keys[1], args[i], args[i + 1]) end
    return #args / 2
  end,
  flags = { 'allow-oom' },
})
