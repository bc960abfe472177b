import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of namespaces that move to another engine. */
export const MIGRATE: readonly Mutant[] = [
  {
    name: 'new elements go to the engine that is left',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'if (!hasKeys && this.#pending === 0) return this.#to.insert(queue, elements, options);',
      'if (!hasKeys && this.#pending === 0) return this.#from.insert(queue, elements, options);',
    ),
  },
  {
    name: 'an insert overtakes one whose key is being looked up',
    suite: 'joined engines',
    edits: edit('broker/migration.ts', 'if (!hasKeys && this.#pending === 0) return', 'if (!hasKeys) return'),
  },
  {
    name: 'the keys that the old engine has seen are unknown',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'const seen = hasKeys ? this.#seenBefore(queue, elements) : NOTHING_SEEN;',
      'const seen = NOTHING_SEEN;',
    ),
  },
  {
    name: 'a take that the old engine filled in part does not ask the new one',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'if (deliveries.length === count || fromOld.isCut === true || fromOld.isLeft === true) return fromOld;',
      'if (deliveries.length > 0 || fromOld.isCut === true || fromOld.isLeft === true) return fromOld;',
    ),
  },
  {
    name: 'what was popped from the new engine returns to the old one',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      `    for (const delivery of fromNew.deliveries) if (delivery.lease === null) this.#popped.add(delivery);
`,
      '',
    ),
  },
  {
    name: 'what the old engine gave is lost if the outcome in the new one is unknown',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'if (await this.#release(this.#from, queue, deliveries)) throw error;',
      'throw error;',
    ),
  },
  {
    name: 'what exceeds the bytes of a take is lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'const isReleased = await this.#release(this.#to, queue, fromNew.deliveries);',
      'const isReleased = true;',
    ),
  },
  {
    name: 'pops that were undone are undone again if the other engine failed',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      '    for (const delivery of deliveries) this.#returned.add(delivery);\n',
      '',
    ),
  },
  {
    name: 'what was popped and cannot be returned is lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'return popped.length === 0 || isUnknownOutcome(error);',
      'return true;',
    ),
  },
  {
    name: 'the copies of an element have no keys, so that a repeated transfer stores them twice',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'copiesOf(item).map((copy, i) => keyed(copy, item, i))',
      'copiesOf(item)',
    ),
  },
  {
    name: 'other copies of an element count as repeats, and are lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'id, group, index, contentFingerprint(element)]);',
      'id, group, index]);',
    ),
  },
  {
    name: 'an element is finished before its copies are stored',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'isCommit(item) ? { ...item, action: HOLD } : item',
      "isCommit(item) ? { ...item, action: { kind: 'finish' } } : item",
    ),
  },
  {
    name: 'what has no copies is finished before those of its call are stored',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      '(isCommit(item) ? { ...item, action: HOLD } : item)',
      '(copiesOf(item).length > 0 ? { ...item, action: HOLD } : item)',
    ),
  },
  {
    name: 'a queue that holds elements in the old engine alone can be dropped',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      '      if (fromOld.ready + fromOld.scheduled + fromOld.reserved > 0) return false;\n',
      '',
    ),
  },
  {
    name: 'what the old engine holds does not count',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      'elements: fromOld.elements + fromNew.elements,',
      'elements: fromNew.elements,',
    ),
  },
  {
    name: 'options that are set while a namespace moves do not hold in the old engine',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      'await Promise.all([this.#to.declare(queues, options), this.#from.declare(queues, options)]);',
      'await this.#to.declare(queues, options);',
    ),
  },
  {
    name: 'what one engine swept is not reported if the other one failed',
    suite: 'joined engines',
    edits: edit(
      'broker/migration.ts',
      'if (done.length === 0 && failed !== undefined) throw failed.reason;',
      'if (failed !== undefined) throw failed.reason;',
    ),
  },
  {
    name: 'pause flags are not copied to the new engine',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      "for (const kind of ['queue', 'queue-options'] as const) {",
      "for (const kind of ['queue-options'] as const) {",
    ),
  },
  {
    name: 'options are copied as definitions only, so that the new engine does not apply them',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      'else await this.#source.applyOptions(queue, definition);',
      'else await this.storage.declare([queue]);',
    ),
  },
  {
    name: 'a resume that comes while pause flags are copied is lost',
    suite: 'migrations',
    edits: edit('broker/migration.ts', 'value, copy?.version ?? null)', "value, 'any')"),
  },
  {
    name: 'a pause while a namespace moves is forgotten by the new engine',
    suite: 'migrations',
    edits: edit(
      'broker/namespace.ts',
      "    await this.migration?.definitions.put('queue', key, { paused }, 'any');\n",
      '',
    ),
  },
  {
    name: 'a namespace moves to an engine that has elements of its name',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      'if ((await next.storage.usage(source.name, false)).elements > 0) {',
      'if ((await next.storage.usage(target.name, false)).elements > 0) {',
    ),
  },
  {
    name: 'a namespace moves to one with other groups',
    suite: 'migrations',
    edits: edit('broker/migration.ts', '  if (groups !== others) throw', '  if (groups === undefined) throw'),
  },
  {
    name: 'the move is not stored, so that the next start does not join the engines',
    suite: 'migrations',
    edits: edit('broker/migration.ts', "    await definitions.put('migration', name, { to }, null);\n", ''),
  },
  {
    name: 'a node starts without the engine that has its elements',
    suite: 'migrations',
    edits: edit(
      'broker/broker.ts',
      '      throw new MigrationTargetMissing(namespace.name, to);',
      '      return;',
    ),
  },
  {
    name: 'a transaction forgets what it sends if a namespace begins to move in the middle of it',
    suite: 'STOMP commits',
    edits: edit('stomp/transactions.ts', '    await this.#store([...this.#sends], inserts);\n', ''),
  },
  {
    name: 'a migration ends when the old engine is empty for a moment',
    suite: 'migrations',
    edits: edit(
      'operations/migration-run.ts',
      'clock.monotonic() - this.#emptySince >= EMPTY_MS',
      'clock.monotonic() - this.#emptySince >= 0',
    ),
  },
];
