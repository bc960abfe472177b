import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of bulk operations. */
export const OPERATIONS: readonly Mutant[] = [
  {
    name: 'who may not read a namespace may move its elements to where they may',
    suite: 'HTTP operations',
    edits: edit(
      'http/routes/operations.ts',
      "...(to === null || to.ns === source.ns ? [] : [['read', source.ns] as const]),",
      '',
    ),
  },
];
