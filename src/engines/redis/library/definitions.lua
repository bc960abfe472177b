-- Small documents: a hash per kind, key -> version, a space, JSON. The client makes the version, a new one for
-- each write, so a write that is sent again is known for what it is.
--
-- put: <key> <version> <JSON> <'any', '-' for none, '=' and a version> <channel> <message>: 1, or 0 for a conflict
-- delete: <key> <'any', '=' and a version> <channel> <message>: 1, 0 for a conflict, -1 where there was none

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
    -- Written again, so that waiting for replicas waits for it.
    db('HSET', keys[1], args[1], stored)
    return 1
  end
  if not fits(stored, args[4]) then return 0 end
  db('HSET', keys[1], args[1], args[2] .. ' ' .. args[3])
  db('PUBLISH', args[5], args[6])
  return 1
end, true)

register('_delete', function(keys, args)
  local stored = db('HGET', keys[1], args[1])
  if not fits(stored, args[2]) then return 0 end
  if not stored then return -1 end
  db('HDEL', keys[1], args[1])
  db('PUBLISH', args[3], args[4])
  return 1
end)
