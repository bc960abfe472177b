-- What each client's last call answered, so that a call that is sent again is answered again and not done
-- again. A client has one call under way per queue, so one answer is enough: a higher number says that the
-- client knows how the earlier calls ended. Bodies are not copied. What was popped stays in the hash until
-- the client's next call; if that says that the answer never came, the take is undone.
--
--   number(6) last use(6) listed under `c` at(6), then, packed: the answers, which of them are takes, the parcels made
--
-- The answer of a take begins with P (popped) or R (reserved): kind(1) lane(2) until(6) zeros(6) next known(1) next
-- maturity(6), then the members of z that the deliveries had; of a reserve, the first token(16) at its end.

local ANSWER_HEAD, TAKE_HEAD, TAKE_STEP = 18, 22, 19

local function answerText(answers, takes, parcels, listedAt)
  return pack('>I6I6I6', call.number, call.now, listedAt) .. cmsgpack.pack({ answers, takes, parcels })
end

local function takesIn(answer)
  local kept = cmsgpack.unpack(sub(answer, ANSWER_HEAD + 1))
  local takes = {}
  for i, at in ipairs(kept[2]) do takes[i] = kept[1][at] end
  return takes
end

-- Calls `each` with the member and the number of every delivery of a take.
local function eachTaken(taken, each)
  local index = 0
  -- The token at the end is shorter than a step.
  for at = TAKE_HEAD + 1, #taken - TAKE_STEP + 1, TAKE_STEP do
    each(sub(taken, at, at + TAKE_STEP - 1), index)
    index = index + 1
  end
end

-- The token of the delivery of this number in a take whose first token is given.
local function tokenAt(first, index)
  return pack('>I4', (unpackAt('>I4', first) + index) % 4294967296) .. sub(first, 5)
end

local function isTouched(member)
  return byte(member, 19) % 2 == 1
end
