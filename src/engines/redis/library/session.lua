-- One call of the library. Its keys are h and z of its queue. Arguments:
--
--   1  node(8) number(6) received(6) sent(6) time(6) contact(6) excused(6) flags(1): 1 on a cluster, 2 if an earlier
--      attempt may have been executed; then, if deliveries are returned, the number of their call(6), and for each the
--      index of its take in that call(2) and its seq(6)
--   2  the policy of the namespace, in the form of options (queue.lua), with `from`: the queue's name, and
--      `groups`: those of dead letters
--   3… verbs with their arguments
--
-- node: identifies the engine object of a node's process, which has a new name after each start
-- number: 0 for a call that may be executed twice, else one more than the node's last for this queue
-- received: the number up to which the node knows the outcomes
-- sent: the server's time as the node estimates it
-- time: 0, or the time to use instead of the server's, for tests
-- returned: deliveries that a call took for callers who had gone when its reply arrived
-- contact, excused: since when the node can reach this server, and until when leases from before that may end without
--   counting a try (deliveries.lua)
--
-- Returns { now, tag, whether the queue was created, results, elements, dead letters, entries of the outbox, when the
-- first of the elements that it added is due to a sweep, or 0 }. LATE and STALE are errors, and nothing was done. STALE
-- is only sent to a call that its node has given up, because a later call has a higher number: nobody reads it.
--
-- A session stores what a node's last call that had an effect returned: if that call is sent again, its reply is
-- repeated and it is not executed again. A node has one call in flight per queue, so one reply is enough: a higher
-- number shows that the node knows how the earlier calls ended. Bodies are not copied: what was popped stays in the
-- hash until the node's next call. If that call reports that the reply never arrived, the take is undone.
--
--   number(6) last use(6) listed under `c` at(6), then TAKE or OTHER(1) and the result of the only verb; or, if there
--   were several verbs or it wrote to the outbox, packed: the results, the indexes of the takes, and the destinations
--   of the outbox entries

-- A call that arrives later than this after it was sent was given up long ago.
local LATE_MS = 30000
local SESSION_HEAD = 18
local CALL_HEAD = 45
-- Packed sessions begin with neither byte. A single result is not packed: to pack that of a pop of 64 elements cost as
-- much as storing it.
local TAKE, OTHER = 't', 'r'

-- The results, the indexes of the takes, and the destinations of the outbox entries, nil for none.
local function readSession(session)
  local form = sub(session, SESSION_HEAD + 1, SESSION_HEAD + 1)
  if form == TAKE or form == OTHER then return { sub(session, SESSION_HEAD + 2) }, form == TAKE and { 1 } or {} end
  local _, kept = cmsgpack.unpack_one(session, SESSION_HEAD)
  return kept[1], kept[2], kept[3]
end

-- The session of a queue that is deleted: without the deliveries of its takes and without destinations.
function withoutTaken(session)
  local results, takes = readSession(session)
  for _, at in ipairs(takes) do results[at] = sub(results[at], 1, TAKE_HEAD) end
  return sub(session, 1, SESSION_HEAD) .. cmsgpack.pack({ results, takes })
end

function takesOf(session)
  local results, takes = readSession(session)
  local taken = {}
  for i, at in ipairs(takes) do taken[i] = results[at] end
  return taken
end

local function readTime(given)
  local time = db('TIME')
  call.micros = time[2]
  return given > 0 and given or time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The number of the call whose deliveries are returned, and sets of their seqs by index of the take.
local function readReturned(text)
  if text == '' then return nil, {} end
  local byTake = {}
  for at = 7, #text, 8 do
    local place = unpackAt('>I2', text, at)
    byTake[place] = byTake[place] or {}
    byTake[place][sub(text, at + 2, at + 7)] = true
  end
  return fromSix(text, 1), byTake
end

-- Reads the head that all calls have. Returns an error if the call must not run.
local function begin(args)
  local node, number, received, sent, given, contact, excused, flags = unpackAt('>c8I6I6I6I6I6I6I1', args[1])
  call = {
    node = node, number = number, received = received, contact = contact, excused = excused,
    isCluster = flags % 2 == 1, mayBeDone = flags > 1, policyText = args[2],
    -- It has taken and changed nothing so far on which its node relies.
    isIdle = true,
    opened = {}, died = {}, outbox = {}, wanted = {}, copied = 0,
    -- Bytes that its takes may still return, leases that it may still end, and deliveries that may still expire.
    capacity = LARGEST_REPLY, leasesLeft = LEASES_AT_ONCE, expiriesLeft = EXPIRED_AT_ONCE,
  }
  call.returnedFrom, call.returned = readReturned(sub(args[1], CALL_HEAD + 1))
  call.now = readTime(given)
  if math.abs(call.now - sent) > LATE_MS then
    return redis.error_reply('LATE ' .. string.format('%.0f', call.now))
  end
end

local function openHome(keys)
  local brace = string.find(keys[1], '{', 1, true)
  call.base = sub(keys[1], 1, brace)
  local q = openQueue(keys[1], keys[2])
  q.name = sub(keys[1], brace + 1, -4)
  call.home = q
  call.opened[q.name] = q
  return q
end

-- Finishes or undoes the takes of the node's previous call.
local function settlePrevious(q)
  local number = fromSix(q.session, 1)
  local returned = number == call.returnedFrom and call.returned or {}
  for place, taken in ipairs(takesOf(q.session)) do
    call.isIdle = call.isIdle and not hasTaken(taken)
    if number > call.received then
      undoTake(q, taken)
    elseif returned[place] then
      undoPart(q, taken, returned[place])
    else
      finishPops(q, taken)
    end
  end
  flush(q)
end

-- Verbs that change nothing by themselves, except that a take may take something.
local IDLE = { take = true, counts = true, scan = true, ['settle-session'] = true }

local function runVerbs(q, args)
  local results, kept, elements, takes = {}, {}, {}, {}
  local at = 3
  while at <= #args do
    local name = args[at]
    -- The buffered writes of the last verb are flushed together with the session.
    if at > 3 then flush(q) end
    local result, behind, values = verbs[name](q, args, at + 1)
    results[#results + 1] = result
    -- A page is not kept, as its elements would have to be kept, too. A node that gets '' for a page scans again.
    kept[#results] = name == 'scan' and '' or result
    elements[#results] = values or 0
    call.isIdle = call.isIdle and IDLE[name] and not (name == 'take' and hasTaken(result))
    if name == 'take' then takes[#takes + 1] = #results end
    at = behind
  end
  return results, elements, takes, kept
end

local function writeSession(q, results, takes)
  local listedAt = q.session and fromSix(q.session, 13)
  if not listedAt then
    listedAt = call.now
    add(q, 'c' .. six(listedAt) .. call.node)
  end
  local head = pack('>I6I6I6', call.number, call.now, listedAt)
  local destinations = nil
  for to in pairs(call.outbox) do
    destinations = destinations or {}
    destinations[#destinations + 1] = to
  end
  local isOne = #results == 1 and not destinations
  store(q, 'c' .. call.node, isOne and head .. (takes[1] and TAKE or OTHER) .. results[1]
    or head .. cmsgpack.pack({ results, takes, destinations }))
end

-- The dead letters of the call: their queue, then for each group its name and their number.
local function whatDied(q)
  if not call.diedTo then return {} end
  local died = { call.diedTo }
  for gid, count in pairs(call.died) do
    died[#died + 1] = groupName(q, gid)
    died[#died + 1] = count
  end
  return died
end

local function replyOf(results, elements)
  local q = call.home
  return { call.now, q.tag, q.isNew and 1 or 0, results, elements, whatDied(q), wantedEntries(q), q.dueAt or 0 }
end

-- Repeats the reply of the session. The session is written again, so that `WAIT` covers all that was written before it.
local function repeatReply(q)
  db('HSET', q.h, 'c' .. call.node, q.session)
  local results, takes, destinations = readSession(q.session)
  local elements = {}
  for i = 1, #results do elements[i] = 0 end
  for _, at in ipairs(takes) do elements[at] = rereadTake(q, results[at]) end
  for _, to in ipairs(destinations or {}) do call.wanted[to] = ONLY_NAMED end
  return replyOf(results, elements)
end

-- A call that took and changed nothing needs no session: if it is sent again, it is executed again. Most takes of
-- waiting consumers are such calls. Nor do calls create a session in a queue that does not exist. But if the outcome of
-- an earlier call, or of an earlier attempt of this one, is unknown, it may still arrive, and only a session rejects
-- it.
local function needsSession(q)
  if call.number == 0 then return false end
  if call.received < call.number - 1 or call.mayBeDone then return true end
  return q.tag ~= '' and not call.isIdle
end

local function run(keys, args)
  local rejection = begin(args)
  if rejection then return rejection end
  local q = openHome(keys)
  if call.number > 0 and q.session then
    local last = fromSix(q.session, 1)
    if last == call.number then return repeatReply(q) end
    if last > call.number then return redis.error_reply('STALE') end
    settlePrevious(q)
  end
  local results, elements, takes, kept = runVerbs(q, args)
  -- A repeated reply names the destinations of entries.
  if next(call.outbox) then call.isIdle = false end
  writeEntries(q)
  if needsSession(q) then
    createQueue(q)
    writeSession(q, kept, takes)
  end
  for _, opened in pairs(call.opened) do saveQueue(opened) end
  return replyOf(results, elements)
end

-- Registers the name of a list that the call has created: another node may have deleted the queue with its name, on
-- which this node still relies. (If that node has yet to remove the name, it registers it again: registry.ts.) On a
-- cluster, the name is on another server, so the node registers it (batcher.ts).
local function nameList(q)
  if not q.isNew or call.isCluster then return end
  local names, name = namesOf(q.list)
  if not db('ZSCORE', names, name) then useName(names, name, call.now) end
  q.isNew = false
end

-- A call of the list variant: see list.lua.
local function runList(keys, args)
  local rejection = begin(args)
  if rejection then return rejection end
  call.home = {
    tag = '', list = keys[1], keys = keys, nextKey = 2, taken = 0,
    removed = {}, added = {}, stored = {}, deleted = {},
  }
  local results, elements = runVerbs(call.home, args)
  nameList(call.home)
  removeTaken(call.home)
  return replyOf(results, elements)
end

register('', run, '')
register('_full', run)
register('_list', runList, '')
register('_list_full', runList)
