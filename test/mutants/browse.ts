import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of looking without taking. */
export const BROWSE: readonly Mutant[] = [
  {
    name: 'maskBodies hides nothing on pages',
    suite: 'HTTP browsing',
    edits: edit(
      'http/routes/browse.ts',
      'const hidesBodies = !user.maySeeBodies(namespace.name);',
      'const hidesBodies = false;',
    ),
  },
  {
    name: 'maskBodies hides no single element',
    suite: 'HTTP browsing',
    edits: edit(
      'http/routes/browse.ts',
      'if (!user.maySeeBodies(namespace.name)) {',
      'if (!user.maySee(namespace.name)) {',
    ),
  },
  {
    name: 'a page that is full skips the rest of what was read',
    suite: 'searches',
    edits: edit('operations/search.ts', 'return delivery.cursor;', 'return next ?? delivery.cursor;'),
  },
  {
    name: 'a selector that reads the payload is given empty bodies',
    suite: 'searches',
    edits: edit('sandbox/sandbox.ts', 'if (this.#withBodies && !hasBodies) return null;', ''),
  },
  {
    name: 'an extension of a lease changes since when it is held',
    suite: 'contract',
    edits: edit(
      'engines/sqlite/worker/rows.ts',
      "extend: 'UPDATE delivery SET lease_until = ? WHERE seq = ?'",
      "extend: 'UPDATE delivery SET lease_until = ?, reserved_at = reserved_at + 1 WHERE seq = ?'",
    ),
  },
  {
    name: 'what was reserved in the name of a consumer that left goes to another',
    suite: 'wait queue',
    edits: edit('broker/wait-queue.ts', 'if (Array.isArray(take.tids)) {', 'if (take.tids === undefined) {'),
  },
];
