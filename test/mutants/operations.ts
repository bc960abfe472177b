import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of bulk operations. */
export const OPERATIONS: readonly Mutant[] = [
  {
    name: 'a user without read can move elements to a namespace that they can read',
    suite: 'HTTP operations',
    edits: edit(
      'operations/request.ts',
      "...(to === null || to.ns === source.ns ? [] : [['read', source.ns] as const]),",
      '',
    ),
  },
  {
    name: 'an operation needs no right to manage its source',
    suite: 'HTTP operations',
    edits: edit(
      'operations/request.ts',
      `    ['manage', source.ns],
`,
      '',
    ),
  },
  {
    name: 'a dry run needs no right to browse',
    suite: 'HTTP operations',
    edits: edit(
      'operations/request.ts',
      'const looks = dryRun || where.selector !== null;',
      'const looks = where.selector !== null;',
    ),
  },
  {
    name: 'a selector reads bodies that its user may not see',
    suite: 'HTTP operations',
    edits: edit(
      'operations/operations.ts',
      'const hidesBodies = !caller.maySeeBodies(request.source.ns);',
      'const hidesBodies = false;',
    ),
  },
  {
    name: 'samples are shown to users without browse',
    suite: 'HTTP operations',
    edits: edit(
      'operations/stored.ts',
      `samples: viewer.may('browse', source.ns) ? (soFar?.samples ?? []) : [],`,
      'samples: soFar?.samples ?? [],',
    ),
  },
  {
    name: 'errors of a selector are shown to users who may not see bodies',
    suite: 'HTTP operations',
    edits: edit(
      'operations/stored.ts',
      'if (error === null || (isThrown && maySeeThrown)) return error;',
      'return error;',
    ),
  },
  {
    name: 'an error names a queue of a target that its viewer may not see',
    suite: 'HTTP operations',
    edits: edit(
      'operations/stored.ts',
      'if (to === null || viewer.maySee(to.ns)) return error;',
      'return error;',
    ),
  },
  {
    name: 'an operation names a target that its viewer may not see',
    suite: 'HTTP operations',
    edits: edit('operations/stored.ts', 'to: viewer.maySee(to.ns) ? shownPlace(to) : null', 'to'),
  },
  {
    name: 'an operation is shown to users without manage on its source',
    suite: 'HTTP operations',
    edits: edit(
      'operations/operations.ts',
      `    if (caller.may('manage', ns)) return found;`,
      '    if (caller.maySee(ns)) return found;',
    ),
  },
  {
    name: 'a cancel is ignored',
    suite: 'HTTP operations',
    edits: edit(
      'operations/run.ts',
      `      if (this.#isCancelled) return 'cancelled';
`,
      '',
    ),
  },
  {
    name: 'a cancel does not end what a node continues',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/run.ts',
      `    this.#isCancelled = operation.isCancelled;
`,
      '',
    ),
  },
  {
    name: 'operations that are being created do not count',
    suite: 'HTTP operations',
    edits: edit('operations/operations.ts', 'end === null), ...creating].map(', 'end === null)].map('),
  },
  {
    name: 'ended operations are kept forever',
    suite: 'operations',
    edits: edit(
      'operations/operations.ts',
      '        if (i < MAX_KEPT && at >= oldest) continue;',
      '        if (at !== Number.NEGATIVE_INFINITY) continue;',
    ),
  },
  {
    name: 'the progress of an operation that has ended stays in the store',
    suite: 'operations',
    edits: edit(
      'operations/operations.ts',
      `    await definitions.delete('operation-progress', id, 'any');
    await this.#deleteOld`,
      '    await this.#deleteOld',
    ),
  },
  {
    name: 'the limit is off by one',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      'return Math.min(MAX_PAGE, Math.max(0, limit -',
      'return Math.min(MAX_PAGE, Math.max(0, limit + 1 -',
    ),
  },
  {
    name: 'the rate is ignored',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      `    this.#pace(matches.length);
`,
      '',
    ),
  },
  {
    name: 'elements that arrive after the start are changed',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      'const insertedBefore = bound + 1 - (olderThanMs ?? 0);',
      'const insertedBefore = bound + 1e6 - (olderThanMs ?? 0);',
    ),
  },
  {
    name: 'the age in a condition is ignored',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      'const insertedBefore = bound + 1 - (olderThanMs ?? 0);',
      'const insertedBefore = bound + 1;',
    ),
  },
  {
    name: 'only the first of several states is processed',
    suite: 'operations of many pages',
    edits: edit(
      'operations/run.ts',
      'const following = part + 1 < this.#parts.length ? { part: part + 1, after: null } : null;',
      'const following = null;',
    ),
  },
  {
    name: 'every second page is skipped',
    suite: 'operations of many pages',
    edits: edit(
      'operations/run.ts',
      'next: next === null ? following : { part, after: next },',
      'next: following,',
    ),
  },
  {
    name: 'a release takes leases that consumers got after its start',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/run.ts',
      "const isTooNew = request.action === 'release' && (delivery.holder?.since ?? 0) > bound;",
      'const isTooNew = bound < 0;',
    ),
  },
  {
    name: 'a repeated release takes a lease that another consumer got in between',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/run.ts',
      '(one) => untils.get(one.id) === (one.lease?.until ?? null) && !this.#isDelayed(one),',
      '(one) => !this.#isDelayed(one),',
    ),
  },
  {
    name: 'a set processes its own results again',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      "request.action === 'set' || request.action === 'release';",
      "request.action === 'release';",
    ),
  },
  {
    name: 'a release takes leases that began right after it',
    suite: 'operations',
    edits: edit(
      'operations/run.ts',
      "request.action === 'set' || request.action === 'release';",
      "request.action === 'set';",
    ),
  },
  {
    name: 'a redrive keeps the tries',
    suite: 'operations',
    edits: edit(
      'operations/changer.ts',
      '{ tries: 0, head: headWith(delivery, WITHOUT_DEAD_LETTER_HEADERS) }',
      '{ tries: null, head: headWith(delivery, WITHOUT_DEAD_LETTER_HEADERS) }',
    ),
  },
  {
    name: 'a redrive keeps the headers of a dead letter',
    suite: 'operations',
    edits: edit(
      'operations/changer.ts',
      '{ tries: 0, head: headWith(delivery, WITHOUT_DEAD_LETTER_HEADERS) }',
      '{ tries: 0, head: null }',
    ),
  },
  {
    name: 'a redriven dead letter of a stream goes to the group of the operation',
    suite: 'operations',
    edits: edit(
      'operations/changer.ts',
      'return waiting({ ...move, groups: [this.#failedGroup(delivery)] }, to);',
      'return waiting(move, to);',
    ),
  },
  {
    name: 'consumers of the destination are not woken',
    suite: 'operations',
    edits: edit(
      'operations/changer.ts',
      `    namespace.noteStored(key);
    announce(queue, moved.length);`,
      '    namespace.noteStored(key);',
    ),
  },
  {
    name: 'elements that arrive at the destination are not counted as inserted',
    suite: 'operations',
    edits: edit(
      'operations/changer.ts',
      `        if (item.action.kind === 'move') countPuts(namespace.stats, key, item.action.groups, 1);
`,
      '',
    ),
  },
  {
    name: 'a move within an engine does not check the capacity of the destination',
    suite: 'moves to another engine',
    edits: edit(
      'operations/changer.ts',
      'const results = await this.#admit(plans, () => storage.settle(plans.map(({ item }) => item)));',
      'const results = await storage.settle(plans.map(({ item }) => item));',
    ),
  },
  {
    name: 'the cursor is stored before the change, without the pending elements',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      `counters: examined, cursor: next, pending };
    this.#isRepeated = false;
    await this.#store();`,
      `counters: examined, cursor: next };
    this.#isRepeated = false;
    await this.#store();
    this.#progress = { ...this.#progress, pending };`,
    ),
  },
  {
    name: 'pending elements are stored with the cursor before them',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      'counters: examined, cursor: next, pending };',
      'counters: looked, pending };',
    ),
  },
  {
    name: 'a node that continues an operation skips its pending elements',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      'if (this.#progress.pending !== null) await this.#changePending();',
      'this.#progress = { ...this.#progress, pending: null };',
    ),
  },
  {
    name: 'elements that were changed before a failure are not counted',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      'const all = changed + pending.length - deliveries.length - this.#changer.returnedCount;',
      'const all = changed;',
    ),
  },
  {
    name: 'repeated copies are not counted',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      'const isRepeated = found === null || this.#isRepeated;',
      'const isRepeated = false;',
    ),
  },
  {
    name: 'copies are made twice',
    suite: 'operations of nodes that die',
    edits: edit('operations/changer.ts', 'dedupKey: this.#keyOf(id),', 'dedupKey: null,'),
  },
  {
    name: 'copies of a page that fails are not counted',
    suite: 'operations of many pages',
    edits: edit(
      'operations/run.ts',
      'if (pending !== null && this.#changer.copied > 0) this.#countPart(pending, this.#changer.copied);',
      '',
    ),
  },
  {
    name: 'the counters are lost when another node continues',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      '{ ...NO_PROGRESS, cursor: FIRST_PAGE }), node };',
      '{ ...NO_PROGRESS, cursor: FIRST_PAGE }), node, counters: NO_PROGRESS.counters };',
    ),
  },
  {
    name: 'no node continues an operation of a stopped node',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/operations.ts',
      'if (silentMs < SILENT_MS && !isAlone && before?.progress.node !== null) return;',
      'if (!isAlone) return;',
    ),
  },
  {
    name: 'a node takes over an operation that another one is running',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/operations.ts',
      'const silentMs = clock.monotonic() - this.#watch(id, stored).since;',
      'const silentMs = SILENT_MS;',
    ),
  },
  {
    name: 'a node that was silent overwrites the progress of the one that took over',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/run.ts',
      "'operation-progress', id, this.#progress, expected",
      "'operation-progress', id, this.#progress, 'any'",
    ),
  },
  {
    name: 'elements in transit to another engine stay in transit after a crash',
    suite: 'operations of nodes that die',
    edits: edit(
      'operations/run.ts',
      `    if (found === null) await this.#changer.forward();
`,
      '',
    ),
  },
  {
    name: 'elements in transit to another engine are lost when the operation is cancelled',
    suite: 'moves to another engine',
    edits: edit(
      'operations/run.ts',
      `    if (this.#isCancelled && this.#changer.transit !== null) await this.#returnTransit().catch(() => {});
`,
      '',
    ),
  },
  {
    name: 'elements in transit to another engine are lost when the operation fails',
    suite: 'moves to another engine',
    edits: edit(
      'operations/run.ts',
      `        await this.#returnTransit();
        const { pending }`,
      '        const { pending }',
    ),
  },
  {
    name: 'elements that were returned to the source count as moved',
    suite: 'moves to another engine',
    edits: edit(
      'operations/run.ts',
      'pending.length - unchanged - this.#changer.returnedCount',
      'pending.length - left',
    ),
  },
  {
    name: 'an operation fails while an engine is unavailable',
    suite: 'moves to another engine',
    edits: edit(
      'operations/run.ts',
      `  'storage-unavailable',
`,
      '',
    ),
  },
  {
    name: 'elements that a frozen node sends to another engine stay in transit if that is unavailable',
    suite: 'operations that are taken over',
    edits: edit('operations/run.ts', '        await this.#clearTransit();\n', ''),
  },
  {
    name: 'a node that was disconnected continues an operation that another one has ended',
    suite: 'operations that are taken over',
    edits: edit(
      'operations/run.ts',
      'found === null ? await this.#hasEnded() : toProgress(found.value).node !== node;',
      'found !== null && toProgress(found.value).node !== node;',
    ),
  },
  {
    name: 'an operation continues after its user was removed',
    suite: 'operations',
    edits: edit('operations/run.ts', '      this.#checkUser();\n', ''),
  },
];
