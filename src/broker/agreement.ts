import type { JsonValue } from '../engine/definitions.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { ALL_SEEN_MS, type Cluster, type NodeInfo, type Peer } from './cluster.ts';
import type { BrokerLog, NamespaceSetup } from './ports.ts';

/** The option that decides how elements are stored. */
const VARIANT = 'variant';

/** An option of a namespace that two nodes configure differently. */
export interface Difference {
  readonly option: string;
  readonly here: string;
  readonly there: string;
}

/** A start with another variant than a node that is alive. */
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

/** Whether the nodes of a namespace configure it alike. */
export class Agreement {
  readonly #setup: NamespaceSetup;
  readonly #cluster: Cluster;
  readonly #clock: Clock;
  readonly #log: BrokerLog;
  /** Ends the wait of a start. */
  #onPeer: (() => void) | null = null;

  constructor(setup: NamespaceSetup, cluster: Cluster, { clock, log }: { clock: Clock; log: BrokerLog }) {
    this.#setup = setup;
    this.#cluster = cluster;
    this.#clock = clock;
    this.#log = log;
  }

  /** By node: the options in which it differs from this one; nodes that differ in none are left out. */
  differences(): ReadonlyMap<string, readonly Difference[]> {
    const found = this.#cluster.peers().map((peer) => [peer.info.id, this.#differencesWith(peer)] as const);
    return new Map(found.filter(([, differences]) => differences.length > 0));
  }

  /** A node is there, or configures something else than before: each option in which it differs is logged once. */
  noteNode(peer: Peer): void {
    const ns = this.#setup.policy.name;
    const { id, host, pid } = peer.info;
    for (const { option, here, there } of this.#differencesWith(peer)) {
      this.#log.warn(
        { event: 'configuration-conflict', ns, option, here, there, node: { id, host, pid } },
        `nodes configure a namespace differently: ${ns}.${option} is ${here} here and ${there} on node ${nodeText(peer.info)}`,
      );
    }
    this.#onPeer?.();
  }

  /**
   * Notes the variant of the namespace in its engine. Elements of one variant are invisible to another, so a start with
   * another one than was noted waits for the nodes that are alive, and fails if one of them serves the old one.
   * @throws VariantConflict
   */
  async claimVariant(): Promise<void> {
    const { policy, configured, definitions } = this.#setup;
    const namespace = policy.name;
    const variant = configured[VARIANT];
    if (variant === undefined) return;
    for (;;) {
      const noted = await definitions.get('namespace', namespace);
      const before = noted === null ? null : variantIn(noted.value);
      if (before === variant) return;
      if (before !== null) await this.#refuseIfServed();
      try {
        await definitions.put('namespace', namespace, { variant }, noted?.version ?? null);
      } catch (error) {
        // Another node starts at the same moment: look at what it noted.
        if (error instanceof QuaysideError && error.code === 'definition-conflict') continue;
        throw error;
      }
      if (before === null) return;
      this.#log.warn(
        { event: 'variant-changed', ns: namespace, before, variant },
        `the variant of namespace ${namespace} was ${before} and is ${variant}: elements that were stored before are not delivered`,
      );
      return;
    }
  }

  stop(): void {
    this.#onPeer?.();
  }

  /** Waits for all nodes that are alive. @throws VariantConflict */
  async #refuseIfServed(): Promise<void> {
    const { promise: over, resolve } = Promise.withResolvers<void>();
    const cancel: CancelTimer = this.#clock.after(ALL_SEEN_MS, resolve);
    this.#onPeer = () => {
      if (this.#other() !== null) resolve();
    };
    this.#onPeer();
    await over;
    cancel();
    this.#onPeer = null;
    const other = this.#other();
    if (other !== null) throw other;
  }

  #other(): VariantConflict | null {
    for (const peer of this.#cluster.peers()) {
      const difference = this.#differencesWith(peer).find(({ option }) => option === VARIANT);
      if (difference !== undefined)
        return new VariantConflict(this.#setup.policy.name, difference, peer.info);
    }
    return null;
  }

  #differencesWith({ configured: theirs }: Peer): Difference[] {
    return Object.entries(this.#setup.configured).flatMap(([option, here]) => {
      const there = theirs[option];
      return there === undefined || there === here ? [] : [{ option, here, there }];
    });
  }
}

export function nodeText({ id, host, pid }: NodeInfo): string {
  return `${id} (process ${pid} on ${host})`;
}

function variantIn(value: JsonValue): string | null {
  const isObject = typeof value === 'object' && value !== null && 'variant' in value;
  return isObject && typeof value.variant === 'string' ? value.variant : null;
}
