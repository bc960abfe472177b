import { type JsonValue, retryConflicts } from '../engine/definitions.ts';
import type { ReadySignal } from '../engine/signaller.ts';
import type { GroupName } from '../model/element.ts';
import type { CancelTimer } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import { Pause } from '../util/pause.ts';
import type { Namespace, Shared } from './namespace.ts';
import type { MessagePart } from './questions.ts';
import { MANY } from './wait-queue.ts';

/** How a node describes itself to others. */
export interface NodeInfo {
  readonly id: string;
  /** The host name of its machine. */
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  /** ms since 1970, by its own clock. */
  readonly startedAt: number;
}

/** A node's configuration of a namespace: option name to its value as a short string. */
export type Configured = Readonly<Record<string, string>>;

/** Another node of a namespace. */
interface Peer {
  readonly info: NodeInfo;
  readonly configured: Configured;
}

/**
 * A message between the nodes of one namespace. Signals are hints: a lost one delays elements, but loses none. `ns` is
 * needed since namespaces may share a topic, `from` since a node receives its own signals.
 */
type Signal = Content & { readonly ns: string; readonly from: string };

type Content =
  | {
      readonly kind: 'ready';
      readonly queue: string;
      /** Null: an unknown number. */
      readonly count: number | null;
      /** In which groups of a stream; missing: in any. */
      readonly groups?: readonly GroupName[];
      /** Makes each signal of a node different: signallers send equal signals only once. */
      readonly number: number;
    }
  | { readonly kind: 'deleted'; readonly queue: string; readonly number: number }
  | {
      readonly kind: 'cancel';
      readonly queue: string;
      readonly tid: string;
      readonly owner: string | null;
    }
  | {
      readonly kind: 'node';
      readonly node: NodeInfo;
      /** Missing if the node has an earlier version. */
      readonly configured?: Configured;
      readonly first: boolean;
    }
  | { readonly kind: 'gone' }
  | { readonly kind: 'message'; readonly to: readonly string[]; readonly part: MessagePart };

/** How often a node publishes its presence. */
const PRESENCE_MS = 2_000;
/** A node that missed three periods is considered gone. */
const SILENT_MS = 3.5 * PRESENCE_MS;
/** Every live node has been seen after this time, even if one of its signals was lost. */
const ALL_SEEN_MS = 2 * PRESENCE_MS + 500;
/** Receivers per signal. A PostgreSQL notification carries 8,000 bytes, and a message part needs most of them. */
const MAX_RECEIVERS = 100;
/** A signal about elements of more groups names none of them. */
const MAX_NAMED_GROUPS = 16;

/**
 * The nodes that serve one namespace, and the signals between them. Correctness does not depend on them: signals wake
 * consumers early, and the list of nodes says whom to ask and whom to wait for.
 */
export class Cluster {
  readonly #namespace: Namespace;
  readonly #shared: Shared;
  readonly #peers = new Map<string, Peer & { readonly seenAt: number }>();
  /** What became eligible on this node in this turn, by queue: one signal per queue, not per element. */
  readonly #ready = new Map<string, { count: number; groups: Set<GroupName> | null }>();
  #lastNumber = 0;
  #startedAt = 0;
  /** Whether elements need no signal: this node has run for `ALL_SEEN_MS`, and no other one is present. */
  isAlone: boolean;
  #timer: CancelTimer | null = null;
  /** Called for each new peer: ends the wait in `#checkLiveNodes` if the peer serves another variant. */
  #onPeer: (() => void) | null = null;
  #unsubscribe: (() => void) | null = null;
  /** The identity of the namespace's data in its engine; null: not known yet. */
  #identity: string | null = null;
  #dataLosses = 0;

  constructor(namespace: Namespace, shared: Shared) {
    this.#namespace = namespace;
    this.#shared = shared;
    this.isAlone = this.#isLocal;
  }

  /** Whether signals stay within this process, so that there is no other node. */
  get #isLocal(): boolean {
    return !this.#namespace.isShared;
  }

  /** Whether this node has run long enough to have seen every other one. */
  get hasSeenAll(): boolean {
    return this.#isLocal || this.#namespace.clock.monotonic() - this.#startedAt >= ALL_SEEN_MS;
  }

  get #topic(): string {
    return this.#namespace.setup.shown.signaller.channel;
  }

  start(): void {
    const { setup, clock } = this.#namespace;
    this.#unsubscribe = setup.signaller.subscribe(this.#topic, (message) =>
      this.#receive(message as unknown as Signal),
    );
    if (this.#isLocal) return;
    this.#startedAt = clock.monotonic();
    this.#publishPresence(true);
    this.#repeatPresence();
  }

  stop(): void {
    this.#onPeer?.();
    if (!this.#isLocal) this.#publish({ kind: 'gone' });
    this.#timer?.();
    this.#timer = null;
    this.#peers.clear();
    this.#unsubscribe?.();
    this.#unsubscribe = null;
  }

  /** How often this node found that the engine had lost what was stored. */
  get dataLosses(): number {
    return this.#dataLosses;
  }

  /** The other nodes that serve this namespace. */
  peers(): Peer[] {
    this.#forgetSilent();
    return [...this.#peers.values()];
  }

  /**
   * Notifies other nodes, at the end of this turn, that elements became eligible.
   * @param groups their groups in a stream; null: any
   */
  announce(queue: string, count: number, groups: Iterable<GroupName> | null): void {
    if (this.isAlone) return;
    if (this.#ready.size === 0) {
      queueMicrotask(() => {
        for (const [name, ready] of this.#ready) {
          this.#publish(this.#readyContent(name, ready.count, ready.groups && [...ready.groups]));
        }
        this.#ready.clear();
      });
    }
    const ready = this.#ready.get(queue) ?? { count: 0, groups: new Set() };
    ready.count += count;
    if (groups === null) ready.groups = null;
    else for (const group of groups) ready.groups?.add(group);
    this.#ready.set(queue, ready);
  }

  /** Notifies other nodes that a queue was deleted. */
  announceDeletion(queue: string): void {
    if (!this.isAlone) this.#publish({ kind: 'deleted', queue, number: this.#nextNumber() });
  }

  /** The same signal for one queue, which the engine publishes together with an insert. */
  readySignal(queue: string, isStream: boolean): ReadySignal {
    return {
      topic: this.#topic,
      messageFor: (count, groups) =>
        this.#signal(this.#readyContent(queue, count, isStream ? [...groups] : null)),
    };
  }

  cancel(queue: string, tid: string, owner: string | null): void {
    this.#publish({ kind: 'cancel', queue, tid, owner });
  }

  /** Sends part of a question or reply to other nodes of the namespace. */
  send(to: readonly string[], part: MessagePart): void {
    for (let at = 0; at < to.length; at += MAX_RECEIVERS) {
      this.#publish({ kind: 'message', to: to.slice(at, at + MAX_RECEIVERS), part });
    }
  }

  /** The options that differ from this node's, by node id. Nodes without differences are left out. */
  differences(): ReadonlyMap<string, readonly Difference[]> {
    const found = this.peers().map((peer) => [peer.info.id, this.#differencesWith(peer)] as const);
    return new Map(found.filter(([, differences]) => differences.length > 0));
  }

  /** Logs each option in which a new or reconfigured node differs from this one. */
  #logDifferences(peer: Peer): void {
    const { name: ns, log } = this.#namespace;
    const { id, host, pid } = peer.info;
    for (const { option, here, there } of this.#differencesWith(peer)) {
      log.warn(
        { event: 'configuration-conflict', ns, option, here, there, node: { id, host, pid } },
        `nodes configure a namespace differently: ${ns}.${option} is ${here} here and ${there} on node ${nodeText(peer.info)}`,
      );
    }
  }

  /**
   * Stores the variant of the namespace in its engine. Elements of one variant are invisible to another. If another one
   * is stored, this waits until every live node has been seen, and fails if one of them serves a different variant.
   * The first node also stores a random identity, which remains for as long as the engine keeps its data.
   * @throws VariantConflict
   */
  async claimVariant(): Promise<void> {
    const { name, setup, definitions, log } = this.#namespace;
    const variant = setup.configured[VARIANT];
    if (variant === undefined) return;
    // If another node stores its variant at the same moment, this one is checked against it.
    await retryConflicts(async () => {
      const stored = await definitions.get('namespace', name);
      const before = stored && memberOf(stored.value, 'variant');
      const identity = stored && memberOf(stored.value, 'identity');
      if (before === variant && identity !== null) {
        this.#identity = identity;
        return;
      }
      if (before !== null && before !== variant) await this.#checkLiveNodes();
      const record = { variant, identity: identity ?? this.#shared.makeTid() };
      await definitions.put('namespace', name, record, stored?.version ?? null);
      this.#identity = record.identity;
      if (before === null || before === variant) return;
      log.warn(
        { event: 'variant-changed', ns: name, before, variant },
        `the variant of namespace ${name} was ${before} and is ${variant}: elements that were stored before are not delivered`,
      );
    });
  }

  /**
   * Checks that the engine still has the identity that this node stored or found. Nobody deletes it, so without it the
   * engine was emptied, or continues without its data, and accepts calls as if nothing had happened. If another node
   * has noticed that first, there is another identity.
   * @throws VariantConflict, QuaysideError as `Definitions` does
   */
  async checkData(): Promise<void> {
    if (this.#identity === null) return;
    const { name, setup, definitions, log } = this.#namespace;
    const stored = await definitions.get('namespace', name);
    const found = stored && memberOf(stored.value, 'identity');
    if (found === this.#identity) return;
    if (found === null) await this.claimVariant();
    else this.#identity = found;
    this.#dataLosses += 1;
    log.warn(
      { event: 'data-lost', ns: name, engine: setup.shown.url },
      `the engine has lost the data of namespace ${name}: elements and definitions that were stored before are gone`,
    );
  }

  /** Waits until every live node has been seen. @throws VariantConflict if one of them serves another variant */
  async #checkLiveNodes(): Promise<void> {
    const pause = new Pause(this.#namespace.clock);
    const waited = pause.wait(ALL_SEEN_MS);
    this.#onPeer = () => {
      if (this.#findConflict() !== null) pause.end();
    };
    this.#onPeer();
    await waited;
    this.#onPeer = null;
    const conflict = this.#findConflict();
    if (conflict !== null) throw conflict;
  }

  #findConflict(): VariantConflict | null {
    for (const peer of this.peers()) {
      const difference = this.#differencesWith(peer).find(({ option }) => option === VARIANT);
      if (difference !== undefined) return new VariantConflict(this.#namespace.name, difference, peer.info);
    }
    return null;
  }

  #differencesWith({ configured: theirs }: Peer): Difference[] {
    return Object.entries(this.#namespace.setup.configured).flatMap(([option, here]) => {
      const there = theirs[option];
      return there === undefined || there === here ? [] : [{ option, here, there }];
    });
  }

  #repeatPresence(): void {
    this.#timer = this.#namespace.clock.after(PRESENCE_MS, () => {
      this.#publishPresence(false);
      this.#forgetSilent();
      this.#repeatPresence();
    });
  }

  #publishPresence(first: boolean): void {
    const { configured } = this.#namespace.setup;
    this.#publish({ kind: 'node', node: this.#shared.self, configured, first });
  }

  #readyContent(queue: string, count: number, groups: readonly GroupName[] | null): Content {
    return {
      kind: 'ready',
      queue,
      count: count === MANY ? null : count,
      ...(groups !== null && groups.length <= MAX_NAMED_GROUPS && { groups }),
      number: this.#nextNumber(),
    };
  }

  #nextNumber(): number {
    this.#lastNumber += 1;
    return this.#lastNumber;
  }

  #publish(content: Content): void {
    this.#namespace.setup.signaller.publish(this.#topic, this.#signal(content));
  }

  #signal(content: Content): JsonValue {
    return { ...content, ns: this.#namespace.name, from: this.#shared.self.id } as unknown as JsonValue;
  }

  #receive(signal: Signal): void {
    const listener = this.#namespace;
    const { self, questions } = this.#shared;
    if (signal.from === self.id || signal.ns !== listener.name) return;
    switch (signal.kind) {
      case 'ready':
        listener.onReady(signal.queue, signal.count ?? MANY, signal.groups);
        break;
      case 'deleted':
        listener.noteDeleted({ ns: listener.name, name: signal.queue });
        break;
      case 'cancel':
        listener.visit(signal.queue).cancelHere(signal.tid, signal.owner);
        break;
      case 'node':
        if (!isNodeInfo(signal.node)) return;
        this.#notePeer({ info: signal.node, configured: signal.configured ?? {} });
        if (signal.first) this.#publishPresence(false);
        break;
      case 'gone':
        this.#peers.delete(signal.from);
        questions.onGone(signal.from);
        break;
      case 'message':
        if (signal.to.includes(self.id)) questions.onMessage(this, signal.from, signal.part);
        break;
    }
  }

  #notePeer(peer: Peer): void {
    const { id } = peer.info;
    const known = this.#peers.get(id);
    this.#peers.set(id, { ...peer, seenAt: this.#namespace.clock.monotonic() });
    this.isAlone = false;
    const isSame =
      known !== undefined && JSON.stringify(known.configured) === JSON.stringify(peer.configured);
    if (isSame) return;
    this.#logDifferences(peer);
    this.#onPeer?.();
    this.#shared.noteNode(peer.info);
  }

  #forgetSilent(): void {
    const now = this.#namespace.clock.monotonic();
    for (const [id, { seenAt }] of this.#peers) if (seenAt < now - SILENT_MS) this.#peers.delete(id);
    this.isAlone = this.#isLocal || (this.#peers.size === 0 && now - this.#startedAt >= ALL_SEEN_MS);
  }
}

/** Whether a received value describes a node: other programs and nodes of other versions may publish to the topic. */
function isNodeInfo(value: unknown): value is NodeInfo {
  if (!isRecord(value)) return false;
  const { id, host, pid, version, startedAt } = value;
  const hasStrings = [id, host, version].every((text) => typeof text === 'string');
  const hasNumbers = typeof pid === 'number' && typeof startedAt === 'number';
  return hasStrings && hasNumbers && !Number.isNaN(new Date(startedAt).getTime());
}

/** The option that decides how elements are stored. */
const VARIANT = 'variant';

/** An option of a namespace that two nodes configure differently. */
export interface Difference {
  readonly option: string;
  readonly here: string;
  readonly there: string;
}

/** This node was started with another variant than a live node serves. */
export class VariantConflict extends Error {
  readonly namespace: string;
  readonly here: string;
  readonly there: string;
  readonly node: NodeInfo;

  constructor(namespace: string, { here, there }: Difference, node: NodeInfo) {
    super(
      `Node ${nodeText(node)} serves namespace ${namespace} with variant ${there}, this one with ${here}.`,
    );
    this.namespace = namespace;
    this.here = here;
    this.there = there;
    this.node = node;
  }
}

export function nodeText({ id, host, pid }: NodeInfo): string {
  return `${id} (process ${pid} on ${host})`;
}

/** A member of the stored record of a namespace; null if it is missing. */
function memberOf(value: unknown, name: 'variant' | 'identity'): string | null {
  const member = isRecord(value) ? value[name] : null;
  return typeof member === 'string' ? member : null;
}
