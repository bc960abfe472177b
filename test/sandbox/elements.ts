import type {
  SelectorInput,
  SelectorProgram,
  SelectorSandbox,
  SelectorVerdict,
} from '../../src/sandbox/sandbox.ts';
import { makeSandbox } from '../../src/sandbox/sandbox.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';

/**
 * A sandbox for tests that are not about time limits. Some hypervisors count time taken from a thread as its processor
 * time: compiling three short lines has taken 100 ms.
 */
export function patientSandbox(clock: Clock = systemClock): SelectorSandbox {
  return makeSandbox({ clock, limits: { compileMs: 1_000, callMs: 1_000, watchdogMs: 5_000 } });
}

/** An element as selectors see it; a test overrides some fields. */
export function element(
  own: Partial<Omit<SelectorInput, 'body'>> & { body?: Uint8Array | string } = {},
): SelectorInput {
  const { body = '', ...rest } = own;
  return {
    id: 'e1',
    tries: 0,
    matureAt: 1_700_000_000_000,
    headers: [],
    contentType: null,
    contentEncoding: null,
    ...rest,
    body: typeof body === 'string' ? Buffer.from(body) : body,
  };
}

export function json(value: unknown, headers: readonly string[] = []): SelectorInput {
  return element({ headers, body: JSON.stringify(value), contentType: 'application/json' });
}

/** Evaluates one element. @throws Error unless there are verdicts */
export async function verdictsOf(
  program: SelectorProgram,
  input: SelectorInput,
): Promise<readonly SelectorVerdict[]> {
  const [answer] = await program.select([input]);
  if (answer?.outcome !== 'evaluated') throw new Error(`not evaluated: ${JSON.stringify(answer)}`);
  return answer.verdicts;
}

/** A body written by a selector as a string; null: it wrote none. */
export function textOf(body: Uint8Array | null | undefined): string | null {
  return body === null || body === undefined ? null : Buffer.from(body).toString();
}
