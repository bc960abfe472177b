import type { Edit, Mutant } from './mutants.ts';

const inRedis = (file: string, search: string, replace: string): Edit => ({
  file: `src/engines/redis/${file}`,
  search,
  replace,
});

/** Bugs of the Redis engine, most of which only an outage, a failover or a lost reply brings to light. */
export const REDIS: readonly Mutant[] = [
  {
    name: 'the options of a queue stay when they are taken away',
    suite: 'redis retry delays',
    edits: [inRedis('library/sweep.lua', "    delete(q, 'O')\n", '')],
  },
  {
    name: 'a lease that ran out knows no retry delay',
    suite: 'redis retry delays',
    edits: [inRedis('library/deliveries.lua', "'lease-expired', ends)", "'lease-expired')")],
  },
  {
    name: 'a batch waits until what it sent elsewhere has arrived',
    suite: 'redis batches',
    edits: [
      inRedis(
        'batcher.ts',
        '    this.#next();\n  }\n\n  /**\n   * Registers what a reply shows',
        '    void registeredAndMoved?.then(() => this.#next());\n    if (registeredAndMoved === null) this.#next();\n  }\n\n  /**\n   * Registers what a reply shows',
      ),
    ],
  },
  {
    name: 'an idle queue that was used again is forgotten, and a second batch overtakes the first',
    suite: 'redis batches',
    edits: [
      inRedis('batcher.ts', 'rejection !== null && batcher.isUnused', 'rejection !== null && batcher.isIdle'),
      inRedis('batcher.ts', '|| this.#batchers.get(text) !== batcher) return;', ') return;'),
      inRedis(
        'batcher.ts',
        '    this.#batchers.delete(text);\n    this.#scheduled.delete(batcher);\n    batcher.stop();',
        '    this.#batchers.delete(text);',
      ),
    ],
  },
  {
    name: 'a lost take is not settled while its queue is read again and again',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'if (!isRepeatable) this.stop();', 'this.stop();')],
  },
  {
    name: 'each read between two changes ends a batch',
    suite: 'redis batches',
    edits: [
      inRedis(
        'batcher.ts',
        'const isOther = !isRead && isRepeatable !== null &&',
        'const isOther = isRepeatable !== null &&',
      ),
      inRedis(
        'batcher.ts',
        'if (!isRead) isRepeatable = call.isRepeatable;',
        'isRepeatable = call.isRepeatable;',
      ),
    ],
  },
  {
    name: 'a read fails for the changes in whose batch it is',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'return options.isRead === true && !batch.isRepeatable;', 'return false;')],
  },
  {
    name: 'a page whose reply was lost is read from the reply that the server kept of its batch',
    suite: 'redis answers',
    edits: [
      inRedis(
        'batcher.ts',
        'return call?.options.isRead === true && result?.text.length === 0;',
        'return false;',
      ),
    ],
  },
  {
    name: 'numbers of batches start again after a queue was idle, so that the server takes new batches for old ones',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'this.#highest = Math.max(this.#highest, number + 1);', '')],
  },
  {
    name: 'a call is answered before what it moved has arrived',
    suite: 'redis batches',
    edits: [inRedis('outbox.ts', 'Buffer.compare(waiter.number, number) <= 0', 'waiter.number !== number')],
  },
  {
    name: 'an outbox entry that is sent again is applied again',
    suite: 'redis outbox',
    edits: [inRedis('library/outbox.lua', "if number > mark.number and outcome == ''", "if outcome == ''")],
  },
  {
    name: 'after a failover with a clock that is behind, new outbox entries look like old ones',
    suite: 'redis outbox',
    edits: [
      inRedis(
        'library/outbox.lua',
        "runId = runId or string.match(db('INFO', 'server'), 'run_id:(%x%x%x%x%x%x%x%x)')",
        "runId = 'any run.'",
      ),
    ],
  },
  {
    name: 'after such a failover new outbox entries are deleted with old ones',
    suite: 'redis outbox',
    edits: [inRedis('library/outbox.lua', 'run == runOfServer()', 'true')],
  },
  {
    name: 'the mark of an outbox that is still in use is forgotten after a day',
    suite: 'redis outbox',
    edits: [inRedis('library/sweep.lua', 'if lastUse > call.now - age then', 'if false then')],
  },
  {
    name: 'a sweep leaves the outbox of a node that died',
    suite: 'redis outbox',
    edits: [inRedis('library/sweep.lua', 'if hasEntries then nameDestinations(q) end', '')],
  },
  {
    name: 'a call that is sent again is done again',
    suite: 'redis calls',
    edits: [inRedis('library/session.lua', 'if last == call.number then return repeatReply(q) end', '')],
  },
  {
    name: 'what a pop took whose reply was lost stays gone',
    suite: 'redis answers',
    edits: [inRedis('library/session.lua', 'if number > call.received then', 'if false then')],
  },
  {
    name: 'a caller that is gone when the reply comes has the takes of all others in its batch undone',
    suite: 'redis answers',
    edits: [
      inRedis(
        'batcher.ts',
        'else if (batch.number > 0) this.#received = batch.number;',
        'else if (batch.number > 0 && !batch.calls.some((call) => call.isSettled && isTake(call))) this.#received = batch.number;',
      ),
    ],
  },
  {
    name: 'what was taken for a caller that is gone when the reply comes stays gone',
    suite: 'redis answers',
    edits: [inRedis('batcher.ts', '? returnedOf(batch.number, decoded) : null', '? null : null')],
  },
  {
    name: 'what returns of a take in part is deleted with the rest',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', 'if not numbers[seq] then rest', 'if true then rest')],
  },
  {
    name: 'what was popped for others than those who are gone is never deleted',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', '  finishPops(q, concat(rest))\n', '')],
  },
  {
    name: 'a batch names what an older one returned',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'this.#returned = failed', 'this.#returned ??= failed')],
  },
  {
    name: 'a lost pop returns elements without the tries that failed',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', 'size >= HEAD and byte(members[i], 19) % 2 == 0', 'size >= HEAD')],
  },
  {
    name: 'a lost pop of elements that were never reserved returns them as never tried',
    suite: 'redis answers',
    edits: [
      inRedis(
        'library/take.lua',
        'member = member or waitingMember(PLAIN, maturity, seq, tries, false)',
        'member = member or waitingMember(PLAIN, maturity, seq, 0 * tries, false)',
      ),
    ],
  },
  {
    name: 'a reserve whose reply is repeated hands out what it no longer holds',
    suite: 'redis answers',
    edits: [
      inRedis(
        'library/take.lua',
        'if not d or d.token ~= tokenAt(taken, i - 1) or d.ends <= call.now then values[i] = false end',
        '',
      ),
    ],
  },
  {
    name: 'reading a queue that does not exist creates it',
    suite: 'redis no trace',
    edits: [
      inRedis(
        'library/session.lua',
        "return call.number > 0 and (q.tag ~= '' or call.received < call.number - 1 or call.mayBeDone)",
        'return call.number > 0',
      ),
    ],
  },
  {
    name: 'names that are only asked for pile up in the list of used queues',
    suite: 'redis no trace',
    edits: [
      inRedis(
        'library/functions.lua',
        "if args[2] == '1' or db('ZSCORE', keys[1], args[i]) then",
        'if true then',
      ),
    ],
  },
  {
    name: 'a call of a queue that does not exist may be executed after the client gave it up',
    suite: 'redis no trace',
    edits: [inRedis('library/session.lua', ' or call.received < call.number - 1', '')],
  },
  {
    name: 'a take hands out what has expired',
    suite: 'redis expiry',
    edits: [inRedis('library/take.lua', 'mayExpireMore = expireElements(q)', 'mayExpireMore = false')],
  },
  {
    name: 'an element that was released does not expire any more',
    suite: 'redis expiry',
    edits: [
      inRedis(
        'library/deliveries.lua',
        'if gid == PLAIN and d.expiresAt ~= NEVER then noteExpiry(q, d.expiresAt, seq) end',
        '',
      ),
    ],
  },
  {
    name: 'of elements that are inserted with others, some are not listed for their expiry',
    suite: 'redis expiry',
    edits: [
      inRedis('library/insert.lua', 'used, listed = #stored, #added', 'used, listed = #stored, #stored'),
    ],
  },
  {
    name: 'a lease that ran out while the server was unavailable counts a try',
    suite: 'redis outages',
    edits: [inRedis('library/deliveries.lua', 'if isExcused(d, ends) then', 'if false then')],
  },
  {
    name: 'a lease that is given out soon after an outage counts no try',
    suite: 'redis outages',
    edits: [inRedis('library/deliveries.lua', ' and d.since < call.contact', '')],
  },
  {
    name: 'a lease without its delivery ends as if it had one',
    suite: 'redis damage',
    edits: [inRedis('library/deliveries.lua', 'if not isReservedUntil(d, ends) then', 'if false then')],
  },
  {
    name: 'the record of the groups of an element is read although it is cut off',
    suite: 'redis damage',
    edits: [
      inRedis(
        'library/groups.lua',
        'if #text < ELEMENT_LENGTH or (#text - ELEMENT_LENGTH) % ENTRY_LENGTH > 0 then',
        'if false then',
      ),
    ],
  },
  {
    name: 'a reserve of an element that is cut off writes a record that is too short',
    suite: 'redis damage',
    edits: [inRedis('library/take.lua', 'return value and #value >= HEAD and sub', 'return value and sub')],
  },
  {
    name: 'a malformed token commits a reservation whose record has no token',
    suite: 'redis damage',
    edits: [
      inRedis(
        'library/settle.lua',
        '(item.token == NO_TOKEN or item.token ~= d.token)',
        'item.token ~= d.token',
      ),
    ],
  },
  {
    name: 'a commit on Redis finishes what is reserved under another token',
    suite: 'redis commits',
    edits: [inRedis('library/settle.lua', 'token ~= sub(record, 11, 26) or ', '')],
  },
  {
    name: 'a commit that is named twice in one batch of Redis is done twice',
    suite: 'redis commits',
    edits: [inRedis('library/settle.lua', '      flush(q)\n      record = nil\n', '')],
  },
  {
    name: 'the name of a queue is removed although it was used since it was found unused',
    suite: 'redis forgotten queues',
    edits: [
      inRedis(
        'library/functions.lua',
        "if tonumber(db('ZSCORE', keys[1], name) or -1) ~= seen then return 0 end",
        '',
      ),
    ],
  },
  {
    name: 'a queue that is deleted before its first element is stored has no name',
    suite: 'redis forgotten queues',
    edits: [
      inRedis('batcher.ts', 'mayBeNew && batch.creates ? registry.declare([this.queue]) : null', 'null'),
    ],
  },
  {
    name: 'a repeated reply does not say that the queue is new',
    suite: 'redis forgotten queues',
    edits: [inRedis('batcher.ts', ' || batch.execution?.mayBeDone === true', '')],
  },
  {
    name: 'a queue that holds something is forgotten',
    suite: 'redis forgotten queues',
    edits: [inRedis('library/functions.lua', "db('ZCARD', keys[2]) > 1 or ", '')],
  },
  {
    name: 'a node that inserts every hour notes no use',
    suite: 'redis forgotten queues',
    edits: [
      inRedis(
        'registry.ts',
        'const SURELY_KNOWN_MS = 12 * USE_NOTED_MS;',
        'const SURELY_KNOWN_MS = Number.POSITIVE_INFINITY;',
      ),
      inRedis('batcher.ts', '    registry.noteUse(this.queue);\n', ''),
    ],
  },
  {
    name: 'a take whose reply cannot be decoded counts as received',
    suite: 'redis damage',
    edits: [
      inRedis(
        'batcher.ts',
        'else if (batch.number > 0) this.#received',
        'if (batch.number > 0) this.#received',
      ),
    ],
  },
  {
    name: 'an element that cannot be decoded is taken again and again',
    suite: 'redis damage',
    edits: [
      inRedis(
        'batcher.ts',
        'if (deliveries.length > 0) this.#waiting',
        'if (deliveries.length < 0) this.#waiting',
      ),
    ],
  },
  {
    name: 'the bytes of a namespace leave out the content of its elements',
    suite: 'redis capacity',
    edits: [inRedis('registry.ts', 'isList ? [list] : [hash, order]', 'isList ? [list] : [order]')],
  },
  {
    name: 'a sweep removes an entry that it has just added',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'registry.ts',
        'this.#registry.addSweep(queue, Math.max(nextAt, earliest))',
        'this.#registry.addSweep(queue, nextAt)',
      ),
    ],
  },
  {
    name: 'old dedup keys beyond those of one sweep stay until housekeeping is due again',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/sweep.lua',
        'more = forgetKeys(q, window) >= AT_ONCE or more',
        'forgetKeys(q, window)',
      ),
    ],
  },
  {
    name: 'a sweep does not return a queue whose lease it ended while it looked for the next one',
    suite: 'redis upkeep',
    edits: [inRedis('registry.ts', 'if (result.released) this.noteAffected(queue);', '')],
  },
  {
    name: 'an entry for a sweep counts although the sweep may be before the reserve',
    suite: 'redis upkeep',
    edits: [inRedis('registry.ts', 'const MARGIN_MS = CALL_TIMEOUT_MS + 1_000;', 'const MARGIN_MS = 1_000;')],
  },
  {
    name: 'entries for sweeps count although the server was restarted since and has lost them',
    suite: 'redis upkeep',
    edits: [inRedis('index.ts', 'if (mayHaveLostWrites) registry.noteLoss();', '')],
  },
  {
    name: 'entries for sweeps count although the server was emptied since',
    suite: 'redis upkeep',
    edits: [inRedis('batcher.ts', '    registry.noteTag(this.queue, tag);\n', '')],
  },
  {
    name: 'no sweep looks for dead letters that pass their retention',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/groups.lua',
        "    if q ~= call.home and not firstMember(q.z, 'r') then registerSweep(q.name, call.now + retention) end\n",
        '',
      ),
    ],
  },
  {
    name: 'leases of large elements that die all end in one call',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/deliveries.lua',
        '    if call.copied >= MAX_COPIED then return true end\n    endLease',
        '    endLease',
      ),
    ],
  },
  {
    name: 'moves of large elements all happen in one call',
    suite: 'redis upkeep',
    edits: [inRedis('library/settle.lua', '  if call.copied >= MAX_COPIED then return LATER end\n', '')],
  },
  {
    name: 'what a call of the server left is not settled',
    suite: 'redis upkeep',
    edits: [inRedis('storage.ts', 'if (!results.includes(null)) return', 'return')],
  },
  {
    name: 'an element of many groups counts as one when it expires',
    suite: 'redis upkeep',
    edits: [inRedis('library/deliveries.lua', 'ended = ended + #gids', 'ended = ended + 1')],
  },
  {
    name: 'a page without bodies reads any number of bytes',
    suite: 'redis upkeep',
    edits: [inRedis('library/read.lua', 'values, page.left = readElementsAt', 'values = readElementsAt')],
  },
  {
    name: 'a purge leaves the expiries of what it removes',
    suite: 'redis upkeep',
    edits: [inRedis('library/settle.lua', 'unlistExpiries(q, members, readFronts(q, fields, 1, count))', '')],
  },
  {
    name: 'an undone pop forgets why its last try failed',
    suite: 'redis upkeep',
    edits: [inRedis('library/take.lua', 'addReasons(q, gid, taken.members, values)', 'local _ = values')],
  },
  {
    name: 'a relay keeps calls that were answered at their deadlines',
    suite: 'redis batches',
    edits: [inRedis('outbox.ts', 'takeWhile(waiters, ({ deadlineAt }) => deadlineAt <= now);', 'void now;')],
  },
  {
    name: 'a relay whose destination is unavailable tries again every second',
    suite: 'redis batches',
    edits: [inRedis('outbox.ts', 'pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);', '')],
  },
  {
    name: 'what arrives together with a sweep never expires, if nothing else did any more',
    suite: 'redis outbox',
    edits: [inRedis('library/sweep.lua', '    q.expires = nil\n', '')],
  },
  {
    name: 'an acknowledgement creates a queue that is gone',
    suite: 'redis outbox',
    edits: [
      inRedis('library/outbox.lua', "if q.tag ~= '' then call.wanted[to] = 0 end", 'call.wanted[to] = 0'),
    ],
  },
  {
    name: 'each call that adds to an outbox returns all that is in it',
    suite: 'redis outbox',
    edits: [inRedis('library/outbox.lua', ' < from then return prefix end', ' < 0 then return prefix end')],
  },
  {
    name: 'twenty destinations that are unavailable keep the others from being relayed',
    suite: 'redis outbox',
    edits: [
      inRedis(
        'library/outbox.lua',
        "if to then db('HSET', q.h, 'P', to) elseif",
        'if to then last = nil elseif',
      ),
    ],
  },
  {
    name: 'a copy for another namespace is kept by the retention of its source',
    suite: 'redis transfers',
    edits: [inRedis('library/queue.lua', 'options.r or q.retention or policy', 'options.r or policy')],
  },
  {
    name: 'a take by ids returns nothing while much has expired',
    suite: 'redis takes by ids',
    edits: [
      inRedis(
        'library/take.lua',
        "    if ids ~= '' then\n      taken = takeByIds",
        "    if mayExpireMore then\n      next = call.now\n    elseif ids ~= '' then\n      taken = takeByIds",
      ),
    ],
  },
  {
    name: 'an item of a list that cannot be decoded is lost',
    suite: 'redis lists',
    edits: [
      inRedis(
        'list.ts',
        'await this.#putBehind(queue, damaged, deadlineAt)',
        'await this.#putBehind(queue, [], deadlineAt)',
      ),
    ],
  },
  {
    name: 'an item of a list that cannot be decoded is lost if it cannot be put back at once',
    suite: 'redis lists',
    edits: [inRedis('list.ts', 'if (isCertain) this.#unplaced.set', 'if (!text) this.#unplaced.set')],
  },
  {
    name: 'each pop of a call returns as many bytes as one alone',
    suite: 'redis large elements',
    edits: [inRedis('library/take.lua', '  call.capacity = call.capacity - (capacity - left)\n', '')],
  },
  {
    name: 'each pop of a list in a call returns as many bytes as one alone',
    suite: 'redis large elements',
    edits: [inRedis('library/list.lua', '  call.capacity = call.capacity - (capacity - left)\n', '')],
  },
  {
    name: 'a client that does not wait gets nothing if its round trip had no room for it',
    suite: 'redis large elements',
    edits: [inRedis('library/take.lua', ' + (taken.isLeft and 4 or 0)', '')],
  },
  {
    name: 'a batch carries any number of pages',
    suite: 'redis large elements',
    edits: [inRedis('batcher.ts', ' || pageBytes > MAX_PAGE_BYTES', '')],
  },
  {
    name: 'a pop of a list returns any number of bytes',
    suite: 'redis lists',
    edits: [
      inRedis(
        'library/list.lua',
        'while #items < limit and (left > 0 or maxBytes) and not isCut do',
        'while #items < limit and not isCut do',
      ),
    ],
  },
  {
    name: 'a dedup key of a list fails if none is remembered',
    suite: 'redis lists',
    edits: [inRedis('library/list.lua', "window ~= '0' and db('SET'", "db('SET'")],
  },
  {
    name: 'a node that stops leaves a pop of unknown outcome to a sweep, which makes it final',
    suite: 'redis nodes',
    edits: [inRedis('index.ts', 'this.stats.stop(), this.#batchers.settle()', 'this.stats.stop()')],
  },
  {
    name: 'a pop that is sent again and finds no queue leaves nothing, so that its first attempt is executed late',
    suite: 'redis calls',
    edits: [inRedis('library/session.lua', ' or call.mayBeDone)', ')')],
  },
  {
    name: 'a reserve that a silent server keeps from being done rejects the commits of its batch',
    suite: 'redis cluster',
    edits: [inRedis('batcher.ts', 'return !this.#needsPreparation(call);', 'return false;')],
  },
  {
    name: 'a batch of a cluster waits for a silent server until it is too late for all of its calls',
    suite: 'redis cluster',
    edits: [inRedis('batcher.ts', 'topology.isCluster ? clock', 'false ? clock')],
  },
  {
    name: 'a list that becomes empty while its slot moves fails calls that have popped from it',
    suite: 'redis cluster',
    edits: [
      inRedis(
        'library/list.lua',
        'q.taken = q.taken + #items\n',
        'q.taken = q.taken + #items\n  removeTaken(q)\n',
      ),
    ],
  },
  {
    name: 'a call that is sent again after its queue was dropped is done again',
    suite: 'redis calls',
    edits: [inRedis('library/functions.lua', "string.gmatch('co', '.')", "string.gmatch('o', '.')")],
  },
  {
    name: 'an outbox entry that is sent again after its queue was dropped is applied again',
    suite: 'redis outbox',
    edits: [inRedis('library/functions.lua', "string.gmatch('co', '.')", "string.gmatch('c', '.')")],
  },
  {
    name: 'what remains of a queue that was dropped is never removed',
    suite: 'redis forgotten queues',
    edits: [
      inRedis('library/sweep.lua', '    forgetSessions(q)\n    forgetMarks(q)\n    return', '    return'),
    ],
  },
];
