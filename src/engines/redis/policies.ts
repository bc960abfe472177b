import type { NamespacePolicy } from '../../engine/engine.ts';
import type { QueueOptions } from '../../engine/storage.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { bytesOfText } from '../../util/byte-text.ts';
import { queueText } from './keys.ts';
import { type GroupRoom, groupRoom } from './verbs/insert.ts';

/** What the namespaces' policies mean for a call of the library: see `library/session.lua`. */
export class Policies {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
  }

  /** What bounds the groups of a queue. */
  room(queue: QueueKey): GroupRoom {
    return groupRoom(queue, this.#policies.get(queue.ns));
  }

  /** By the namespace; 0: none. */
  retentionMs({ ns }: QueueKey): number {
    return Math.ceil(this.#policies.get(ns)?.retentionMs ?? 0);
  }

  /** The groups of what comes to a dead-letter queue. */
  deadLetterGroups({ ns }: QueueKey): readonly GroupName[] {
    return this.#policies.get(ns)?.groups ?? [PLAIN_GROUP];
  }

  /** The dead-letter queue by the namespace's policy; null: there is none, or it is the queue itself. */
  deadLetterQueue({ ns, name }: QueueKey): QueueKey | null {
    const to = this.#policies.get(ns)?.deadLetter?.queue ?? null;
    return to === null || to === name ? null : { ns, name: to };
  }

  /** The policy as the library reads it. */
  encode(queue: QueueKey): Buffer {
    const policy = this.#policies.get(queue.ns);
    const deadLetter = policy?.deadLetter ?? null;
    const head = Buffer.alloc(10);
    head.writeUInt32BE(deadLetter?.maxTries ?? 0, 0);
    head.writeUIntBE(this.retentionMs(queue), 4, 6);
    const to = deadLetter === null ? '' : queueText({ ns: queue.ns, name: deadLetter.queue });
    const names = [bytesOfText(queue.name), policy?.groups?.join(',') ?? '', to];
    return Buffer.concat([head, ...names.map((name) => Buffer.from(`${name}\0`))]);
  }
}

/** A queue's own options as `library/queue.lua` reads them. */
export function encodeOptions({ ns }: QueueKey, { deadLetter, retentionMs }: QueueOptions): string {
  const d =
    deadLetter == null ? deadLetter : [queueText({ ns, name: deadLetter.queue }), deadLetter.maxTries];
  return JSON.stringify({ d: d === null ? 0 : d, r: retentionMs === null ? 0 : retentionMs });
}
