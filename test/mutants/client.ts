import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/client/${file}`, search, replace },
];

/**
 * Bugs of the client library: what is stored is reported as lost, or the other way round; or a program ends too early,
 * or never.
 */
export const CLIENT: readonly Mutant[] = [
  {
    name: 'close waits for no insert',
    suite: 'client library',
    edits: edit('transport.ts', 'while (this.#calls.size > 0) await Promise.allSettled(this.#calls);', ''),
  },
  {
    name: 'what is thrown and no error is the id of an insert',
    suite: 'client library',
    edits: edit(
      'batcher.ts',
      'for (const { reject } of batch) reject(error);',
      'for (const { resolve } of batch) resolve(error as R);',
    ),
  },
  {
    name: 'one insert with a new group fails all of its request',
    suite: 'client library',
    edits: edit('batcher.ts', "code === 'too-many-groups' ||", ''),
  },
  {
    name: 'an insert that is one too many for its request is rejected',
    suite: 'client library',
    edits: edit('wire.ts', '(lines[1] && error.status === 413)', 'false'),
  },
  {
    name: 'halves of a request are in each other’s place',
    suite: 'client library',
    edits: edit(
      'batcher.ts',
      `await this.#settle(batch.slice(0, half));
        await this.#settle(batch.slice(half));`,
      `await this.#settle(batch.slice(half));
        await this.#settle(batch.slice(0, half));`,
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
    name: 'a handler that settled its element is an error',
    suite: 'workers of the client library',
    edits: edit('worker.ts', "(error as QuaysideError | null)?.code !== 'already-settled'", 'error !== null'),
  },
];
