-- The outbox holds elements for queues whose keys are in other slots of a cluster. The call that finishes elements at
-- the source writes entries into the outbox of its queue; a relay (outbox.ts) applies them at the destination, which
-- keeps a high-water mark per source and ignores entries that are not above it; then the source deletes them. So no
-- element is lost, each arrives once, and their order is kept.
--
-- N            the last entry number: max(last + 1, time * 128)
-- P            the destination after which the next sweep continues
-- p<number(7)>  run(8), then, packed, for each element: { timing, content, groups, dedup key, reason }
-- o<tag of the source><run>  the mark: number(7) last use(6) listed under `o` at(6)
--
-- `WAIT` covers what the same connection wrote last. So a call that returns entries, or finds them applied, always
-- writes something: a failover must not undo a step whose entries have been applied.
--
-- The run id of the server is part of the mark's key: after a failover that lost the last numbers, with a clock that is
-- behind, new entries must neither look like old ones nor be deleted with them. Entries that survive a failover keep
-- the run in which they were written.

local ENTRY_ELEMENTS = 200
local ENTRY_BYTES = 1024 * 1024
local PREFIX_ENTRIES = 100
local PREFIX_BYTES = 4 * 1024 * 1024
local DESTINATIONS_AT_ONCE = 20
-- In `call.wanted`: the reply names the destination, without entries.
ONLY_NAMED = 1e300
-- How long an unused mark is kept, and how old the entries may be that a relay applies. So their mark still exists if
-- they were applied after the relay read them.
MARK_MS = 86400000
local READ_MS = MARK_MS / 2
-- The result of a call whose entries were read too long ago.
local OUTDATED = '?'
local runId

local function seven(n)
  return pack('>I7', n)
end

local function runOfServer()
  runId = runId or string.match(db('INFO', 'server'), 'run_id:(%x%x%x%x%x%x%x%x)')
  return runId
end

local function lastEntry(q)
  if not q.lastEntry then
    local stored = db('HGET', q.h, 'N')
    q.lastEntry = stored and unpackAt('>I7', stored) or 0
  end
  return q.lastEntry
end

local function writeEntry(q, to, elements)
  local number = math.max(lastEntry(q) + 1, call.now * 128)
  q.lastEntry = number
  store(q, 'p' .. seven(number), runOfServer() .. cmsgpack.pack(elements))
  add(q, 'p' .. to .. '\0' .. seven(number))
  flushIfLarge(q)
  call.wanted[to] = call.wanted[to] or number
end

-- Adds an element to the call's entry for a destination, or to a new one if that is full. Delays become moments,
-- because the entry may be applied later.
function addToOutbox(to, element)
  local maturity, tries, expiresAt = timingOf(element[1])
  local open = call.outbox[to]
  if not open or #open >= ENTRY_ELEMENTS or open.bytes >= ENTRY_BYTES then
    if open then writeEntry(call.home, to, open) end
    open = { bytes = 0 }
    call.outbox[to] = open
  end
  open.bytes = open.bytes + #element[2]
  open[#open + 1] = { timingText(maturity, tries, expiresAt), element[2], element[3], element[4], element[5] or '' }
end

-- Writes the call's last entries. The reply of a call that does not wait for replicas has no entries, only their
-- destinations. A call that acknowledges waits, and its relay needs the entries that follow.
function writeEntries(q)
  for to, elements in pairs(call.outbox) do
    elements.bytes = nil
    writeEntry(q, to, elements)
    if call.number == 0 and call.wanted[to] > 0 then call.wanted[to] = ONLY_NAMED end
  end
  if q.lastEntry then store(q, 'N', seven(q.lastEntry)) end
end

-- The oldest entries for a destination: { to, number(7) of the newest one or zeros, number and entry each … }. There
-- are no entries if some are older than `from`: a relay is working on those or waits to try again, and while a
-- destination is unavailable, each reply would have the same ones.
local function readPrefix(q, to, from)
  local front = 'p' .. to .. '\0'
  local low, high = '[' .. front, '(' .. front .. LAST .. '\255'
  local members = membersBetween(q.z, low, high, from < ONLY_NAMED and PREFIX_ENTRIES or 1)
  local newest = db('ZRANGE', q.z, high, low, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
  local prefix, bytes = { to, newest and sub(newest, -7) or seven(0) }, 0
  if not newest or unpackAt('>I7', sub(members[1], -7)) < from then return prefix end
  for _, member in ipairs(members) do
    if bytes >= PREFIX_BYTES then break end
    local number = sub(member, -7)
    local entry = number .. (db('HGET', q.h, 'p' .. number) or '')
    prefix[#prefix + 1] = entry
    bytes = bytes + #entry
  end
  return prefix
end

-- Adds destinations that have entries to the reply, after those of the last sweep, which may be unavailable.
function nameDestinations(q)
  local last = db('HGET', q.h, 'P')
  local to = last
  for _ = 1, DESTINATIONS_AT_ONCE do
    local member = membersBetween(q.z, to and '[p' .. to .. '\1' or '[p', '(q', 1)[1]
    to = member and sub(member, 2, -9)
    if not to then break end
    call.wanted[to] = call.wanted[to] or ONLY_NAMED
  end
  if to then db('HSET', q.h, 'P', to) elseif last then db('HDEL', q.h, 'P') end
end

function wantedEntries(q)
  local prefixes = {}
  for to, from in pairs(call.wanted) do prefixes[#prefixes + 1] = readPrefix(q, to, from) end
  if #prefixes > 0 then db('HSET', q.h, 'N', seven(lastEntry(q))) end
  return prefixes
end

-- acknowledge <to> <number(7) run(8)>: deletes the entries for a destination up to this one, the last that was applied;
-- the reply has the entries that follow. If there was a failover, entries that were written after it may have lower
-- numbers.
verbs.acknowledge = function(q, args, at)
  local to, number, run = args[at], sub(args[at + 1], 1, 7), sub(args[at + 1], 8)
  local front, isOwnRun = 'p' .. to .. '\0', run == runOfServer()
  local applied = db('ZRANGE', q.z, '[' .. front, '[' .. front .. number, 'BYLEX')
  for _, member in ipairs(applied) do
    local field = 'p' .. sub(member, -7)
    if isOwnRun or sub(db('HGET', q.h, field) or run, 1, 8) == run then
      remove(q, member)
      delete(q, field)
    end
  end
  flush(q)
  -- Reading entries writes to the queue, which may have lost its data.
  if q.tag ~= '' then call.wanted[to] = 0 end
  return '', at + 2
end

local function readMark(q, key)
  local stored = db('HGET', q.h, 'o' .. key)
  if not stored then return nil, 0 end
  local number, _, listedAt = unpackAt('>I7I6I6', stored)
  return listedAt, number
end

local function writeMark(q, key, number, listedAt)
  if not listedAt then
    listedAt = call.now
    add(q, 'o' .. six(listedAt) .. key)
  end
  store(q, 'o' .. key, seven(number) .. six(call.now) .. six(listedAt))
end

-- Stores the elements of an entry, all or none. Returns whether their groups fit.
local function applyEntry(q, entry, window)
  local elements = cmsgpack.unpack(sub(entry, 16))
  for _, element in ipairs(elements) do
    element.gids = element[3] ~= '' and createGroups(q, element[3]) or nil
    if element[3] ~= '' and not element.gids then return false end
  end
  for _, element in ipairs(elements) do putOnce(q, element, window) end
  return true
end

-- apply <tag of the source> <window> <when the entries were read, by this server's clock> <count> <entries>: returns
-- ''; OUTDATED if nothing was done, because the entries may have been applied and their mark deleted since, as the node
-- was suspended; or NO_CAPACITY if groups of an entry do not fit: the entries before it are applied.
verbs.apply = function(q, args, at)
  local source, window, readAt, count = args[at], tonumber(args[at + 1]), tonumber(args[at + 2]), tonumber(args[at + 3])
  local last = at + 3 + count
  if call.now - readAt > READ_MS then return OUTDATED, last + 1 end
  local marks, outcome = {}, ''
  for i = at + 4, last do
    local number, run = unpackAt('>I7c8', args[i])
    local mark = marks[run]
    if not mark then
      local listedAt, applied = readMark(q, source .. run)
      mark = { listedAt = listedAt, number = applied }
      marks[run] = mark
    end
    if number > mark.number and outcome == '' then
      createQueue(q)
      if applyEntry(q, args[i], window) then mark.number = number else outcome = NO_CAPACITY end
    end
  end
  for run, mark in pairs(marks) do writeMark(q, source .. run, mark.number, mark.listedAt) end
  return outcome, last + 1
end
