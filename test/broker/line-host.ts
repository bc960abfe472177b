import type { Scheduler } from 'fast-check';
import { Consumer } from '../../src/broker/consumer.ts';
import { Line, type LineHost } from '../../src/broker/line.ts';
import { Meter } from '../../src/broker/meter.ts';
import type { Storage, TakeOptions, TakeResult } from '../../src/engine/storage.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QuaysideError } from '../../src/model/errors.ts';
import { FakeClock } from '../support/clock.ts';

/**
 * A queue reduced to what a line sees of it: elements are numbers that become eligible, and a `take` that
 * the test lets through when it likes. It keeps the storage port's promise on the order of effect: what was
 * inserted before a take was called is seen by it.
 */
export class LineUnderTest implements LineHost {
  readonly key = { ns: 'N', name: 'q' };
  readonly clock = new FakeClock();
  readonly random = (): number => 0.5;
  readonly meter = new Meter(this.clock);
  readonly storage: Storage;
  readonly line: Line;
  paused = false;
  isShared = false;
  fault: QuaysideError | null = null;
  /** Eligible elements, by their moment of maturity; kept in order of hand-out. */
  readonly eligible: { id: string; matureAt: number }[] = [];
  readonly givenBack: string[] = [];
  readonly sinkFaults: unknown[] = [];
  takes = 0;
  #inserted = 0;
  /** Takes in the order in which they were called, each let through by `settle` or by the scheduler. */
  readonly #underWay: (() => void)[] = [];

  constructor(scheduler: Scheduler | null = null, undoesLostTakes = false) {
    const take = (_queue: unknown, options: TakeOptions): Promise<TakeResult> =>
      this.#take(options, scheduler);
    this.storage = { take, undoesLostTakes, now: () => this.clock.now() } as unknown as Storage;
    this.line = new Line(this, '');
  }

  insert(inMs = 0): string {
    this.#inserted += 1;
    const id = `e${this.#inserted}`;
    this.#add(id, this.clock.now() + inMs);
    if (inMs <= 0) this.line.match(1);
    else this.line.matureAt(this.clock.now() + inMs);
    return id;
  }

  /** An element that nobody was told of, as another node's whose signal was lost. */
  insertSilently(): void {
    this.#inserted += 1;
    this.#add(`e${this.#inserted}`, this.clock.now());
  }

  join(options: { leaseMs?: number; timeoutMs?: number; count?: number } = {}): Waiter {
    const waiter = new Waiter(this, options);
    this.line.join(waiter.consumer);
    return waiter;
  }

  /** Lets takes through, one after the other, until none is under way and nobody reacts any more. */
  async settle(): Promise<void> {
    for (let quiet = 0; quiet < 3; quiet += 1) {
      const next = this.#underWay.shift();
      if (next !== undefined) {
        next();
        quiet = 0;
      }
      await new Promise(setImmediate);
    }
  }

  returnUndelivered(delivery: Delivery): void {
    this.givenBack.push(delivery.id);
    this.#add(delivery.id, delivery.matureAt);
    this.line.match(1);
  }

  sinkFailed(error: unknown): void {
    this.sinkFaults.push(error);
  }

  served(): void {}

  emptied(): void {}

  released(): void {}

  #add(id: string, matureAt: number): void {
    this.eligible.push({ id, matureAt });
    this.eligible.sort((a, b) => a.matureAt - b.matureAt);
  }

  #take({ count, leaseMs }: TakeOptions, scheduler: Scheduler | null): Promise<TakeResult> {
    this.takes += 1;
    const { fault } = this;
    if (fault !== null) return new Promise((_, reject) => this.#underWay.push(() => reject(fault)));
    const result = this.#handOut(count, leaseMs);
    if (scheduler !== null) return scheduler.schedule(Promise.resolve(result), 'take');
    return new Promise((resolve) => this.#underWay.push(() => resolve(result)));
  }

  #handOut(count: number, leaseMs: number | null): TakeResult {
    const due = this.eligible.filter(({ matureAt }) => matureAt <= this.clock.now()).slice(0, count);
    this.eligible.splice(0, due.length);
    const next = this.eligible[0];
    return {
      deliveries: due.map(({ id, matureAt }) => ({
        id,
        matureAt,
        group: '',
        tries: 0,
        body: new Uint8Array(),
        contentType: null,
        contentEncoding: null,
        headers: [],
        lease: leaseMs === null ? null : { token: 't', until: this.clock.now() + leaseMs },
      })),
      nextDueAt: due.length < count ? (next?.matureAt ?? null) : null,
    };
  }
}

/** A consumer that remembers what it was told. */
export class Waiter {
  readonly consumer: Consumer;
  readonly got: string[] = [];
  ended: QuaysideError | null = null;
  /** What its sink throws, whatever it is told. */
  fault: Error | null = null;

  constructor(
    line: LineUnderTest,
    { leaseMs, timeoutMs, count }: { leaseMs?: number; timeoutMs?: number; count?: number },
  ) {
    const request = {
      group: null,
      leaseMs: leaseMs ?? null,
      timeoutMs: timeoutMs ?? null,
      count: count ?? 1,
      tid: null,
      owner: null,
    };
    this.consumer = new Consumer(
      request,
      '',
      {
        deliver: (delivery, more) => {
          if (this.fault !== null) throw this.fault;
          this.got.push(delivery.id, ...more.map(({ id }) => id));
        },
        end: (reason) => {
          if (this.fault !== null) throw this.fault;
          this.ended = reason;
        },
      },
      line.clock.now(),
    );
  }
}
