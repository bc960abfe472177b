import type { Definitions } from '../../engine/definitions.ts';
import type { Engine, EngineOptions, OpenEngine } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import { countLetters, type Stats } from '../../engine/stats.ts';
import type { Storage } from '../../engine/storage.ts';
import { NOT_REACHABLE, unavailable } from '../../engine/store-failures.ts';
import type { QueueKey } from '../../model/names.ts';
import { DeadLetters } from './dead-letters.ts';
import { MongoDefinitions } from './definitions.ts';
import { describe, fromDriver } from './errors.ts';
import { GroupRoom } from './group-room.ts';
import { Housekeeping } from './housekeeping.ts';
import { Ids, Ops } from './ids.ts';
import { KnownQueues } from './known-queues.ts';
import { Leases } from './leases.ts';
import type { Parts } from './parts.ts';
import { Policies } from './policies.ts';
import { Reaper } from './reaper.ts';
import type { Round } from './round.ts';
import { Scheduler } from './scheduler.ts';
import { readSettings } from './settings.ts';
import { MongoSignaller } from './signaller.ts';
import { MongoStats } from './stats.ts';
import { MongoStorage } from './storage.ts';
import { Store } from './store.ts';
import { Undo } from './undo.ts';
import { Insert } from './verbs/insert.ts';
import { groupsWithDeliveries } from './verbs/look.ts';
import { Settle } from './verbs/settle.ts';
import { Take } from './verbs/take.ts';

/**
 * The MongoDB engine: `mongodb://user:password@host:port/database` or `mongodb+srv:`, a replica set.
 * @throws Error for a URL or setting that can never work, before anything is opened
 */
export const open: OpenEngine = (options) => new MongoEngine(options);

class MongoEngine implements Engine {
  readonly type = 'mongodb';
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /** Never: a replica set that cannot keep its promises says no, until it can again. */
  readonly failed = new Promise<Error>(() => {});

  readonly #parts: Parts;
  readonly #housekeeping: Housekeeping;
  readonly #scheduler: Scheduler;
  readonly #signaller: MongoSignaller;
  readonly #stats: MongoStats;
  readonly #definitions: MongoDefinitions;
  readonly #verbs: { readonly settle: Settle; readonly insert: Insert; readonly take: Take };
  #stopped: Promise<void> | null = null;

  constructor(options: EngineOptions) {
    const { clock, log, namespaces, dedupWindowMs } = options;
    this.url = options.url;
    const store = new Store(readSettings(options), clock, log);
    this.#signaller = new MongoSignaller(store, clock, log);
    this.#stats = new MongoStats(store, clock, log);
    this.#definitions = new MongoDefinitions(store, this.#signaller, clock, log);
    const ops = new Ops();
    const touched = (queue: QueueKey): void => this.#housekeeping.touched(queue);
    const shared = {
      store,
      clock,
      log,
      ids: new Ids(),
      ops,
      known: new KnownQueues(store),
      groupRoom: new GroupRoom(namespaces, {
        read: (queue) => groupsWithDeliveries(store, queue),
        monotonic: () => clock.monotonic(),
      }),
      leases: new Leases(),
      policies: new Policies(namespaces),
      reaper: new Reaper(store, clock, log),
      undo: new Undo({ store, ops, clock, log, touched }),
      dedupWindowMs,
      touched,
      died: (queue: QueueKey, group: string, count: number): void => {
        const target = this.#parts.policies.letterTarget(queue, Number.POSITIVE_INFINITY);
        countLetters(this.#stats, { queue, group }, target, count);
      },
    };
    this.#parts = { ...shared, deadLetters: new DeadLetters(shared) };
    this.#housekeeping = new Housekeeping(this.#parts);
    this.#verbs = {
      settle: new Settle(this.#parts),
      insert: new Insert(this.#parts),
      take: new Take(this.#parts),
    };
    this.#scheduler = new Scheduler({ clock, store, run: (round) => this.#run(round) });
    store.onBack = () => {
      store.time.forget();
      this.#parts.known.forget();
      this.#parts.groupRoom.forget();
      this.#parts.leases.forget();
      this.#scheduler.resume();
    };
    this.#signaller.heard = () => void this.#definitions.catchUp();
    this.storage = new MongoStorage(this.#parts, this.#scheduler, this.#housekeeping);
    this.definitions = this.#definitions;
    this.signaller = this.#signaller;
    this.stats = this.#stats;
  }

  async start(): Promise<void> {
    await this.#parts.store.start();
    try {
      await this.#signaller.start();
    } catch (error) {
      await this.stop();
      throw new Error(`${this.#parts.store.settings.shown}: ${describe(error).message}`);
    }
  }

  stop(): Promise<void> {
    this.#stopped ??= this.#stop();
    return this.#stopped;
  }

  async ping(): Promise<void> {
    const { store } = this.#parts;
    try {
      await store.ready();
      await store.within(store.time.read(), (fault) => fault);
    } catch (error) {
      throw unavailable(NOT_REACHABLE, fromDriver(error));
    }
  }

  async #stop(): Promise<void> {
    const { store, reaper, undo } = this.#parts;
    await this.#scheduler.stop();
    this.#definitions.stop();
    await this.#signaller.stop();
    if (store.isUp) await this.#stats.flush().catch(() => {});
    this.#stats.stop();
    await undo.stop();
    await reaper.stop();
    await store.stop();
  }

  /** What is settled and inserted can be taken in the same round. */
  async #run(round: Round): Promise<void> {
    const { settle, insert, take } = this.#verbs;
    try {
      await this.#housekeeping.before();
    } catch (error) {
      // The calls themselves find out whether the store can be reached.
      this.#parts.log.info({ err: describe(error) }, 'leases that ran out could not be ended');
    }
    const [{ again, returned }, inserted] = await Promise.all([
      settle.run(round.settles, (call) => round.hasEarlierTake(call)),
      insert.run(round.inserts),
    ]);
    await take.run(round.takes, new Map([...inserted, ...returned]));
    await settle.run(again, () => false);
  }
}
