// Where what happens:
//   storage.ts      the Storage port: what of a call is sent to which queue
//   batcher.ts      gathers the calls of a queue; one batch in flight; sequence numbers; deadlines
//   verbs/          how calls become arguments of the library, and its results theirs
//   client/         sends a batch to the master that has its slot, again until there is a reply; ioredis
//   library/*.lua   what runs inside Redis; queue.lua describes the keys, session.lua a call and its reply
//   outbox.ts       brings elements to queues in other slots of a cluster (library/outbox.lua)
//   registry.ts     names of queues, and which to sweep when; sweeper.ts goes by it, and forgets unused queues
//   list.ts         the `list` variant, another Storage
//   definitions, stats, signaller and subscriptions: the other ports
// A take: RedisStorage.take → Batchers.call → Batcher.#send → Executor.execute → Master.execute → `take` in library/take.lua
import type { OpenEngine } from '../../engine/engine.ts';
import { RedisEngine } from './engine.ts';

export const open: OpenEngine = (options) => new RedisEngine(options);
