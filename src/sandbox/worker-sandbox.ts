import { type Clock, systemClock } from '../util/clock.ts';
import { Dispatcher } from './dispatcher.ts';
import { bodyAllowanceMs, DEFAULT_LIMITS, type SandboxLimits } from './limits.ts';
import type { Payer } from './line.ts';
import { callSize, packElements } from './pack.ts';
import { invalidSelector, type SourceProblem } from './problem.ts';
import type { ProgramSources } from './protocol.ts';
import type {
  ProgramOptions,
  SelectorAnswer,
  SelectorInput,
  SelectorProgram,
  SelectorSandbox,
  SelectorSource,
} from './sandbox.ts';
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

  /** Returns at once: what is asked before the thread is ready waits for it. */
  async start(): Promise<void> {
    this.#dispatcher.start();
  }

  stop(): Promise<void> {
    return this.#dispatcher.stop();
  }

  async check(selectors: readonly SelectorSource[], payer: Payer): Promise<void> {
    const [first] = selectors;
    if (first === undefined) return;
    const sources = selectors.map(({ source }) => source);
    const answer = await this.#dispatcher.request({ kind: 'compile', payer, sources });
    if (answer.outcome === 'overrun') throw invalidSelector(first.path, overran(answer.error));
    if (answer.outcome !== 'compiled') throw unexpected(answer.outcome);
    for (const [index, problem] of answer.problems.entries()) {
      if (problem !== null) throw invalidSelector((selectors[index] as SelectorSource).path, problem);
    }
  }

  open(selectors: readonly (string | null)[], options: ProgramOptions = {}): SelectorProgram {
    if (selectors.every((selector) => selector === null)) return new OpenProgram(selectors.length);
    this.#programs += 1;
    return new WorkerProgram(this.#dispatcher, this.#limits, this.#programs, selectors, options);
  }
}

function overran(error: string): SourceProblem {
  return { message: `Compiling this: ${error}.`, line: null, column: null };
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
  readonly #sources: ProgramSources;
  readonly #payer: Payer;
  readonly #logs: boolean;
  readonly #selectors: number;
  /**
   * Whether bodies are sent along: not before a selector has asked for one. Most look at headers only, and a
   * selector keeps nothing between calls, so that a call can be made once more with the bodies.
   */
  #withBodies = false;

  constructor(
    dispatcher: Dispatcher,
    limits: SandboxLimits,
    key: number,
    sources: ProgramSources,
    { payer = '', logs = false }: ProgramOptions,
  ) {
    this.#dispatcher = dispatcher;
    this.#limits = limits;
    this.#key = key;
    this.#sources = sources;
    this.#payer = payer;
    this.#logs = logs;
    this.#selectors = sources.filter((source) => source !== null).length;
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
        answers.push(...readVerdicts(answer, this.#sources.length));
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
      payer: this.#payer,
      program: this.#key,
      sources: this.#sources,
      logs: this.#logs,
      pack: () => packElements(elements, from, count, withBodies),
      allowanceMs: bodyAllowanceMs(this.#limits, bytes, this.#selectors),
    });
  }
}

function unexpected(outcome: string): Error {
  return new Error(`the selector worker answered '${outcome}' to something else`);
}
