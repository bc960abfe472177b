import { describe, it } from 'node:test';
import fc from 'fast-check';
import { checkSessionModel, clients, command, commonCommands, consumed } from '../session/model-world.ts';
import { AmqpWorld, OUTCOMES } from './model-world.ts';
import { AmqpNode } from './node.ts';

type Command = fc.AsyncCommand<AmqpWorld, AmqpWorld>;

const wanted = fc.record({
  ...consumed,
  isPop: fc.boolean(),
  credit: fc.constantFrom(0, 1, 2, 10),
});

const attaches = fc
  .tuple(clients, wanted)
  .map(([client, one]) =>
    command<AmqpWorld>(`attach(${client}, ${fc.stringify(one)})`, (world) => world.attach(client, one)),
  );

const settlements = fc
  .tuple(clients, fc.nat({ max: 7 }), fc.constantFrom('accepted', ...OUTCOMES))
  .map(([client, index, outcome]) =>
    command<AmqpWorld>(`settle(${client}, ${index}, ${outcome})`, (world) =>
      world.settleOne(client, index, outcome),
    ),
  );

const of = (name: string, run: (world: AmqpWorld, client: number, index: number) => Promise<void>) =>
  fc
    .tuple(clients, fc.nat({ max: 3 }))
    .map(([client, index]) =>
      command<AmqpWorld>(`${name}(${client}, ${index})`, (world) => run(world, client, index)),
    );

/** Repeated entries give a command more weight. */
const commands: fc.Arbitrary<Command>[] = [
  ...commonCommands<AmqpWorld>(),
  ...Array(5).fill(attaches),
  ...Array(9).fill(settlements),
  ...Array(3).fill(of('grant', (world, client, index) => world.grant(client, index, 1 + index))),
  of('drain', (world, client, index) => world.drain(client, index)),
  of('detach', (world, client, index) => world.detach(client, index)),
  of('close', (world, client) => world.leave(client, true)),
  of('vanish', (world, client) => world.leave(client, false)),
];

/**
 * Runs the sequential model of the storage contract through AMQP: with credit and drains, all outcomes, links and
 * clients that attach and disconnect, and paused queues.
 */
describe('AMQP', () => {
  it('behaves like the sequential model in any history', async () => {
    await checkSessionModel(
      commands,
      (options) => AmqpNode.start(options),
      (node) => new AmqpWorld(node),
    );
  });
});
