import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupLimit, NamespacePolicies } from '../../engine/queue-policy.ts';
import type { QueueOptions } from '../../engine/storage.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { toByteString } from '../../util/byte-string.ts';
import { queueText } from './keys.ts';

/** Encodes the policies of the namespaces for the library: see `library/session.lua`. */
export class Policies {
  readonly #namespaces: NamespacePolicies;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#namespaces = new NamespacePolicies(policies);
  }

  /** The limit of a queue's groups; null: none. */
  groupLimit({ ns }: QueueKey): GroupLimit | null {
    return this.#namespaces.groupLimit(ns);
  }

  /** The retention in the policy of the namespace, or in its rule for the queue's name, ms; 0: none. */
  retentionMs(queue: QueueKey): number {
    return Math.ceil(this.#namespaces.defaultsOf(queue).retentionMs ?? 0);
  }

  /** The groups of dead letters. */
  deadLetterGroups({ ns }: QueueKey): readonly GroupName[] {
    return this.#namespaces.defaultGroups(ns);
  }

  /** Whether the policy of the namespace names this queue as a dead-letter queue. */
  isDeadLetterQueue({ ns, name }: QueueKey): boolean {
    return this.#namespaces.rulesOf(ns).some(({ deadLetter }) => deadLetter?.queue === name);
  }

  /**
   * The policy as `library/queue.lua` reads it: the queue's default options, and what dead letters need in addition.
   */
  encode(queue: QueueKey): string {
    const { deadLetter, retryDelay } = this.#namespaces.defaultsOf(queue);
    return JSON.stringify({
      ...this.#options(queue, { deadLetter, retentionMs: this.retentionMs(queue), retryDelay }),
      from: toByteString(queue.name),
      groups: this.deadLetterGroups(queue).join(','),
    });
  }

  /** A queue's own options in the same form. */
  encodeOptions(queue: QueueKey, options: QueueOptions): string {
    return JSON.stringify(this.#options(queue, options));
  }

  #options({ ns }: QueueKey, { deadLetter, retentionMs, retryDelay }: QueueOptions): object {
    const to = deadLetter == null ? null : { ns, name: deadLetter.queue };
    const d = to === null ? deadLetter : [queueText(to), deadLetter?.maxTries, this.retentionMs(to)];
    const t = retryDelay && [retryDelay.firstMs, retryDelay.factor, retryDelay.maxMs, retryDelay.jitter];
    return { d: d === null ? 0 : d, r: retentionMs === null ? 0 : retentionMs, t: t === null ? 0 : t };
  }
}
