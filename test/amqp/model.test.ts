import { describe, it } from 'node:test';
import fc from 'fast-check';
import { plain } from '../support/broker.ts';
import { checkHistories } from '../support/histories.ts';
import { AmqpWorld, DEAD, OUTCOMES, QUEUES } from './model-world.ts';
import { AmqpNode } from './node.ts';

const RUNS = Number(process.env.MODEL_RUNS ?? 20);
const POLICIES = [
  plain('jobs', { deadLetter: { maxTries: 3, queue: 'dead' } }),
  plain('stream', { groups: ['g1', 'g2'] }),
];

type Command = fc.AsyncCommand<AmqpWorld, AmqpWorld>;

function command(name: string, run: (world: AmqpWorld) => Promise<void>): Command {
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
  isPop: fc.boolean(),
  credit: fc.constantFrom(0, 1, 2, 10),
  leaseMs: fc.constantFrom(null, null, 1000, 5000),
});

const sends = fc
  .tuple(clients, sent)
  .map(([client, one]) =>
    command(`send(${client}, ${fc.stringify({ ...one, body: one.body.slice(0, 20) })})`, (world) =>
      world.send(client, one),
    ),
  );

const attaches = fc
  .tuple(clients, wanted)
  .map(([client, one]) =>
    command(`attach(${client}, ${fc.stringify(one)})`, (world) => world.attach(client, one)),
  );

const settlements = fc
  .tuple(clients, fc.nat({ max: 7 }), fc.constantFrom('accepted', ...OUTCOMES))
  .map(([client, index, outcome]) =>
    command(`settle(${client}, ${index}, ${outcome})`, (world) => world.settleOne(client, index, outcome)),
  );

const of = (name: string, run: (world: AmqpWorld, client: number, index: number) => Promise<void>) =>
  fc
    .tuple(clients, fc.nat({ max: 3 }))
    .map(([client, index]) => command(`${name}(${client}, ${index})`, (world) => run(world, client, index)));

/** Weighted by repetition. */
const commands: fc.Arbitrary<Command>[] = [
  ...Array(8).fill(sends),
  ...Array(5).fill(attaches),
  ...Array(9).fill(settlements),
  ...Array(3).fill(of('grant', (world, client, index) => world.grant(client, index, 1 + index))),
  of('drain', (world, client, index) => world.drain(client, index)),
  of('detach', (world, client, index) => world.detach(client, index)),
  of('close', (world, client) => world.leave(client, true)),
  of('vanish', (world, client) => world.leave(client, false)),
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
 * The sequential model of the storage contract once more, through AMQP: with credit and drains, all outcomes,
 * links and clients that come and go, and queues that are paused.
 */
describe('AMQP', () => {
  it('does what the sequential model does, in any history', async () => {
    await checkHistories(commands, { runs: RUNS, maxCommands: 100 }, async (history) => {
      const node = await AmqpNode.start({ policies: POLICIES });
      const world = new AmqpWorld(node, POLICIES);
      try {
        await fc.asyncModelRun(() => ({ model: world, real: world }), history);
      } finally {
        world.close();
        await node.stop();
      }
    });
  });
});
