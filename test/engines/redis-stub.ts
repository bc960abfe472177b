import { PendingCalls, unavailable, unknownOutcome } from '../../src/engine/calls.ts';
import type { Definitions } from '../../src/engine/definitions.ts';
import { Batchers } from '../../src/engines/redis/batcher.ts';
import type { RedisSignaller } from '../../src/engines/redis/channels.ts';
import type { Reply } from '../../src/engines/redis/client/connection.ts';
import type { Executed, Executor, RedisRequest } from '../../src/engines/redis/client/executor.ts';
import type { Master } from '../../src/engines/redis/client/master.ts';
import type { Topology } from '../../src/engines/redis/client/topology.ts';
import type { RedisContext } from '../../src/engines/redis/context.ts';
import { encodeContent } from '../../src/engines/redis/encoding.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import { Outbox } from '../../src/engines/redis/outbox.ts';
import { Policies } from '../../src/engines/redis/policies.ts';
import type { Registry } from '../../src/engines/redis/registry.ts';
import type { Settings } from '../../src/engines/redis/settings.ts';
import { RedisStorage } from '../../src/engines/redis/storage.ts';
import { Sweeper } from '../../src/engines/redis/sweeper.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement } from '../support/elements.ts';

const HEAD_BYTES = 45;
const DONE = Buffer.from('0');
const RESULTS: Readonly<Record<string, Buffer>> = {
  insert: Buffer.from([0, 0, 0, 0, 0, 1]),
  settle: DONE,
  counts: Buffer.alloc(25),
  sweep: Buffer.alloc(15),
};
const VERBS = [
  'insert',
  'take',
  'settle',
  'counts',
  'sweep',
  'options',
  'apply',
  'acknowledge',
  'settle-session',
];

/** One function call as it was sent. */
export interface SentCall {
  /** The name of its queue. */
  readonly queue: string;
  readonly verbs: readonly string[];
  readonly number: number;
  /** The number of the last batch whose reply the node has read. */
  readonly received: number;
  /** The takes to undo of an earlier call: its number, then places of takes and numbers of elements. */
  readonly returned: readonly number[];
  /** Replies with these outbox entries. */
  reply(outbox?: readonly Reply[]): void;
  /** Fails as a call of unknown outcome. */
  fail(): void;
}

/** Returns an outbox entry for a queue in the format of replies. */
export function entryFor(to: string, number: number): Reply {
  const written = numberText(number);
  return [Buffer.from(to), written, Buffer.concat([written, Buffer.alloc(8)])];
}

/** Returns what a reply contains for a queue with older entries: the number of the newest one. */
export function olderFor(to: string, number: number): Reply {
  return [Buffer.from(to), numberText(number)];
}

function readReturned(text: Buffer): number[] {
  const numbers = text.length === 0 ? [] : [text.readUIntBE(0, 6)];
  for (let at = 6; at < text.length; at += 8) {
    numbers.push(text.readUInt16BE(at), text.readUIntBE(at + 2, 6));
  }
  return numbers;
}

function numberText(number: number): Buffer {
  const text = Buffer.alloc(7);
  text.writeUIntBE(number, 1, 6);
  return text;
}

/** The storage of the Redis engine on a cluster, with a transport whose replies the test gives. */
export class StubbedStorage {
  readonly clock = new FakeClock();
  readonly storage: RedisStorage;
  readonly sent: SentCall[] = [];
  /** Queues that the registry returns as due to a sweep. */
  due: readonly QueueKey[] = [];
  /** How many elements the next takes get in total. */
  ready = 0;
  isReachable = true;
  /** The code with which a call without a reply is rejected at its deadline. */
  unanswered: 'storage-unavailable' | 'outcome-unknown' = 'storage-unavailable';
  /** Resolves when the registry has done its work for a call; immediately, unless a test replaces it. */
  registering = Promise.resolve();
  /** Whether all queues are registered already. */
  isDeclared = true;
  readonly #batchers: Batchers;
  readonly #outbox: Outbox;

  constructor() {
    const { clock } = this;
    const registry = {
      isDeclared: () => this.isDeclared,
      noteTag: () => {},
      requireSweep: () => null,
      tidyLater: () => {},
      noteUse: () => {},
      declare: () => this.registering,
      drop: () => this.registering.then(() => true),
      now: () => clock.now(),
      entries: async (list: string, from: string | number) =>
        list === 'due' && from === '-inf' ? this.due.map((queue) => ({ member: '', at: 0, queue })) : [],
      tidyUntidied: async () => {},
      add: async () => {},
      remove: async () => {},
      unused: async () => [],
    } as unknown as Registry;
    const namespaces = [plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })];
    const unreachable = unavailable('Unreachable.');
    const pending = new PendingCalls(clock);
    const executor = {
      library: 'test',
      pending,
      deadline: (leftMs?: number) => pending.deadline(leftMs),
      rejection: () => (this.isReachable ? null : unreachable),
      execute: (request: RedisRequest) => ({
        done: this.#execute(request),
        failure: () => new QuaysideError(this.unanswered, 'No reply.'),
      }),
    } satisfies Partial<Record<keyof Executor, unknown>> as unknown as Executor;
    const context: RedisContext = {
      clock,
      log: { info: () => {}, warn: () => {} },
      namespaces,
      dedupWindowMs: 0,
      settings: { variant: 'simple', givenTime: null } as Settings,
      keys: new Keys('test'),
      topology: { isCluster: true, queuesPerCall: () => 1, slotOf: () => 0 } as unknown as Topology,
      executor,
      policies: new Policies(namespaces),
    };
    const signaller = {} as RedisSignaller;
    this.#batchers = new Batchers({
      ...context,
      registry,
      signaller,
      onReply: (...args) => this.#outbox.onReply(...args),
    });
    this.#outbox = new Outbox(context, this.#batchers, () => {});
    const sweeper = new Sweeper(context, this.#batchers, registry, {} as Definitions);
    this.storage = new RedisStorage(this.#batchers, sweeper);
  }

  /** Removes the first pending call with this verb from the list, and returns it. */
  take(verb: string): SentCall {
    const index = this.sent.findIndex(({ verbs }) => verbs.includes(verb));
    const [call] = index < 0 ? [] : this.sent.splice(index, 1);
    if (call === undefined) throw new Error(`no ${verb} was sent`);
    return call;
  }

  stop(): void {
    this.#batchers.stop();
    this.#outbox.stop();
  }

  /** Replies for pops of elements that were never reserved. */
  #takeReady(): { readonly text: Buffer; readonly elements: Buffer[] } {
    const head = Buffer.alloc(16);
    head.write('p');
    const fields = Array.from({ length: this.ready }, (_, i) => Buffer.from([0x65, 0, 0, 0, 0, 0, i + 1]));
    const value = Buffer.concat([Buffer.alloc(22), encodeContent(newElement())]);
    this.ready = 0;
    return { text: Buffer.concat([head, ...fields]), elements: fields.map(() => value) };
  }

  #execute({ args }: RedisRequest): Promise<Executed> {
    const master = { serverTime: 0, contact: { since: 0, excusedUntil: 0 }, noteServerTime: () => {} };
    const [, , key, , head, , ...rest] = args(master as unknown as Master, false);
    const verbs = rest.map(String).filter((arg) => VERBS.includes(arg));
    return new Promise((resolve, reject) => {
      const fail = (): void => reject(unknownOutcome());
      const reply = (outbox: readonly Reply[] = []): void => {
        const taken = this.#takeReady();
        const results = verbs.map((verb) =>
          verb === 'take' ? taken.text : (RESULTS[verb] ?? Buffer.alloc(0)),
        );
        const tag = Buffer.from('0123456789ab');
        const elements = verbs.map((verb) => (verb === 'take' ? taken.elements : 0));
        resolve({
          reply: [0, tag, 0, results, elements, [], outbox, []],
          master: master as unknown as Master,
        });
      };
      const queue = /\{\w+\/(.*)\}/.exec(String(key))?.[1] ?? String(key);
      const [number, received] = [8, 14].map((at) => (head as Buffer).readUIntBE(at, 6)) as [number, number];
      const returned = readReturned((head as Buffer).subarray(HEAD_BYTES));
      this.sent.push({ queue, verbs, number, received, returned, reply, fail });
    });
  }
}
