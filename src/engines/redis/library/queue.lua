-- How a queue is stored. It has two keys under one hash tag:
--
-- h, a hash:
--   m           the queue's tag, twelve hex digits, random when the queue is created: the first half of ids
--   s           the last element number given
--   O           declared options, as JSON. d: 0 or [dead-letter queue, max tries, its retention]; r: retention in ms or
--               0; t: 0 or the retry delay as [first in ms, factor, max in ms, jitter]. Others are those of the policy
--   X           present while some element may expire
--   B           present once an element had a large body
--   L           group names by number (groups.lua)
--   F           when group numbers were last freed because the queue had reached its group limit
--   M           present if all named groups with leases are listed under `m`
--   l<gid>      the moment(6) under which a named group is listed there
--   e<seq>      an element: maturity(6) tries(4) as inserted, inserted at(6) expires at(6), then its content
--   f<seq>      the front of an element with a large body: a copy of what precedes the body
--   d<gid><seq> the record of a delivery, from its first reservation on (deliveries.lua)
--   g<seq>      a stream's element: its state in each of its groups (groups.lua)
--   k<key>      a dedup key: seq(6) seen at(6), then the fingerprint(22) of the content if there was one; a request key
--               has the seq of the first element of its request
--   c<node>     the session of a node: what its last call returned (session.lua)
--   N, P, p<number>, o<source><run>   the outbox (outbox.lua): the last number, where the last sweep ended, entries,
--               and high-water marks
--
-- z, a sorted set with all scores 0, so that members are ordered by their bytes:
--   w<gid><maturity><seq><tries and touched>   a waiting delivery
--   l<gid><lease end><seq>                     a reserved delivery
--   m<moment><gid>                             a named group none of whose leases ends before this moment
--   a<maturity><seq>, b<seq>                   a stream's element that waits in some group, or is only reserved
--   r<inserted at><seq>                        an element that retention may remove
--   x<expires at><seq>                         an element that expires. Those of reserved or removed ones may remain.
--   k<seen at><key>, c<seen at><node>, o<seen at><source><run>   for housekeeping
--   p<to>\0<number>                            an outbox entry
--   ~                                          keeps the key in existence
--
-- After a queue is deleted, its sessions and outbox marks may remain, without a tag: for everything else the queue does
-- not exist. Sweeps remove them as they do in other queues.
--
-- Both keys exist as long as the queue does: while a slot is moving, Redis rejects calls that name a key which exists
-- on neither server.
--
-- Moments are ms since 1970 in 6 bytes, big-endian, so that bytes sort like numbers. Group numbers (gid) have 2 bytes.

-- Redis does not provide these functions while it loads the library, only while a function runs.
local function bind()
  db, pack, unpackAt = redis.call, struct.pack, struct.unpack
  concat, spread, sub, byte = table.concat, unpack, string.sub, string.byte
end

-- Registers a function, named like the library followed by `suffix`. flag: 'no-writes' for one that only reads, which
-- Redis executes also while it rejects changes; '' for one that Redis rejects if it is out of memory.
function register(suffix, callback, flag)
  redis.register_function({
    function_name = '@RUN@' .. suffix,
    callback = function(keys, args)
      bind()
      return callback(keys, args)
    end,
    flags = flag == '' and {} or { flag or 'allow-oom' },
  })
end

-- The only group of a plain queue.
PLAIN = '\0\0'
HEAD = 22
LAST = '\255\255\255\255\255\255\255'

-- The state of the running call: see session.lua.
call = {}

-- Verbs by name: `function(q, args, at)` reads its arguments from args[at] on, and returns its result, the position of
-- the next verb, and a list of elements or nil.
verbs = {}

-- Outcomes of settled items, as decoded by storage.ts.
DONE, DEAD_LETTERED, NOT_FOUND, NOT_RESERVED, LEASE_LOST, RESERVED, TOKEN_REQUIRED, LATER, NO_CAPACITY =
  '0', '1', '2', '3', '4', '5', '6', '7', '!'

function six(n)
  return pack('>I6', n)
end

function fromSix(text, at)
  return (unpackAt('>I6', text, at))
end

-- Returns where the metadata and the body of a content begin in `value`, if the content begins at `at` (encoding.ts).
function partsOf(value, at)
  local metadataAt = at + 3 + math.max(0, unpackAt('>I2', value, at + 1) - 1)
  return metadataAt, metadataAt + 4 + unpackAt('>I4', value, metadataAt)
end

-- More arguments than this may overflow Lua's stack.
MAX_ARGUMENTS = 4000

-- Runs a command with a list of any length, in parts if it is long. MAX_ARGUMENTS is even, so pairs stay together.
-- Returns the last reply; nil for an empty list.
function spreadCall(command, key, list)
  local count, reply = #list, nil
  for from = 1, count, MAX_ARGUMENTS do
    reply = db(command, key, spread(list, from, math.min(from + MAX_ARGUMENTS - 1, count)))
  end
  return reply
end

-- The values of any number of fields, in order; false for a missing one.
function fieldValues(key, fields)
  local count = #fields
  if count == 0 then return {} end
  if count <= MAX_ARGUMENTS then return db('HMGET', key, spread(fields)) end
  local values = {}
  for from = 1, count, MAX_ARGUMENTS do
    local part = db('HMGET', key, spread(fields, from, math.min(from + MAX_ARGUMENTS - 1, count)))
    for i = 1, #part do values[from + i - 1] = part[i] end
  end
  return values
end

-- Members in a range, at most `limit`; -1: all. The bounds begin with '[' (inclusive) or '(' (exclusive).
function membersBetween(z, low, high, limit)
  return db('ZRANGE', z, low, high, 'BYLEX', 'LIMIT', 0, limit)
end

function firstMember(z, prefix)
  return membersBetween(z, '[' .. prefix, '(' .. prefix .. LAST, 1)[1]
end

-- Calls `each` with the number of each group that has members of a kind, w or l, and with the first of them; ends early
-- if `each` returns true. A queue may have thousands of groups without deliveries: they cost nothing here.
function eachGroup(q, kind, each)
  local low, high = '[' .. kind, '(' .. kind .. '\255\255' .. LAST
  while true do
    local first = membersBetween(q.z, low, high, 1)[1]
    if not first or each(sub(first, 2, 3), first) then return end
    low = '(' .. sub(first, 1, 3) .. LAST
  end
end

-- Sorts members of z of the same state by moment, then by seq. Strings are not compared, because Lua would use the
-- server's locale.
function sortMembers(members)
  local moments, numbers = {}, {}
  for _, member in ipairs(members) do moments[member], numbers[member] = unpackAt('>I6I6', member, 4) end
  table.sort(members, function(a, b)
    local first, second = moments[a], moments[b]
    if first ~= second then return first < second end
    return numbers[a] < numbers[b]
  end)
end

-- The range of a group's members in a state: the lower bound, inclusive, and the upper bound, exclusive. state: w
-- (ready), s (scheduled), r (reserved).
function rangeOf(gid, state)
  if state == 'r' then return 'l' .. gid, 'l' .. gid .. LAST end
  local front, now = 'w' .. gid, six(call.now + 1)
  if state == 'w' then return front, front .. now end
  return front .. now, front .. LAST
end

-- The state of a queue in one call. Most writes are buffered until `flush`, since one command for many members costs
-- far less than one for each. A flush removes before it adds, and stores before it deletes.
function openQueue(h, z)
  local head = db('HMGET', h, 'm', 's', 'X', 'O', 'c' .. call.node, 'B', 'M')
  local q = {
    h = h,
    z = z,
    tag = head[1] or '',
    seq = tonumber(head[2] or 0),
    expires = head[3],
    options = head[4] and cjson.decode(head[4]) or nil,
    session = head[5],
    hasFronts = head[6],
    listsLeases = head[7],
    removed = {}, added = {}, stored = {}, deleted = {},
  }
  q.storedSeq = q.seq
  return q
end

-- Opens the queue with this name, escaped as in its keys; nil if its keys may be on another server. A single server
-- permits access to keys that the call did not declare.
function queueNamed(text)
  local q = call.opened[text]
  if q or call.isCluster then return q end
  local base = call.base .. text .. '}:'
  q = openQueue(base .. 'h', base .. 'z')
  q.name = text
  call.opened[text] = q
  return q
end

-- Records that the queue with a name is used. Each use has a moment of its own, even within a millisecond, so that the
-- removal of an unused name recognizes it.
function useName(names, name, now)
  local last = tonumber(db('ZSCORE', names, name) or 0)
  db('ZADD', names, last >= now and last < now + 1 and last + 0.001 or now, name)
end

-- Returns the key of the names of a namespace, and a queue's name there, by a key of the queue; see registry.ts.
function namesOf(key)
  local prefix, ns, name = string.match(key, '^(.-){(.-)/(.*)}')
  if ns == 'due' or ns == 'tidy' then ns = '%' .. ns end
  name = string.gsub(name, '%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  return prefix .. 'queues:' .. ns, name
end

-- Creates the queue unless it exists, and registers its name in the same step. The tag is new even if the name is not,
-- so that ids from before a loss of data never match new elements. A queue without an element so far counts as new: if
-- it was created for a session, it has no name yet.
function createQueue(q)
  if q.tag ~= '' and (q.isNew or q.seq > 0) then return end
  q.isNew = true
  if q.tag == '' then
    q.tag = sub(redis.sha1hex(q.h .. call.node .. call.micros .. string.format('%.0f', call.now)), 1, 12)
    db('HSET', q.h, 'm', q.tag)
    db('ZADD', q.z, 0, '~')
  end
  if q ~= call.home then
    local names, name = namesOf(q.h)
    useName(names, name, call.now)
  end
end

function flush(q)
  if #q.removed > 0 then
    spreadCall('ZREM', q.z, q.removed)
    q.removed = {}
  end
  if #q.added > 0 then
    spreadCall('ZADD', q.z, q.added)
    q.added = {}
  end
  if #q.stored > 0 then
    spreadCall('HSET', q.h, q.stored)
    q.stored = {}
  end
  if #q.deleted > 0 then
    spreadCall('HDEL', q.h, q.deleted)
    q.deleted = {}
  end
end

-- The score is a string: Redis would have to format a number for each member.
function add(q, member)
  local added = q.added
  local count = #added
  added[count + 1], added[count + 2] = '0', member
end

function store(q, field, value)
  local stored = q.stored
  local count = #stored
  stored[count + 1], stored[count + 2] = field, value
end

function remove(q, member)
  q.removed[#q.removed + 1] = member
end

function delete(q, field)
  q.deleted[#q.deleted + 1] = field
end

-- A stored element without its body, and the length of the body; if its content is malformed, all of it and 0.
function withoutBody(value)
  local isReadable, _, bodyAt = pcall(partsOf, value, HEAD + 1)
  if not isReadable then return value, 0 end
  return sub(value, 1, bodyAt - 1), math.max(0, #value - bodyAt + 1)
end

-- Elements with larger bodies have a front. Most calls need no body, but Redis cannot read a part of a hash field, and
-- to read a megabyte from Lua blocks the server for 4 ms.
LARGE = 4096

function storeElement(q, seq, value)
  store(q, 'e' .. seq, value)
  if #value <= LARGE then return end
  local front, length = withoutBody(value)
  if length <= LARGE then return end
  store(q, 'f' .. seq, front)
  if not q.hasFronts then
    q.hasFronts = '1'
    store(q, 'B', '1')
  end
end

function deleteElement(q, seq)
  delete(q, 'e' .. seq)
  if q.hasFronts then delete(q, 'f' .. seq) end
end

-- Reads a stored element, or only its front if it has one; false if there is none.
function readFront(q, seq)
  return q.hasFronts and db('HGET', q.h, 'f' .. seq) or db('HGET', q.h, 'e' .. seq)
end

-- The same for the elements with the fields from `from` to `upTo`.
function readFronts(q, fields, from, upTo)
  if not q.hasFronts then return db('HMGET', q.h, spread(fields, from, upTo)) end
  local fronts, whole, places = {}, {}, {}
  for i = from, upTo do fronts[i - from + 1] = 'f' .. sub(fields[i], 2) end
  local values = db('HMGET', q.h, spread(fronts))
  for i = 1, #values do
    if not values[i] then
      whole[#whole + 1] = fields[from + i - 1]
      places[#whole] = i
    end
  end
  for i, value in ipairs(fieldValues(q.h, whole)) do values[places[i]] = value end
  return values
end

-- Flushes a large buffer, so that a call of any size needs little memory.
function flushIfLarge(q)
  if #q.added >= MAX_ARGUMENTS or #q.stored >= MAX_ARGUMENTS then flush(q) end
end

-- The moment in the first member with a prefix, plus `later` ms; infinity if there is none.
function firstMoment(q, prefix, later)
  local first = firstMember(q.z, prefix)
  return first and fromSix(first, #prefix + 1) + later or math.huge
end

-- When the first element expires, or is past its retention; infinity if none does.
function firstDue(q)
  local retention = retentionOf(q)
  local retainedUntil = retention > 0 and firstMoment(q, 'r', retention) or math.huge
  return q.expires and math.min(retainedUntil, firstMoment(q, 'x', 0)) or retainedUntil
end

-- An element that this call adds is due then: its queue must be in the sweep list. The node adds the call's own queue,
-- after the reply (batcher.ts); `saveQueue` adds others, unless an element was due before, since such a queue is
-- listed.
function noteDue(q, at)
  if q ~= call.home then q.firstDue = q.firstDue or firstDue(q) end
  q.dueAt = math.min(q.dueAt or at, at)
end

function saveQueue(q)
  if q.seq ~= q.storedSeq then store(q, 's', q.seq) end
  if q.firstDue and q.dueAt < q.firstDue then
    local moment = string.format('%.0f', q.dueAt)
    db('ZADD', sub(call.base, 1, -2) .. 'due', moment, moment .. ':' .. q.name)
  end
  flush(q)
end

function noteExpiry(q, expiresAt, seq)
  noteDue(q, fromSix(expiresAt, 1))
  add(q, 'x' .. expiresAt .. seq)
  if not q.expires then
    q.expires = '1'
    store(q, 'X', '1')
  end
end

-- The policy of the call's namespace, and the queue's own options, which take precedence.
local function policyOf(q)
  call.policy = call.policy or cjson.decode(call.policyText)
  return call.policy, q.options or {}
end

-- In ms, 0 for none. `q.retention`: that of the queue's namespace, if it is not the call's.
function retentionOf(q)
  local policy, options = policyOf(q)
  return options.r or q.retention or policy.r
end

-- Returns the dead-letter queue, the maximum of tries, the policy, and the retention of the dead-letter queue; nil if
-- there is none.
function deadLetterPolicy(q)
  if q ~= call.home then return nil end
  local policy, options = policyOf(q)
  local to = options.d or policy.d
  if to == 0 or to[1] == q.name then return nil end
  return to[1], to[2], policy, to[3]
end

-- How long a delivery waits after a failed try without an explicit delay, ms; nil if the queue has no retry delay. Same
-- as `retryDelayMs` in engine/queue-policy.ts.
function retryDelay(q, tries, seq)
  local policy, options = policyOf(q)
  local retry = options.t or policy.t
  if retry == 0 then return nil end
  local delay = math.min(retry[3], retry[1] * retry[2] ^ (tries - 1))
  local part = (fromSix(seq, 1) % 65536 * 40503 + tries * 30011) % 65536 / 65536
  return math.floor(delay * (1 - retry[4] * part) + 0.5)
end
