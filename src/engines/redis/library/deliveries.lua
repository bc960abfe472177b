-- State changes of one delivery, each of which keeps z, the delivery's record and the record of a stream's element
-- consistent; expiry of leases and elements. A delivery has a record from its first reservation on:
--
--   maturity(6) tries(4) token(16) lease end(6) owner(6) reserved or extended at(6) expires at(6) reserved at(6)
--   length of the holder(2) holder, reason
--
-- If the lease end is 0, the delivery waits, and a token other than zeros is that of an expired lease, which may still
-- commit.

NO_TOKEN, NOBODY = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '\0\0\0\0\0\0'
local RECORD = 58

-- The part of a waiting delivery's member that is the same for all groups of an element. touched: the delivery has a
-- record.
function memberTail(maturity, seq, tries, touched)
  return six(maturity) .. seq .. pack('>I4', tries * 2 + (touched and 1 or 0))
end

function waitingMember(gid, maturity, seq, tries, touched)
  return 'w' .. gid .. memberTail(maturity, seq, tries, touched)
end

function leaseMember(gid, ends, seq)
  return 'l' .. gid .. six(ends) .. seq
end

function memberOf(gid, seq, d)
  if d.ends > 0 then return leaseMember(gid, d.ends, seq) end
  return waitingMember(gid, d.maturity, seq, d.tries, not d.isUntouched)
end

-- text: the stored record, false if there is none, or nil to read it here. A record that is too short counts as none:
-- an error here would stop the call after its first writes.
function readRecord(q, gid, seq, text)
  if text == nil then text = db('HGET', q.h, 'd' .. gid .. seq) end
  if not text or #text < RECORD then return nil end
  local maturity, tries, token, ends, owner, since, expiresAt, reservedAt, holder =
    unpackAt('>I6I4c16I6c6I6c6I6I2', text)
  return {
    maturity = maturity, tries = tries, token = token, ends = ends, owner = owner, since = since,
    expiresAt = expiresAt, reservedAt = reservedAt, holder = sub(text, RECORD + 1, RECORD + holder),
    reason = sub(text, RECORD + holder + 1),
  }
end

function recordText(d)
  local holder = d.holder or ''
  return pack('>I6I4', d.maturity, d.tries) .. d.token .. six(d.ends) .. d.owner .. six(d.since) .. d.expiresAt
    .. pack('>I6I2', d.reservedAt or 0, #holder) .. holder .. d.reason
end

function reasonIn(record)
  if #record < RECORD then return '' end
  return sub(record, RECORD + 1 + unpackAt('>I2', record, RECORD - 1))
end

-- A waiting delivery that has no record.
function untouched(maturity, tries, expiresAt, reason)
  return {
    maturity = maturity, tries = tries, token = NO_TOKEN, ends = 0, owner = NOBODY, since = 0, expiresAt = expiresAt,
    reason = reason, isUntouched = true,
  }
end

-- A delivery that has no record, read from its element; nil if there is none. It may be one that was popped.
local function readUntouched(q, gid, seq)
  if gid == PLAIN then
    local value = readFront(q, seq)
    if not value or #value < HEAD then return nil end
    local maturity, tries = unpackAt('>I6I4', value)
    return untouched(maturity, tries, sub(value, 17, HEAD), '')
  end
  local element = readElement(q, seq)
  if not element then return nil end
  local state, maturity = stateOf(element, gid)
  return state == WAITING and untouched(maturity, element.tries, element.expiresAt, '') or nil
end

-- A delivery that waits or is reserved; else nil. A waiting one needs its member of z: the record or the element of a
-- popped one remains until the node has confirmed the pop.
function findDelivery(q, gid, seq, text)
  local d = readRecord(q, gid, seq, text) or readUntouched(q, gid, seq)
  if d and (d.ends > 0 or db('ZSCORE', q.z, memberOf(gid, seq, d))) then return d end
end

-- Whether a lease's member of z belongs to this record. A member without a matching record, as another version or a
-- manual repair may leave it, is ignored, and removed when it is found.
function isReservedUntil(d, ends)
  return d and d.ends == ends
end

-- Makes a delivery wait. A token other than NO_TOKEN remains valid for a late commit.
function release(q, gid, seq, d, maturity, tries, token)
  db('ZREM', q.z, memberOf(gid, seq, d))
  if gid == PLAIN and d.expiresAt ~= NEVER then noteExpiry(q, d.expiresAt, seq) end
  d.maturity, d.tries, d.token, d.ends, d.since, d.isUntouched = maturity, tries, token, 0, 0, false
  d.reservedAt, d.holder = 0, ''
  add(q, waitingMember(gid, maturity, seq, tries, true))
  store(q, 'd' .. gid .. seq, recordText(d))
  if gid ~= PLAIN then changeGroup(q, seq, gid, TOUCHED, maturity) end
  flush(q)
end

-- Deletes a delivery whose member of z has been removed; with the last delivery also the element.
function finish(q, gid, seq)
  delete(q, 'd' .. gid .. seq)
  if gid == PLAIN then
    deleteElement(q, seq)
  else
    changeGroup(q, seq, gid, nil)
  end
end

-- Like `finish`, and removes the member.
function removeDelivery(q, gid, seq, d)
  remove(q, memberOf(gid, seq, d))
  if gid == PLAIN and d.ends == 0 and d.expiresAt ~= NEVER then remove(q, 'x' .. d.expiresAt .. seq) end
  finish(q, gid, seq)
end

-- Removes the waiting deliveries of a stream's element. Returns how many there were.
function removeWaiting(q, seq, element)
  local removed = 0
  local gids, states = groupsIn(element)
  for i, gid in ipairs(gids) do
    local d = states[i] ~= HELD and findDelivery(q, gid, seq)
    if d and d.ends == 0 then
      removeDelivery(q, gid, seq, d)
      flush(q)
      removed = removed + 1
    end
  end
  return removed
end

-- Counts a failed try. Returns whether the delivery became a dead letter. maturity: used without a retry delay.
-- retryFrom: the start of the queue's retry delay; nil: it does not apply.
function failTry(q, gid, seq, d, maturity, token, reason, retryFrom)
  local _, maxTries = deadLetterPolicy(q)
  local tries = d.tries + 1
  if maxTries and tries >= maxTries and moveToDeadLetters(q, gid, seq, d, tries, reason) then return true end
  d.reason = reason
  local delay = retryFrom and retryDelay(q, tries, seq)
  release(q, gid, seq, d, delay and retryFrom + delay or maturity, tries, token)
  return false
end

-- Bounds for each call, during which Redis serves nobody else, whatever its verbs: expired leases, expired deliveries,
-- and the bytes that are copied to dead-letter queues.
LEASES_AT_ONCE, EXPIRED_AT_ONCE = 1000, 1000
MAX_COPIED = 16 * 1024 * 1024

-- Named groups are listed by a moment before which none of their leases ends, so that the end of one lease does not
-- visit all groups of a stream. The moment is only a lower bound, as a settled lease leaves it: a group whose moment has
-- come is listed again by its first lease.

-- moment: nil if the group has no lease. Returns whether it was listed otherwise.
local function listGroup(q, gid, moment)
  local field = 'l' .. gid
  local before = db('HGET', q.h, field)
  if before == (moment or false) then return false end
  if before then db('ZREM', q.z, 'm' .. before .. gid) end
  if moment then
    db('ZADD', q.z, 0, 'm' .. moment .. gid)
    db('HSET', q.h, field, moment)
  else
    db('HDEL', q.h, field)
  end
  return true
end

local function listAgain(q, gid)
  local first = firstMember(q.z, 'l' .. gid)
  return listGroup(q, gid, first and sub(first, 4, 9))
end

-- Lists the groups with leases of a queue that an earlier version wrote.
local function listLeases(q)
  if q.listsLeases or not membersBetween(q.z, '(l' .. PLAIN .. LAST, '(m', 1)[1] then return end
  eachGroup(q, 'l', function(gid)
    if gid ~= PLAIN then listAgain(q, gid) end
  end)
  db('HSET', q.h, 'M', '1')
  q.listsLeases = '1'
end

-- Call this before a lease of the group is stored that ends at `ends`(6).
function noteLease(q, gid, ends)
  if gid == PLAIN then return end
  listLeases(q)
  local listed = db('HGET', q.h, 'l' .. gid)
  if not listed or fromSix(ends) < fromSix(listed) then listGroup(q, gid, ends) end
end

-- Groups that are listed again in one call to find the first lease.
local LISTED_AT_ONCE = 100

-- When the first lease ends, or a moment before that; infinity if there is none.
function firstLease(q)
  listLeases(q)
  local first = firstMoment(q, 'l' .. PLAIN, 0)
  for _ = 1, LISTED_AT_ONCE do
    local listed = firstMember(q.z, 'm')
    if not listed or fromSix(listed, 2) >= first or not listAgain(q, sub(listed, 8, 9)) then break end
  end
  return math.min(first, firstMoment(q, 'm', 0))
end

local function endedLeases(q, gid, limit)
  return membersBetween(q.z, '[l' .. gid, '(l' .. gid .. six(call.now + 1), limit)
end

-- Whether a lease expired while nobody could settle or extend it. A node that can reach the server ends a lease on
-- time. So if this node finds a lease that expired before it could reach the server, no node could. The excuse covers a
-- little more time, because clients need a moment to reconnect.
local function isExcused(d, ends)
  return ends < call.excused and d.since < call.contact
end

local function endLease(q, member)
  call.leasesLeft = call.leasesLeft - 1
  local gid, ends, seq = sub(member, 2, 3), fromSix(member, 4), sub(member, 10, 15)
  local d = readRecord(q, gid, seq)
  if not isReservedUntil(d, ends) then
    db('ZREM', q.z, member)
    return
  end
  if isExcused(d, ends) then
    release(q, gid, seq, d, d.maturity, d.tries, d.token)
    call.released = true
    return
  end
  if not failTry(q, gid, seq, d, ends, d.token, 'lease-expired', ends) then call.released = true end
end

-- Ends expired leases of a group, the earliest first. Verbs do this before they read a group, so none depends on a
-- sweep.
function endLeases(q, gid)
  for _, member in ipairs(endedLeases(q, gid, call.leasesLeft)) do
    if call.copied >= MAX_COPIED then return end
    endLease(q, member)
  end
end

-- The same for all groups together, so that dead letters are in the order of the lease ends. If there are more than one
-- call ends, each group gets an equal share, because to read all would take seconds. Returns whether there may be more.
function endAllLeases(q)
  local limit, gids, count, ended = call.leasesLeft, {}, 0, {}
  if limit == 0 then return true end
  listLeases(q)
  if #endedLeases(q, PLAIN, 1) > 0 then gids[1] = PLAIN end
  for _, listed in ipairs(membersBetween(q.z, '[m', '(m' .. six(call.now + 1), limit - #gids)) do
    gids[#gids + 1] = sub(listed, 8, 9)
  end
  for _, gid in ipairs(gids) do
    count = count + db('ZLEXCOUNT', q.z, '[l' .. gid, '(l' .. gid .. six(call.now + 1))
  end
  local isMore = count > limit or #gids == limit
  local share = isMore and math.ceil(limit / #gids) or limit
  for _, gid in ipairs(gids) do
    for _, member in ipairs(endedLeases(q, gid, share)) do ended[#ended + 1] = member end
  end
  if #gids > 1 then sortMembers(ended) end
  for i = 1, math.min(#ended, limit) do
    if call.copied >= MAX_COPIED then return true end
    endLease(q, ended[i])
  end
  for _, gid in ipairs(gids) do
    if gid ~= PLAIN then listAgain(q, gid) end
  end
  return isMore
end

local function expireDelivery(q, gid, seq)
  local d = findDelivery(q, gid, seq)
  if not d or d.ends > 0 then return end
  if not moveToDeadLetters(q, gid, seq, d, d.tries, 'expired') then removeDelivery(q, gid, seq, d) end
  flush(q)
end

-- Removes waiting deliveries of expired elements, or moves them to the dead-letter queue. Returns whether there may be
-- more. A reserved element is listed again when it is released.
function expireElements(q)
  if not q.expires then return false end
  local limit = math.max(0, call.expiriesLeft)
  local due = membersBetween(q.z, '[x', '(x' .. six(call.now + 1), limit)
  for _, member in ipairs(due) do
    if call.expiriesLeft <= 0 or call.copied >= MAX_COPIED then return true end
    local seq = sub(member, 8, 13)
    local element = readElement(q, seq)
    local gids = element and groupsIn(element) or { PLAIN }
    db('ZREM', q.z, member)
    for _, gid in ipairs(gids) do expireDelivery(q, gid, seq) end
    call.expiriesLeft = call.expiriesLeft - #gids
  end
  return #due == limit
end
