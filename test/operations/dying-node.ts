import type { Engine } from '../../src/engine/engine.ts';
import { type ErrorCode, QuaysideError } from '../../src/model/errors.ts';

/** When the calls of a node that dies are cut off: before one takes effect, or after it did and before its reply. */
export type Cut = 'before' | 'after';

/** The calls that change something. */
const CHANGES = new Set(['settle', 'insert', 'put', 'delete']);

/**
 * Engines as one node of several sees them that dies: from one of its changing calls on, no call is answered, and none
 * but perhaps that one takes effect, unless the node is thawed. What other nodes do with the engines is not touched.
 */
export class DyingNode {
  /** Changing calls until then. */
  calls = 0;
  #isDead = false;
  readonly #cut: Cut;
  readonly #dies: number;
  readonly #hung: { readonly resume: () => void; readonly reject: (code: ErrorCode) => void }[] = [];
  #isOver = false;

  /** @param dies the number of the changing call, from 1, at which it does; 0: at none */
  constructor(dies: number, cut: Cut) {
    this.#dies = dies;
    this.#cut = cut;
  }

  /** The engine as the node uses it. */
  view(engine: Engine): Engine {
    return Object.create(engine, {
      storage: { value: this.#mortal(engine.storage) },
      definitions: { value: this.#mortal(engine.definitions) },
    });
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  /** It was only frozen: the calls that hang take effect now, and those that follow as ever. */
  thaw(): void {
    this.#isDead = false;
    for (const { resume } of this.#hung.splice(0)) resume();
  }

  /**
   * It was only cut off: the calls that hang were lost, as far as it knows, and those that follow take effect as ever.
   */
  reconnect(): void {
    this.#isDead = false;
    for (const { reject } of this.#hung.splice(0)) reject('outcome-unknown');
  }

  /** The calls that hang, and those that follow, are rejected: so that the node can be stopped. */
  end(): void {
    this.#isOver = true;
    for (const { reject } of this.#hung) reject('storage-unavailable');
  }

  #mortal<T extends object>(port: T): T {
    return new Proxy(port, {
      get: (target, name) => {
        const member: unknown = Reflect.get(target, name, target);
        if (typeof member !== 'function') return member;
        // Reads of the clock, and watching, are no calls.
        if (name === 'now' || name === 'watch') return member.bind(target);
        return (...args: unknown[]) => this.#call(String(name), () => member.apply(target, args));
      },
    });
  }

  #call(name: string, call: () => Promise<unknown>): Promise<unknown> {
    if (this.#isDead) return this.#hang(call);
    if (!CHANGES.has(name)) return call();
    this.calls += 1;
    if (this.calls !== this.#dies) return call();
    this.#isDead = true;
    if (this.#cut === 'before') return this.#hang(call);
    const done = call();
    const hang = (): Promise<unknown> => this.#hang(() => done);
    return done.then(hang, hang);
  }

  #hang(call: () => Promise<unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const hung = {
        resume: () => void call().then(resolve, reject),
        reject: (code: ErrorCode) => reject(new QuaysideError(code, 'The node is dead.')),
      };
      if (this.#isOver) hung.reject('storage-unavailable');
      else this.#hung.push(hung);
    });
  }
}
