-- How a queue is stored. It has two keys under one hash tag:
--
-- h, a hash:
--   m           the queue's tag, twelve hex digits, random when the queue is created: the first half of ids
--   s           the last element number given
--   O           options that were declared, as JSON. d: 0 or [dead-letter queue, max tries, its retention]; r: retention in ms
--               or 0; t: 0 or the retry delay as [first in ms, factor, max in ms, jitter]. What is not given is the policy's
--   X           present while some element may expire
--   B           present once an element had a large body
--   R           present once a failed try had a reason
--   L           group names by number (groups.lua)
--   F           when group numbers were last freed because the queue had as many groups as it may
--   e<seq>      an element: maturity(6) tries(4) as inserted, inserted at(6) expires at(6), then its content
--   f<seq>      of an element with a large body once more what is in front of it
--   d<gid><seq> a delivery that was reserved once (deliveries.lua)
--   g<seq>      an element of a stream: what each of its groups does with it (groups.lua)
--   k<key>      a dedup key: seq(6) seen at(6), then the fingerprint(22) of the content if there was one; that of a request has
--               the seq of its first element
--   c<node>   the session of a node: what its last call returned (session.lua)
--   N, P, p<number>, o<source><run>   the outbox: the last number, where the last sweep ended, entries, and high-water marks (outbox.lua)
--
-- z, a sorted set, all scores 0, so its order is the order of the members' bytes:
--   w<gid><maturity><seq><tries and touched>   a waiting delivery
--   l<gid><lease end><seq>                     a reserved delivery
--   a<maturity><seq>, b<seq>                   an element of a stream that waits for some group, or is only reserved
--   r<inserted at><seq>                        an element that retention may remove
--   x<expires at><seq>                         an element that expires. Those of reserved or removed ones may remain.
--   k<seen at><key>, c<seen at><node>, o<seen at><source><run>   for housekeeping
--   p<to>\0<number>                            an outbox entry
--   ~                                          keeps the key in existence
--
-- Of a queue that was deleted, sessions and marks may remain, without a tag: to all else it does not exist. A sweep
-- removes them as those of others.
--
-- Both keys always exist once the queue does: while Redis moves a slot, a call that names a key which exists
-- on neither side would be rejected until the slot has moved.
--
-- Moments are ms since 1970, as 6 bytes, big end first, so that bytes sort as numbers do. Group numbers (gid) are 2
-- bytes.

-- Redis's own functions are there only while a function of ours runs.
local function bind()
  db, pack, unpackAt = redis.call, struct.pack, struct.unpack
  concat, spread, sub, byte = table.concat, unpack, string.sub, string.byte
end

-- Makes a function of the library callable, under the name of the library and `suffix`. Plain: rejected, before
-- anything happens, if Redis is out of memory.
function register(suffix, callback, isPlain)
  redis.register_function({
    function_name = '@RUN@' .. suffix,
    callback = function(keys, args)
      bind()
      return callback(keys, args)
    end,
    flags = isPlain and {} or { 'allow-oom' },
  })
end

-- The only group of a plain queue.
PLAIN = '\0\0'
HEAD = 22
LAST = '\255\255\255\255\255\255\255'

-- What the running call knows: see session.lua.
call = {}

-- The verbs by name, each `function(q, args, at)`: its result, where the next verb begins, and elements or nil.
verbs = {}

-- Outcomes of settling, as `storage.ts` reads them.
DONE, DEAD_LETTERED, NOT_FOUND, NOT_RESERVED, LEASE_LOST, RESERVED, TOKEN_REQUIRED, LATER, NO_CAPACITY =
  '0', '1', '2', '3', '4', '5', '6', '7', '!'

function six(n)
  return pack('>I6', n)
end

function fromSix(text, at)
  return (unpackAt('>I6', text, at))
end

-- Where the rest of a content and its body begin in `value`, if the content begins at `at` (encoding.ts).
function partsOf(value, at)
  local restAt = at + 3 + math.max(0, unpackAt('>I2', value, at + 1) - 1)
  return restAt, restAt + 4 + unpackAt('>I4', value, restAt)
end

-- More arguments than this do not fit on Lua's stack.
MAX_ARGUMENTS = 4000

-- Runs a command of any number of arguments, in parts if there are many. The number is even, so pairs stay
-- together.
function spreadCall(command, key, list)
  local count = #list
  if count == 0 then return 0 end
  if count <= MAX_ARGUMENTS then return db(command, key, spread(list)) end
  local sum = 0
  for from = 1, count, MAX_ARGUMENTS do
    sum = sum + db(command, key, spread(list, from, math.min(from + MAX_ARGUMENTS - 1, count)))
  end
  return sum
end

-- The values of many fields, in their order; false where there is none.
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

-- Members from `low` up to but without `high`, at most `limit`.
function membersBetween(z, low, high, limit)
  return db('ZRANGE', z, low, high, 'BYLEX', 'LIMIT', 0, limit)
end

function firstMember(z, prefix)
  return membersBetween(z, '[' .. prefix, '(' .. prefix .. LAST, 1)[1]
end

-- Whether a delivery's member of z comes before another of the same state: by its moment, then its number. Strings are
-- not compared: Lua would ask the server's locale.
function isEarlier(a, b)
  local first, second = fromSix(a, 4), fromSix(b, 4)
  if first ~= second then return first < second end
  return fromSix(a, 10) < fromSix(b, 10)
end

-- Where the members of a group's deliveries in a state begin, and what they are all before. State: w (ready), s
-- (scheduled), r (reserved).
function rangeOf(gid, state)
  if state == 'r' then return 'l' .. gid, 'l' .. gid .. LAST end
  local front, now = 'w' .. gid, six(call.now + 1)
  if state == 'w' then return front, front .. now end
  return front .. now, front .. LAST
end

-- A queue as one call sees it. Writes of the plain paths gather here and leave by `flush`: one command for
-- many members costs far less than one each. Order within a flush: removed before added, stored before deleted.
function openQueue(h, z)
  local head = db('HMGET', h, 'm', 's', 'X', 'O', 'c' .. call.node, 'R', 'B')
  local q = {
    h = h,
    z = z,
    tag = head[1] or '',
    seq = tonumber(head[2] or 0),
    expires = head[3],
    options = head[4] and cjson.decode(head[4]) or nil,
    session = head[5],
    hasReasons = head[6],
    hasFronts = head[7],
    gone = {}, added = {}, stored = {}, deleted = {},
  }
  q.storedSeq = q.seq
  return q
end

-- The queue of this name, escaped as in its keys; nil if its keys may be on another server. A single server allows to
-- open keys that the call did not name.
function queueNamed(text)
  local q = call.opened[text]
  if q or call.isCluster then return q end
  local base = call.base .. text .. '}:'
  q = openQueue(base .. 'h', base .. 'z')
  q.text = text
  call.opened[text] = q
  return q
end

-- Lists a queue to be swept in the step that needs it; see registry.ts.
function registerDue(text, at)
  local moment = string.format('%.0f', at)
  db('ZADD', sub(call.base, 1, -2) .. 'due', moment, moment .. ':' .. text)
end

-- Makes the name of a queue known in the step that creates it; see registry.ts.
local function registerName(text)
  local ns, name = string.match(text, '^(.-)/(.*)$')
  if ns == 'due' or ns == 'tidy' then ns = '%' .. ns end
  name = string.gsub(name, '%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  db('ZADD', sub(call.base, 1, -2) .. 'queues:' .. ns, call.now, name)
end

-- A queue is created by the first call that stores something in it. The tag is new even if the name is old, so ids
-- from before the data were lost are never taken for new ones.
function createQueue(q)
  if q.tag ~= '' then return end
  q.tag = sub(redis.sha1hex(q.h .. call.node .. call.micros .. string.format('%.0f', call.now)), 1, 12)
  q.isNew = true
  db('HSET', q.h, 'm', q.tag)
  db('ZADD', q.z, 0, '~')
  if q ~= call.home then registerName(q.text) end
end

function flush(q)
  if #q.gone > 0 then
    spreadCall('ZREM', q.z, q.gone)
    q.gone = {}
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

-- All scores are '0': Redis would have to write a number out for each member.
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
  q.gone[#q.gone + 1] = member
end

function delete(q, field)
  q.deleted[#q.deleted + 1] = field
end

-- A stored element without its body, and the length of that; of content that cannot be read, all of it.
function withoutBody(value)
  local isReadable, _, bodyAt = pcall(partsOf, value, HEAD + 1)
  if not isReadable then return value, 0 end
  return sub(value, 1, bodyAt - 1), math.max(0, #value - bodyAt + 1)
end

-- Most calls need nothing of a body. But Redis has no command that reads a part of a field, and to read a megabyte from
-- Lua keeps it from all else for 4 ms.
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

-- A stored element at least as far as its body; false if there is none.
function readFront(q, seq)
  return q.hasFronts and db('HGET', q.h, 'f' .. seq) or db('HGET', q.h, 'e' .. seq)
end

-- The same of many: of the fields of elements from `from` to `upTo`.
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

-- A growing batch is written now and then, so that a call of any size needs little memory.
function flushIfLarge(q)
  if #q.added >= MAX_ARGUMENTS or #q.stored >= MAX_ARGUMENTS then flush(q) end
end

function saveQueue(q)
  if q.seq ~= q.storedSeq then store(q, 's', q.seq) end
  flush(q)
end

function noteExpiry(q, expiresAt, seq)
  add(q, 'x' .. expiresAt .. seq)
  if not q.expires then
    q.expires = '1'
    store(q, 'X', '1')
  end
end

-- The policy of the call's namespace, and what the queue's own options say instead.
local function policyOf(q)
  call.policy = call.policy or cjson.decode(call.policyText)
  return call.policy, q.options or {}
end

-- `q.retention`: of the queue's own namespace, if that is not the call's.
function retentionOf(q)
  local policy, options = policyOf(q)
  return options.r or q.retention or policy.r
end

-- Where deliveries of the queue go that failed too often, how many tries they have, the policy, and the retention
-- there; nil: nowhere.
function deadLetterPolicy(q)
  if q ~= call.home then return nil end
  local policy, options = policyOf(q)
  local to = options.d or policy.d
  if to == 0 or to[1] == q.text then return nil end
  return to[1], to[2], policy, to[3]
end

-- How long a delivery waits after a failed try that named no delay; nil if the queue has no retry delay. As
-- `retryDelayMs` in engine/queue-policy.ts.
function retryDelay(q, tries, seq)
  local policy, options = policyOf(q)
  local retry = options.t or policy.t
  if retry == 0 then return nil end
  local delay = math.min(retry[3], retry[1] * retry[2] ^ (tries - 1))
  local part = (fromSix(seq, 1) % 65536 * 40503 + tries * 30011) % 65536 / 65536
  return math.floor(delay * (1 - retry[4] * part) + 0.5)
end
