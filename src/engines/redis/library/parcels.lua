-- Elements on their way to a queue whose keys are in another slot of a cluster. The parcel is written in the
-- same step in which the source lets go, brought over by the client that made it or by whoever sweeps, taken
-- in once, and then struck out: so it is lost nowhere and arrives once.
--
-- accept <id> <parcel> <dedup window>; keep <ids>; delivered <ids>; struck <ids>. An id has 24 bytes. Each
-- answers nothing, but accept '!' where the queue has more groups than fit.
--
-- Waiting for replicas waits for what the same connection wrote last. So a verb that finds its work done already
-- writes something all the same: else nobody could tell that the replicas have it.

-- A parcel that arrived is remembered for this long, if nobody says that its source has struck it out.
local ARRIVED_MS = 86400000
-- And for this long once somebody has. Another client that read the parcel before may still bring it: it sends within
-- 13.5 s of its look, three deadlines of a call, and what it sent is refused as late 30 s after. The rest is for clocks.
local STRUCK_MS = 120000
-- More than join one call, so parcels that keep coming leave no more behind than came in that time.
local FORGOTTEN_AT_ONCE = 1000

-- Elements for `to` join one parcel per call: { timing, content, groups, dedup key }. What was relative to
-- now is made absolute, as it may arrive later.
addToParcel = function(to, element)
  local maturity, tries = timingOf(element[1])
  element[1] = pack('>I6I6I4', maturity + 1, 0, tries)
  local parcel = call.parcels[to]
  if not parcel then
    parcel = {}
    call.parcels[to] = parcel
  end
  parcel[#parcel + 1] = element
end

-- Writes the parcels of this call. The moment in the id keeps it unique even where numbers are lost with a
-- master that had not replicated them.
local function writeParcels(q)
  local written = {}
  for to, elements in pairs(call.parcels) do
    q.seq = q.seq + 1
    local id = q.tag .. six(q.seq) .. six(call.now)
    local parcel = cmsgpack.pack({ to, elements })
    store(q, 'p' .. id, parcel)
    add(q, 'p' .. six(call.now) .. id)
    written[#written + 1] = { id, to, parcel }
  end
  return written
end

-- A parcel that is still here, as a reply shows it; nil where it has been delivered.
local function readParcel(q, id)
  local packed = db('HGET', q.h, 'p' .. id)
  return packed and { id, cmsgpack.unpack(packed)[1], packed } or nil
end

local function eachId(ids, each)
  for at = 1, #ids, 24 do each(sub(ids, at, at + 23)) end
end

verbs.accept = function(q, args, at)
  local id, parcel, window = args[at], cmsgpack.unpack(args[at + 1]), tonumber(args[at + 2])
  ensureQueue(q)
  local arrived = db('HGET', q.h, 'x' .. id)
  if arrived then
    store(q, 'x' .. id, arrived)
    return '', at + 3
  end
  local elements = {}
  for i, element in ipairs(parcel[2]) do
    local lanes = element[3] ~= '' and makeLanes(q, element[3]) or nil
    if element[3] ~= '' and not lanes then return '!', at + 3 end
    local key = element[4] ~= '' and element[4] or nil
    elements[i] = { timing = element[1], content = element[2], lanes = lanes, key = key }
  end
  for _, element in ipairs(elements) do putOnce(q, element, window) end
  store(q, 'x' .. id, six(call.now))
  add(q, 'x' .. six(call.now) .. id)
  flush(q)
  return '', at + 3
end

-- For parcels of a call that did not wait for replicas: before one is brought anywhere, they must have it.
verbs.keep = function(q, args, at)
  eachId(args[at], function(id)
    local packed = db('HGET', q.h, 'p' .. id)
    if packed then store(q, 'p' .. id, packed) end
  end)
  return '', at + 1
end

verbs.delivered = function(q, args, at)
  eachId(args[at], function(id)
    q.deleted[#q.deleted + 1] = 'p' .. id
    q.gone[#q.gone + 1] = 'p' .. sub(id, 19) .. id
  end)
  flush(q)
  return '', at + 1
end

local function forgetArrived(q)
  local high = '(x' .. six(math.max(0, call.now - ARRIVED_MS + 1))
  for _, member in ipairs(membersBetween(q.z, '[x', high, FORGOTTEN_AT_ONCE)) do
    q.gone[#q.gone + 1] = member
    q.deleted[#q.deleted + 1] = 'x' .. sub(member, 8)
  end
  flush(q)
end

-- The source has these no more. They are listed as if they had come long ago.
verbs.struck = function(q, args, at)
  local struck = six(math.max(0, call.now - ARRIVED_MS + STRUCK_MS))
  eachId(args[at], function(id)
    local arrived = db('HGET', q.h, 'x' .. id)
    if arrived then
      q.gone[#q.gone + 1] = 'x' .. arrived .. id
      add(q, 'x' .. struck .. id)
      store(q, 'x' .. id, struck)
    end
  end)
  flush(q)
  forgetArrived(q)
  return '', at + 1
end
