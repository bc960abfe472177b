import { describe, it } from 'node:test';
import fc from 'fast-check';
import { plain } from '../support/broker.ts';
import { checkHistories } from '../support/histories.ts';
import { DEAD, QUEUES, StompWorld } from './model-world.ts';
import { StompNode } from './node.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 30);
const POLICIES = [
  plain('jobs', { deadLetter: { maxTries: 3, queue: 'dead' } }),
  plain('stream', { groups: ['g1', 'g2'] }),
];

type Command = fc.AsyncCommand<StompWorld, StompWorld>;

function command(name: string, run: (world: StompWorld) => Promise<void>): Command {
  return { check: () => true, run: (_model, world) => run(world), toString: () => name };
}

const clients = fc.nat({ max: 2 });
const queues = fc.constantFrom(...QUEUES);

const sent = fc.record({
  queue: queues,
  body: fc.oneof(fc.string({ maxLength: 20 }), fc.constant('x'.repeat(20_000))),
  contentType: fc.constantFrom(null, 'application/json', 'text/plain; charset="x"'),
  headers: fc.constantFrom<Record<string, string>>({}, {}, { a: '1' }, { 'x-b': 'Grüße: ☃' }),
  tries: fc.constantFrom(0, 0, 1, 2),
  delayMs: fc.constantFrom(0, 0, 0, 1000, 5000),
  groups: fc.uniqueArray(fc.constantFrom('g1', 'g2', 'g3'), { minLength: 1 }),
});

const wanted = fc.record({
  queue: fc.oneof({ weight: 5, arbitrary: queues }, { weight: 1, arbitrary: fc.constant(DEAD) }),
  group: fc.constantFrom('g1', 'g2', 'g3'),
  mode: fc.constantFrom('auto' as const, 'client' as const, 'client-individual' as const),
  // For larger ones it is left open when they are filled again.
  window: fc.constantFrom(1, 2, 3),
  leaseMs: fc.constantFrom(null, null, 1000, 5000),
});

const sends = fc
  .tuple(clients, sent)
  .map(([client, one]) =>
    command(`send(${client}, ${fc.stringify({ ...one, body: one.body.slice(0, 20) })})`, (world) =>
      world.send(client, one),
    ),
  );

const subscribes = fc
  .tuple(clients, wanted)
  .map(([client, one]) =>
    command(`subscribe(${client}, ${fc.stringify(one)})`, (world) => world.subscribe(client, one)),
  );

const settlements = fc
  .tuple(clients, fc.nat({ max: 7 }), fc.constantFrom(null, null, 0, 1000))
  .map(([client, index, delayMs]) =>
    command(`${delayMs === null ? 'ack' : 'nack'}(${client}, ${index}, ${delayMs})`, (world) =>
      world.settleOne(client, index, delayMs),
    ),
  );

const of = (name: string, run: (world: StompWorld, client: number) => Promise<void>) =>
  clients.map((client) => command(`${name}(${client})`, (world) => run(world, client)));

/** Weighted by repetition. */
const commands: fc.Arbitrary<Command>[] = [
  ...Array(8).fill(sends),
  ...Array(5).fill(subscribes),
  ...Array(9).fill(settlements),
  fc
    .tuple(clients, fc.nat({ max: 3 }))
    .map(([client, index]) =>
      command(`unsubscribe(${client}, ${index})`, (world) => world.unsubscribe(client, index)),
    ),
  of('begin', (world, client) => world.begin(client)),
  of('begin', (world, client) => world.begin(client)),
  of('commit', (world, client) => world.end(client, 'COMMIT')),
  of('commit', (world, client) => world.end(client, 'COMMIT')),
  of('abort', (world, client) => world.end(client, 'ABORT')),
  of('disconnect', (world, client) => world.leave(client, true)),
  of('vanish', (world, client) => world.leave(client, false)),
  of('settleWrong', (world, client) => world.settleWrong(client)),
  fc
    .tuple(queues, fc.boolean())
    .map(([queue, paused]) =>
      command(`${paused ? 'pause' : 'resume'}(${queue.ns}/${queue.name})`, (world) =>
        world.pause(queue, paused),
      ),
    ),
  fc
    .constantFrom(1, 999, 1000, 5000, 60_000)
    .map((ms) => command(`passTime(${ms})`, (world) => world.passTime(ms))),
];

/**
 * The sequential model of the storage contract once more, through STOMP: with windows, all ways to acknowledge,
 * transactions, clients that come and go, and queues that are paused.
 */
describe('STOMP', () => {
  it('does what the sequential model does, in any history', async () => {
    await checkHistories(commands, { runs: RUNS, maxCommands: 100 }, async (history) => {
      const node = await StompNode.start({ policies: POLICIES });
      const world = new StompWorld(node, POLICIES);
      try {
        await fc.asyncModelRun(() => ({ model: world, real: world }), history);
      } finally {
        world.close();
        await node.stop();
      }
    });
  });
});
