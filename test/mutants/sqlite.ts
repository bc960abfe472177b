import type { Edit, Mutant } from './mutants.ts';

const WORKER = 'src/engines/sqlite/worker';

const inWorker = (file: string, search: string, replace: string): Edit => ({
  file: `${WORKER}/${file}`,
  search,
  replace,
});

/** Bugs of the SQLite engine, found by the model, the contract of the ports or other suites. */
export const SQLITE: readonly Mutant[] = [
  {
    name: 'a count of a stream reads all of its elements each time',
    suite: 'sqlite counts',
    edits: [inWorker('counts.ts', 'const after = shared?.readTo ?? ', 'const after = ')],
  },
  {
    name: 'elements of several one-element calls are stored in the queue of the first',
    suite: 'sqlite batch',
    edits: [inWorker('batch.ts', 'queueOf(calls[end]) === queue', 'queueOf(calls[end]) !== null')],
  },
  {
    name: 'a popped element has the expiry of the one before it',
    suite: 'contract',
    edits: [inWorker('take.ts', '        fields[sharedAt + 1] === expiresAt &&\n', '')],
  },
  {
    name: 'reservations in memory hide an element that becomes ready before them',
    suite: 'contract',
    edits: [inWorker('rows.ts', '    this.writeReservations([id]);', '    void id;')],
  },
  {
    name: 'a second commit of a reservation in memory counts for the next one',
    suite: 'contract',
    edits: [inWorker('settle.ts', '!reserved.has(element) || seqs.has(element)', '!reserved.has(element)')],
  },
  {
    name: 'a take with a full reply does not report that there is more',
    suite: 'contract',
    edits: [inWorker('take.ts', 'isLast = isLeft = true;', 'isLast = true;')],
  },
  {
    name: 'a deleted ballast is not created again',
    suite: 'sqlite disk full',
    edits: [
      inWorker(
        'space.ts',
        'const hadBallast = this.#isBallastComplete();',
        'const hadBallast = !this.isNearlyFull || this.#isBallastComplete();',
      ),
    ],
  },
  {
    name: 'a count of a stream reads all elements that became due since the previous one',
    suite: 'sqlite counts',
    edits: [inWorker('counts.ts', 'Read -= due.length / DELIVERIES_PER_READ;', 'Read = ELEMENTS_PER_COUNT;')],
  },
  {
    name: 'elements past their retention that one sweep leaves over are never removed',
    suite: 'sqlite forgotten queues',
    edits: [inWorker('sweep.ts', 'if (left <= 0) return true;', 'if (left <= 0) break;')],
  },
  {
    name: 'a purge removes two thousand elements in a step, however large',
    suite: 'sqlite batch',
    edits: [inWorker('sweep.ts', 'const MAX_PURGED_PAGES = 32_768;', 'const MAX_PURGED_PAGES = Infinity;')],
  },
  {
    name: 'a take reads the bodies of all expired elements',
    suite: 'sqlite batch',
    edits: [inWorker('rows.ts', 'iif(d.expires_at <= ?1, NULL, ', 'iif(d.expires_at <= -?1, NULL, ')],
  },
  {
    name: 'all dead letters of expired leases are moved in one step',
    suite: 'sqlite dead letters',
    edits: [inWorker('delivery.ts', 'if (!store.mayCopyMore(copiedBytes)) break;', '')],
  },
  {
    name: 'a sweep whose reply is late forgets the queues that gained elements',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/storage.ts',
        search: "return this.#client.invoke('sweep');",
        replace: "this.#client.affected.takeAll();\n    return this.#client.invoke('sweep');",
      },
    ],
  },
  {
    name: 'elements returned by a late take wake no consumer',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/storage.ts',
        search: 'this.#client.affected.note(queue);',
        replace: '',
      },
    ],
  },
  {
    name: 'a count of a stream misses elements that became due since the previous one',
    suite: 'sqlite counts',
    edits: [inWorker('counts.ts', '      this.#noteDue(subscription, now);\n', '')],
  },
  {
    name: 'a count of a stream marks an element as changed only after the change',
    suite: 'sqlite counts',
    edits: [
      inWorker(
        'counts.ts',
        'this.#statesOf(element, shared.countedAt), -1)',
        'this.#statesOf(element, Date.now()), -1)',
      ),
    ],
  },
  {
    name: 'elements of a large call that do not fill a statement are not stored',
    suite: 'contract of inserts on SQLite',
    edits: [inWorker('rows.ts', 'if (additions.rowsOf(values) > 0) ', 'if (additions.rowsOf(values) < 0) ')],
  },
  {
    name: 'an element of a call gets the tries of the one before it',
    suite: 'contract of inserts on SQLite',
    edits: [
      {
        file: 'src/engines/sqlite/storage.ts',
        search: '      fields[before + 5] === tries &&\n',
        replace: '',
      },
    ],
  },
  {
    name: 'elements of a large call are not counted',
    suite: 'contract of inserts on SQLite',
    edits: [
      inWorker(
        'rows.ts',
        '      this.#counter.waitingAdded(subscription, dueAt, now);\n      seq++;',
        '      seq++;',
      ),
    ],
  },
  {
    name: 'the group is ignored on commit and rollback',
    suite: 'storage model',
    edits: [
      inWorker(
        'settle.ts',
        'const subscription = queue.subscriptions.get(items[at + 2] as SettleFields[2]);',
        'const subscription = [...queue.subscriptions.values()][0];',
      ),
    ],
  },
  {
    name: 'tries are not incremented',
    suite: 'storage model',
    edits: [inWorker('delivery.ts', 'const tries = this.#row.tries + 1;', 'const tries = this.#row.tries;')],
  },
  {
    name: 'elements of equal maturity are delivered last in, first out',
    suite: 'storage model',
    edits: [
      inWorker('rows.ts', 'ORDER BY d.due_at, d.seq LIMIT ${', 'ORDER BY d.due_at, d.seq DESC LIMIT ${'),
    ],
  },
  {
    name: 'another user settles a reservation without its token',
    suite: 'storage model',
    edits: [
      inWorker(
        'settle.ts',
        "return isOfAnother ? 'token-required' : null;",
        'return isOfAnother ? null : null;',
      ),
    ],
  },
  {
    name: 'a repeated dedup key with other content is accepted as a repeat',
    suite: 'storage model',
    edits: [
      { file: 'src/model/fingerprint.ts', search: 'return !a || !b || a === b;', replace: 'return true;' },
    ],
  },
  {
    name: 'a queue with elements is forgotten',
    suite: 'sqlite forgotten queues',
    edits: [
      inWorker(
        'sweep.ts',
        'if (queue.options !== null || deliveriesIn(queue) > 0) return false;',
        'if (queue.options !== null || deliveriesIn(queue) < 0) return false;',
      ),
    ],
  },
  {
    name: 'all reservations have the same token',
    suite: 'contract',
    edits: [inWorker('take.ts', 'drawStoredToken(store.tokens);', "'sameAsOfEachTakeAAAAAA+';")],
  },
  {
    name: 'reservations of one take have the same token',
    suite: 'contract',
    edits: [
      inWorker('tokens.ts', 'const combined = word ^ element;', 'const combined = word ^ (element & 0);'),
      inWorker('tokens.ts', '((wordOf(stored) ?? 0) ^ element)', '(wordOf(stored) ?? 0)'),
    ],
  },
  {
    name: 'the tokens of commits of one take are not checked',
    suite: 'contract',
    edits: [inWorker('settle.ts', 'if (!isTokenOf(String(items[at + 4]), element, stored)) break;', '')],
  },
  {
    name: 'commits of one take also remove deliveries between them',
    suite: 'contract',
    edits: [inWorker('rows.ts', 'token) !== count) return false;', 'token) === 0) return false;')],
  },
  {
    name: 'several strings are accepted for one token',
    suite: 'sqlite batch',
    edits: [inWorker('tokens.ts', 'last < 0 || (last & 15) !== 0', 'last < 0')],
  },
  {
    name: 'all reservations of a take get its first holder',
    suite: 'contract',
    edits: [
      inWorker(
        'take.ts',
        "typeof holders === 'string' ? holders : holders.slice(takenBefore)",
        "typeof holders === 'string' ? holders : (holders[takenBefore] ?? '')",
      ),
    ],
  },
  {
    name: 'elements are delivered a second early',
    suite: 'storage model',
    edits: [
      inWorker(
        'take.ts',
        'rows.ready(subscription, now, limit)',
        'rows.ready(subscription, now + 1000, limit)',
      ),
    ],
  },
  {
    name: 'an element becomes a dead letter one try too late',
    suite: 'storage model',
    edits: [inWorker('delivery.ts', 'tries >= policy.maxTries', 'tries > policy.maxTries')],
  },
  {
    name: 'a returned element loses its tries',
    suite: 'storage model',
    edits: [
      inWorker(
        'take.ts',
        'const row = { ...rest, body: bodyAt(received, ...place) };',
        'const row = { ...rest, tries: 0, body: bodyAt(received, ...place) };',
      ),
    ],
  },
  {
    name: 'an element returned to two groups is counted twice',
    suite: 'contract',
    edits: [inWorker('rows.ts', 'SET groups = max(groups, 2)', 'SET groups = groups')],
  },
  {
    name: 'remove takes reserved elements',
    suite: 'contract',
    edits: [inWorker('settle.ts', "  if (isWaiting && row.leaseUntil !== null) return 'reserved';\n", '')],
  },
  {
    name: 'a reserve does not decrement the count of ready elements',
    suite: 'storage model',
    edits: [
      inWorker(
        'rows.ts',
        'for (const { dueAt } of rows) this.#counter.waitingRemoved(subscription, dueAt);',
        '',
      ),
    ],
  },
  {
    name: 'elements that mature are never counted as ready',
    suite: 'storage model',
    edits: [
      inWorker(
        'counts.ts',
        'if (isClockBehind || scheduledFrom <= now) {',
        'if (isClockBehind || scheduledFrom < -now) {',
      ),
    ],
  },
  {
    name: 'an expired lease causes no retry delay',
    suite: 'retry delays',
    edits: [inWorker('delivery.ts', 'retryFrom: endedAt,', 'retryFrom: null,')],
  },
  {
    name: 'the retry delay of an expired lease starts when the expiry is noticed, not when the lease ended',
    suite: 'storage model',
    edits: [
      inWorker(
        'delivery.ts',
        'const endedAt = leaseUntil ?? this.#store.now;',
        'const endedAt = leaseUntil === 0 ? 0 : this.#store.now;',
      ),
    ],
  },
  {
    name: 'an expired lease cannot be committed although its element was not taken again',
    suite: 'contract',
    edits: [
      inWorker('settle.ts', 'row.leaseUntil !== null || row.token !== null :', 'row.leaseUntil !== null :'),
    ],
  },
  {
    name: 'a rolled-back reservation can still be committed',
    suite: 'contract',
    edits: [
      inWorker(
        'delivery.ts',
        'dueAt: moment, tries, token: null,',
        'dueAt: moment, tries, token: this.#row.token,',
      ),
    ],
  },
  {
    name: "an uncounted rollback does not keep the element's place",
    suite: 'contract',
    edits: [inWorker('delivery.ts', 'isReturned ? this.#row.dueAt : now', 'isReturned ? now : now')],
  },
  {
    name: 'the token of an earlier reservation settles the next one',
    suite: 'contract',
    edits: [
      inWorker(
        'tokens.ts',
        'if (word === null || word !== ((wordOf(stored) ?? 0) ^ element)) return false;',
        'if (word !== null) return true;',
      ),
    ],
  },
  {
    name: 'an extended lease still expires at its old end',
    suite: 'contract',
    edits: [inWorker('rows.ts', 'this.#sql.extend.run(until, seq);', 'this.#sql.extend.run(until, -seq);')],
  },
  {
    name: 'the first group that finishes an element removes it for the others',
    suite: 'storage model',
    edits: [
      inWorker(
        'rows.ts',
        '(seq === element || this.#sql.anyOfElement.value(element) === null)',
        '(seq === element || this.#sql.anyOfElement.value(element) !== 0)',
      ),
    ],
  },
  {
    name: 'a transfer inserts although its element was lost',
    suite: 'storage model',
    edits: [
      inWorker(
        'settle.ts',
        "elements.filter((_, index) => results[2 * (places[index] ?? 0)] === 'done');",
        'elements;',
      ),
    ],
  },
  {
    name: 'a dedup key of one queue prevents inserts into another',
    suite: 'storage model',
    edits: [
      inWorker('records.ts', 'WHERE queue = ? AND key = ? AND', 'WHERE (queue = ? OR 1) AND key = ? AND'),
    ],
  },
  {
    name: 'a dedup key is stored forever',
    suite: 'contract',
    edits: [inWorker('records.ts', 'key, now - this.#windowMs);', 'key, now * 0 - 1);')],
  },
  {
    name: 'a page of a listing skips elements with the same maturity as the last row before it',
    suite: 'storage model',
    edits: [inWorker('rows.ts', '= :moment AND d.seq > :seq', '= :moment AND d.seq < -:seq')],
  },
  {
    name: 'a purge leaves reserved elements',
    suite: 'storage model',
    edits: [
      inWorker(
        'sweep.ts',
        'rows.remove(subscription, chunk);',
        'rows.remove(subscription, chunk.filter((row) => row.leaseUntil === null));',
      ),
    ],
  },
  {
    name: 'a pop of a range also takes the delivery behind it',
    suite: 'sqlite batch',
    edits: [
      inWorker(
        'rows.ts',
        'SHORTEST_RANGE) this.#sql.removeRange.run(first, last)',
        'SHORTEST_RANGE) this.#sql.removeRange.run(first, last + 1)',
      ),
    ],
  },
  {
    name: 'replies are sent before the commit',
    suite: 'storage model with crashes',
    edits: [
      inWorker('store.ts', '    this.#sql.commit.run();\n', ''),
      inWorker(
        'store.ts',
        '    this.#sql.begin.run();\n',
        '    if (this.db.isTransaction) this.#sql.commit.run();\n    this.#sql.begin.run();\n',
      ),
    ],
  },
  {
    name: 'ids after a restart start where the previous start began',
    suite: 'storage model with crashes',
    edits: [
      inWorker(
        'ids.ts',
        'DO UPDATE SET value = value + 1 RETURNING',
        'DO UPDATE SET value = value RETURNING',
      ),
    ],
  },
  {
    name: 'the counts of a queue are not stored',
    suite: 'storage model with crashes',
    edits: [inWorker('store.ts', 'this.queues.save();', '')],
  },
  {
    name: 'leases are forgotten by a restart',
    suite: 'sqlite restart',
    edits: [inWorker('rows.ts', 'IN_STATE);\n    this.findNextLeaseEnd();\n', 'IN_STATE);\n')],
  },
  {
    name: 'a rolled-back lease stays in memory',
    suite: 'sqlite reload',
    edits: [inWorker('rows.ts', '.rollback();\n    this.findNextLeaseEnd();\n', '.rollback();\n')],
  },
  {
    name: 'a rolled-back retention stays in memory',
    suite: 'sqlite reload',
    edits: [
      inWorker(
        'queues.ts',
        'this.#byName.clear();',
        'const before = new Map(this.#byName);\n    this.#byName.clear();',
      ),
      inWorker(
        'queues.ts',
        '{ options, usedAt, oldestAt: UNKNOWN }',
        '{ options, usedAt, oldestAt: [...before.values()].find((one) => one.id === id)?.oldestAt ?? UNKNOWN }',
      ),
    ],
  },
  {
    name: 'a queue that a transaction created stays in memory when it is rolled back',
    suite: 'sqlite reload',
    edits: [inWorker('queues.ts', 'this.#byName.clear();', '')],
  },
  {
    name: 'a pop is acknowledged before its fsync',
    suite: 'sqlite power loss',
    edits: [inWorker('batch.ts', 'return leaseMs === null;', 'return leaseMs === 0;')],
  },
  {
    name: 'a commit is acknowledged before its fsync',
    suite: 'sqlite power loss',
    edits: [
      inWorker('batch.ts', 'if (actions === null) return false;', 'if (actions === null) return true;'),
    ],
  },
  {
    name: 'the undo of a pop is acknowledged before its fsync',
    suite: 'sqlite power loss',
    edits: [
      inWorker(
        'batch.ts',
        'return !READS.has(call[0]);',
        "return !READS.has(call[0]) && call[0] !== 'undoTake';",
      ),
    ],
  },
  {
    name: 'a reservation waits for an fsync',
    suite: 'sqlite power loss',
    edits: [inWorker('batch.ts', 'return leaseMs === null;', 'return leaseMs !== 0;')],
  },
  {
    name: 'the length of the log is looked at for large bodies alone',
    suite: 'sqlite log',
    edits: [inWorker('store.ts', 'this.#transactionsUntilQuery -= 1;', '')],
  },
  {
    name: 'large bodies let the log grow unseen',
    suite: 'sqlite log',
    edits: [inWorker('store.ts', 'this.#bytesUntilQuery -= bytes;', '')],
  },
  {
    name: 'transactions without an fsync are not marked in the log',
    suite: 'sqlite log',
    edits: [inWorker('store.ts', 'this.#sql.markUnsynced.run();', '')],
  },
  {
    name: 'an expired element is delivered',
    suite: 'contract',
    edits: [
      inWorker(
        'take.ts',
        'if (expiresAt !== null && expiresAt <= now) {',
        'if (expiresAt !== null && expiresAt < 0) {',
      ),
    ],
  },
  {
    name: 'only the first of several lost batches is reported with outcome-unknown',
    suite: 'sqlite faults',
    edits: [inWorker('serve.ts', 'store.mayBeDurable ? batches : 0', 'store.mayBeDurable ? 1 : 0')],
  },
  {
    name: 'calls applied one by one are reported as not applied',
    suite: 'sqlite faults',
    edits: [
      inWorker('store.ts', "this.#reach('begin');", "this.mayBeDurable = false;\n    this.#reach('begin');"),
    ],
  },
  {
    name: 'a reserve waits for the sync of a commit',
    suite: 'sqlite faults',
    edits: [inWorker('serve.ts', 'if (early === null) return;', 'return;')],
  },
  {
    name: 'a commit is replied to before its sync',
    suite: 'sqlite faults',
    edits: [
      inWorker(
        'batch.ts',
        "(isOf(call, 'take') || isOf(call, 'settle')) && !needsFsync(call)",
        "isOf(call, 'take') || isOf(call, 'settle')",
      ),
    ],
  },
  {
    name: 'an element is delivered before it is synced',
    suite: 'sqlite faults',
    edits: [inWorker('batch.ts', "isOf(call, 'take') && filled.has(call[1])", 'false')],
  },
  {
    name: 'a copy of an exchange is delivered before it is synced',
    suite: 'sqlite faults',
    edits: [inWorker('batch.ts', 'inserts?.[1].map(([queue]) => queue) ?? []', '[]')],
  },
  {
    name: 'a dead letter is delivered before it is synced',
    suite: 'sqlite faults',
    edits: [inWorker('batch.ts', '&& mayFail(action)', '&& false')],
  },
  {
    name: 'a reserve waits for the sync of an insert into another queue',
    suite: 'sqlite faults',
    edits: [inWorker('batch.ts', "if (isOf(call, 'insert')) return [call[1]];", '')],
  },
  {
    name: 'nothing is synced',
    suite: 'sqlite power loss',
    edits: [inWorker('store.ts', 'if (log !== null) fdatasyncSync(log);', '')],
  },
  {
    name: 'the replies of two batches are swapped',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'settle(this.#inFlight[i]?.calls ?? [], reply)',
        replace: 'settle(this.#inFlight[replies.length - 1 - i]?.calls ?? [], reply)',
      },
    ],
  },
  {
    name: 'elements of a late pop are lost',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'if (this.isSettled) this.#onLate?.(value);',
        replace: 'if (this.isSettled) return;',
      },
    ],
  },
  {
    name: 'a call that was rejected as not applied is sent',
    suite: 'sqlite faults',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: 'if (!isSent) this.#batch.remove(this as WorkerCall);',
        replace: '',
      },
    ],
  },
  {
    name: "the caller's own buffer is transferred with a body",
    suite: 'sqlite messages',
    edits: [
      {
        file: 'src/engines/sqlite/protocol.ts',
        search: 'isOwned && fillsItsMemory(body) ? body : new Uint8Array(body)',
        replace: '(isOwned || fillsItsMemory(body)) && fillsItsMemory(body) ? body : new Uint8Array(body)',
      },
    ],
  },
  {
    name: 'one failing call fails its whole batch',
    suite: 'sqlite faults',
    edits: [
      inWorker(
        'batch.ts',
        'if (calls.length > 1) {',
        "if (calls.length > 1) {\n      throw new Error('the batch failed');",
      ),
    ],
  },
  {
    name: 'a failed fsync is treated as a temporary error',
    suite: 'sqlite faults',
    edits: [inWorker('errors.ts', '  SQLITE_IOERR,\n  SQLITE_CORRUPT,', '  SQLITE_CORRUPT,')],
  },
  {
    name: 'counts stay changed when a transaction is rolled back',
    suite: 'sqlite faults',
    edits: [inWorker('store.ts', 'this.queues.reload();', '')],
  },
  {
    name: 'a batch that waits in the port runs after the store has failed',
    suite: 'sqlite faults',
    edits: [inWorker('serve.ts', 'if (batches.length > 0 && !this.#hasFailed)', 'if (batches.length > 0)')],
  },
  {
    name: 'a body with a wrong checksum is delivered',
    suite: 'sqlite damage',
    edits: [
      inWorker(
        'rows.ts',
        'elementChecksum(elementOf(row), type, more, body) === contentCrc',
        'elementChecksum(elementOf(row), type, more, body) >= -contentCrc',
      ),
    ],
  },
  {
    name: 'a delivery with a wrong checksum is delivered',
    suite: 'sqlite damage',
    edits: [
      inWorker('take.ts', 'if (content === null || !isIntactDelivery(row) || ', 'if (content === null || '),
    ],
  },
  {
    name: 'a rollback writes a valid checksum over damaged tries',
    suite: 'sqlite damage',
    edits: [inWorker('settle.ts', 'if (!delivery.isIntact()) ', 'if (!delivery.isIntact() && row.seq < 0) ')],
  },
  {
    name: 'removing a damaged delivery also removes the element that it names by mistake',
    suite: 'sqlite damage',
    edits: [
      inWorker(
        'delivery.ts',
        'isIntactDelivery(found) ? rows.ofElement(element) : [first]',
        'isIntactDelivery(found) || found.seq > 0 ? rows.ofElement(element) : [first]',
      ),
    ],
  },
  {
    name: 'an element without its content fails every batch',
    suite: 'sqlite damage',
    edits: [
      inWorker('rows.ts', 'found !== null && found.contentCrc !== null &&', 'found?.contentCrc !== null &&'),
    ],
  },
  {
    name: 'a transaction of leases whose commit is lost hides the synced one behind it',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', 'if (page <= lastPage) isUnsynced = false;', '')],
  },
  {
    name: 'the check at the start skips indexes',
    suite: 'sqlite damage',
    edits: [
      inWorker('open.ts', 'PRAGMA integrity_check(', 'PRAGMA quick_check('),
      inWorker('open.ts', '.get()?.integrity_check;', '.get()?.quick_check;'),
    ],
  },
  {
    name: 'transactions after a flipped bit in the log are dropped silently',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', 'commits < 2 ? null', 'commits < 2000 ? null')],
  },
  {
    name: 'a torn last transaction of the log prevents the start',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', 'commits < 2 ? null', 'commits < 1 ? null')],
  },
  {
    name: 'valid frames of an older generation of the log are applied',
    suite: 'sqlite log',
    edits: [
      inWorker(
        'log-check.ts',
        'const isSalted = hasSalts(frame, header);',
        'const isSalted = frame.isCommit;',
      ),
    ],
  },
  {
    name: 'a log with a wrong header is ignored',
    suite: 'sqlite log',
    edits: [inWorker('log-check.ts', ': damageInHeader(descriptor, header),', ': null,')],
  },
  {
    name: 'a deleted database file goes unnoticed',
    suite: 'sqlite files',
    edits: [
      inWorker(
        'space.ts',
        'if (identityOf(path) === identity) continue;',
        'if (path !== identity) continue;',
      ),
    ],
  },
  {
    name: 'ready elements are not delivered after the clock was set back',
    suite: 'sqlite clock',
    edits: [
      {
        file: 'src/engines/sqlite/steady-time.ts',
        search: 'if (jumpMs < -SET_BACK_MS ||',
        replace: 'if (jumpMs < -Number.MAX_VALUE ||',
      },
      {
        file: 'src/engines/sqlite/steady-time.ts',
        search: 'Math.max(this.#last, Math.floor(wall + this.#aheadMs))',
        replace: 'Math.floor(wall + this.#aheadMs)',
      },
    ],
  },
  {
    name: 'a restored backup reuses ids of the lost file',
    suite: 'sqlite backup',
    edits: [inWorker('ids.ts', '.run(IS_COPY).changes > 0', '.run(IS_COPY).changes > 1')],
  },
  {
    name: 'the name of a backup can point outside of its folder',
    suite: 'backups over HTTP',
    edits: [
      {
        file: 'src/app/backups.ts',
        search: 'if (!NAME.test(folderName))',
        replace: "if (folderName === '')",
      },
    ],
  },
  {
    name: 'a user with limited rights can take a backup',
    suite: 'backups over HTTP',
    edits: [
      {
        file: 'src/http/call.ts',
        search: "if (access === 'administrator' &&",
        replace: "if (namespace === '' &&",
      },
    ],
  },
  {
    name: 'a power loss resets the count of starts',
    suite: 'sqlite power loss',
    edits: [inWorker('open.ts', 'PRAGMA synchronous = FULL;', 'PRAGMA synchronous = NORMAL;')],
  },
  {
    name: 'the ballast is kept on a full disk',
    suite: 'sqlite disk full',
    edits: [inWorker('batch.ts', 'if (isFull(error)) store.space?.releaseBallast();', '')],
  },
  {
    name: 'a transaction may be larger than the margin and the ballast allow',
    suite: 'sqlite full disk',
    edits: [
      {
        file: 'src/engines/sqlite/client.ts',
        search: ' && bytes < MAX_IN_FLIGHT_BYTES',
        replace: ' && bytes >= 0',
      },
    ],
  },
  {
    name: 'inserts continue below the free-space margin',
    suite: 'sqlite disk full',
    edits: [
      inWorker(
        'batch.ts',
        'if (isNearlyFull && takesSpace(call)) {',
        'if (store.space?.isNearlyFull && call.length === 0) {',
      ),
    ],
  },
];
