-- Groups by number. Lane 0 is the plain group; a named group gets a lane when an element first names it.
-- `L` holds the names by lane number, '' where a number is free.

local MOST_LANES = 65535
-- Looking for numbers that can be freed is a scan, so it is done each time that the table has doubled.
local FIRST_CLEARING = 256

local function readLanes(q)
  if q.lanes == nil then
    local stored = db('HGET', q.h, 'L')
    q.lanes = stored and cmsgpack.unpack(stored) or {}
    q.laneOf = {}
    for number, name in ipairs(q.lanes) do
      if name ~= '' then q.laneOf[name] = pack('>I2', number) end
    end
  end
  return q.lanes
end

-- The lane of a group, or nil where no element ever named it.
local function findLane(q, group)
  if group == '' then return NO_LANE end
  readLanes(q)
  return q.laneOf[group]
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
    local answer = db('HGET', q.h, 'c' .. sub(member, 8))
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
    if name ~= '' and not used[lane] and isEmptyRange(q.z, 'w' .. lane) and isEmptyRange(q.z, 'l' .. lane) then
      q.laneOf[name] = nil
      q.lanes[number] = ''
    end
  end
end

local function freeNumber(q)
  for number, name in ipairs(q.lanes) do
    if name == '' then return number end
  end
end

-- The lane of a group that an element names; nil where no number is left.
local function makeLane(q, group)
  local lane = findLane(q, group)
  if lane then return lane end
  local number = freeNumber(q)
  local count = #q.lanes
  if not number and count >= FIRST_CLEARING and math.frexp(count) == 0.5 then
    freeLanes(q)
    number = freeNumber(q)
  end
  number = number or count + 1
  if number > MOST_LANES then return nil end
  lane = pack('>I2', number)
  q.lanes[number] = group
  q.laneOf[group] = lane
  db('HSET', q.h, 'L', cmsgpack.pack(q.lanes))
  return lane
end
