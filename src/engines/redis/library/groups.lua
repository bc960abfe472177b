-- Groups by number. Number 0 is the plain group; a named group gets a number when an element first names it.
-- `L` holds the names by number, '' where a number is free.

local MAX_GROUPS = 65535
-- A queue at its group limit is scanned once in this time: a producer that keeps naming new groups must not make each
-- insert a scan.
local CLEAR_AGAIN_MS = 1000

local function readGroups(q)
  if q.groups == nil then
    local stored = db('HGET', q.h, 'L')
    q.groups = stored and cmsgpack.unpack(stored) or {}
    q.numbers, q.groupCount = {}, 0
    -- Groups that this call names, which must not be freed: it may store deliveries there later, or a take may be
    -- undone.
    q.wanted = {}
    for number, name in ipairs(q.groups) do
      if name ~= '' then
        q.numbers[name] = number
        q.groupCount = q.groupCount + 1
      end
    end
  end
  return q.groups
end

-- The number of a group, or nil if no element ever named it.
function findGroup(q, name)
  if name == '' then return PLAIN end
  readGroups(q)
  local number = q.numbers[name]
  if not number then return nil end
  local gid = pack('>I2', number)
  q.wanted[gid] = true
  return gid
end

function groupName(q, gid)
  return readGroups(q)[unpackAt('>I2', gid)] or ''
end

-- Groups of the takes in the nodes' sessions: undoing a take returns deliveries to its group.
local function groupsInSessions(q)
  local used = {}
  for _, member in ipairs(membersBetween(q.z, '[c', '(d', -1)) do
    local node = sub(member, 8)
    -- This node's session was settled when the call began.
    local isSettled = node == call.node and q == call.home and call.number > 0
    local session = not isSettled and db('HGET', q.h, 'c' .. node)
    for _, taken in ipairs(session and takesOf(session) or {}) do used[sub(taken, 2, 3)] = true end
  end
  return used
end

-- Frees the numbers of groups without deliveries: producers choose group names, so unused ones must not accumulate.
local function freeGroups(q)
  flush(q)
  local used = groupsInSessions(q)
  local function note(gid) used[gid] = true end
  eachGroup(q, 'w', note)
  eachGroup(q, 'l', note)
  for number, name in ipairs(q.groups) do
    local gid = pack('>I2', number)
    if name ~= '' and not used[gid] and not q.wanted[gid] then
      q.numbers[name] = nil
      q.groups[number] = ''
      q.groupCount = q.groupCount - 1
    end
  end
end

local function freeNumber(q)
  if q.groupCount == #q.groups then return nil end
  for number, name in ipairs(q.groups) do
    if name == '' then return number end
  end
end

-- Whether the queue may have these groups in addition. limit: the maximum in addition to the default groups, then
-- these, each between commas; nil or '' for no limit.
local function areWithinLimit(q, groups, limit)
  if q.groupCount + #groups > MAX_GROUPS then return false end
  if not limit or limit == '' then return true end
  local left, needed = tonumber(string.match(limit, '^%d+')) - q.groupCount, 0
  for default in string.gmatch(limit, ',([^,]+)') do
    if q.numbers[default] then left = left + 1 end
  end
  for _, group in ipairs(groups) do
    if not string.find(limit, ',' .. group .. ',', 1, true) then needed = needed + 1 end
  end
  return needed == 0 or needed <= left
end

local function fit(q, groups, limit)
  if areWithinLimit(q, groups, limit) then return true end
  local clearedAt = tonumber(db('HGET', q.h, 'F') or 0)
  if clearedAt <= call.now and call.now < clearedAt + CLEAR_AGAIN_MS then return false end
  db('HSET', q.h, 'F', call.now)
  freeGroups(q)
  return areWithinLimit(q, groups, limit)
end

-- Creates a group that fits.
local function newGroup(q, group)
  createQueue(q)
  local number = freeNumber(q) or #q.groups + 1
  q.groups[number], q.numbers[group] = group, number
  q.groupCount = q.groupCount + 1
  db('HSET', q.h, 'L', cmsgpack.pack(q.groups))
  return findGroup(q, group)
end

-- The number of a group, which is created unless it exists; nil if no number is left.
function createGroup(q, group)
  return findGroup(q, group) or fit(q, { group }) and newGroup(q, group) or nil
end

-- The numbers of comma-separated groups, without duplicates; nil if they do not all fit. Then none is created: an empty
-- group would hold its place until `freeGroups` runs. limit: see `areWithinLimit`.
function createGroups(q, names, limit)
  -- Most elements of a call have the same groups.
  if names == q.lastNames then return q.lastGids end
  local missing, gids, seen = {}, {}, {}
  for name in string.gmatch(names, '[^,]+') do
    if not seen[name] and not findGroup(q, name) then missing[#missing + 1] = name end
    seen[name] = true
  end
  if #missing > 0 and not fit(q, missing, limit) then return nil end
  for name in string.gmatch(names, '[^,]+') do
    if seen[name] then
      gids[#gids + 1] = findGroup(q, name) or newGroup(q, name)
      seen[name] = nil
    end
  end
  q.lastNames, q.lastGids = names, gids
  return gids
end

-- create-groups <limit> <groups>: creates these groups; returns '', or NO_CAPACITY if they do not fit.
verbs['create-groups'] = function(q, args, at)
  return createGroups(q, args[at + 1], args[at]) and '' or NO_CAPACITY, at + 2
end

-- The state of an element in each of its groups, as one record in addition to the element:
--
--   inserted at(6) age(1) tries(4) expires at(6), then per group that has not finished it: gid(2) state(1) maturity(6)
--
-- The record shows when the element may be deleted. It also determines the element's own member of z: `a` with the
-- earliest maturity while any group waits for it, else `b` while any group has reserved it. So a stream's elements are
-- counted by counting members, whatever the number of groups.

-- A literal, as `string` is not available while Redis loads the library.
NEVER = '\0\0\0\0\0\0'
WAITING, TOUCHED, HELD, POPPED = 0, 1, 2, 3
-- Ages: not subject to retention; listed under `r`; past its retention, but reserved when the sweep found it.
local AGELESS, AGING = 0, 1
OVERDUE = 2

local ELEMENT_LENGTH, ENTRY_LENGTH = 17, 9

-- Returns the record, or nil, and whether it is malformed. The groups stay a string as stored: with tables, to change
-- one of 64 groups took Redis 72 µs instead of 36.
function readElement(q, seq)
  local text = db('HGET', q.h, 'g' .. seq)
  if not text then return nil, false end
  if #text < ELEMENT_LENGTH or (#text - ELEMENT_LENGTH) % ENTRY_LENGTH > 0 then return nil, true end
  local element = { groups = sub(text, ELEMENT_LENGTH + 1) }
  element.insertedAt, element.age, element.tries, element.expiresAt = unpackAt('>I6I1I4c6', text)
  return element
end

-- The position of a group in those of an element, or nil.
local function placeOf(element, gid)
  local at = string.find(element.groups, gid, 1, true)
  while at and (at - 1) % ENTRY_LENGTH > 0 do at = string.find(element.groups, gid, at + 1, true) end
  return at
end

-- The state and the maturity of a group's delivery; nil if there is none.
function stateOf(element, gid)
  local at = placeOf(element, gid)
  if at then return unpackAt('>I1I6', element.groups, at + 2) end
end

local function setState(element, gid, state, maturity)
  local groups = element.groups
  local at = placeOf(element, gid) or #groups + 1
  local entry = state and gid .. pack('>I1I6', state, maturity) or ''
  element.groups = sub(groups, 1, at - 1) .. entry .. sub(groups, at + ENTRY_LENGTH)
end

-- The groups of an element, and their states.
function groupsIn(element)
  local gids, states = {}, {}
  for at = 1, #element.groups, ENTRY_LENGTH do
    gids[#gids + 1] = sub(element.groups, at, at + 1)
    states[#gids] = byte(element.groups, at + 2)
  end
  return gids, states
end

-- The element's own member of z; nil if no group waits for it or has reserved it.
function elementMember(element, seq)
  local groups, first, isHeld = element.groups, nil, false
  for at = 3, #groups, ENTRY_LENGTH do
    local state = byte(groups, at)
    if state == WAITING or state == TOUCHED then
      local own = sub(groups, at + 1, at + 6)
      if not first or own ~= first and fromSix(own) < fromSix(first) then first = own end
    elseif state == HELD then
      isHeld = true
    end
  end
  if first then return 'a' .. first .. seq end
  return isHeld and 'b' .. seq or nil
end

local function ageMember(insertedAt, seq)
  return 'r' .. six(insertedAt) .. seq
end

function writeElement(q, seq, element, before)
  local after = elementMember(element, seq)
  if before ~= after then
    if before then db('ZREM', q.z, before) end
    if after then db('ZADD', q.z, 0, after) end
  end
  if element.groups ~= '' then
    local head = pack('>I6I1I4', element.insertedAt, element.age, element.tries)
    db('HSET', q.h, 'g' .. seq, head .. element.expiresAt .. element.groups)
  else
    db('HDEL', q.h, 'g' .. seq, 'e' .. seq)
    if q.hasFronts then db('HDEL', q.h, 'f' .. seq) end
    if element.age == AGING then db('ZREM', q.z, ageMember(element.insertedAt, seq)) end
    if element.expiresAt ~= NEVER then db('ZREM', q.z, 'x' .. element.expiresAt .. seq) end
  end
end

-- Stores the new state of one group's delivery; nil: it is finished. Returns whether the element's record is malformed.
function changeGroup(q, seq, gid, state, maturity)
  local element, isMalformed = readElement(q, seq)
  if not element then return isMalformed end
  local before = elementMember(element, seq)
  setState(element, gid, state, maturity)
  if state == WAITING or state == TOUCHED then
    if element.age == OVERDUE then
      element.age = AGING
      db('ZADD', q.z, 0, ageMember(element.insertedAt, seq))
    end
    if element.expiresAt ~= NEVER then noteExpiry(q, element.expiresAt, seq) end
  end
  writeElement(q, seq, element, before)
  return false
end

-- Creates the record of an element that waits in these groups.
function newElement(q, seq, gids, maturity, tries, expiresAt)
  add(q, 'a' .. six(maturity) .. seq)
  local retention, age = retentionOf(q), AGELESS
  if retention > 0 then
    age = AGING
    noteDue(q, call.now + retention)
    add(q, ageMember(call.now, seq))
  end
  local behind = pack('>I1I6', WAITING, maturity)
  store(q, 'g' .. seq, pack('>I6I1I4', call.now, age, tries) .. expiresAt .. concat(gids, behind) .. behind)
end
