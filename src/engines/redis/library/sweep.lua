-- sweep <dedup window>: released(1) ready(1) more(1) next lease end, expiry or retention(6) next housekeeping(6); 0 for
--   never
-- options <options as JSON, or ''>: replaces the declared options; returns ''
-- settle-session: does nothing itself; the call settles the node's previous one

local AT_ONCE = 500
-- A session is deleted if its node has made no call for this long: longer than LATE_MS, so that no earlier call can
-- still arrive.
local SESSION_MS = 60000
-- Entries that are still in the outbox after this time are relayed by the node that sweeps.
local RELAY_MS = 1000

-- Removes waiting deliveries that are past their retention. A reserved one is removed after its release. Returns
-- whether there may be more.
local function removeOld(q)
  local retention = retentionOf(q)
  if retention == 0 then return false end
  local old = membersBetween(q.z, '[r', '(r' .. six(math.max(0, call.now - retention + 1)), AT_ONCE)
  local removed = 0
  for _, member in ipairs(old) do
    if removed >= AT_ONCE then return true end
    local seq = sub(member, 8, 13)
    local element = readElement(q, seq)
    db('ZREM', q.z, member)
    if element then
      removed = removed + removeWaiting(q, seq, element)
      element = readElement(q, seq)
      if element then
        element.age = OVERDUE
        local before = elementMember(element, seq)
        writeElement(q, seq, element, before)
      end
    end
  end
  return #old >= AT_ONCE
end

local function forgetKeys(q, window)
  local old = membersBetween(q.z, '[k', '(k' .. six(math.max(0, call.now - window + 1)), AT_ONCE)
  for _, member in ipairs(old) do
    db('ZREM', q.z, member)
    db('HDEL', q.h, 'k' .. sub(member, 8))
  end
  return #old
end

-- Deletes sessions or marks whose last use(6), at `at`, is older than `age`. Their members in z have the moment at
-- which they were listed, which is adjusted to the last use only here.
local function forgetSilent(q, kind, at, age, forget)
  local high = kind .. six(math.max(0, call.now - age + 1))
  for _, member in ipairs(membersBetween(q.z, '[' .. kind, '(' .. high, AT_ONCE)) do
    local field = kind .. sub(member, 8)
    local stored = db('HGET', q.h, field)
    local lastUse = stored and fromSix(stored, at) or 0
    remove(q, member)
    if lastUse > call.now - age then
      add(q, kind .. six(lastUse) .. sub(field, 2))
      store(q, field, sub(stored, 1, at + 5) .. six(lastUse) .. sub(stored, at + 12))
    else
      forget(stored, field)
      delete(q, field)
    end
  end
  flush(q)
end

-- The pops of a silent node become final: nobody can know whether it received them. A numbered call has settled those
-- of its own node, and lists the session again that it writes.
local function forgetSessions(q)
  forgetSilent(q, 'c', 7, SESSION_MS, function(session, field)
    if call.number > 0 and field == 'c' .. call.node then
      q.session = nil
      return
    end
    for _, taken in ipairs(session and takesOf(session) or {}) do finishPops(q, taken) end
  end)
end

-- Deletes the marks of sources that were silent for a day.
local function forgetMarks(q)
  forgetSilent(q, 'o', 8, MARK_MS, function() end)
end

-- Deletes a queue that was created only for a session: nothing was ever stored in it. A later verb of the call may
-- create it again.
local function forgetUnused(q)
  if q.tag ~= '' and q.seq == 0 and not q.options and db('ZCARD', q.z) == 1 then
    db('UNLINK', q.h, q.z)
    q.tag, q.groups, q.lastNames = '', nil, nil
  end
end

local function nextHousekeeping(q, window, hasEntries)
  return math.min(
    firstMoment(q, 'k', window), firstMoment(q, 'c', SESSION_MS), firstMoment(q, 'o', MARK_MS),
    hasEntries and call.now + RELAY_MS or math.huge
  )
end

local function momentText(moment)
  return six(moment < math.huge and moment or 0)
end

-- Elements of streams have a member of their own if any group waits for them.
local function hasReady(q)
  return math.min(firstMoment(q, 'w' .. PLAIN, 0), firstMoment(q, 'a', 0)) <= call.now
end

local function flag(condition)
  return condition and '\1' or '\0'
end

verbs.sweep = function(q, args, at)
  local window = tonumber(args[at])
  -- The dedup keys of a list expire in Redis.
  if q.list then return '\0\0\0' .. six(0) .. six(0), at + 1 end
  if q.tag == '' then
    -- The queue does not exist: only sessions and marks may remain.
    forgetSessions(q)
    forgetMarks(q)
    return '\0\0\0' .. six(0) .. momentText(nextHousekeeping(q, window)), at + 1
  end
  local more = endAllLeases(q)
  more = expireElements(q) or more
  more = removeOld(q) or more
  more = forgetKeys(q, window) >= AT_ONCE or more
  forgetSessions(q)
  forgetMarks(q)
  if q.expires and not firstMember(q.z, 'x') then
    db('HDEL', q.h, 'X')
    -- A later verb of the call may store an element that expires.
    q.expires = nil
  end
  -- Also on a single server: the keys may have been copied from a cluster.
  local hasEntries = firstMember(q.z, 'p') ~= nil
  if hasEntries then nameDestinations(q) end
  forgetUnused(q)
  return concat({
    flag(call.released), flag(hasReady(q)), flag(more),
    momentText(math.min(firstDue(q), firstLease(q))), momentText(nextHousekeeping(q, window, hasEntries)),
  }), at + 1
end

verbs.options = function(q, args, at)
  local text = args[at]
  if text ~= '' then
    createQueue(q)
    q.options = cjson.decode(text)
    store(q, 'O', text)
    -- Elements may be past a shorter retention.
    if retentionOf(q) > 0 then noteDue(q, call.now + retentionOf(q)) end
  elseif q.options then
    q.options = nil
    delete(q, 'O')
  end
  return '', at + 1
end

verbs['settle-session'] = function(_, _, at)
  return '', at
end
