import type { Engine } from '../../src/engine/engine.ts';
import { type ErrorCode, QuaysideError } from '../../src/model/errors.ts';

/** Whether a node dies before its last change takes effect, or after that and before the reply. */
export type Cut = 'before' | 'after';

/** The calls that change something. */
const CHANGES = new Set(['settle', 'insert', 'put', 'delete']);
/** What a node does without a call: it reads its clock, watches, and takes what it has noted itself. */
const NO_CALLS = new Set(['now', 'watch', 'takeAffected']);

/**
 * Makes one of several nodes die: from one of its changing calls on, none of its calls is answered, and none takes
 * effect except possibly that one, unless the node is thawed. Calls of other nodes are not affected.
 */
export class DyingNode {
  /** Changing calls of the node until it dies. */
  calls = 0;
  #isDead = false;
  readonly #cut: Cut;
  readonly #dyingCall: number;
  readonly #suspended: { readonly resume: () => void; readonly reject: (code: ErrorCode) => void }[] = [];
  #isOver = false;

  /** @param dyingCall the number of the changing call, from 1, at which the node dies; 0: never */
  constructor(dyingCall: number, cut: Cut) {
    this.#dyingCall = dyingCall;
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

  /** Ends a freeze of the node: pending calls take effect now, and later ones as usual. */
  thaw(): void {
    this.#isDead = false;
    for (const { resume } of this.#suspended.splice(0)) resume();
  }

  /**
   * Ends a loss of the connection: pending calls are rejected with `outcome-unknown`, and later ones take effect as
   * usual.
   */
  reconnect(): void {
    this.#isDead = false;
    for (const { reject } of this.#suspended.splice(0)) reject('outcome-unknown');
  }

  /** Rejects pending and later calls, so that the node can be stopped. */
  end(): void {
    this.#isOver = true;
    for (const { reject } of this.#suspended) reject('storage-unavailable');
  }

  #mortal<T extends object>(port: T): T {
    return new Proxy(port, {
      get: (target, name) => {
        const member: unknown = Reflect.get(target, name, target);
        if (typeof member !== 'function') return member;
        if (NO_CALLS.has(String(name))) return member.bind(target);
        return (...args: unknown[]) => this.#call(String(name), () => member.apply(target, args));
      },
    });
  }

  #call(name: string, call: () => Promise<unknown>): Promise<unknown> {
    if (this.#isDead) return this.#suspend(call);
    if (!CHANGES.has(name)) return call();
    this.calls += 1;
    if (this.calls !== this.#dyingCall) return call();
    this.#isDead = true;
    if (this.#cut === 'before') return this.#suspend(call);
    const done = call();
    const hang = (): Promise<unknown> => this.#suspend(() => done);
    return done.then(hang, hang);
  }

  #suspend(call: () => Promise<unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const hung = {
        resume: () => void call().then(resolve, reject),
        reject: (code: ErrorCode) => reject(new QuaysideError(code, 'The node is dead.')),
      };
      if (this.#isOver) hung.reject('storage-unavailable');
      else this.#suspended.push(hung);
    });
  }
}
