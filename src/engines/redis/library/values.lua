-- How values look in Redis. A queue has two keys under one hash tag:
--
-- h, a hash:
--   m             the queue's tag, twelve hex digits, random when the queue is made: the first half of ids
--   s             the last element number given
--   L             group names by lane number (lanes.lua)
--   F             when lanes were last freed because the queue had as many groups as it may
--   e<seq>        an element: maturity(6) tries(4) as inserted, then its content as the client wrote it
--   d<lane><seq>  a delivery that was reserved once: maturity(6) tries(4) token(16) until(6) owner(6);
--                 since(6) while it is reserved. until 0: it waits; a token that is not all zeros is of a lease that
--                 ran out, and may still commit
--   g<seq>        an element of a stream: what each of its groups does with it (streams.lua)
--   k<key>        a dedup key: seq(6) seen at(6), then the fingerprint(22) of the content if there was one
--   c<client>     what the last call of a client answered (repeats.lua)
--   p<parcel>     elements on their way to a queue in another slot (parcels.lua)
--   x<parcel>     a parcel that arrived here: as of when it is remembered (parcels.lua)
--
-- z, a sorted set, all scores 0, so its order is the order of the members' bytes:
--   w<lane><maturity><seq><tries and touched>   a waiting delivery
--   l<lane><until><seq>                         a reserved delivery
--   a<maturity><seq>, b<seq>                    an element of a stream that waits for some group, or is only held
--   r<insertion><seq>                           an element that retention may drop
--   k<seen at><key>, c<seen at><client>, p<sent at><parcel>, x<arrived at><parcel>   for housekeeping
--   ~                                           keeps the key in existence
--
-- Both keys always exist once the queue does: while Redis moves a slot, a call that names a key which exists
-- on neither side would be refused until the slot has moved.
--
-- Moments are ms since 1970, as 6 bytes, big end first, so that bytes sort as numbers do. Lanes are 2 bytes.

-- These exist only while a function runs, so each function begins with `awake`.
local db, pack, unpackAt, concat, spread, sub, byte

local function awake()
  db, pack, unpackAt = redis.call, struct.pack, struct.unpack
  concat, spread, sub, byte = table.concat, unpack, string.sub, string.byte
end

local NO_LANE = '\0\0'

-- What the running call knows: see call.lua.
local call = {}

-- The verbs by name, each `function(q, args, at)`: its answer, where the next verb begins, and elements or nil.
local verbs = {}

-- In parcels.lua; dead letters, which it needs for nothing, need it.
local addToParcel

-- Outcomes of settling, as `calls/settle.ts` reads them.
local DONE, DEAD, NOT_FOUND, NOT_RESERVED, LEASE_LOST, RESERVED, TOKEN_REQUIRED = '0', '1', '2', '3', '4', '5', '6'

local function six(n)
  return pack('>I6', n)
end

local function fromSix(text, at)
  return (unpackAt('>I6', text, at))
end

-- The member of a waiting delivery. `touched` says that a delivery record exists beside it.
local function waitingMember(lane, maturity, seq, tries, touched)
  return 'w' .. lane .. pack('>I6', maturity) .. seq .. pack('>I4', tries * 2 + (touched and 1 or 0))
end

-- More arguments than this do not fit on Lua's stack.
local MOST_ARGUMENTS = 4000

-- Runs a command of any number of arguments, in parts where there are many. The number is even, so pairs stay
-- together.
local function spreadCall(command, key, list)
  local count = #list
  if count == 0 then return 0 end
  if count <= MOST_ARGUMENTS then return db(command, key, spread(list)) end
  local sum = 0
  for from = 1, count, MOST_ARGUMENTS do
    sum = sum + db(command, key, spread(list, from, math.min(from + MOST_ARGUMENTS - 1, count)))
  end
  return sum
end

-- The values of many fields, in their order; false where there is none.
local function fieldValues(key, fields)
  local count = #fields
  if count == 0 then return {} end
  if count <= MOST_ARGUMENTS then return db('HMGET', key, spread(fields)) end
  local values = {}
  for from = 1, count, MOST_ARGUMENTS do
    local part = db('HMGET', key, spread(fields, from, math.min(from + MOST_ARGUMENTS - 1, count)))
    for i = 1, #part do values[from + i - 1] = part[i] end
  end
  return values
end

-- Members from `low` up to but without `high`, at most `limit`.
local function membersBetween(z, low, high, limit)
  return db('ZRANGE', z, low, high, 'BYLEX', 'LIMIT', 0, limit)
end

local function isEmptyRange(z, prefix)
  return #membersBetween(z, '[' .. prefix, '(' .. prefix .. '\255\255\255\255\255\255\255', 1) == 0
end
