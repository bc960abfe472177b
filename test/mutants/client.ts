import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/client/${file}`, search, replace },
];

/**
 * Bugs of the client library: a stored element is reported as lost or vice versa, or a program ends too early or never.
 */
export const CLIENT: readonly Mutant[] = [
  {
    name: 'close does not wait for pending inserts',
    suite: 'client library',
    edits: edit('transport.ts', 'while (this.#calls.size > 0) await Promise.allSettled(this.#calls);', ''),
  },
  {
    name: 'a thrown value that is not an Error is returned as the id of an insert',
    suite: 'client library',
    edits: edit(
      'wire.ts',
      'for (const { reject } of batch) reject(error);',
      'for (const { resolve } of batch) resolve(error as R);',
    ),
  },
  {
    name: 'an insert with a group too many fails all inserts of its request',
    suite: 'client library',
    edits: edit('wire.ts', "code === 'too-many-groups' ||", ''),
  },
  {
    name: 'a request that the server finds too large is not split',
    suite: 'client library',
    edits: edit('wire.ts', 'const invalidItem = isTooLarge ? undefined : batch', 'const invalidItem = batch'),
  },
  {
    name: 'the two halves of a split request are swapped',
    suite: 'client library',
    edits: edit(
      'wire.ts',
      `await this.#settle(rest.slice(0, rest.length >> 1));
      await this.#settle(rest.slice(rest.length >> 1));`,
      `await this.#settle(rest.slice(rest.length >> 1));
      await this.#settle(rest.slice(0, rest.length >> 1));`,
    ),
  },
  {
    name: 'a redirection is followed',
    suite: 'client library',
    edits: edit('transport.ts', "redirect: 'manual'", "redirect: 'follow'"),
  },
  {
    name: 'a worker does not keep its program alive',
    suite: 'workers of the client library',
    edits: edit('worker.ts', 'after(this.#leaseMs / 3, renew, true);', 'after(this.#leaseMs / 3, renew);'),
  },
  {
    name: 'a handler that settled its element itself counts as failed',
    suite: 'workers of the client library',
    edits: edit('worker.ts', "(error as QuaysideError | null)?.code !== 'already-settled'", 'error !== null'),
  },
];
