import type { Edit, Mutant } from './mutants.ts';

const inRedis = (file: string, search: string, replace: string): Edit => ({
  file: `src/engines/redis/${file}`,
  search,
  replace,
});

/** Bugs of the Redis engine, most of which occur only after an outage, a failover or a lost reply. */
export const REDIS: readonly Mutant[] = [
  {
    name: 'the options of a queue stay after they were removed',
    suite: 'redis retry delays',
    edits: [inRedis('library/sweep.lua', "    delete(q, 'O')\n", '')],
  },
  {
    name: 'an expired lease causes no retry delay',
    suite: 'redis retry delays',
    edits: [inRedis('library/deliveries.lua', "'lease-expired', ends)", "'lease-expired')")],
  },
  {
    name: 'a batch waits until its outbox entries are applied',
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
      inRedis('batcher.ts', 'if (!batcher.isIdle) return;', ''),
      inRedis('batcher.ts', 'if (!isRepeatable) this.stop();', ''),
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
        'const isOther = !call.isRead && isRepeatable !== null &&',
        'const isOther = isRepeatable !== null &&',
      ),
      inRedis(
        'batcher.ts',
        'if (!call.isRead) isRepeatable = call.isRepeatable;',
        'isRepeatable = call.isRepeatable;',
      ),
    ],
  },
  {
    name: 'a read fails because of the changes in its batch',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'return isRead && hasChanges;', 'return false;')],
  },
  {
    name: 'a page whose reply was lost is returned from the stored reply of its batch instead of read again',
    suite: 'redis answers',
    edits: [
      inRedis('batcher.ts', 'return verb.isRead === true && result?.text.length === 0;', 'return false;'),
    ],
  },
  {
    name: 'numbers of batches start again after a queue was idle, so that the server treats new batches as repeats',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'this.#highest = Math.max(this.#highest, number + 1);', '')],
  },
  {
    name: 'a call settles before its outbox entries are applied',
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
    name: 'a sweep does not relay the outbox of a failed node',
    suite: 'redis outbox',
    edits: [inRedis('library/sweep.lua', 'if hasEntries then nameDestinations(q) end', '')],
  },
  {
    name: 'a repeated call is applied again',
    suite: 'redis calls',
    edits: [inRedis('library/session.lua', 'if last == call.number then return repeatReply(q) end', '')],
  },
  {
    name: 'elements of a pop whose reply was lost are not returned',
    suite: 'redis answers',
    edits: [inRedis('library/session.lua', 'if number > call.received then', 'if false then')],
  },
  {
    name: 'an expired call causes all other takes of its batch to be undone',
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
    name: 'elements taken for an expired call are not returned',
    suite: 'redis answers',
    edits: [inRedis('batcher.ts', '? returnedOf(batch.number, decoded) : null', '? null : null')],
  },
  {
    name: 'the returned part of a take is deleted with the rest',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', 'if not numbers[seq] then rest', 'if true then rest')],
  },
  {
    name: 'elements popped for other calls than the expired ones are never deleted',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', '  finishPops(q, concat(rest))\n', '')],
  },
  {
    name: 'a batch repeats the takes to undo of an older one',
    suite: 'redis batches',
    edits: [inRedis('batcher.ts', 'this.#returned = failed', 'this.#returned ??= failed')],
  },
  {
    name: 'a lost pop returns elements without their failed tries',
    suite: 'redis answers',
    edits: [inRedis('library/take.lua', 'size >= HEAD and byte(members[i], 19) % 2 == 0', 'size >= HEAD')],
  },
  {
    name: 'a lost pop of elements that were never reserved returns them as never tried',
    suite: 'redis answers',
    edits: [
      inRedis(
        'library/take.lua',
        "maturity, tries = unpackAt('>I6I4', value)\n    end\n    if gid ~= PLAIN",
        "maturity, tries = unpackAt('>I6', value), 0\n    end\n    if gid ~= PLAIN",
      ),
    ],
  },
  {
    name: 'a repeated reply of a reserve contains elements that are no longer reserved',
    suite: 'redis answers',
    edits: [
      inRedis(
        'library/take.lua',
        'if not d or d.token ~= tokenAt(taken, index) or d.ends <= call.now then values[i] = false end',
        '',
      ),
    ],
  },
  {
    name: 'reading a queue that does not exist creates it',
    suite: 'redis no trace',
    edits: [inRedis('library/session.lua', "return q.tag ~= '' and not call.isIdle", 'return true')],
  },
  {
    name: 'names that are only read accumulate in the list of used queues',
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
    name: 'a call on a queue that does not exist can be executed after it was reported lost',
    suite: 'redis no trace',
    edits: [
      inRedis(
        'library/session.lua',
        'if call.received < call.number - 1 or call.mayBeDone',
        'if call.mayBeDone',
      ),
    ],
  },
  {
    name: 'a take that finds nothing writes a session',
    suite: 'redis no trace',
    edits: [inRedis('library/session.lua', "q.tag ~= '' and not call.isIdle", "q.tag ~= ''")],
  },
  {
    name: 'a call that returns deliveries of the one before leaves them in its session, and the next one deletes them',
    suite: 'redis answers',
    edits: [inRedis('library/session.lua', '    call.isIdle = call.isIdle and not hasTaken(taken)\n', '')],
  },
  {
    name: 'a take delivers an expired element',
    suite: 'redis expiry',
    edits: [inRedis('library/take.lua', 'mayExpireMore = expireElements(q)', 'mayExpireMore = false')],
  },
  {
    name: 'a released element does not expire any more',
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
    name: 'some of several inserted elements have no index entry for their expiry',
    suite: 'redis expiry',
    edits: [
      inRedis('library/insert.lua', 'used, listed = #stored, #added', 'used, listed = #stored, #stored'),
    ],
  },
  {
    name: 'a lease that expired while the server was unavailable counts a try',
    suite: 'redis outages',
    edits: [inRedis('library/deliveries.lua', 'if isExcused(d, ends) then', 'if false then')],
  },
  {
    name: 'a lease that is granted soon after an outage counts no try',
    suite: 'redis outages',
    edits: [inRedis('library/deliveries.lua', ' and d.since < call.contact', '')],
  },
  {
    name: 'a lease without a delivery expires as if it had one',
    suite: 'redis damage',
    edits: [inRedis('library/deliveries.lua', 'if not isReservedUntil(d, ends) then', 'if false then')],
  },
  {
    name: "a truncated record of an element's groups is read",
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
    name: 'a reserve of a truncated element writes a record that is too short',
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
    name: 'a commit that occurs twice in one batch is applied twice',
    suite: 'redis commits',
    edits: [inRedis('library/settle.lua', '      flush(q)\n      record = nil\n', '')],
  },
  {
    name: 'the name of a queue is removed although it was used after it was found unused',
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
    edits: [inRedis('batcher.ts', 'creates && (isNew || isRepeated || !isDeclared)', '!tag')],
  },
  {
    name: 'a queue that has another tag than before is not named',
    suite: 'redis forgotten queues',
    edits: [inRedis('batcher.ts', '(isNew || isRepeated || !isDeclared)', '(isNew || isRepeated)')],
  },
  {
    name: 'a queue that existed only for a session has no name once it has elements',
    suite: 'redis calls',
    edits: [
      inRedis('library/queue.lua', "if q.tag ~= '' and (q.isNew or q.seq > 0) then", "if q.tag ~= '' then"),
    ],
  },
  {
    name: 'a list that another node deleted has no name once it has elements',
    suite: 'redis forgotten queues',
    edits: [inRedis('library/session.lua', "if not db('ZSCORE', names, name) then", 'if false then')],
  },
  {
    name: 'a list of a cluster that another node deleted has no name once it has elements',
    suite: 'redis forgotten queues',
    edits: [inRedis('batcher.ts', 'if (isNew) registry', 'if (!queueText) registry')],
  },
  {
    name: 'each insert that creates a list of a cluster writes its name',
    suite: 'redis forgotten queues',
    edits: [inRedis('batcher.ts', 'registry.nameMissing(this.queue)', 'registry.declare([this.queue])')],
  },
  {
    name: 'a list that is created while another node deletes it has no name',
    suite: 'redis forgotten queues',
    edits: [
      inRedis(
        'registry.ts',
        "if ((await this.#executor.read(list, 'EXISTS', [list])) === 1) await this.declare([queue]);",
        '',
      ),
    ],
  },
  {
    name: 'an insert waits for a silent server of the lists until its deadline',
    suite: 'redis cluster',
    edits: [
      inRedis(
        'batcher.ts',
        'const deadlineAt = this.#registryDeadline(batch);\n    // A repeated',
        'const { deadlineAt } = batch;\n    // A repeated',
      ),
    ],
  },
  {
    name: 'a read waits until the elements that expire in its batch are listed',
    suite: 'redis cluster',
    edits: [
      inRedis(
        'batcher.ts',
        'else if (creates === true || leaseMs !== undefined) awaited = registered;',
        'else awaited = registered;',
      ),
    ],
  },
  {
    name: 'a sweep forgets the session that its own batch writes',
    suite: 'redis upkeep',
    edits: [inRedis('library/sweep.lua', '      q.session = nil\n', '')],
  },
  {
    name: 'a sweep deletes the elements of pops that its own batch undoes',
    suite: 'redis upkeep',
    edits: [inRedis('library/sweep.lua', '      q.session = nil\n      return\n', '      q.session = nil\n')],
  },
  {
    name: 'a housekeeping entry that could not be written is not written later',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'registry.ts',
        'void {\n    remember(this.#untidied, queueText(queue), queue);',
        'void {\n    void queue;',
      ),
    ],
  },
  {
    name: 'a queue counts as unnamed once an entry of a list could not be written',
    suite: 'redis upkeep',
    edits: [inRedis('batcher.ts', 'registry.tidyBySweep(this.queue)', 'registry.forgetWritten(this.queue)')],
  },
  {
    name: 'the last pop of an earlier version is read in the form of this one',
    suite: 'redis damage',
    edits: [
      inRedis('library/take.lua', 'if byte(taken, TAKE_HEAD + 1) ~= WAITING_MEMBER then return', 'do return'),
    ],
  },
  {
    name: 'a repeated reply does not report that the queue is new',
    suite: 'redis forgotten queues',
    edits: [inRedis('batcher.ts', '(isNew || isRepeated || !isDeclared)', '(isNew || !isDeclared)')],
  },
  {
    name: 'an unused queue is forgotten with its dedup keys',
    suite: 'redis forgotten queues',
    edits: [inRedis('library/functions.lua', "db('ZCARD', keys[2]) > 1 or ", '')],
  },
  {
    name: 'a node that inserts every hour does not register its use',
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
    name: 'the bytes of a namespace do not include the content of its elements',
    suite: 'redis capacity',
    edits: [inRedis('registry.ts', 'isList ? [list] : [hash, order]', 'isList ? [list] : [order]')],
  },
  {
    name: 'a sweep removes an entry that it has just added',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'sweeper.ts',
        'nextDue.push({ queue, at: Math.max(nextAt, earliest) })',
        'nextDue.push({ queue, at: nextAt })',
      ),
    ],
  },
  {
    name: 'a lease of a stream that ends before the others of its group ends with them',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/deliveries.lua',
        'if not listed or fromSix(ends) < fromSix(listed) then',
        'if not listed then',
      ),
    ],
  },
  {
    name: 'an extension that ends a lease of a stream earlier is not listed',
    suite: 'redis upkeep',
    edits: [inRedis('library/settle.lua', '      noteLease(q, item.gid, six(ends))\n', '')],
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
    name: 'a sweep does not return a queue whose lease it expired while it determined the next due time',
    suite: 'redis upkeep',
    edits: [inRedis('sweeper.ts', 'if (released) this.affected.note(queue);', '')],
  },
  {
    name: 'an existing due entry is trusted although its sweep may run before the reserve',
    suite: 'redis upkeep',
    edits: [inRedis('registry.ts', 'const MARGIN_MS = CALL_TIMEOUT_MS + 1_000;', 'const MARGIN_MS = 1_000;')],
  },
  {
    name: 'due entries are trusted although the server was restarted and has lost them',
    suite: 'redis upkeep',
    edits: [inRedis('index.ts', 'if (mayHaveLostWrites) registry.noteLoss();', '')],
  },
  {
    name: 'due entries are trusted although the server was emptied',
    suite: 'redis upkeep',
    edits: [inRedis('batcher.ts', '    registry.noteTag(this.queue, tag);\n', '')],
  },
  {
    name: 'no sweep is due for the retention of dead letters',
    suite: 'redis upkeep',
    edits: [inRedis('library/queue.lua', 'if q.firstDue and q.dueAt < q.firstDue then', 'if false then')],
  },
  {
    name: 'leases of large elements that become dead letters all expire in one function call',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/deliveries.lua',
        '    if call.copied >= MAX_COPIED then return true end\n    endLease(q, ended[i])',
        '    endLease(q, ended[i])',
      ),
    ],
  },
  {
    name: 'a group of which many leases have expired delays the others',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/deliveries.lua',
        'isMore and math.ceil(limit / #gids) or limit',
        'isMore and limit or limit',
      ),
    ],
  },
  {
    name: 'each take of a function call ends a thousand leases',
    suite: 'redis upkeep',
    edits: [inRedis('library/deliveries.lua', '  call.leasesLeft = call.leasesLeft - 1\n', '')],
  },
  {
    name: 'moves of large elements are all made in one function call',
    suite: 'redis upkeep',
    edits: [inRedis('library/settle.lua', '  if call.copied >= MAX_COPIED then return LATER end\n', '')],
  },
  {
    name: 'settlements that a function call left over are not made',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'storage.ts',
        'results.length === items.length ? results : settleRest(items, results, step)',
        'results',
      ),
    ],
  },
  {
    name: 'an expiring element with many groups counts as one',
    suite: 'redis upkeep',
    edits: [inRedis('library/deliveries.lua', 'call.expiriesLeft - #gids', 'call.expiriesLeft - 1')],
  },
  {
    name: 'a page without bodies reads any number of bytes',
    suite: 'redis upkeep',
    edits: [inRedis('library/read.lua', 'values, page.left = readElementsAt', 'values = readElementsAt')],
  },
  {
    name: 'a listing counts an element as reserved after its lease has expired',
    suite: 'redis listings',
    edits: [inRedis('library/functions.lua', "  if hasExpiredLease(q) then return '', 0 end\n", '')],
  },
  {
    name: 'a queue that cannot be counted hides those that are counted with it',
    suite: 'redis listings',
    edits: [inRedis('library/functions.lua', 'isRead and text or', 'text or')],
  },
  {
    name: 'an entry of the outbox is applied however long ago it was read',
    suite: 'redis outbox',
    edits: [inRedis('library/outbox.lua', 'call.now - readAt > READ_MS', 'false')],
  },
  {
    name: 'an old queue that is still needed is checked again in each pass',
    suite: 'redis forgotten queues',
    edits: [inRedis('sweeper.ts', 'this.#registry.now() - FORGOTTEN_MS', 'unused.usedAt')],
  },
  {
    name: 'a purge leaves the index entries of expiring elements',
    suite: 'redis upkeep',
    edits: [inRedis('library/settle.lua', 'unlistExpiries(q, members, readFronts(q, fields, 1, count))', '')],
  },
  {
    name: 'an undone pop forgets why its last try failed',
    suite: 'redis upkeep',
    edits: [
      inRedis(
        'library/take.lua',
        'return sub(record, 1, 10) .. reasonIn(record)',
        'return sub(record, 1, 10)',
      ),
    ],
  },
  {
    name: 'a relay retains calls that settled at their deadlines',
    suite: 'redis batches',
    edits: [inRedis('outbox.ts', 'takeWhile(waiters, ({ deadlineAt }) => deadlineAt <= now);', 'void now;')],
  },
  {
    name: 'a relay whose destination is unavailable tries again every second',
    suite: 'redis batches',
    edits: [inRedis('outbox.ts', 'pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS);', '')],
  },
  {
    name: 'an element that arrives in a batch with a sweep never expires, if no other did any more',
    suite: 'redis outbox',
    edits: [inRedis('library/sweep.lua', '    q.expires = nil\n', '')],
  },
  {
    name: 'a relay ends early if its acknowledgement is in a batch with a sweep',
    suite: 'redis outbox',
    edits: [
      inRedis(
        'library/outbox.lua',
        'call.wanted[to] = call.wanted[to] or ONLY_NAMED',
        'call.wanted[to] = ONLY_NAMED',
      ),
    ],
  },
  {
    name: 'an acknowledgement creates a queue that is gone',
    suite: 'redis outbox',
    edits: [
      inRedis('library/outbox.lua', "if q.tag ~= '' then call.wanted[to] = 0 end", 'call.wanted[to] = 0'),
    ],
  },
  {
    name: 'every call that adds to an outbox returns all of its entries',
    suite: 'redis outbox',
    edits: [inRedis('library/outbox.lua', ' < from then return prefix end', ' < 0 then return prefix end')],
  },
  {
    name: 'twenty unavailable destinations prevent relaying to others',
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
    name: 'the retention of the source applies to a copy for another namespace',
    suite: 'redis transfers',
    edits: [inRedis('library/queue.lua', 'options.r or q.retention or policy', 'options.r or policy')],
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
    name: 'an item of a list that cannot be decoded is lost if it cannot be returned immediately',
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
    name: 'a client with a timeout of 0 gets nothing if the reply of its batch was full',
    suite: 'redis large elements',
    edits: [inRedis('library/take.lua', ' + (taken.isLeft and 4 or 0)', '')],
  },
  {
    name: 'the number of pages in a batch is not limited',
    suite: 'redis large elements',
    edits: [inRedis('batcher.ts', ' || pageBytes > MAX_PAGE_BYTES', '')],
  },
  {
    name: 'the bytes of a pop from a list are not limited',
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
    name: 'an insert with a dedup key into a list fails if the window is 0',
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
    edits: [inRedis('library/session.lua', ' or call.mayBeDone then', ' then')],
  },
  {
    name: 'a reserve that a silent server blocks rejects the commits of its batch',
    suite: 'redis cluster',
    edits: [inRedis('batcher.ts', 'return !this.#needsPreparation(call);', 'return false;')],
  },
  {
    name: 'a batch of a cluster waits for a silent server until it is too late for all of its calls',
    suite: 'redis cluster',
    edits: [inRedis('batcher.ts', 'topology.isCluster ? Math.min', 'false ? Math.min')],
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
    name: 'a call that is repeated after its queue was dropped is applied again',
    suite: 'redis calls',
    edits: [inRedis('library/functions.lua', "string.gmatch('co', '.')", "string.gmatch('o', '.')")],
  },
  {
    name: 'an outbox entry that is sent again after its queue was dropped is applied again',
    suite: 'redis outbox',
    edits: [inRedis('library/functions.lua', "string.gmatch('co', '.')", "string.gmatch('c', '.')")],
  },
  {
    name: 'the records that remain of a dropped queue are never removed',
    suite: 'redis forgotten queues',
    edits: [
      inRedis('library/sweep.lua', '    forgetSessions(q)\n    forgetMarks(q)\n    return', '    return'),
    ],
  },
];
