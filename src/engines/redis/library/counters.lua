-- Counters for people to read: a hash, <counter>:<group> -> count. Arguments: fields and what to add to each.

-- As `MAX_COUNTED_GROUPS` in `engine/stats.ts`, in addition to the plain group.
local MAX_COUNTED = 1000

-- The fields and sums of each named group, and the groups as a list.
local function countedGroups(key)
  local flat = db('HGETALL', key)
  local groups, sums, fields = {}, {}, {}
  for i = 1, #flat, 2 do
    local group = string.match(flat[i], '^%a+:(.+)$')
    if group and not sums[group] then
      groups[#groups + 1] = group
      sums[group], fields[group] = 0, {}
    end
    if group then
      sums[group] = sums[group] + tonumber(flat[i + 1])
      fields[group][#fields[group] + 1] = flat[i]
    end
  end
  return groups, sums, fields
end

-- Group names come from producers: of too many, those that were counted the least are forgotten.
local function forgetLeast(key)
  local groups, sums, fields = countedGroups(key)
  if #groups <= MAX_COUNTED then return end
  table.sort(groups, function(a, b) return sums[a] > sums[b] end)
  local least = {}
  for i = MAX_COUNTED + 1, #groups do
    for _, field in ipairs(fields[groups[i]]) do least[#least + 1] = field end
  end
  spreadCall('HDEL', key, least)
end

register('_count', function(keys, args)
  local isNew = false
  for i = 1, #args, 2 do
    local count = db('HINCRBY', keys[1], args[i], args[i + 1])
    isNew = isNew or count == tonumber(args[i + 1])
  end
  if isNew and db('HLEN', keys[1]) > MAX_COUNTED then forgetLeast(keys[1]) end
  return #args / 2
end)
