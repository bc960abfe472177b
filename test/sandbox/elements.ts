import type {
  SelectorInput,
  SelectorProgram,
  SelectorSandbox,
  SelectorVerdict,
} from '../../src/sandbox/sandbox.ts';
import { makeSandbox } from '../../src/sandbox/sandbox.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';

/**
 * A sandbox for tests that are not about limits of time. Some hypervisors count the time that they take from
 * a thread as its processor time: 100 ms to compile three short lines were seen to pass.
 */
export function patientSandbox(clock: Clock = systemClock): SelectorSandbox {
  return makeSandbox({ clock, limits: { compileMs: 1_000, callMs: 1_000, watchdogMs: 5_000 } });
}

/** An element as selectors see it, with what a test says of it. */
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

/** Asks for one element and expects verdicts. */
export async function verdictsOf(
  program: SelectorProgram,
  input: SelectorInput,
): Promise<readonly SelectorVerdict[]> {
  const [answer] = await program.select([input]);
  if (answer?.outcome !== 'evaluated') throw new Error(`not asked: ${JSON.stringify(answer)}`);
  return answer.verdicts;
}

/** Text of a body that a selector wrote; null where it wrote none. */
export function textOf(body: Uint8Array | null | undefined): string | null {
  return body === null || body === undefined ? null : Buffer.from(body).toString();
}
