import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of migrations to another engine. */
export const MIGRATE: readonly Mutant[] = [
  {
    name: 'new elements are stored in the old engine',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'if (!hasKeys && this.#pending === 0) return this.#to.insert(queue, elements, options);',
      'if (!hasKeys && this.#pending === 0) return this.#from.insert(queue, elements, options);',
    ),
  },
  {
    name: 'an insert overtakes one whose key is being looked up',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'if (!hasKeys && this.#pending === 0) return',
      'if (!hasKeys) return',
    ),
  },
  {
    name: 'dedup keys of the old engine are unknown',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'const seen = hasKeys ? this.#seenBefore(queue, elements) : nothingSeen;',
      'const seen = nothingSeen;',
    ),
  },
  {
    name: 'a take that the old engine served in part does not try the new one',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'if (deliveries.length === count || fromOld.isCut === true || fromOld.isLeft === true) return fromOld;',
      'if (deliveries.length > 0 || fromOld.isCut === true || fromOld.isLeft === true) return fromOld;',
    ),
  },
  {
    name: 'an undone pop of the new engine returns to the old one',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      `    for (const delivery of fromNew.deliveries) if (delivery.lease === null) this.#popped.add(delivery);
`,
      '',
    ),
  },
  {
    name: 'elements of the old engine are lost if the take in the new one has an unknown outcome',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'if (await this.#release(this.#from, queue, deliveries)) throw error;',
      'throw error;',
    ),
  },
  {
    name: 'elements that exceed the bytes of a take are lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'const isReleased = await this.#release(this.#to, queue, fromNew.deliveries);',
      'const isReleased = true;',
    ),
  },
  {
    name: 'undone pops are undone again if the other engine failed',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      '    for (const delivery of deliveries) this.#returned.add(delivery);\n',
      '',
    ),
  },
  {
    name: 'popped elements that cannot be returned are lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'return popped.length === 0 || isUnknownOutcome(error);',
      'return true;',
    ),
  },
  {
    name: 'the copies of an element have no keys, so that a repeated transfer stores them twice',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'copiesOf(item).map((copy, i) => keyed(copy, item, i))',
      'copiesOf(item)',
    ),
  },
  {
    name: 'other copies of an element count as repeats, and are lost',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'id, group, index, contentFingerprint(element)]);',
      'id, group, index]);',
    ),
  },
  {
    name: 'an element is finished before its copies are stored',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      'isCommit(item) ? { ...item, action: HOLD } : item',
      "isCommit(item) ? { ...item, action: { kind: 'finish' } } : item",
    ),
  },
  {
    name: 'elements without copies are finished before the copies of their call are stored',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      '(isCommit(item) ? { ...item, action: HOLD } : item)',
      '(copiesOf(item).length > 0 ? { ...item, action: HOLD } : item)',
    ),
  },
  {
    name: 'a queue with elements only in the old engine can be dropped',
    suite: 'joined engines',
    edits: edit(
      'broker/migrating-storage.ts',
      '      if (fromOld.ready + fromOld.scheduled + fromOld.reserved > 0) return false;\n',
      '',
    ),
  },
  {
    name: 'elements in the old engine are not counted',
    suite: 'migrations',
    edits: edit(
      'broker/migrating-storage.ts',
      'elements: fromOld.elements + fromNew.elements,',
      'elements: fromNew.elements,',
    ),
  },
  {
    name: 'options set during a migration are not applied in the old engine',
    suite: 'migrations',
    edits: edit(
      'broker/migrating-storage.ts',
      'await Promise.all([this.#to.declare(queues, options), this.#from.declare(queues, options)]);',
      'await this.#to.declare(queues, options);',
    ),
  },
  {
    name: 'a sweep does not wait for one engine if the other one failed',
    suite: 'joined engines',
    edits: edit('broker/migrating-storage.ts', 'await Promise.allSettled([old, current]);', ''),
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
    name: 'a resume while pause flags are being copied is lost',
    suite: 'migrations',
    edits: edit('broker/migration.ts', 'put(kind, key, value, expected)', "put(kind, key, value, 'any')"),
  },
  {
    name: 'a pause during a migration is not stored in the new engine',
    suite: 'migrations',
    edits: edit(
      'broker/namespace.ts',
      "    await laterStep(this.migration?.definitions.put('queue', key, { paused }, 'any'));\n",
      '',
    ),
  },
  {
    name: 'a namespace can be migrated to an engine that has elements in a namespace of that name',
    suite: 'migrations',
    edits: edit(
      'broker/migration.ts',
      'if ((await next.storage.usage(source.name, false)).elements > 0) {',
      'if ((await next.storage.usage(target.name, false)).elements > 0) {',
    ),
  },
  {
    name: 'a namespace can be migrated to one with other groups',
    suite: 'migrations',
    edits: edit('broker/migration.ts', '  if (groups !== others) throw', '  if (groups === undefined) throw'),
  },
  {
    name: 'the migration is not stored, so that the next start does not join the engines',
    suite: 'migrations',
    edits: edit('broker/migration.ts', "    await definitions.put('migration', name, { to }, null);\n", ''),
  },
  {
    name: 'a node starts although the engine with its elements is not configured',
    suite: 'migrations',
    edits: edit(
      'broker/broker.ts',
      '      throw new MigrationTargetMissing(namespace.name, to);',
      '      return;',
    ),
  },
  {
    name: 'a transaction loses its inserts if a migration starts in the middle of it',
    suite: 'STOMP commits',
    edits: edit('stomp/transactions.ts', '    await this.#store([...this.#sends], inserts);\n', ''),
  },
  {
    name: 'a migration ends when the old engine is empty for a moment',
    suite: 'migrations',
    edits: edit(
      'operations/migration-run.ts',
      'clock.monotonic() - this.#emptySince < EMPTY_MS',
      'clock.monotonic() - this.#emptySince < 0',
    ),
  },
];
