import type { JsonValue } from '../engine/definitions.ts';
import type { ReadySignal, Signaller } from '../engine/signaller.ts';
import type { Clock } from '../util/clock.ts';
import { MANY } from './line.ts';
import { type Configured, type NodeInfo, type Peer, Peers } from './peers.ts';
import type { PendingConsumer } from './waiting.ts';

/**
 * What nodes say to each other of one namespace. Hints: losing one delays, never loses. `ns` is there since
 * namespaces may share a channel, `from` since a node hears itself.
 */
type Signal = Said & { readonly ns: string; readonly from: string };

type Said =
  | {
      readonly kind: 'ready';
      readonly queue: string;
      /** Null: nobody knows how many. */
      readonly count: number | null;
      /** Sets it apart from others of the same node: signallers send equal signals once. */
      readonly number: number;
    }
  | {
      readonly kind: 'cancel';
      readonly queue: string;
      readonly tid: string;
      readonly owner: string | null;
    }
  | {
      readonly kind: 'node';
      readonly node: NodeInfo;
      /** Not given by nodes of earlier versions. */
      readonly configured?: Configured;
      readonly first: boolean;
    }
  | { readonly kind: 'gone' }
  | { readonly kind: 'who-waits'; readonly queue: string; readonly question: number }
  | ({ readonly kind: 'waits'; readonly to: string } & PartOfAnswer);

interface PartOfAnswer {
  readonly question: number;
  readonly consumers: readonly PendingConsumer[];
  readonly isLast: boolean;
}

/** What a channel tells its namespace. */
export interface ChannelListener {
  /** Another node stored or returned so many elements, or `MANY`. */
  ready(queue: string, count: number): void;
  cancel(queue: string, tid: string, owner: string | null): void;
  /** The calls that wait on this node. */
  consumers(queue: string): PendingConsumer[];
  /** Another node is there, or configures something else than before. */
  peer(peer: Peer): void;
}

export interface ChannelParts {
  readonly namespace: string;
  readonly signaller: Signaller;
  readonly topic: string;
  readonly self: NodeInfo;
  /** What this node configures for the namespace. */
  readonly configured: Configured;
  readonly clock: Clock;
  readonly listener: ChannelListener;
}

/** A list that some node does not complete within this long is answered without it. */
const ANSWER_MS = 1_000;
/** Of consumers in one signal: PostgreSQL carries 8,000 bytes at once, in which this JSON stands as a text. */
const BYTES_IN_SIGNAL = 3_000;

/** A list of consumers that is being gathered. */
interface Question {
  readonly missing: Set<string>;
  readonly found: PendingConsumer[];
  readonly done: () => void;
}

/** One namespace's part of its signaller: what this node says there, and what it hears. */
export class Channel {
  readonly #parts: ChannelParts;
  readonly #peers: Peers;
  readonly #questions = new Map<number, Question>();
  /** Elements that became eligible here in this turn, per queue: one signal each, not one an element. */
  readonly #announcements = new Map<string, number>();
  #announced = 0;
  #asked = 0;
  #unsubscribe: (() => void) | null = null;

  constructor(parts: ChannelParts) {
    this.#parts = parts;
    this.#peers = new Peers({
      clock: parts.clock,
      greet: (first) => this.#greet(first),
    });
  }

  /** Signals that end at this process have nobody to greet. */
  get #isLocal(): boolean {
    return this.#parts.signaller.type === 'local';
  }

  start(): void {
    const { signaller, topic } = this.#parts;
    this.#unsubscribe = signaller.subscribe(topic, (message) => this.#hear(message as unknown as Signal));
    if (!this.#isLocal) this.#peers.start();
  }

  stop(): void {
    if (!this.#isLocal) this.#say({ kind: 'gone' });
    this.#peers.stop();
    this.#unsubscribe?.();
    this.#unsubscribe = null;
    for (const { done } of this.#questions.values()) done();
  }

  /** The other nodes that serve this namespace. */
  peers(): Peer[] {
    return this.#peers.list();
  }

  /** Tells other nodes, at the end of this turn, that elements became eligible. */
  announce(queue: string, count: number): void {
    const pending = this.#announcements.get(queue);
    this.#announcements.set(queue, (pending ?? 0) + count);
    if (this.#announcements.size === 1 && pending === undefined) {
      queueMicrotask(() => this.#publishAnnouncements());
    }
  }

  /** The same for one queue, to go with what is stored there. */
  readySignal(queue: string): ReadySignal {
    return { topic: this.#parts.topic, say: (count) => this.#signal(this.#ready(queue, count)) };
  }

  cancel(queue: string, tid: string, owner: string | null): void {
    this.#say({ kind: 'cancel', queue, tid, owner });
  }

  /** The calls that wait on other nodes. Resolves without those of a node that does not answer in time. */
  async consumersElsewhere(queue: string): Promise<readonly PendingConsumer[]> {
    const peers = this.#peers.list();
    if (peers.length === 0) return [];
    this.#asked += 1;
    const question = this.#asked;
    const { promise, resolve } = Promise.withResolvers<void>();
    const found: PendingConsumer[] = [];
    this.#questions.set(question, {
      missing: new Set(peers.map(({ info }) => info.id)),
      found,
      done: resolve,
    });
    const cancel = this.#parts.clock.after(ANSWER_MS, resolve);
    this.#say({ kind: 'who-waits', queue, question });
    await promise;
    cancel();
    this.#questions.delete(question);
    return found;
  }

  #greet(first: boolean): void {
    const { self: node, configured } = this.#parts;
    this.#say({ kind: 'node', node, configured, first });
  }

  #saw(peer: Peer): void {
    if (this.#peers.saw(peer)) this.#parts.listener.peer(peer);
  }

  #publishAnnouncements(): void {
    for (const [queue, count] of this.#announcements) this.#say(this.#ready(queue, count));
    this.#announcements.clear();
  }

  #ready(queue: string, count: number): Said {
    this.#announced += 1;
    return { kind: 'ready', queue, count: count === MANY ? null : count, number: this.#announced };
  }

  #say(said: Said): void {
    const { signaller, topic } = this.#parts;
    signaller.publish(topic, this.#signal(said));
  }

  #signal(said: Said): JsonValue {
    const { namespace, self } = this.#parts;
    return { ...said, ns: namespace, from: self.id } as unknown as JsonValue;
  }

  #hear(signal: Signal): void {
    const { namespace, self, listener } = this.#parts;
    if (signal.from === self.id || signal.ns !== namespace) return;
    switch (signal.kind) {
      case 'ready':
        listener.ready(signal.queue, signal.count ?? MANY);
        break;
      case 'cancel':
        listener.cancel(signal.queue, signal.tid, signal.owner);
        break;
      case 'node':
        this.#saw({ info: signal.node, configured: signal.configured ?? {} });
        if (signal.first) this.#greet(false);
        break;
      case 'gone':
        this.#forget(signal.from);
        break;
      case 'who-waits':
        this.#answer(signal.from, signal.question, listener.consumers(signal.queue));
        break;
      case 'waits':
        if (signal.to === self.id) this.#note(signal.from, signal);
        break;
    }
  }

  #answer(to: string, question: number, consumers: readonly PendingConsumer[]): void {
    const parts = inParts(consumers);
    for (const [at, some] of parts.entries()) {
      this.#say({ kind: 'waits', to, question, consumers: some, isLast: at === parts.length - 1 });
    }
  }

  #note(from: string, { question, consumers, isLast }: PartOfAnswer): void {
    const asked = this.#questions.get(question);
    if (asked === undefined) return;
    asked.found.push(...consumers);
    if (isLast) this.#answered(asked, from);
  }

  #forget(id: string): void {
    this.#peers.gone(id);
    for (const question of this.#questions.values()) this.#answered(question, id);
  }

  #answered({ missing, done }: Question, id: string): void {
    missing.delete(id);
    if (missing.size === 0) done();
  }
}

/** As many in each part as a signal carries; one part where there are none. */
function inParts(consumers: readonly PendingConsumer[]): PendingConsumer[][] {
  const parts: PendingConsumer[][] = [];
  let part: PendingConsumer[] = [];
  let bytes = 0;
  for (const consumer of consumers) {
    const own = Buffer.byteLength(JSON.stringify(consumer));
    if (part.length > 0 && bytes + own > BYTES_IN_SIGNAL) {
      parts.push(part);
      part = [];
      bytes = 0;
    }
    part.push(consumer);
    bytes += own;
  }
  parts.push(part);
  return parts;
}
