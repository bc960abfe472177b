-- Sends one constant request. Arguments: method, body, then header names and values in turn.
function init(args)
  wrk.method = args[1]
  if args[2] ~= '' then wrk.body = args[2] end
  for at = 3, #args, 2 do wrk.headers[args[at]] = args[at + 1] end
  constant = wrk.format()
end

function request()
  return constant
end

-- Prints the counts as JSON, the last thing on the output.
function done(summary)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"microseconds":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}',
    summary.requests, summary.duration,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
