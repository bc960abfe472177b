import { NamespacePolicies } from '../../engine/queue-policy.ts';
import type { QueueOptions } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import { queueText } from './keys.ts';

/** The policies of the namespaces, and how the library reads them: see `library/session.lua`. */
export class Policies extends NamespacePolicies {
  /** The retention in the policy of the namespace, or in its rule for the queue's name, ms; 0: none. */
  retentionMs(queue: QueueKey): number {
    return Math.ceil(this.defaultsOf(queue).retentionMs ?? 0);
  }

  /** Whether the policy of the namespace names this queue as a dead-letter queue. */
  isDeadLetterQueue({ ns, name }: QueueKey): boolean {
    return this.rulesOf(ns).some(({ deadLetter }) => deadLetter?.queue === name);
  }

  /**
   * The policy as `library/queue.lua` reads it: the queue's default options, and what dead letters need in addition.
   */
  encode(queue: QueueKey): string {
    const { deadLetter, retryDelay } = this.defaultsOf(queue);
    return JSON.stringify({
      ...this.#options(queue, { deadLetter, retentionMs: this.retentionMs(queue), retryDelay }),
      from: queue.name,
      groups: this.defaultGroups(queue.ns).join(','),
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
