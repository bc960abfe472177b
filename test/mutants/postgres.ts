import type { Edit, Mutant } from './mutants.ts';

const inPostgres = (file: string, search: string, replace: string): Edit => ({
  file: `src/engines/postgres/${file}`,
  search,
  replace,
});

/** Bugs of the PostgreSQL engine, most of them in its SQL. */
export const POSTGRES: readonly Mutant[] = [
  {
    name: 'an arbitrary matching pattern applies to a queue, not the most specific one',
    suite: 'postgres retry delays',
    edits: [inPostgres('sql.ts', 'ORDER BY n.ord LIMIT 1)`', 'ORDER BY n.ord DESC LIMIT 1)`')],
  },
  {
    name: 'a retry delay declared by another node is not applied',
    suite: 'postgres retry delays',
    edits: [
      inPostgres('settle.ts', '(s.max_tries > 0 OR cardinality(s.retry) > 0)', 's.max_tries > 0'),
      inPostgres('queues.ts', ' || options?.retryDelay != null', ''),
    ],
  },
  {
    name: 'a batch ignores the order of calls about a queue',
    suite: 'postgres order',
    edits: [
      inPostgres(
        'batcher.ts',
        'for (const queue of queues) from = Math.max(from, this.#lastByQueue.get(queue) ?? 0);',
        '',
      ),
    ],
  },
  {
    name: 'elements that one settlement inserts are ordered by its operations instead of its items',
    suite: 'postgres order',
    edits: [
      inPostgres(
        'settle.ts',
        'finishing.has(item.operation) ? { ...item, operation: common } : item',
        'item',
      ),
    ],
  },
  {
    name: 'one rejected call fails the calls of its batch',
    suite: 'postgres registry',
    edits: [
      inPostgres(
        'batcher.ts',
        'if (call === undefined || calls.length > 1) return;',
        'if (call === undefined) return;\n    for (const other of calls.slice(1)) other.reject(internalError(error));',
      ),
    ],
  },
  {
    name: 'statements whose BEGIN failed count as a transaction that was rolled back',
    suite: 'postgres faults',
    edits: [inPostgres('connection.ts', "if (begin?.status === 'rejected') {", 'if (begin === undefined) {')],
  },
  {
    name: 'a transaction whose COMMIT was cancelled stays aborted',
    suite: 'postgres faults',
    edits: [inPostgres('connection.ts', 'await this.#endAborted();', 'await this.query(ALIVE, []);')],
  },
  {
    name: 'a change whose reply was lost is reported as not applied',
    suite: 'postgres faults',
    edits: [
      inPostgres(
        'batcher.ts',
        'call.reject(call.changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error));',
        'call.reject(unavailable(NOT_REACHABLE, error));',
      ),
    ],
  },
  {
    name: "an id that collides with another queue's is used",
    suite: 'postgres registry',
    edits: [
      inPostgres(
        'sql.ts',
        'o.ns = u.ns AND o.name = u.name AND o.grp = u.grp AND o.idle_from',
        'o.idle_from',
      ),
    ],
  },
  {
    name: 'two groups get the same id',
    suite: 'postgres registry',
    edits: [
      inPostgres(
        'registry.ts',
        // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
        '`${Buffer.byteLength(ns)}:${Buffer.byteLength(name)}:${ns}${name}${group}`',
        // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
        '`${ns}${name}${group}`',
      ),
    ],
  },
  {
    name: 'a queue is dropped while an insert that has not seen the drop runs',
    suite: 'postgres unused queues',
    edits: [inPostgres('queues.ts', '  lock: LOCK_REGISTRY,\n', '')],
  },
  {
    name: 'a drop deletes a queue that holds an element',
    suite: 'postgres unused queues',
    edits: [inPostgres('queues.ts', 'q.id = $1::bigint AND NOT (', 'q.id = $1::bigint OR NOT (')],
  },
  {
    name: 'a queue is forgotten while a transaction from before its mark runs',
    suite: 'postgres unused queues',
    edits: [inPostgres('housekeeping.ts', 'age(q.xmin) > age(', 'age(q.xmin) > -age(')],
  },
  {
    name: 'an insert leaves the mark of an unused queue',
    suite: 'postgres unused queues',
    edits: [inPostgres('sql.ts', ' AND o.idle_from IS NULL', '')],
  },
  {
    name: 'the content of a stream element is deleted with its last delivery but one',
    suite: 'postgres streams',
    edits: [
      inPostgres('sql.ts', 'FROM sl WHERE remaining <= 0', 'FROM sl WHERE remaining <= 1'),
      inPostgres('sql.ts', 'FROM sl WHERE remaining > 0', 'FROM sl WHERE remaining > 1'),
    ],
  },
  {
    name: 'the token of an earlier reservation settles a later one',
    suite: 'postgres settlements',
    edits: [inPostgres('settle.ts', 'ELSE d.token = r.token AND d.secret = r.secret END)', 'ELSE true END)')],
  },
  {
    name: "an uncounted release does not keep the element's place",
    suite: 'postgres settlements',
    edits: [
      inPostgres(
        'settle.ts',
        'THEN t.now + r.delay ELSE d.due_at END`',
        'THEN t.now + r.delay ELSE t.now END`',
      ),
    ],
  },
  {
    name: 'an element that stays, for lack of a dead-letter queue, regains its place',
    suite: 'postgres dead letters',
    edits: [inPostgres('settle.ts', "dueAt('r.dies')", 'dueAt()')],
  },
  {
    name: 'a release of a waiting delivery is counted twice',
    suite: 'postgres settlements',
    edits: [
      inPostgres(
        'settle.ts',
        '\n      UNION ALL SELECT subscription, old_due, -1, 0 FROM s WHERE was_waiting',
        '',
      ),
    ],
  },
  {
    name: 'a known key is overwritten by its repeat',
    suite: 'postgres keys',
    edits: [
      inPostgres(
        'insert.ts',
        // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
        'const isOld = `x.seen_at <= excluded.seen_at - ${window}::bigint`;',
        'const isOld = `x.seen_at <= excluded.seen_at`;',
      ),
    ],
  },
  {
    name: 'the namespace’s dead-letter policy takes precedence over the queue’s',
    suite: 'postgres options',
    edits: [
      inPostgres(
        'sql.ts',
        'nullif(coalesce(q.dead_queue, n.dead_queue), q.name)',
        'nullif(coalesce(n.dead_queue, q.dead_queue), q.name)',
      ),
    ],
  },
  {
    name: 'a take delivers an expired element that another node stored',
    suite: 'postgres expiry',
    edits: [
      inPostgres('take.ts', 'FROM picked p WHERE p.is_expired IS NOT TRUE WINDOW', 'FROM picked p WINDOW'),
    ],
  },
  {
    name: 'takes ignore the deadline by the database’s clock',
    suite: 'postgres faults',
    edits: [
      // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
      inPostgres('take.ts', ' WHERE t.now < ${until})`', ' WHERE ${until} > 0)`'),
    ],
  },
  {
    name: 'the time limit of a take starts when it is sent, however long its call has waited',
    suite: 'postgres faults',
    edits: [inPostgres('take.ts', 'Math.floor(now + leftMs)', 'Math.floor(now + 4500)')],
  },
  {
    name: 'takes start at the front of the index',
    suite: 'postgres dead entries',
    edits: [inPostgres('watermark.ts', 'isFull && probed.pages < CHEAP_PAGES ? START', 'isFull ? START')],
  },
  {
    name: 'a probe raises the watermark over elements stored while it ran',
    suite: 'postgres watermark',
    edits: [inPostgres('watermark.ts', '      this.lower(this.#lowest);\n', '')],
  },
  {
    name: 'a sweep makes takes start at the front of the index',
    suite: 'postgres dead entries',
    edits: [
      inPostgres(
        'expire.ts',
        'registry.lowerWatermarks(knownAt);',
        'registry.lowerWatermarks(Number.NEGATIVE_INFINITY);',
      ),
    ],
  },
  {
    name: 'a returned element makes takes start at the front of the index',
    suite: 'postgres dead entries',
    edits: [
      inPostgres(
        'watermark.ts',
        'endReturn(): void {\n    this.#isReturning = false;',
        'endReturn(): void {',
      ),
    ],
  },
  {
    name: 'a take of the same batch starts behind a returned element',
    suite: 'postgres dead entries',
    edits: [inPostgres('settle.ts', 'watermark.startReturn();', '{}')],
  },
  {
    name: 'takes start behind a moved element',
    suite: 'postgres dead entries',
    edits: [inPostgres('settle.ts', 'for (const { watermark } of to) watermark.lower(dueAt);', '')],
  },
  {
    name: 'a take that timed out starts no probe',
    suite: 'postgres dead entries',
    edits: [
      inPostgres(
        'storage.ts',
        'cause.isTimeout) this.#context.prober.requestProbe(subscription);',
        'cause.isTimeout) {}',
      ),
    ],
  },
  {
    name: 'a watermark does not stay behind a slow commit',
    suite: 'postgres dead entries',
    edits: [inPostgres('watermark.ts', 'now - pendingMs - MARGIN_MS', 'now - MARGIN_MS')],
  },
  {
    name: 'a call that was applied in part is reported as not applied',
    suite: 'postgres races',
    edits: [
      inPostgres(
        'batcher.ts',
        'this.isPartlyApplied && !isUnknownOutcome(error) ? unknownOutcome(error) : error',
        'error',
      ),
    ],
  },
  {
    name: 'a take ignores elements that another node has locked',
    suite: 'postgres races',
    edits: [inPostgres('take.ts', '(ctid IN (SELECT p.tid FROM picked p)) IS NOT TRUE', 'due_at > t.now')],
  },
  {
    name: 'a take ignores elements that another node has taken and returned since the snapshot',
    suite: 'postgres races',
    edits: [
      inPostgres(
        'take.ts',
        '(SELECT count(*) FROM g WHERE g.ord = r.ord)',
        '(SELECT count(*) FROM picked p WHERE p.ord = r.ord)',
      ),
    ],
  },
  {
    name: 'a rejected transfer creates its queues',
    suite: 'postgres races',
    edits: [
      // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
      inPostgres('insert.ts', 'settled && `(u.id IN (${storedIds})) IS TRUE`', "settled && 'true'"),
    ],
  },
  {
    name: 'two nodes cannot create one queue at the same moment',
    suite: 'postgres races',
    edits: [inPostgres('connection.ts', ", '23505']", ']')],
  },
  {
    name: 'a malformed notification ends the node',
    suite: 'postgres nodes',
    edits: [inPostgres('signaller.ts', 'areSignals === true ? payload : null', 'payload')],
  },
  {
    name: 'a call that takes too long is repeated while others wait for it',
    suite: 'postgres races',
    edits: [
      inPostgres(
        'batcher.ts',
        'error instanceof Refused && error.isTimeout ? batch?.callOf(error.query) : null',
        'null',
      ),
    ],
  },
  {
    name: 'a settlement joins deliveries by their key, which a plan for an empty table does by reading all of them',
    suite: 'postgres dead entries',
    edits: [
      inPostgres(
        'settle.ts',
        '`d.ctid = r.tid\n  AND CASE',
        '`d.seq = r.seq AND d.subscription = r.subscription\n  AND CASE',
      ),
    ],
  },
  {
    name: 'all dedup keys are read to find old ones',
    suite: 'postgres dead entries',
    edits: [
      inPostgres(
        'housekeeping.ts',
        // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
        'FROM dedup d WHERE d.seen_at <= ${NOW_BOUND} -',
        'FROM t CROSS JOIN dedup d WHERE d.seen_at <= t.now -',
      ),
    ],
  },
  {
    name: 'a failed expiry is repeated before every batch',
    suite: 'postgres housekeeping',
    edits: [inPostgres('expire.ts', 'this.#pauseUntil = clock.monotonic() + this.#pauseMs;', '')],
  },
  {
    name: 'the retry of a failed expiry has forgotten which expiries are long past',
    suite: 'postgres expiry',
    edits: [inPostgres('expire.ts', 'this.#addedAt = Math.min(this.#addedAt, addedAt);', '')],
  },
  {
    name: "every search for expired elements starts with those of other nodes' namespaces",
    suite: 'postgres housekeeping',
    edits: [inPostgres('expire.ts', 'more.size === 0 ? null :', 'more.size >= 0 ? null :')],
  },
  {
    name: 'the bytes that expire in one statement are not bounded',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres('expire.ts', 'const MEAN_BYTES_PER_ROW = 8192;', 'const MEAN_BYTES_PER_ROW = 8192 * 1024;'),
    ],
  },
  {
    name: 'the bytes of a purge step are not bounded',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres(
        'queues.ts',
        'Math.floor(MAX_STATEMENT_BYTES / statements)',
        'Math.floor(Number.MAX_SAFE_INTEGER / statements)',
      ),
    ],
  },
  {
    name: 'the bytes that retention removes in one statement are not bounded',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres(
        'housekeeping.ts',
        "limitBytes('x', 'l')",
        "limitBytes('x', 'l', String(Number.MAX_SAFE_INTEGER))",
      ),
    ],
  },
  {
    name: "the bytes of a commit's statement are not bounded",
    suite: 'postgres large settlements',
    edits: [inPostgres('settle.ts', "[limitBytes('f', 'r'), finished('f')]", "[finished('r')]")],
  },
  {
    name: 'the bytes that pages return in one transaction are not bounded',
    suite: 'postgres large settlements',
    edits: [inPostgres('storage.ts', 'returnedBytes: options.bodies ? returned : 0', 'returnedBytes: 0')],
  },
  {
    name: 'a commit with inserts is finished in part in a later transaction',
    suite: 'postgres large settlements',
    edits: [inPostgres('settle.ts', '([finish, finishInStream, transfer])', '([transfer])')],
  },
  {
    name: "the bytes of a move's statement are not bounded",
    suite: 'postgres large settlements',
    edits: [
      inPostgres(
        'settle.ts',
        "limitBytes('going', '(SELECT * FROM x WHERE goes)')",
        "'going AS (SELECT * FROM x WHERE goes)'",
      ),
    ],
  },
  {
    name: 'elements of a stream are finished without its lock',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres(
        'sql.ts',
        "pg_try_advisory_xact_lock_shared('element'::regclass::oid::int, (queue << 32 >> 32)::int) AS is_locked",
        'true AS is_locked',
      ),
    ],
  },
  {
    name: 'a counter row remains for each step of due time',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres(
        'housekeeping.ts',
        // biome-ignore lint/suspicious/noTemplateCurlyInString: source text
        'CASE WHEN y.step >= t.now >> ${STEP_BITS} THEN y.step ELSE 0 END AS step',
        'y.step',
      ),
    ],
  },
  {
    name: 'counter rows are never merged if there are more than one statement reads',
    suite: 'postgres housekeeping',
    edits: [
      inPostgres('housekeeping.ts', 'const MAX_SUMMED_ROWS = 40_000;', 'const MAX_SUMMED_ROWS = 4_000;'),
    ],
  },
  {
    name: 'counter rows of idle queues make reads of a namespace step over all dead rows',
    suite: 'postgres dead entries',
    edits: [inPostgres('housekeeping.ts', ' OR min(id) < $4::bigint)', ' OR $4::bigint < 0)')],
  },
];
