import { type Delivery, type GroupName, type NewElement, PLAIN_GROUP } from '../model/element.ts';
import type { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { Consumer, type ConsumerOrigin, type GetRequest, type Sink } from './consumer.ts';
import { toLocal } from './engine-time.ts';
import { Line, type LineHost, MANY } from './line.ts';

/** A consumer that waits, as the spec shows it (2.3). */
export interface PendingConsumer {
  readonly tid: string;
  readonly since: string;
  readonly callback: 'set' | 'unset';
  readonly cleanup_timeout: 'set' | 'unset';
  readonly wakeup_timeout: 'set' | 'unset';
  /** Null: an exchange. */
  readonly user: string | null;
  readonly protocol: ConsumerOrigin['protocol'] | 'exchange';
  readonly address: string | null;
  /** On a stream, the group that it reads as. */
  readonly group: GroupName | null;
}

/** What those who wait need of their queue, beside what a line needs. */
export interface WaitingHost extends Omit<LineHost, 'released' | 'emptied'> {
  /** The line that is kept even when nobody waits: requests come to it all the time. */
  readonly defaultGroup: GroupName;
  readonly makeTid: () => string;
  /** A consumer does not wait any more, whatever the reason. */
  released(consumer: Consumer): void;
  /** Nobody waits in one of its groups any more. */
  emptied(): void;
}

/** Everybody who waits for one queue on this node: a line per group, and an index by tid. */
export class Waiting {
  readonly #host: WaitingHost;
  readonly #lineHost: LineHost;
  readonly #lines = new Map<GroupName, Line>();
  /** Consumers that have a tid: several may share one. */
  readonly #byTid = new Map<string, Set<Consumer>>();
  #ofUsers = 0;

  constructor(host: WaitingHost) {
    this.#host = host;
    this.#lineHost = {
      key: host.key,
      storage: host.storage,
      clock: host.clock,
      random: host.random,
      isShared: host.isShared,
      meter: host.meter,
      get paused() {
        return host.paused;
      },
      served: (consumer, deliveries) => host.served(consumer, deliveries),
      released: (consumer) => this.#released(consumer),
      returnUndelivered: (delivery: Delivery) => host.returnUndelivered(delivery),
      sinkFailed: (error) => host.sinkFailed(error),
      emptied: (line) => {
        this.#forget(line);
        host.emptied();
      },
    };
  }

  get key(): QueueKey {
    return this.#host.key;
  }

  /** How many wait on behalf of users: all but exchanges. */
  get ofUsers(): number {
    return this.#ofUsers;
  }

  /** Whether nobody waits, and nothing is asked for. */
  get isIdle(): boolean {
    for (const line of this.#lines.values()) if (!line.isEmpty) return false;
    return true;
  }

  join(request: GetRequest, group: GroupName, sink: Sink): Consumer {
    const consumer = new Consumer(request, group, sink, this.#host.clock.now());
    if (consumer.tid !== null) this.#index(consumer, consumer.tid);
    if (request.owner !== null) this.#ofUsers += 1;
    this.#line(group).join(consumer);
    return consumer;
  }

  leave(consumer: Consumer): void {
    this.#lines.get(consumer.group)?.leave(consumer);
  }

  /** Elements are being stored: wake those who wait for them, now or at their maturity. */
  expect(elements: readonly NewElement[]): void {
    if (this.#lines.size === 0) return;
    for (const { matureAt, delayMs, groups } of elements) {
      const inMs =
        matureAt === null ? delayMs : toLocal(matureAt, this.#host, this.#host.key) - this.#host.clock.now();
      for (const group of groups) this.wake(group, inMs);
    }
  }

  /** One element becomes eligible for a group in `inMs`. */
  wake(group: GroupName, inMs: number): void {
    const line = this.#lines.get(group);
    if (line === undefined) return;
    if (inMs <= 0) line.match(1);
    else line.matureAt(this.#host.clock.now() + inMs);
  }

  /** Up to `count` elements may have become eligible in each group. */
  match(count: number): void {
    for (const line of this.#lines.values()) line.match(count);
  }

  pause(): void {
    for (const line of this.#lines.values()) line.pause();
  }

  resume(): void {
    this.match(MANY);
  }

  /** Ends all calls of a tid; where `owner` is given, only that user's. Answers how many. */
  cancel(tid: string, owner: string | null, reason: QuaysideError): number {
    let cancelled = 0;
    for (const consumer of [...(this.#byTid.get(tid) ?? [])]) {
      if (owner !== null && consumer.request.owner !== owner) continue;
      this.#lines.get(consumer.group)?.end(consumer, reason);
      cancelled += 1;
    }
    return cancelled;
  }

  /** Ends the calls for whose owner there is a reason. */
  end(reasonFor: (owner: string | null) => QuaysideError | null): void {
    for (const line of [...this.#lines.values()]) {
      for (const consumer of line.consumers()) {
        const reason = reasonFor(consumer.request.owner);
        if (reason !== null) line.end(consumer, reason);
      }
    }
  }

  /** The blocked calls, in the order in which they came, whatever their group. */
  pending(): PendingConsumer[] {
    const pending: { consumer: Consumer; line: Line }[] = [];
    for (const line of this.#lines.values()) {
      for (const consumer of line.consumers()) pending.push({ consumer, line });
    }
    pending.sort((a, b) => a.consumer.since - b.consumer.since || a.consumer.order - b.consumer.order);
    return pending.map(({ consumer, line }) => ({
      tid: this.#tidOf(consumer),
      since: new Date(consumer.since).toISOString(),
      callback: 'set',
      cleanup_timeout: consumer.cancelTimeout === null ? 'unset' : 'set',
      wakeup_timeout: line.awaitsMaturity ? 'set' : 'unset',
      user: consumer.request.owner,
      protocol: consumer.request.from?.protocol ?? 'exchange',
      address: consumer.request.from?.address ?? null,
      group: consumer.group === PLAIN_GROUP ? null : consumer.group,
    }));
  }

  #line(group: GroupName): Line {
    let line = this.#lines.get(group);
    if (line === undefined) {
      line = new Line(this.#lineHost, group);
      this.#lines.set(group, line);
    }
    return line;
  }

  /** Group names come from requests: a line that nobody waits in must not stay. */
  #forget(line: Line): void {
    if (line.group === this.#host.defaultGroup) return;
    // One that was forgotten before may be told of again, when another has its place.
    if (this.#lines.get(line.group) === line) this.#lines.delete(line.group);
  }

  #released(consumer: Consumer): void {
    this.#host.released(consumer);
    if (consumer.request.owner !== null) this.#ofUsers -= 1;
    if (consumer.tid === null) return;
    const sharing = this.#byTid.get(consumer.tid);
    sharing?.delete(consumer);
    if (sharing?.size === 0) this.#byTid.delete(consumer.tid);
  }

  #tidOf(consumer: Consumer): string {
    if (consumer.tid === null) {
      consumer.tid = this.#host.makeTid();
      this.#index(consumer, consumer.tid);
    }
    return consumer.tid;
  }

  #index(consumer: Consumer, tid: string): void {
    const sharing = this.#byTid.get(tid);
    if (sharing === undefined) this.#byTid.set(tid, new Set([consumer]));
    else sharing.add(consumer);
  }
}
