-- Sends one constant request. Arguments: how many at most (0: no bound), method, body, then header names and values in
-- turn. wrk reports the whole duration even if its thread stopped early, so a bounded load takes its own time.
local ffi = require('ffi')
ffi.cdef('struct moment { long seconds; long nanoseconds; }; int clock_gettime(int clock, struct moment *moment);')
local CLOCK_MONOTONIC = 1
local threads = {}

local function microseconds()
  local moment = ffi.new('struct moment')
  ffi.C.clock_gettime(CLOCK_MONOTONIC, moment)
  return tonumber(moment.seconds) * 1e6 + tonumber(moment.nanoseconds) / 1e3
end

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  left = tonumber(args[1])
  wrk.method = args[2]
  if args[3] ~= '' then wrk.body = args[3] end
  for at = 4, #args, 2 do wrk.headers[args[at]] = args[at + 1] end
  constant = wrk.format()
  if left == 0 then
    request = function() return constant end
  end
end

function request()
  if started == nil then started = microseconds() end
  left = left - 1
  if left == 0 then
    elapsed = microseconds() - started
    wrk.thread:stop()
  end
  return constant
end

-- Prints the counts as JSON, the last thing on the output.
function done(summary)
  local errors = summary.errors
  -- The bench runs one thread.
  local elapsed = threads[1]:get('elapsed')
  io.write(string.format(
    '{"requests":%d,"microseconds":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}',
    summary.requests, elapsed or summary.duration,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
