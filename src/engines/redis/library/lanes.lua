-- Groups by number. Lane 0 is the plain group; a named group gets a lane when an element first names it.
-- `L` holds the names by lane number, '' where a number is free.

local MOST_LANES = 65535
-- Looking for numbers that can be freed is a scan, so it is done each time that the table has doubled.
local FIRST_CLEARING = 256
-- Where the queue has as many groups as it may, it is done once in so long: a producer that goes on naming new ones must
-- not make each insert a scan.
local CLEAR_AGAIN_MS = 1000

local function readLanes(q)
  if q.lanes == nil then
    local stored = db('HGET', q.h, 'L')
    q.lanes = stored and cmsgpack.unpack(stored) or {}
    q.laneOf, q.laneCount = {}, 0
    -- Lanes that this call speaks of: what it stores there may come after a clearing, and what it took there may be
    -- put back.
    q.wanted = {}
    for number, name in ipairs(q.lanes) do
      if name ~= '' then
        q.laneOf[name] = pack('>I2', number)
        q.laneCount = q.laneCount + 1
      end
    end
  end
  return q.lanes
end

-- The lane of a group, or nil where no element ever named it.
local function findLane(q, group)
  if group == '' then return NO_LANE end
  readLanes(q)
  local lane = q.laneOf[group]
  if lane then q.wanted[lane] = true end
  return lane
end

-- Lanes of all groups, the plain one included: { lane, name }.
local function allLanes(q)
  local found = { { NO_LANE, '' } }
  for number, name in ipairs(readLanes(q)) do
    if name ~= '' then found[#found + 1] = { pack('>I2', number), name } end
  end
  return found
end

-- Lanes that the kept answers of clients still speak of: undoing a take puts deliveries back there.
local function lanesInAnswers(q)
  local used = {}
  for _, member in ipairs(membersBetween(q.z, '[c', '(d', -1)) do
    local client = sub(member, 8)
    -- That of this client was settled when the call began.
    local isSettled = client == call.client and q == call.home and call.number > 0
    local answer = not isSettled and db('HGET', q.h, 'c' .. client)
    for _, taken in ipairs(answer and takesIn(answer) or {}) do used[sub(taken, 2, 3)] = true end
  end
  return used
end

-- Frees the numbers of groups that have nothing here: names come from producers and must not pile up.
local function freeLanes(q)
  flush(q)
  local used = lanesInAnswers(q)
  for number, name in ipairs(q.lanes) do
    local lane = pack('>I2', number)
    local isFree = name ~= '' and not used[lane] and not q.wanted[lane]
    if isFree and isEmptyRange(q.z, 'w' .. lane) and isEmptyRange(q.z, 'l' .. lane) then
      q.laneOf[name] = nil
      q.lanes[number] = ''
      q.laneCount = q.laneCount - 1
    end
  end
end

local function freeNumber(q)
  if q.laneCount == #q.lanes then return nil end
  for number, name in ipairs(q.lanes) do
    if name == '' then return number end
  end
end

-- Whether a queue with these lanes may have one more. `room`: the most groups that it may have beside the default ones,
-- then those, each between commas; nil or '' for no bound.
local function hasRoom(q, group, room)
  if not room or room == '' then return true end
  local left = tonumber(string.match(room, '^%d+')) - q.laneCount
  if left > 0 or string.find(room, ',' .. group .. ',', 1, true) then return true end
  for default in string.gmatch(room, ',([^,]+)') do
    if q.laneOf[default] then left = left + 1 end
  end
  return left > 0
end

local function makeRoom(q, group, room)
  if hasRoom(q, group, room) then return true end
  local clearedAt = tonumber(db('HGET', q.h, 'F') or 0)
  if clearedAt <= call.now and call.now < clearedAt + CLEAR_AGAIN_MS then return false end
  db('HSET', q.h, 'F', call.now)
  freeLanes(q)
  return hasRoom(q, group, room)
end

local function newLane(q, group, room)
  if not makeRoom(q, group, room) then return nil end
  local number = freeNumber(q)
  local count = #q.lanes
  if not number and count >= FIRST_CLEARING and math.frexp(count) == 0.5 then
    freeLanes(q)
    number = freeNumber(q)
  end
  number = number or count + 1
  if number > MOST_LANES then return nil end
  local lane = pack('>I2', number)
  q.lanes[number] = group
  q.laneOf[group] = lane
  q.laneCount = q.laneCount + 1
  q.wanted[lane] = true
  db('HSET', q.h, 'L', cmsgpack.pack(q.lanes))
  return lane
end

-- The lane of a group that an element names; nil where there is no room for it. `room`: see `hasRoom`.
local function makeLane(q, group, room)
  return findLane(q, group) or newLane(q, group, room)
end
