-- move <dedup window> <from: number of a queue> <group> <reference> <count>, then per insert:
-- <to: number of a queue, or its name where its keys are elsewhere> <timing> <content> <groups> <dedup key>
-- Answers the outcome; '!' where a queue has more groups than fit, and then nothing happened.

local function readInserts(args, at, count)
  local inserts = {}
  for i = 1, count do
    local insert = { args[at + 1], args[at + 2], args[at + 3], args[at + 4] }
    insert.target = queueAt(tonumber(args[at]))
    insert.to = args[at]
    if insert.target then
      ensureQueue(insert.target)
      insert.lanes = insert[3] ~= '' and makeLanes(insert.target, insert[3]) or nil
      if insert[3] ~= '' and not insert.lanes then return nil end
    end
    inserts[i] = insert
    at = at + 5
  end
  return inserts
end

verbs.move = function(_, args, at)
  local window, from = tonumber(args[at]), queueAt(tonumber(args[at + 1]))
  local lanes, reference, count = { findLane(from, args[at + 2]) }, args[at + 3], tonumber(args[at + 4])
  local inserts = readInserts(args, at + 5, count)
  local behind = at + 5 + 5 * count
  if not inserts then return '!', behind end
  local outcome = commitOne(from, lanes, reference, 1)
  flush(from)
  if outcome ~= DONE then return outcome, behind end
  for _, insert in ipairs(inserts) do
    if insert.target then
      local key = insert[4] ~= '' and insert[4] or nil
      putOnce(insert.target, { timing = insert[1], content = insert[2], lanes = insert.lanes, key = key }, window)
      flush(insert.target)
    else
      addToParcel(insert.to, insert)
    end
  end
  return outcome, behind
end
