import type { NamespacePolicy } from '../../engine/engine.ts';
import { groupLimitOf } from '../../engine/group-limit.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Room } from './calls/insert.ts';
import type { Arg } from './client/connection.ts';
import { queueText } from './keys.ts';

const BOUNDLESS = { limit: null, text: '' } as const;

function roomOf(policy: NamespacePolicy): Omit<Room, 'queue'> {
  const limit = groupLimitOf(policy);
  return limit === null ? BOUNDLESS : { limit, text: `${limit.most},${[...limit.defaults].join(',')},` };
}

/** What the namespaces' policies mean for a call of the library: see `library/call.lua`. */
export class Policies {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #rooms: ReadonlyMap<string, Omit<Room, 'queue'>>;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    this.#rooms = new Map(policies.map((policy) => [policy.name, roomOf(policy)]));
  }

  /** What bounds the groups of a queue. */
  room(queue: QueueKey): Room {
    return { queue, ...(this.#rooms.get(queue.ns) ?? BOUNDLESS) };
  }

  retentionMs({ ns }: QueueKey): number | null {
    return this.#policies.get(ns)?.retentionMs ?? null;
  }

  /** Where elements of the queue go when they failed too often; null: nowhere, or they are there already. */
  letterQueue({ ns, name }: QueueKey): QueueKey | null {
    const letters = this.#policies.get(ns)?.deadLetter?.queue ?? null;
    return letters === null || letters === name ? null : { ns, name: letters };
  }

  /** The dead-letter queue of a queue's namespace with the groups of what comes there; null as `letterQueue`. */
  letterTarget(queue: QueueKey): { queue: QueueKey; groups: readonly GroupName[] } | null {
    const letters = this.letterQueue(queue);
    if (letters === null) return null;
    return { queue: letters, groups: this.#policies.get(queue.ns)?.groups ?? [PLAIN_GROUP] };
  }

  /** The retention of each queue of a call. */
  retentions(queues: readonly QueueKey[]): Arg {
    const retentions = queues.map((queue) => this.retentionMs(queue) ?? 0);
    if (retentions.every((retention) => retention === 0)) return '';
    const text = Buffer.alloc(6 * retentions.length);
    for (const [i, retention] of retentions.entries()) text.writeUIntBE(Math.ceil(retention), 6 * i, 6);
    return text;
  }

  /** @param number of the dead-letter queue among those of the call; 0 where its keys are elsewhere */
  deadLetters(queue: QueueKey, number: number): Arg {
    const letters = this.letterQueue(queue);
    const policy = this.#policies.get(queue.ns);
    if (letters === null || !policy?.deadLetter) return '';
    const head = Buffer.alloc(6);
    head.writeUInt32BE(policy.deadLetter.maxTries, 0);
    head.writeUInt16BE(number, 4);
    const names = [queue.name, policy.groups?.join(',') ?? '', queueText(letters)];
    return Buffer.concat([head, ...names.map((name) => Buffer.from(`${name}\0`))]);
  }
}
