-- take <group> <count> <lease in ms, 0 to pop> <of a reserve: first token(16) owner(6) and the holders> <byte limit for
-- all elements after the first, or ''>
-- holders: '1' and one string for all deliveries; or '2' and for each delivery the length(2) of its string and the
--   string
--
-- The result: kind(1) gid(2) lease end(6) flags(1) next maturity(6), then for each delivery 'd' if it is touched, else
-- 'e', and its seq(6). A reserve has its first token(16) at the end.
-- kind: P popped; p popped, untouched deliveries of the plain group, whose elements have no front; R reserved
-- flags: 1 the next maturity is known, 2 the byte limit of this take ended it, 4 the byte limit of the call or the
--   removal of expired elements ended it
-- The elements: those of the deliveries, then for each touched one the maturity(6) and tries(4) that it has instead of
-- those of its element, and the reason of its last failed try. They are a list, or packed if small.

-- Returned for an element whose record is malformed: the node cannot decode it.
local UNREADABLE = ''

TAKE_HEAD = 16
local FIELD, TOKEN = 7, 16
local MEMBER, WAITING_MEMBER = 19, 119
local POPS, UNTOUCHED_POPS, RESERVES = 80, 112, 82
-- The elements of a take are packed up to this many bytes. Packing costs Redis 1,300 instructions for an element of 91
-- bytes, a twelfth of its pop, and saves the node 0.7 µs, a quarter, since it decodes one item instead of many. To copy
-- larger elements would cost more than that.
local LARGEST_PACKED = 65536
local FIELDS_AT_ONCE = 1000

-- Elements per read.
PAGE = 64
-- The takes of one call stop at this many bytes together: a thousand elements of a megabyte would be a reply of a
-- gigabyte. A page of a scan stops at an eighth: `SCAN_BYTES` in engine/scan-cursor.ts.
LARGEST_REPLY = 16 * 1024 * 1024

function isTouched(member)
  return byte(member, 19) % 2 == 1
end

local function isTooLarge(size, left, maxBytes)
  return size > left and (left <= 0 or maxBytes and left < maxBytes)
end

-- The index of the last element that fits. Before large elements are read, their sizes are queried: to read a megabyte
-- takes 4 ms.
local function lastFitting(q, fields, from, upTo, left, maxBytes)
  for i = from, upTo do
    local size = db('HSTRLEN', q.h, fields[i])
    if isTooLarge(size, left, maxBytes) then return i - 1 end
    left = left - size
  end
  return upTo
end

-- Reads the elements of these members, as many as fit. Returns the elements, the bytes left, whether some did not fit,
-- the fields, and whether all are untouched. bounds.left: the bytes available; bounds.maxBytes: if given, no element
-- after the first may exceed them, otherwise the last one may; bounds.isFront: fronts suffice; bounds.isPlainPop: check
-- whether no delivery has a record, and all elements exist and have no front.
function readElementsAt(q, members, bounds)
  local left, maxBytes, areUntouched = bounds.left, bounds.maxBytes, bounds.isPlainPop
  local values, fields, from, count = {}, {}, 1, #members
  while from <= count do
    local upTo, offset = math.min(from + PAGE - 1, count), from - 1
    for i = from, upTo do fields[i] = 'e' .. sub(members[i], 10, 15) end
    if q.hasFronts and not bounds.isFront then upTo = lastFitting(q, fields, from, upTo, left, maxBytes) end
    if left <= 0 or upTo < from then return values, left, true, fields, areUntouched end
    local page = bounds.isFront and readFronts(q, fields, from, upTo) or db('HMGET', q.h, spread(fields, from, upTo))
    for i = from, upTo do
      local value = page[i - offset]
      local size = value and #value or 0
      if isTooLarge(size, left, maxBytes) then return values, left, true, fields, areUntouched end
      if areUntouched then areUntouched = size <= LARGE and size >= HEAD and byte(members[i], 19) % 2 == 0 end
      left = left - size
      values[i] = value
    end
    from = upTo + 1
  end
  return values, left, false, fields, areUntouched
end

-- Removes the first `count` members, which are adjacent in z, with one command.
function removeFirst(q, members, count)
  if count == 1 then
    db('ZREM', q.z, members[1])
  else
    db('ZREMRANGEBYLEX', q.z, '[' .. members[1], '[' .. members[count])
  end
end

-- The records of touched deliveries, by index.
local function recordsOf(q, gid, members)
  local places, fields, records = {}, {}, {}
  for i = 1, #members do
    if isTouched(members[i]) then
      places[#places + 1] = i
      fields[#fields + 1] = 'd' .. gid .. sub(members[i], 10, 15)
    end
  end
  for i, record in ipairs(fieldValues(q.h, fields)) do records[places[i]] = record or '' end
  return records
end

-- What a result contains of the record of a touched delivery: maturity, tries and reason.
local function touchedText(record)
  return sub(record, 1, 10) .. reasonIn(record)
end

local HOLDERS = 23

-- The holders of `count` deliveries in their stored form: one string for all, or nil and a list.
local function readHolders(holder, count)
  if byte(holder, HOLDERS) == 49 then
    local name = sub(holder, HOLDERS + 1)
    return pack('>I2', #name) .. name
  end
  local names, at = {}, HOLDERS + 1
  for i = 1, count do
    local behind = at + 2 + unpackAt('>I2', holder, at)
    names[i] = sub(holder, at, behind - 1)
    at = behind
  end
  return nil, names
end

-- When an element expires; NEVER if it is missing or too short.
local function expiryIn(value)
  return value and #value >= HEAD and sub(value, 17, HEAD) or NEVER
end

-- Stores the leases of these members. Their tokens are counted up from the first.
local function reserve(q, gid, members, values, records, ends, holder)
  local endText, field, counter = six(ends), 'd' .. gid, unpackAt('>I4', holder) - 1
  local lease, stored, added = 'l' .. gid .. endText, {}, {}
  noteLease(q, gid, endText)
  local now = six(call.now)
  local rest = sub(holder, 5, 16) .. endText .. sub(holder, 17, HOLDERS - 1) .. now
  local name, names = readHolders(holder, #values)
  for i = 1, #values do
    local member, at = members[i], 2 * i
    local maturity, seq, tries = unpackAt('>c6c6I4', member, 4)
    added[at - 1], added[at] = '0', lease .. seq
    stored[at - 1] = field .. seq
    stored[at] = maturity .. pack('>I4I4', math.floor(tries / 2), (counter + i) % 4294967296) .. rest
      .. expiryIn(values[i]) .. now .. (name or names[i]) .. (records[i] and reasonIn(records[i]) or '')
  end
  q.stored, q.added = stored, added
  flush(q)
end

-- Removes the expiry entries of elements that are taken: only waiting elements expire, so a sweep would look them up in
-- vain.
function unlistExpiries(q, members, values)
  for i = 1, #values do
    if values[i] then remove(q, 'x' .. sub(values[i], 17, HEAD) .. sub(members[i], 10, 15)) end
  end
  flush(q)
end

local function nothingTaken()
  return { fields = {}, values = {}, records = {}, bytes = 0 }
end

-- Takes the first deliveries of a group, as many as fit. Returns the fields of the elements, the elements, their bytes,
-- whether `maxBytes` (isCut) or the capacity of the call (isLeft) ended the take, and the records of touched deliveries
-- by index.
local function takeFirst(q, gid, count, ends, holder, maxBytes)
  local members = membersBetween(q.z, '[w' .. gid, '(w' .. gid .. six(call.now + 1), count)
  local largest = maxBytes or LARGEST_REPLY
  local capacity, isPlainPop = math.min(largest, call.capacity), gid == PLAIN and ends == 0
  if #members == 0 or capacity <= 0 then
    local none = nothingTaken()
    none.isLeft = #members > 0
    return none
  end
  local bounds = { left = capacity, maxBytes = maxBytes and capacity, isPlainPop = isPlainPop }
  local values, left, isCut, fields, areUntouched = readElementsAt(q, members, bounds)
  call.capacity = call.capacity - (capacity - left)
  for i = #members, #values + 1, -1 do members[i], fields[i] = nil, nil end
  local records = areUntouched and {} or recordsOf(q, gid, members)
  removeFirst(q, members, #members)
  if gid ~= PLAIN then
    local state = ends > 0 and HELD or POPPED
    for i = 1, #values do
      local isMalformed = changeGroup(q, sub(members[i], 10, 15), gid, state, fromSix(members[i], 4))
      if isMalformed and values[i] then values[i] = UNREADABLE end
    end
  elseif q.expires then
    unlistExpiries(q, members, values)
  end
  if ends > 0 then reserve(q, gid, members, values, records, ends, holder) end
  return {
    fields = fields, values = values, bytes = capacity - left, records = records, areUntouched = areUntouched,
    isCut = isCut and maxBytes == capacity, isLeft = isCut and maxBytes ~= capacity,
  }
end

-- The earliest maturity of a group's waiting deliveries, or nil.
function firstMaturity(q, gid)
  local first = firstMember(q.z, 'w' .. gid)
  return first and fromSix(first, 4)
end

verbs.take = function(q, args, at)
  local group, count, lease = args[at], tonumber(args[at + 1]), tonumber(args[at + 2])
  local gid, holder, maxBytes = findGroup(q, group), args[at + 3], tonumber(args[at + 4])
  local ends = lease > 0 and call.now + lease or 0
  local taken, next = nothingTaken(), nil
  if gid and q.tag ~= '' then
    endLeases(q, gid)
    local mayExpireMore = expireElements(q)
    if mayExpireMore then
      -- More elements have expired than one call removes: the caller must call again immediately.
      next, taken.isLeft = call.now, true
    else
      taken = takeFirst(q, gid, count, ends, holder, maxBytes)
      if #taken.fields < count then next = firstMaturity(q, gid) end
    end
  end
  local values, pieces = taken.values, taken.fields
  if not taken.areUntouched then
    for i = 1, #pieces do
      local record = taken.records[i]
      if record then pieces[i], values[#values + 1] = 'd' .. sub(pieces[i], 2), touchedText(record) end
    end
  end
  local kind = lease > 0 and RESERVES or taken.areUntouched and UNTOUCHED_POPS or POPS
  local flags = (next and 1 or 0) + (taken.isCut and 2 or 0) + (taken.isLeft and 4 or 0)
  local head = pack('>I1c2I6I1I6', kind, gid or PLAIN, ends, flags, next or 0)
  pieces[0], pieces[#pieces + 1] = head, sub(holder, 1, 16)
  -- Redis hashes each byte of each string in Lua, so the pieces are joined only once.
  return concat(pieces, '', 0), at + 5, taken.bytes <= LARGEST_PACKED and cmsgpack.pack(values) or values
end

-- Whether a take has deliveries. A reserve has its token at the end.
function hasTaken(taken)
  return #taken - TAKE_HEAD > (byte(taken) == RESERVES and TOKEN or 0)
end

-- Calls `each` for each delivery of a take with its seq, its index from 0, and whether it was touched.
local function eachTaken(taken, each)
  local index, behind = 0, #taken - (byte(taken) == RESERVES and TOKEN or 0)
  for at = TAKE_HEAD + 1, behind, FIELD do
    each(sub(taken, at + 1, at + 6), index, byte(taken, at) == 100)
    index = index + 1
  end
end

-- The token of the delivery with this index, from 0, in a take.
local function tokenAt(taken, index)
  local first = sub(taken, -16)
  return pack('>I4', (unpackAt('>I4', first) + index) % 4294967296) .. sub(first, 5)
end

-- Deletes the elements of an untouched pop. Many fields are unpacked at a time, because each call from Lua has its
-- cost: as other pops are finished, one took a fifth more instructions of Redis.
local function deleteFields(q, taken)
  for at = TAKE_HEAD + 1, #taken, FIELD * FIELDS_AT_ONCE do
    local count = math.min(FIELDS_AT_ONCE, (#taken - at + 1) / FIELD)
    local fields = { unpackAt(string.rep('c7', count), taken, at) }
    -- `unpack` returns the next position after the fields.
    fields[count + 1] = nil
    db('HDEL', q.h, spread(fields))
  end
end

-- Deletes the popped deliveries of a take that the node has received.
function finishPops(q, taken)
  if byte(taken) == UNTOUCHED_POPS then deleteFields(q, taken) end
  if byte(taken) ~= POPS then return end
  local gid = sub(taken, 2, 3)
  local function finishPop(seq, _, wasTouched)
    if gid == PLAIN and not wasTouched then deleteElement(q, seq) else finish(q, gid, seq) end
  end
  if byte(taken, TAKE_HEAD + 1) ~= WAITING_MEMBER then return eachTaken(taken, finishPop) end
  -- The session of a node that ran an earlier version has members of z.
  for at = TAKE_HEAD + 1, #taken, MEMBER do
    local member = sub(taken, at, at + MEMBER - 1)
    finishPop(sub(member, 10, 15), nil, isTouched(member))
  end
end

-- Returns deliveries of a take to their places without counting a try: those with the seqs in `numbers`, which nobody
-- received, or all if `numbers` is nil, because the node did not receive the reply.
function undoTake(q, taken, numbers)
  local gid, ends = sub(taken, 2, 3), fromSix(taken, 4)
  eachTaken(taken, function(seq, index, wasTouched)
    if numbers and not numbers[seq] then return end
    if byte(taken) == RESERVES then
      local d = readRecord(q, gid, seq)
      if isReservedUntil(d, ends) and d.token == tokenAt(taken, index) then
        release(q, gid, seq, d, d.maturity, d.tries, NO_TOKEN)
      end
      return
    end
    local value = readFront(q, seq)
    if not value then return end
    local isMalformed, maturity, tries = #value < HEAD, call.now, 0
    local d = wasTouched and readRecord(q, gid, seq) or nil
    if d then
      maturity, tries = d.maturity, d.tries
    elseif not isMalformed then
      maturity, tries = unpackAt('>I6I4', value)
    end
    if gid ~= PLAIN then
      isMalformed = changeGroup(q, seq, gid, d and TOUCHED or WAITING, maturity) or isMalformed
    elseif expiryIn(value) ~= NEVER then
      noteExpiry(q, expiryIn(value), seq)
    end
    if isMalformed and not d then
      -- With a record, the delivery can be found, postponed and removed.
      release(q, gid, seq, untouched(maturity, tries, NEVER, ''), maturity, tries, NO_TOKEN)
    else
      add(q, waitingMember(gid, maturity, seq, tries, d ~= nil))
    end
  end)
end

-- Undoes the deliveries with these seqs, and finishes the other pops.
function undoPart(q, taken, numbers)
  undoTake(q, taken, numbers)
  flush(q)
  local rest = { sub(taken, 1, TAKE_HEAD) }
  eachTaken(taken, function(seq, _, wasTouched)
    if not numbers[seq] then rest[#rest + 1] = (wasTouched and 'd' or 'e') .. seq end
  end)
  finishPops(q, concat(rest))
  flush(q)
end

-- The elements of a take whose reply is repeated; false for one that the node no longer holds: its lease may have
-- ended, or somebody else may have settled or removed it.
function rereadTake(q, taken)
  local gid, fields, recordFields, touched = sub(taken, 2, 3), {}, {}, {}
  eachTaken(taken, function(seq)
    fields[#fields + 1], recordFields[#recordFields + 1] = 'e' .. seq, 'd' .. gid .. seq
  end)
  local values, records = fieldValues(q.h, fields), fieldValues(q.h, recordFields)
  eachTaken(taken, function(seq, index, wasTouched)
    local i = index + 1
    if byte(taken) == RESERVES then
      local d = readRecord(q, gid, seq, records[i])
      if not d or d.token ~= tokenAt(taken, index) or d.ends <= call.now then values[i] = false end
    end
    if gid ~= PLAIN and values[i] then
      local _, isMalformed = readElement(q, seq)
      if isMalformed then values[i] = UNREADABLE end
    end
    if wasTouched then touched[#touched + 1] = touchedText(records[i] or '') end
  end)
  for _, text in ipairs(touched) do values[#values + 1] = text end
  return values
end

-- undo <count>, then per delivery: <group> <tag(12) seq(6) maturity(6) tries(4) inserted at(6) expires at(6)> <content>
-- <reason>; returns '', or NO_CAPACITY if a group does not fit: neither its delivery nor those after it are restored.
--
-- Undoes pops of this node. Its session is settled before any verb runs, so the popped deliveries have been deleted by
-- then, and are stored again.

local function restore(q, gid, seq, head, content, reason)
  local maturity, tries, _, expiresAt = unpackAt('>I6I4I6c6', head)
  if gid == PLAIN then
    storeElement(q, seq, head .. content)
  elseif db('HEXISTS', q.h, 'g' .. seq) == 0 then
    -- If the other groups have finished the element, its record is created again, and its age for retention starts
    -- again.
    storeElement(q, seq, head .. content)
    newElement(q, seq, { gid }, maturity, tries, expiresAt)
  end
  flush(q)
  release(q, gid, seq, untouched(maturity, tries, expiresAt, reason), maturity, tries, NO_TOKEN)
end

verbs.undo = function(q, args, at)
  local count = tonumber(args[at])
  local behind = at + 1 + 4 * count
  createQueue(q)
  for i = at + 1, behind - 1, 4 do
    local gid, idAndHead, content, reason = createGroup(q, args[i]), args[i + 1], args[i + 2], args[i + 3]
    if not gid then return NO_CAPACITY, behind end
    local seq, head = sub(idAndHead, 13, 18), sub(idAndHead, 19)
    if sub(idAndHead, 1, 12) ~= q.tag then
      -- The queue has lost its data since the pop: the element is inserted again.
      local maturity, tries, _, expiresAt = unpackAt('>I6I4I6c6', head)
      put(q, maturity, tries, expiresAt, gid ~= PLAIN and { gid } or nil, content)
      flush(q)
    elseif not findDelivery(q, gid, seq) then
      restore(q, gid, seq, head, content, reason)
    end
  end
  return '', behind
end

-- postpone <delay, ms> <deliveries: gid(2) seq(6) each>: delays those of the deliveries that wait; returns ''.
verbs.postpone = function(q, args, at)
  local maturity, deliveries = call.now + tonumber(args[at]), args[at + 1]
  for from = 1, #deliveries, 8 do
    local gid, seq = sub(deliveries, from, from + 1), sub(deliveries, from + 2, from + 7)
    local d = findDelivery(q, gid, seq)
    if d and d.ends == 0 then release(q, gid, seq, d, maturity, d.tries, d.token) end
  end
  return '', at + 2
end
