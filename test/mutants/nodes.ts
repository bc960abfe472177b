import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of what nodes know of each other, and of what metrics say. */
export const NODES: readonly Mutant[] = [
  {
    name: 'nodes see no difference in what they configure',
    suite: 'differences of nodes',
    edits: edit('broker/agreement.ts', 'there === undefined || there === here', 'there !== null'),
  },
  {
    name: 'another variant starts without waiting for the nodes that are alive',
    suite: 'agreement of nodes',
    edits: edit('broker/agreement.ts', 'if (before !== null) await this.#refuseIfServed();', ''),
  },
  {
    name: 'the counter of an error appears with the first one',
    suite: 'metrics',
    edits: edit('broker/meter.ts', 'new Map(ERRORS[operation].map((code) => [code, 0]))', 'new Map()'),
  },
  {
    name: 'the age of the oldest ready element counts what is scheduled',
    suite: 'metrics',
    edits: edit('broker/record.ts', 'Math.max(0, ageMs)', 'Math.abs(ageMs)').concat(
      edit('broker/record.ts', 'if (ready === 0 || nextMatureAt === null)', 'if (nextMatureAt === null)'),
    ),
  },
];
