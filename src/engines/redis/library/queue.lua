-- A queue as one call sees it. Writes of the plain paths gather here and leave by `flush`: one command for
-- many members costs far less than one each. Order within a flush: removed before added, stored before deleted.

local function openQueue(h, z)
  local head = db('HMGET', h, 'm', 's', 'c' .. call.client)
  local q = {
    h = h,
    z = z,
    tag = head[1] or '',
    seq = tonumber(head[2] or 0),
    repeated = head[3],
    retention = 0,
    gone = {}, added = {}, stored = {}, deleted = {},
  }
  q.storedSeq = q.seq
  return q
end

-- The queue of this number among the call's; nil where there is none.
local function queueAt(number)
  local q = call.opened[number]
  if q or not number or not call.keys[2 * number] then return q end
  q = openQueue(call.keys[2 * number - 1], call.keys[2 * number])
  if call.retentions ~= '' then q.retention = fromSix(call.retentions, 6 * number - 5) end
  call.opened[number] = q
  return q
end

-- A queue is made by the first call that may write to it. The tag is new even where the name is old, so ids
-- from before the data were lost are never taken for new ones.
local function ensureQueue(q)
  if q.tag ~= '' then return end
  q.tag = sub(redis.sha1hex(q.h .. call.client .. call.micros .. string.format('%.0f', call.now)), 1, 12)
  q.fresh = true
  db('HSET', q.h, 'm', q.tag)
  db('ZADD', q.z, 0, '~')
end

local function flush(q)
  if #q.gone > 0 then
    spreadCall('ZREM', q.z, q.gone)
    q.gone = {}
  end
  if #q.added > 0 then
    spreadCall('ZADD', q.z, q.added)
    q.added = {}
  end
  if #q.stored > 0 then
    spreadCall('HSET', q.h, q.stored)
    q.stored = {}
  end
  if #q.deleted > 0 then
    spreadCall('HDEL', q.h, q.deleted)
    q.deleted = {}
  end
end

-- All scores are '0': Redis would have to write a number out for each member.
local function add(q, member)
  local added = q.added
  local count = #added
  added[count + 1], added[count + 2] = '0', member
end

local function store(q, field, value)
  local stored = q.stored
  local count = #stored
  stored[count + 1], stored[count + 2] = field, value
end

-- A growing batch is written now and then, so that a call of any size needs little memory.
local function flushIfLarge(q)
  if #q.added >= MOST_ARGUMENTS or #q.stored >= MOST_ARGUMENTS then flush(q) end
end

local function saveQueue(q)
  if q.seq ~= q.storedSeq then store(q, 's', q.seq) end
  flush(q)
end

