import { bytesOfText } from '../model/byte-text.ts';
import { letterHeaders } from '../model/dead-letter.ts';
import type { Delivery, DeliveryState, ElementId, GroupName, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { NamespacePolicy } from './engine.ts';
import type { ExtendItem, Storage as OldPort, RollbackItem } from './old-port.ts';
import type { ReadySignal, Signaller } from './signaller.ts';
import { countLetters, type Stats } from './stats.ts';
import {
  type DeliveryRef,
  type OnRepeat,
  type PurgeStep,
  type QueueCounts,
  type ScannedDelivery,
  type ScanOptions,
  type ScanPage,
  SETTLED,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
  type Storage,
  type StorageCapabilities,
  type SweepResult,
  type TakeOptions,
  type TakeResult,
  type Usage,
} from './storage.ts';

const PAGE = 1000;

/**
 * The Storage port over an engine that still has the sixteen operations of `old-port.ts`: it goes with the last of these.
 * What they do not have (expiry, reasons, takes by ids, options of queues) is rejected or left out.
 */
export class OldStorage implements Storage {
  readonly capabilities: StorageCapabilities;
  readonly undoesLostTakes: boolean;
  readonly ordersTransfers: boolean;
  readonly insertSignaller: Signaller | null;
  readonly #port: OldPort;
  readonly #stats: () => Stats;
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;

  /** @param stats counts what went to the dead letter by the action `dead-letter`; the old port counts the rest */
  constructor(port: OldPort, policies: readonly NamespacePolicy[], stats: () => Stats) {
    this.#port = port;
    this.#stats = stats;
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    this.capabilities = { ...port.capabilities, expiry: false };
    this.undoesLostTakes = port.undoesLostTakes;
    this.ordersTransfers = port.ordersTransfers;
    this.insertSignaller = port.carries;
  }

  declare(queues: readonly QueueKey[]): Promise<void> {
    return this.#port.declare(queues);
  }

  queues(ns: string): Promise<string[]> {
    return this.#port.queues(ns);
  }

  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    signal?: ReadySignal | null,
    onRepeat?: OnRepeat | null,
  ): Promise<ElementId[]> {
    return this.#port.insert(queue, elements, signal, onRepeat);
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    if (options.ids !== undefined) return Promise.reject(unsupported('Takes by ids'));
    return this.#port.take(queue, options);
  }

  /** One call of the old port for each run of items that it can take together, all begun in this turn. */
  settle(items: readonly SettleItem[]): Promise<SettleResult[]> {
    const runs: Promise<SettleResult[]>[] = [];
    for (let from = 0; from < items.length; ) {
      let to = from + 1;
      while (to < items.length && isOneRun(items[from], items[to])) to += 1;
      runs.push(this.#settleRun(items.slice(from, to)));
      from = to;
    }
    const [first] = runs;
    return first !== undefined && runs.length === 1
      ? first
      : Promise.all(runs).then((results) => results.flat());
  }

  undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    return this.#port.putBack(queue, deliveries);
  }

  async scan(queue: QueueKey, options: ScanOptions): Promise<ScanPage> {
    const { group, states, after, limit, bodies } = options;
    if (options.ids !== undefined) throw unsupported('Scans by ids');
    const [index, cursor] = positionOf(after);
    const state = states[index];
    if (state === undefined) return { deliveries: [], next: null };
    const page = await this.#port.browse(queue, { group, state, after: cursor, limit });
    const deliveries = page.deliveries.map((delivery) => scanned(delivery, state, bodies));
    if (page.next !== null) return { deliveries, next: `${index} ${page.next}` };
    const next = index + 1 < states.length ? `${index + 1} ` : null;
    if (next === null || deliveries.length >= limit) return { deliveries, next };
    const rest = await this.scan(queue, { ...options, after: next, limit: limit - deliveries.length });
    return { deliveries: [...deliveries, ...rest.deliveries], next: rest.next };
  }

  async purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    return { removed: await this.#port.purge(queue, states), isDone: true };
  }

  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    return this.#port.sizes(queue, group);
  }

  usage(ns: string, needsBytes?: boolean): Promise<Usage> {
    return this.#port.usage(ns, needsBytes);
  }

  async sweep(): Promise<SweepResult> {
    const { touched, nextAt } = await this.#port.sweep();
    return { affected: touched, nextAt };
  }

  now(queue?: QueueKey): number {
    return this.#port.now(queue);
  }

  #settleRun(items: readonly SettleItem[]): Promise<SettleResult[]> {
    const [first] = items;
    if (first === undefined) return Promise.resolve([]);
    const { queue, from, action } = first;
    if (from === 'waiting') {
      if (action.kind !== 'finish' || action.inserts !== undefined)
        return Promise.reject(unsupported('Settling what waits'));
      const ids = items.map(({ id }) => id);
      return this.#port.remove(queue, ids).then(asResults);
    }
    const refs = items.map(refOf);
    switch (action.kind) {
      case 'finish': {
        if (action.inserts === undefined) return this.#port.commit(queue, refs).then(asResults);
        const moves = items.map((item, i) => ({
          from: item.queue,
          finish: refs[i] ?? refOf(item),
          inserts: (item.action.kind === 'finish' ? item.action.inserts : null) ?? [],
        }));
        return this.#port.transfer(moves).then(asResults);
      }
      case 'release':
        if (items.some(isAtMoment)) return Promise.reject(unsupported('Releases at a moment'));
        return this.#port.rollback(queue, items.map(rollbackItem)).then(asResults);
      case 'extend':
        return this.#port
          .extend(queue, items.map(extendItem))
          .then((results) =>
            results.map((result) =>
              result.outcome === 'done' ? { outcome: 'done', until: result.until } : SETTLED[result.outcome],
            ),
          );
      case 'dead-letter':
        return Promise.all(items.map((item) => this.#deadLetter(item)));
      default:
        return Promise.reject(unsupported('Moves'));
    }
  }

  async #deadLetter({ queue, action, ...item }: SettleItem): Promise<SettleResult> {
    const policy = this.#policies.get(queue.ns);
    if (action.kind !== 'dead-letter' || policy?.deadLetter == null) throw unsupported('A dead letter here');
    const ref = refOf({ queue, action, ...item });
    const found = await this.#findReserved(queue, ref);
    if (found === null) return SETTLED['not-found'];
    const { body, contentType, contentEncoding, tries } = found;
    const headers = letterHeaders(found.headers, {
      from: bytesOfText(queue.name),
      at: this.now(queue),
      tries: tries + (action.countTry ? 1 : 0),
      id: ref.id,
    });
    const groups = policy.groups ?? [''];
    const target = { ns: queue.ns, name: policy.deadLetter.queue };
    const element = { body, contentType, contentEncoding, headers, tries: 0, groups };
    const [outcome = 'not-found'] = await this.#port.transfer([
      {
        from: queue,
        finish: ref,
        inserts: [
          {
            queue: target,
            element: { ...element, matureAt: null, delayMs: 0, dedupKey: null },
          },
        ],
      },
    ]);
    if (outcome !== 'done') return SETTLED[outcome];
    countLetters(this.#stats(), { queue, group: ref.group }, { queue: target, groups }, 1);
    return SETTLED['dead-lettered'];
  }

  async #findReserved(queue: QueueKey, { id, group }: DeliveryRef): Promise<Delivery | null> {
    let after: string | null = null;
    do {
      const page = await this.#port.browse(queue, { group, state: 'reserved', after, limit: PAGE });
      const found = page.deliveries.find((delivery) => delivery.id === id);
      if (found !== undefined) return found;
      after = page.next;
    } while (after !== null);
    return null;
  }
}

/** A cursor of `scan`: the index of the state, and the old port's cursor within it. One that it never gave is the beginning. */
function positionOf(after: string | null): readonly [number, string | null] {
  const [, index = '0', cursor = ''] = /^(\d+) (.*)$/s.exec(after ?? '') ?? [];
  return [Number(index), cursor === '' ? null : cursor];
}

function isOneRun(a: SettleItem | undefined, b: SettleItem | undefined): boolean {
  if (a === undefined || b === undefined) return false;
  if (a.from !== b.from || a.action.kind !== b.action.kind) return false;
  if (isTransfer(a.action) || isTransfer(b.action)) return isTransfer(a.action) && isTransfer(b.action);
  return a.queue.name === b.queue.name && a.queue.ns === b.queue.ns;
}

function isTransfer(action: SettleAction): boolean {
  return action.kind === 'finish' && action.inserts !== undefined;
}

function refOf({ id, group, token, owner = null }: SettleItem): DeliveryRef {
  return { id, group: group ?? '', token, owner };
}

function asResults(outcomes: readonly SettleOutcome[]): SettleResult[] {
  return outcomes.map((outcome) => SETTLED[outcome]);
}

function isAtMoment({ action }: SettleItem): boolean {
  return action.kind === 'release' && (action.dueAt ?? null) !== null;
}

function rollbackItem(item: SettleItem): RollbackItem {
  const { action } = item;
  const { delayMs, countTry } = action.kind === 'release' ? action : { delayMs: 0, countTry: false };
  return { ...refOf(item), delayMs, countTry };
}

function extendItem(item: SettleItem): ExtendItem {
  return { ...refOf(item), leaseMs: item.action.kind === 'extend' ? item.action.leaseMs : 0 };
}

function scanned(delivery: Delivery, state: DeliveryState, bodies: boolean): ScannedDelivery {
  const body = bodies ? delivery.body : new Uint8Array(0);
  const bytes = delivery.body.byteLength;
  return { ...delivery, body, state, insertedAt: 0, expiresAt: null, reason: null, bytes };
}

function unsupported(what: string): QuaysideError {
  return new QuaysideError('not-supported', `${what} are not supported by this engine.`);
}
