import type { Edit, Mutant } from './mutants.ts';

const WORKER = 'src/engines/sqlite/worker';

const inWorker = (file: string, search: string, replace: string): Edit => ({
  file: `${WORKER}/${file}`,
  search,
  replace,
});

/** Bugs of the embedded engine: found by the model, the contract of the ports, or a suite of their own. */
export const SQLITE: readonly Mutant[] = [
  {
    name: 'the group is ignored on commit and rollback',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'const lane = queue?.lanes.get(group);',
        'const lane = [...(queue?.lanes.values() ?? [])][0];',
      ),
    ],
  },
  {
    name: 'tries are not raised',
    suite: 'storage model',
    edits: [inWorker('try-end.ts', 'const tries = failed.tries + 1;', 'const tries = failed.tries;')],
  },
  {
    name: 'equal maturities are handed out last in, first out',
    suite: 'storage model',
    edits: [
      inWorker('deliveries.ts', 'ORDER BY d.due_at, d.seq LIMIT', 'ORDER BY d.due_at, d.seq DESC LIMIT'),
    ],
  },
  {
    name: 'another user settles a reservation without its token',
    suite: 'storage model',
    edits: [inWorker('verbs/settle.ts', 'if (isOfAnother(named)) return TOKEN_REQUIRED;', '')],
  },
  {
    name: 'a repeated key with other content is taken for a repeat',
    suite: 'storage model',
    edits: [
      { file: 'src/model/fingerprint.ts', search: 'return !a || !b || a === b;', replace: 'return true;' },
    ],
  },
  {
    name: 'a queue that holds elements is forgotten',
    suite: 'sqlite forgotten queues',
    edits: [
      inWorker('unused.ts', 'if (counts.ready + counts.scheduled + counts.reserved > 0) return false;', ''),
    ],
  },
  {
    name: 'the storage thread keeps each name that was ever asked for',
    suite: 'sqlite names',
    edits: [inWorker('main.ts', 'store.names.forgetHandlesBelow(firstHandle);', '')],
  },
  {
    name: 'the main thread keeps each name that was ever asked for',
    suite: 'sqlite names',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'if (this.#handles.size >= MAX_HANDLES) this.#forgetHandles();',
        replace: '',
      },
    ],
  },
  {
    name: 'names are forgotten while batches that name their queues wait',
    suite: 'sqlite names',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'firstHandle: batch.firstHandle,',
        replace: 'firstHandle: this.#firstHandle,',
      },
    ],
  },
  {
    name: 'each reservation has the same token',
    suite: 'storage model',
    edits: [inWorker('verbs/take.ts', 'const token = store.tokens.text();', "const token = 'same';")],
  },
  {
    name: 'elements are handed out a second early',
    suite: 'storage model',
    edits: [
      inWorker('verbs/take.ts', 'ready(lane, store.now, limit)', 'ready(lane, store.now + 1000, limit)'),
    ],
  },
  {
    name: 'the dead letter comes one try too late',
    suite: 'storage model',
    edits: [inWorker('try-end.ts', 'tries >= policy.maxTries', 'tries > policy.maxTries')],
  },
  {
    name: 'an element put back forgets its tries',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/put-back.ts',
        'add(lane, seq, dueAt, tries, store.now)',
        'add(lane, seq, dueAt, 0, store.now)',
      ),
    ],
  },
  {
    name: 'an element put back to two groups is counted twice',
    suite: 'storage model',
    edits: [inWorker('verbs/put-back.ts', 'store.elements.markShared(seq);', '')],
  },
  {
    name: 'remove takes reserved elements',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/remove.ts',
        'if (deliveries.some((delivery) => delivery.leaseUntil !== null)) return RESERVED;',
        '',
      ),
    ],
  },
  {
    name: 'remove takes elements of other queues',
    suite: 'storage model',
    edits: [inWorker('verbs/remove.ts', 'lanes[0]?.queue !== queue', 'lanes[0]?.queue === undefined')],
  },
  {
    name: 'a reserve is not taken off the count of what is ready',
    suite: 'storage model',
    edits: [
      inWorker(
        'deliveries.ts',
        'this.#reserve.run(token, until, owner, seq, lane.id);\n    this.#counts.waitingRemoved(lane, dueAt);',
        'this.#reserve.run(token, until, owner, seq, lane.id);',
      ),
    ],
  },
  {
    name: 'what matures is never counted as ready',
    suite: 'storage model',
    edits: [
      inWorker('counts.ts', 'else if (counts.scheduledFrom <= now) this.#advance(lane, counts, now);', ''),
    ],
  },
  {
    name: 'a lease that ran out matures when it was noticed, not when it ended',
    suite: 'storage model',
    edits: [inWorker('try-end.ts', 'nextDueAt: until', 'nextDueAt: store.now')],
  },
  {
    name: 'a lease that ran out cannot be committed any more',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'if (row.leaseUntil === null && row.token === null) {',
        'if (row.leaseUntil === null) {',
      ),
    ],
  },
  {
    name: 'what was rolled back can still be committed',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'dueAt, row.tries, null, store.now)',
        'dueAt, row.tries, row.token, store.now)',
      ),
    ],
  },
  {
    name: 'an uncounted rollback loses its place',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'const dueAt = delayMs > 0 ? store.now + delayMs : row.dueAt;',
        'const dueAt = store.now + delayMs;',
      ),
    ],
  },
  {
    name: 'an old token settles the next reservation',
    suite: 'storage model',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'named.token !== row.token) return',
        'named.token > (row.token ?? 0)) return',
      ),
    ],
  },
  {
    name: 'an extended lease ends when it would have ended before',
    suite: 'storage model',
    edits: [inWorker('deliveries.ts', 'this.#extend.run(until, seq, lane.id);', '')],
  },
  {
    name: 'the first group to finish takes the element from the others',
    suite: 'storage model',
    edits: [
      inWorker(
        'elements.ts',
        'if (shared && this.#otherDelivery.get(seq) !== undefined) return;',
        'if (shared && seq < 0) return;',
      ),
    ],
  },
  {
    name: 'a transfer inserts although its element was lost',
    suite: 'storage model',
    edits: [inWorker('verbs/transfer.ts', 'if (outcome !== DONE) continue;', '')],
  },
  {
    name: 'a dedup key of one queue stops inserts into another',
    suite: 'storage model',
    edits: [
      inWorker('dedup.ts', 'WHERE queue = ? AND key = ? AND', 'WHERE (queue = ? OR 1) AND key = ? AND'),
    ],
  },
  {
    name: 'a dedup key is remembered for ever',
    suite: 'contract',
    edits: [inWorker('dedup.ts', 'key, now - this.#windowMs) as', 'key, -1) as')],
  },
  {
    name: 'a page of browse skips what has the same maturity as its last row',
    suite: 'storage model',
    edits: [inWorker('verbs/browse.ts', ', d.seq) > (:moment, :seq)', ') > (:moment) AND :seq >= 0')],
  },
  {
    name: 'purge leaves the leases of what it purged running',
    suite: 'contract',
    edits: [inWorker('verbs/purge.ts', 'store.names.detachLane(lane);\n', '')],
  },
  {
    name: 'answers leave before the commit',
    suite: 'storage model with crashes',
    edits: [
      inWorker('store.ts', '    this.#commit.run();\n', ''),
      inWorker(
        'store.ts',
        '    this.#begin.run();\n',
        '    if (this.db.isTransaction) this.#commit.run();\n    this.#begin.run();\n',
      ),
    ],
  },
  {
    name: 'a restart begins its ids where the last one began',
    suite: 'storage model with crashes',
    edits: [
      inWorker(
        'meta.ts',
        'DO UPDATE SET value = value + 1 RETURNING',
        'DO UPDATE SET value = value RETURNING',
      ),
    ],
  },
  {
    name: 'the counts of a queue are not stored',
    suite: 'storage model with crashes',
    edits: [inWorker('store.ts', 'this.counts.save();', 'this.counts.discard();')],
  },
  {
    name: 'leases are forgotten by a restart',
    suite: 'storage model with crashes',
    edits: [
      inWorker(
        'leases.ts',
        'if (lane !== null) this.#put(',
        'if (lane !== null && rows.length < 0) this.#put(',
      ),
    ],
  },
  {
    name: 'a rolled-back lease stays in memory',
    suite: 'sqlite undo',
    edits: [inWorker('leases.ts', 'this.#undo.add(() => this.#put(lane, before));', '')],
  },
  {
    name: 'a rolled-back retention stays in memory',
    suite: 'sqlite undo',
    edits: [inWorker('retention.ts', 'this.#undo.add(() => this.#put(queue, before));', '')],
  },
  {
    name: 'only the first of several batches is said to be unknown',
    suite: 'sqlite faults',
    edits: [inWorker('main.ts', 'store.mayBeDurable ? batches : 0', 'store.mayBeDurable ? 1 : 0')],
  },
  {
    name: 'what was stored one by one is said not to be',
    suite: 'sqlite faults',
    edits: [
      inWorker(
        'store.ts',
        "this.#faults?.reach('begin');",
        "this.mayBeDurable = false;\nthis.#faults?.reach('begin');",
      ),
    ],
  },
  {
    name: 'answers of two batches are exchanged',
    suite: 'contract',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'const answered = this.#inFlight.splice(0, replies.length);',
        replace: 'const answered = this.#inFlight.splice(0, replies.length).reverse();',
      },
    ],
  },
  {
    name: 'a call that could not be written down shifts the answers behind it',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/pending-batch.ts',
        search: 'if (this.table.length === finished) return;',
        replace: 'if (this.table.length >= finished) return;',
      },
    ],
  },
  {
    name: "the caller's own memory is given away with a body",
    suite: 'sqlite messages',
    edits: [
      {
        file: 'src/engines/sqlite/message.ts',
        search: 'owned && fillsItsMemory(body) ? body : new Uint8Array(body)',
        replace: '(fillsItsMemory(body) ? body : new Uint8Array(body))',
      },
    ],
  },
  {
    name: 'one failing call fails its whole batch',
    suite: 'sqlite faults',
    edits: [
      inWorker(
        'batch.ts',
        'return batches.map((batch) => runOneByOne(store, batch));',
        "throw new Error('the batch failed');",
      ),
    ],
  },
  {
    name: 'a failed fsync is taken for a passing error',
    suite: 'sqlite faults',
    edits: [inWorker('faults.ts', '  SQLITE_IOERR,\n  SQLITE_CORRUPT,', '  SQLITE_CORRUPT,')],
  },
  {
    name: 'counts stay changed when a transaction is rolled back',
    suite: 'sqlite faults',
    edits: [inWorker('counts.ts', 'this.#undo.add(() => Object.assign(counts, before));', 'void before;')],
  },
  {
    name: 'a batch that waits in the port runs after the store has failed',
    suite: 'sqlite faults',
    edits: [inWorker('main.ts', 'if (hasFailed) return;', '')],
  },
  {
    name: 'a body whose checksum does not fit is handed out',
    suite: 'sqlite damage',
    edits: [
      inWorker(
        'deliveries.ts',
        'elementChecksum(seq, type, more, body) === crc',
        'elementChecksum(seq, type, more, body) >= -crc',
      ),
    ],
  },
  {
    name: 'a delivery whose checksum does not fit is handed out',
    suite: 'sqlite damage',
    edits: [
      inWorker(
        'deliveries.ts',
        'deliveryChecksum(seq, lane.id, dueAt, tries) === deliveryCrc &&',
        'deliveryCrc >= 0 &&',
      ),
    ],
  },
  {
    name: 'a rollback gives damaged tries a sound checksum',
    suite: 'sqlite damage',
    edits: [
      inWorker(
        'verbs/settle.ts',
        'if (!isWholeDelivery(lane, seq, row)) {',
        'if (!isWholeDelivery(lane, seq, row) && seq < 0) {',
      ),
    ],
  },
  {
    name: 'indices are left out of the check at the start',
    suite: 'sqlite damage',
    edits: [
      inWorker('check.ts', 'PRAGMA integrity_check(', 'PRAGMA quick_check('),
      inWorker('check.ts', '.get()?.integrity_check;', '.get()?.quick_check;'),
    ],
  },
  {
    name: 'what follows a flipped bit in the log is dropped silently',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', 'commits < 2 ? null', 'commits < 2000 ? null')],
  },
  {
    name: 'a torn last transaction of the log keeps the server from starting',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', 'commits < 2 ? null', 'commits < 1 ? null')],
  },
  {
    name: 'sound frames of an older generation of the log are taken for its own',
    suite: 'sqlite log',
    edits: [
      inWorker('log-check.ts', 'const isOurs = hasSalts(frame, header);', 'const isOurs = frame.isCommit;'),
    ],
  },
  {
    name: 'a log whose header does not fit is ignored',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', ': damageInHeader(frames);', ': null;')],
  },
  {
    name: 'a deleted database file goes unnoticed',
    suite: 'sqlite files',
    edits: [inWorker('space.ts', 'if (identityOf(path) !== identity) throw', 'if (path === identity) throw')],
  },
  {
    name: 'a clock that is set back withholds what is ready',
    suite: 'sqlite clock',
    edits: [
      {
        file: 'src/engines/sqlite/steady-time.ts',
        search: 'if (setBy < -SET_BACK_MS ||',
        replace: 'if (setBy < -Number.MAX_VALUE ||',
      },
      {
        file: 'src/engines/sqlite/steady-time.ts',
        search: 'Math.max(this.#last, Math.floor(wall + this.#ahead))',
        replace: 'Math.floor(wall + this.#ahead)',
      },
    ],
  },
  {
    name: 'a restored backup gives ids that the lost file gave',
    suite: 'sqlite backup',
    edits: [inWorker('meta.ts', '.run(IS_COPY).changes > 0', '.run(IS_COPY).changes > 1')],
  },
  {
    name: 'the name of a backup leads out of its folder',
    suite: 'backups over HTTP',
    edits: [
      { file: 'src/server/backups.ts', search: 'if (!NAME.test(chosen))', replace: "if (chosen === '')" },
    ],
  },
  {
    name: 'a user with a list of rights takes a backup',
    suite: 'backups over HTTP',
    edits: [
      {
        file: 'src/http/front.ts',
        search: "if (route.access === 'administrator' &&",
        replace: "if (route.id === '' &&",
      },
    ],
  },
  {
    name: 'a power loss takes the count of starts back',
    suite: 'sqlite power loss',
    edits: [
      inWorker('meta.ts', "setDurability(this.#db, 'full');", 'setDurability(this.#db, this.#durability);'),
    ],
  },
  {
    name: 'the ballast is kept on a full disk',
    suite: 'sqlite disk full',
    edits: [inWorker('batch.ts', 'if (isFull(error)) store.space?.giveUpBallast();', '')],
  },
  {
    name: 'inserts go on below the margin',
    suite: 'sqlite disk full',
    edits: [
      inWorker(
        'batch.ts',
        'if (store.space?.isTight && TAKES_SPACE.has(operation)) {',
        'if (operation < 0) {',
      ),
    ],
  },
];
