import { QuaysideError } from '../../src/model/errors.ts';
import type {
  SelectorInput,
  SelectorProgram,
  SelectorSandbox,
  SelectorVerdict,
} from '../../src/sandbox/sandbox.ts';
import { WorkerSandbox } from '../../src/sandbox/sandbox.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';

/**
 * A sandbox for tests that are not about time limits. Some hypervisors count time taken from a thread as its processor
 * time: compiling three short lines has taken 100 ms.
 */
export function patientSandbox(clock: Clock = systemClock): SelectorSandbox {
  return new WorkerSandbox({ clock, limits: { compileMs: 1_000, callMs: 1_000, watchdogMs: 5_000 } });
}

let sandboxOfProcess: SelectorSandbox | null = null;

/**
 * Like {@link patientSandbox}, for tests of what uses a sandbox. All of them in this process share one thread, since a
 * thread takes 0.1 s of processor time to start. `stop` closes only the programs opened here; the thread runs until the
 * process ends.
 */
export function sharedSandbox(): SelectorSandbox {
  if (sandboxOfProcess === null) {
    process.on('worker', (worker) => {
      if (worker.threadName === 'selectors') worker.unref();
    });
    sandboxOfProcess = patientSandbox();
  }
  const sandbox = sandboxOfProcess;
  const programs: SelectorProgram[] = [];
  let isStopped = false;
  return {
    start: () => sandbox.start(),
    stop: async () => {
      isStopped = true;
      for (const program of programs.splice(0)) program.close();
    },
    check: async (selectors, payer) => {
      if (isStopped) throw new QuaysideError('shutting-down', 'The sandbox is stopped.');
      await sandbox.check(selectors, payer);
    },
    open: (selectors, options) => {
      const program = sandbox.open(selectors, options);
      programs.push(program);
      return program;
    },
  };
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
