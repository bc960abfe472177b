import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of browsing. */
export const BROWSE: readonly Mutant[] = [
  {
    name: 'maskBodies does not mask bodies on pages',
    suite: 'HTTP browsing',
    edits: edit(
      'http/routes/browse.ts',
      'const hidesBodies = !user.maySeeBodies(namespace.name);',
      'const hidesBodies = false;',
    ),
  },
  {
    name: 'maskBodies does not mask the body of a single element',
    suite: 'HTTP browsing',
    edits: edit('http/routes/browse.ts', 'checkBodies(user, namespace.name);', ''),
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
    name: 'extending a lease changes the time of its reservation',
    suite: 'contract',
    edits: edit(
      'engines/sqlite/worker/rows.ts',
      "extend: 'UPDATE delivery SET lease_until = ? WHERE seq = ?'",
      "extend: 'UPDATE delivery SET lease_until = ?, reserved_at = reserved_at + 1 WHERE seq = ?'",
    ),
  },
  {
    name: 'an element reserved for a consumer that has left is delivered to another',
    suite: 'wait queue',
    edits: edit('broker/wait-queue.ts', 'if (Array.isArray(take.tids)) {', 'if (take.tids === undefined) {'),
  },
];
