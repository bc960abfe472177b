import type { QueueKey } from '../../model/names.ts';
import type { Commands } from './client/commands.ts';
import { text } from './client/greeting.ts';
import { type Keys, parseQueueText, queueText } from './keys.ts';
import type { Library } from './library.ts';
import type { GivenTime } from './settings.ts';

/** An entry of a list of queues to look at: good for one look at or after its moment. */
export interface Entry {
  readonly member: string;
  readonly queue: QueueKey;
  /** By the server's clock. */
  readonly at: number;
}

/** An entry this close to its moment may be taken by a sweep while a call that relies on it is on its way. */
const MARGIN_MS = 1_000;
const TIDY_AFTER_MS = 60_000;
/** More queues than this are remembered anew rather than all. */
const MOST_REMEMBERED = 100_000;

/**
 * What lies outside the slots of the queues: their names, and which of them must be looked at when.
 *
 * Entries are good for one look, so that they need no lock: whoever sweeps at their moment looks, adds an
 * entry for the next moment that the queue itself names, and only then removes the old one. A reserve makes
 * sure, before it is sent, that an entry stands between now and the end of its lease.
 */
export class Registry {
  readonly #commands: Commands;
  readonly #keys: Keys;
  readonly #library: Library;
  readonly #givenTime: GivenTime | null;
  readonly #declared = new Set<string>();
  /** By queue: the last moment that was registered. */
  readonly #due = new Map<string, number>();
  readonly #tidy = new Map<string, number>();

  constructor(parts: {
    readonly commands: Commands;
    readonly keys: Keys;
    readonly library: Library;
    readonly givenTime: GivenTime | null;
  }) {
    this.#commands = parts.commands;
    this.#keys = parts.keys;
    this.#library = parts.library;
    this.#givenTime = parts.givenTime;
  }

  /** The time by which entries are compared; with `queue`, that of the server which has it. */
  now(queue?: QueueKey): number {
    const key = queue === undefined ? this.#keys.due : this.#keys.queue(queue).hash;
    return this.#givenTime?.now() ?? this.#commands.serverTime(key);
  }

  isDeclared(queue: QueueKey): boolean {
    return this.#declared.has(queueText(queue));
  }

  /** The queue was found empty of everything: its name may be lost as well. */
  forgetDeclared(queue: QueueKey): void {
    this.#declared.delete(queueText(queue));
  }

  /** Makes queues known. @throws CarryError */
  async declare(queues: readonly QueueKey[], deadlineAt = this.#commands.deadline()): Promise<void> {
    const byNamespace = Map.groupBy(queues, ({ ns }) => ns);
    await Promise.all(
      [...byNamespace].map(([ns, of]) => {
        const key = this.#keys.names(ns);
        const names = of.map(({ name }) => name);
        const call = [this.#library.addNames, 1, key, ...names];
        return this.#commands.write(key, 'FCALL', call, deadlineAt);
      }),
    );
    if (this.#declared.size > MOST_REMEMBERED) this.#declared.clear();
    for (const queue of queues) this.#declared.add(queueText(queue));
  }

  /** @throws CarryError */
  async names(ns: string): Promise<string[]> {
    const key = this.#keys.names(ns);
    const reply = await this.#commands.read(key, 'SMEMBERS', [key]);
    return Array.isArray(reply) ? reply.map(text).sort() : [];
  }

  /** Sees to it that the queue is looked at by then. Null where an entry stands already. @throws CarryError */
  dueIn(queue: QueueKey, ms: number, deadlineAt: number): Promise<void> | null {
    const now = this.now();
    const registered = this.#due.get(queueText(queue)) ?? 0;
    if (registered > now + MARGIN_MS && registered <= now + ms) return null;
    return this.addDue(queue, now + ms, deadlineAt);
  }

  async addDue(queue: QueueKey, at: number, deadlineAt = this.#commands.deadline()): Promise<void> {
    await this.#add(this.#keys.due, queue, at, deadlineAt);
    remember(this.#due, queueText(queue), at);
  }

  /** Like `dueIn`, for housekeeping: nobody waits for it. */
  tidyLater(queue: QueueKey): void {
    const now = this.now();
    if ((this.#tidy.get(queueText(queue)) ?? 0) > now) return;
    remember(this.#tidy, queueText(queue), now + TIDY_AFTER_MS);
    this.addTidy(queue, now + TIDY_AFTER_MS).catch(() => this.#tidy.delete(queueText(queue)));
  }

  addTidy(queue: QueueKey, at: number): Promise<void> {
    return this.#add(this.#keys.tidy, queue, at, this.#commands.deadline());
  }

  /** Entries whose moment has come, the earliest first. @throws CarryError */
  async entriesBefore(list: 'due' | 'tidy', at: number, limit: number): Promise<Entry[]> {
    return this.#entries(list, '-inf', at, limit);
  }

  /** Entries whose moment comes later, the earliest first. @throws CarryError */
  async entriesAfter(list: 'due' | 'tidy', at: number, limit: number): Promise<Entry[]> {
    return this.#entries(list, `(${at}`, '+inf', limit);
  }

  /** @throws CarryError */
  async remove(list: 'due' | 'tidy', entries: readonly Entry[]): Promise<void> {
    if (entries.length === 0) return;
    const key = this.#keys[list];
    await this.#commands.write(key, 'ZREM', [key, ...entries.map(({ member }) => member)]);
  }

  /** The moment is part of the member: each entry is its own. */
  async #add(key: string, queue: QueueKey, at: number, deadlineAt: number): Promise<void> {
    const moment = Math.floor(at);
    const member = `${moment}:${queueText(queue)}`;
    const call = [this.#library.addToList, 1, key, moment, member];
    await this.#commands.write(key, 'FCALL', call, deadlineAt);
  }

  async #entries(
    list: 'due' | 'tidy',
    from: string | number,
    to: string | number,
    limit: number,
  ): Promise<Entry[]> {
    const key = this.#keys[list];
    const reply = await this.#commands.read(key, 'ZRANGE', [key, from, to, 'BYSCORE', 'LIMIT', 0, limit]);
    return Array.isArray(reply) ? reply.map((member) => readEntry(text(member))) : [];
  }
}

function readEntry(member: string): Entry {
  const colon = member.indexOf(':');
  return { member, at: Number(member.slice(0, colon)), queue: parseQueueText(member.slice(colon + 1)) };
}

function remember(map: Map<string, number>, text: string, at: number): void {
  if (map.size > MOST_REMEMBERED) map.clear();
  map.set(text, at);
}
