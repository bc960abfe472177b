-- A delivery that failed once too often. Its element gets a copy in the dead-letter queue of the namespace,
-- in the same call where that queue's keys are at hand, else as a parcel.

-- The content of the letter: the original behind what happened to it; `content.ts` makes headers of that.
local function letterOf(q, seq, content, tries)
  return 'E' .. pack('>I6I4I2', call.now, tries, #call.dead.from) .. q.tag .. seq .. call.dead.from .. content
end

-- Where `tries` are enough: moves the reserved delivery. Answers whether it did.
local function moveIfDead(q, lane, seq, held, tries)
  local dead = call.dead
  if not dead or q ~= call.home or tries < dead.most then return false end
  local value = db('HGET', q.h, 'e' .. seq)
  local letter = letterOf(q, seq, value and sub(value, 11) or '', tries)
  if dead.queue > 0 then
    local target = queueAt(dead.queue)
    ensureQueue(target)
    put(target, call.now, 0, dead.groups ~= '' and makeLanes(target, dead.groups) or nil, letter)
    flush(target)
  else
    addToParcel(dead.to, { '', letter, dead.groups, '' })
  end
  db('ZREM', q.z, leaseMember(lane, held.till, seq))
  finish(q, lane, seq)
  flush(q)
  call.died[lane] = (call.died[lane] or 0) + 1
  return true
end

-- Counts a failed try of a reserved delivery. Answers whether it was the last one.
local function endTry(q, lane, seq, held, maturity, token)
  if moveIfDead(q, lane, seq, held, held.tries + 1) then return true end
  release(q, lane, seq, held, maturity, held.tries + 1, token)
  return false
end
