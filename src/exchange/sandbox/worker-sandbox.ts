import { type Clock, systemClock } from '../../model/clock.ts';
import { QuaysideError } from '../../model/errors.ts';
import { Dispatcher } from './dispatcher.ts';
import { bodyAllowanceMs, DEFAULT_LIMITS, type SandboxLimits } from './limits.ts';
import type { Turn } from './line.ts';
import { callSize, packElements } from './pack.ts';
import type { ProgramStep } from './protocol.ts';
import type {
  SelectorAnswer,
  SelectorInput,
  SelectorProgram,
  SelectorSandbox,
  SelectorSource,
  Whose,
} from './sandbox.ts';
import { at, invalidSelector, readSelector } from './source.ts';
import { allAccept, readVerdicts } from './verdicts.ts';

export interface SandboxOptions {
  readonly clock?: Clock;
  readonly limits?: Partial<SandboxLimits>;
}

/** The sandbox of `reliability.md` section 1: QuickJS, compiled to WebAssembly, in one worker thread. */
export function makeSandbox(options: SandboxOptions = {}): SelectorSandbox {
  return new WorkerSandbox(options.clock ?? systemClock, { ...DEFAULT_LIMITS, ...options.limits });
}

class WorkerSandbox implements SelectorSandbox {
  readonly #limits: SandboxLimits;
  readonly #dispatcher: Dispatcher;
  #programs = 0;

  constructor(clock: Clock, limits: SandboxLimits) {
    this.#limits = limits;
    this.#dispatcher = new Dispatcher(clock, limits);
  }

  async start(): Promise<void> {}

  stop(): Promise<void> {
    return this.#dispatcher.stop();
  }

  async check(selectors: readonly SelectorSource[], asker: string): Promise<void> {
    const scripts = selectors.map(({ source, path }) => readSelector(source, path).script);
    if (scripts.length === 0) return;
    const answer = await this.#dispatcher.request({ kind: 'compile', turn: `asker ${asker}`, scripts });
    const first = selectors[0] as SelectorSource;
    if (answer.outcome === 'overrun')
      throw invalidSelector(first.path, at(`Compiling this: ${answer.error}.`));
    if (answer.outcome !== 'compiled') throw unexpected(answer.outcome);
    for (const [index, problem] of answer.problems.entries()) {
      if (problem === null) continue;
      const { path } = selectors[index] as SelectorSource;
      throw invalidSelector(
        path,
        at(problem.message, problem.line ?? undefined, problem.column ?? undefined),
      );
    }
  }

  open(selectors: readonly (string | null)[], whose?: Whose): SelectorProgram {
    const steps = selectors.map(readStep);
    if (steps.every((step) => step === null)) return new OpenProgram(steps.length);
    this.#programs += 1;
    const key = this.#programs;
    return new WorkerProgram(this.#dispatcher, this.#limits, { key, turn: turnOf(whose) ?? key }, steps);
  }
}

/** A program whose destinations all take everything. */
class OpenProgram implements SelectorProgram {
  readonly #destinations: number;

  constructor(destinations: number) {
    this.#destinations = destinations;
  }

  async select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    return elements.map(() => allAccept(this.#destinations));
  }

  close(): void {}
}

class WorkerProgram implements SelectorProgram {
  readonly #dispatcher: Dispatcher;
  readonly #limits: SandboxLimits;
  readonly #key: number;
  readonly #turn: Turn;
  readonly #steps: readonly ProgramStep[];
  readonly #selectors: number;
  /**
   * Whether bodies are sent along: not before a selector has asked for one. Most look at headers only, and a
   * selector keeps nothing between calls, so that a call can be made once more with the bodies.
   */
  #withBodies = false;

  constructor(
    dispatcher: Dispatcher,
    limits: SandboxLimits,
    { key, turn }: { readonly key: number; readonly turn: Turn },
    steps: readonly ProgramStep[],
  ) {
    this.#dispatcher = dispatcher;
    this.#limits = limits;
    this.#key = key;
    this.#turn = turn;
    this.#steps = steps;
    this.#selectors = steps.filter((step) => step !== null).length;
  }

  /**
   * A call that overran says nothing about its elements: they are asked again one by one, which finds the
   * culprit and answers the others (reliability 1.4).
   */
  async select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    const answers: SelectorAnswer[] = [];
    let oneByOneUntil = 0;
    let strikes = 0;
    while (answers.length < elements.length) {
      const from = answers.length;
      if (strikes >= this.#limits.strikes) {
        answers.push({ outcome: 'unasked' });
        continue;
      }
      const count = from < oneByOneUntil ? 1 : callSize(elements, from, this.#limits, this.#withBodies);
      const answer = await this.#call(elements, from, count);
      if (answer.outcome === 'called') {
        answers.push(...readVerdicts(answer, this.#steps.length));
        strikes = 0;
      } else if (answer.outcome === 'needs-bodies') {
        this.#withBodies = true;
      } else if (answer.outcome !== 'overrun') {
        throw unexpected(answer.outcome);
      } else if (count > 1) {
        oneByOneUntil = from + count;
      } else {
        answers.push(answer);
        strikes += 1;
      }
    }
    return answers;
  }

  close(): void {
    this.#dispatcher.close(this.#key);
  }

  #call(elements: readonly SelectorInput[], from: number, count: number) {
    const withBodies = this.#withBodies;
    let bytes = 0;
    if (withBodies) for (const { body } of elements.slice(from, from + count)) bytes += body.length;
    return this.#dispatcher.request({
      kind: 'call',
      turn: this.#turn,
      program: this.#key,
      steps: this.#steps,
      pack: () => packElements(elements, from, count, withBodies),
      allowanceMs: bodyAllowanceMs(this.#limits, bytes, this.#selectors),
    });
  }
}

function turnOf(whose: Whose | undefined): Turn | null {
  if (whose === undefined) return null;
  return 'asker' in whose ? `asker ${whose.asker}` : `namespace ${whose.namespace}`;
}

/** A stored selector was checked when it was stored; should it not parse any more, its destination says so. */
function readStep(selector: string | null): ProgramStep {
  if (selector === null) return null;
  try {
    return readSelector(selector, 'selector');
  } catch (error) {
    if (error instanceof QuaysideError) return { broken: error.message };
    throw error;
  }
}

function unexpected(outcome: string): Error {
  return new Error(`the selector worker answered '${outcome}' to something else`);
}
