import type { Signaller } from '../../src/engine/signaller.ts';
import type { Stats } from '../../src/engine/stats.ts';
import { Around } from '../../src/engines/redis/around.ts';
import type { Flight, FlightReply, Flights } from '../../src/engines/redis/calls/flight.ts';
import { type CarriedSignals, Lanes } from '../../src/engines/redis/calls/lanes.ts';
import type { Parcel } from '../../src/engines/redis/calls/parcels.ts';
import { ExecutionError, type Executor } from '../../src/engines/redis/client/executor.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import { OutboxRelay } from '../../src/engines/redis/outbox-relay.ts';
import { Policies } from '../../src/engines/redis/policies.ts';
import type { Registry } from '../../src/engines/redis/registry.ts';
import { RedisStorage } from '../../src/engines/redis/storage.ts';
import type { Sweeper } from '../../src/engines/redis/sweeper.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';

const DONE = Buffer.from('0');
const ANSWERS: Readonly<Record<string, Buffer>> = {
  insert: Buffer.from([0, 0, 0, 0, 0, 1]),
  rollback: DONE,
  move: DONE,
};

/** One call of the library as it was sent. */
export interface SentCall {
  /** The name of its queue. */
  readonly queue: string;
  readonly verbs: readonly string[];
  readonly number: number;
  /** Answers it. */
  reply(parcels?: readonly Parcel[]): void;
}

/** The storage of the Redis engine on a cluster, on a transport that a test answers by hand. */
export class StubbedStorage {
  readonly clock = new FakeClock();
  readonly storage: RedisStorage;
  readonly sent: SentCall[] = [];
  isReachable = true;
  readonly #lanes: Lanes;
  readonly #relay: OutboxRelay;

  constructor() {
    const { clock } = this;
    const keys = new Keys('test');
    const policies = new Policies([plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })]);
    const registry = {
      isDeclared: () => true,
      dueIn: () => null,
      tidyLater: () => {},
      noteUse: () => {},
    } as unknown as Registry;
    const sweeper = { touch: () => {}, sweepQueue: async () => {} } as unknown as Sweeper;
    const log = { info: () => {}, warn: () => {} };
    this.#lanes = new Lanes({
      clock,
      log,
      keys,
      policies,
      topology: { isCluster: true },
      executor: {
        addPending: () => {},
        removePending: () => {},
        rejection: () =>
          this.isReachable ? null : new ExecutionError('storage-unavailable', 'It is unavailable.'),
      },
      flights: { fly: (flight: Flight) => this.#fly(flight) } as unknown as Flights,
      around: new Around({
        policies,
        registry,
        stats: { add: () => {} } as unknown as Stats,
        relay: () => this.#relay,
        sweeper: () => sweeper,
      }),
      signals: {} as CarriedSignals,
    });
    const lanes = this.#lanes;
    this.#relay = new OutboxRelay(
      { lanes, clock, log, dedupWindowMs: 0 },
      { lookAgain: async () => {}, onLateArrival: () => {} },
    );
    const signaller = {} as Signaller;
    const unused = { executor: {} as Executor, keys: {} as Keys };
    this.storage = new RedisStorage({
      ...unused,
      lanes,
      registry,
      sweeper,
      policies,
      dedupWindowMs: 0,
      signaller,
    });
  }

  /** The first call that waits for its answer and has this verb; takes it from the list. */
  take(verb: string): SentCall {
    const index = this.sent.findIndex(({ verbs }) => verbs.includes(verb));
    const [call] = index < 0 ? [] : this.sent.splice(index, 1);
    if (call === undefined) throw new Error(`no ${verb} was sent`);
    return call;
  }

  async stop(): Promise<void> {
    await this.#lanes.stop();
    this.#relay.stop();
  }

  #fly({ keys: [key = ''], args, number, writes, deadlineAt }: Flight): Promise<FlightReply> {
    const verbs = args
      .slice(2)
      .map(String)
      .filter((arg) => VERBS.includes(arg));
    return new Promise((resolve) => {
      const reply = (parcels: readonly Parcel[] = []): void => {
        const answers = verbs.map((verb) => ({
          tag: '0123456789ab',
          text: ANSWERS[verb] ?? Buffer.alloc(0),
          elements: [],
        }));
        resolve({ now: 0, made: [], answers, died: [], parcels, repeated: false, writes, deadlineAt });
      };
      this.sent.push({ queue: /\{\w+\/(.*)\}/.exec(key)?.[1] ?? key, verbs, number, reply });
    });
  }
}

const VERBS = ['insert', 'rollback', 'move', 'accept', 'delivered', 'struck', 'bye'];
