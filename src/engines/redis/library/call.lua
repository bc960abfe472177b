-- One call: keys are the pairs h, z of the queues that it may touch, its own first. Arguments:
--
--   1  client(8) number(6) received(6) sent(6) time(6) contact(6) excused(6)
--   2  '' or the retention of each queue(6), 0 for none
--   3  '' or the dead-letter policy: most tries(4), number of the queue or 0(2), then the name of this queue,
--      the groups of the letters and the name of theirs, each ended by a zero byte
--   4… verbs with their arguments
--
-- number: 0 for a call that may be repeated as it is, else one more than the client's last for this queue.
-- received: the number up to which the client knows the answers. sent: its idea of the server's time.
-- time: 0, or the time to go by, for tests.
-- contact, excused: since when the client can reach this server, and until when leases from before may end without
-- counting a try (leases.lua).
--
-- Answers { now, tag, numbers of the queues that were made, answers, elements, group and count of what died,
-- parcels }. LATE and STALE are errors, and nothing was done.

-- A call that comes later than this after it was sent was given up long ago.
local LATE_MS = 30000

local function readDead(text)
  local most, queue, from, groups, to = unpackAt('>I4I2sss', text)
  return { most = most, queue = queue, from = from, groups = groups, to = to }
end

local function readTime(given)
  local time = db('TIME')
  call.micros = time[2]
  return given > 0 and given or time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Opens the queues of the call. Answers an error instead where it must not run.
local function begin(keys, args)
  local client, number, received, sent, given, contact, excused = unpackAt('>c8I6I6I6I6I6I6', args[1])
  call = { client = client, number = number, received = received, opened = {}, died = {}, parcels = {}, resent = {} }
  call.now, call.contact, call.excused = readTime(given), contact, excused
  if math.abs(call.now - sent) > LATE_MS then
    return redis.error_reply('LATE ' .. string.format('%.0f', call.now))
  end
  call.keys, call.retentions = keys, args[2]
  call.home = queueAt(1)
  if args[3] ~= '' then call.dead = readDead(args[3]) end
end

local function runVerbs(q, args)
  local answers, elements, takes = {}, {}, {}
  local at = 4
  while at <= #args do
    local name = args[at]
    -- What the last verb leaves behind is written together with its answer.
    if at > 4 then flush(q) end
    local answer, behind, bodies = verbs[name](q, args, at + 1)
    answers[#answers + 1] = answer
    elements[#answers] = bodies or 0
    if name == 'take' then takes[#takes + 1] = #answers end
    at = behind
  end
  return answers, elements, takes
end

local function keepAnswers(q, answers, takes, parcels)
  local ids = {}
  for i, parcel in ipairs(parcels) do ids[i] = parcel[1] end
  local indexedAt = q.repeated and fromSix(q.repeated, 13)
  if not indexedAt then
    indexedAt = call.now
    add(q, 'c' .. six(call.now) .. call.client)
  end
  store(q, 'c' .. call.client, answerText(answers, takes, ids, indexedAt))
end

local function namesOfDied(q)
  local died = {}
  for _, lane in ipairs(next(call.died) and allLanes(q) or {}) do
    if call.died[lane[1]] then
      died[#died + 1] = lane[2]
      died[#died + 1] = call.died[lane[1]]
    end
  end
  return died
end

local function reply(answers, elements, parcels)
  local fresh = {}
  for number, q in pairs(call.opened) do
    if q.fresh then fresh[#fresh + 1] = number end
  end
  return { call.now, call.home.tag, fresh, answers, elements, namesOfDied(call.home), parcels }
end

-- Answers again what was answered before. The answer is written again as well: waiting for replicas then waits
-- for all that came before it.
local function answerAgain(q)
  db('HSET', q.h, 'c' .. call.client, q.repeated)
  local kept = cmsgpack.unpack(sub(q.repeated, ANSWER_HEAD + 1))
  local elements, parcels = {}, {}
  for i = 1, #kept[1] do elements[i] = 0 end
  for _, at in ipairs(kept[2]) do
    elements[at] = takenAgain(q, kept[1][at])
  end
  for _, id in ipairs(kept[3]) do
    parcels[#parcels + 1] = readParcel(q, id)
  end
  return reply(kept[1], elements, parcels)
end

local function run(keys, args)
  awake()
  local refusal = begin(keys, args)
  if refusal then return refusal end
  local q = call.home
  local counted = call.number > 0
  if counted then
    local last = q.repeated and fromSix(q.repeated, 1) or 0
    if last == call.number then return answerAgain(q) end
    if last > call.number then return redis.error_reply('STALE') end
    ensureQueue(q)
    if q.repeated then settlePrevious(q) end
  end
  local answers, elements, takes = runVerbs(q, args)
  local parcels = writeParcels(q)
  if counted then keepAnswers(q, answers, takes, parcels) end
  for _, each in pairs(call.opened) do saveQueue(each) end
  for _, parcel in ipairs(call.resent) do parcels[#parcels + 1] = parcel end
  return reply(answers, elements, parcels)
end

redis.register_function('@RUN@', run)
redis.register_function({ function_name = '@RUN@_full', callback = run, flags = { 'allow-oom' } })
