import { describe, it } from 'node:test';
import fc from 'fast-check';
import { checkSessionModel, clients, command, commonCommands, consumed } from '../session/model-world.ts';
import { StompWorld } from './model-world.ts';
import { StompNode } from './node.ts';

type Command = fc.AsyncCommand<StompWorld, StompWorld>;

const wanted = fc.record({
  ...consumed,
  mode: fc.constantFrom('auto' as const, 'client' as const, 'client-individual' as const),
  // When a larger window is refilled is not specified.
  window: fc.constantFrom(1, 2, 3),
});

const subscribes = fc
  .tuple(clients, wanted)
  .map(([client, one]) =>
    command<StompWorld>(`subscribe(${client}, ${fc.stringify(one)})`, (world: StompWorld) =>
      world.subscribe(client, one),
    ),
  );

const settlements = fc
  .tuple(clients, fc.nat({ max: 7 }), fc.constantFrom(null, null, 0, 1000))
  .map(([client, index, delayMs]) =>
    command<StompWorld>(`${delayMs === null ? 'ack' : 'nack'}(${client}, ${index}, ${delayMs})`, (world) =>
      world.settleOne(client, index, delayMs),
    ),
  );

const of = (name: string, run: (world: StompWorld, client: number) => Promise<void>) =>
  clients.map((client) => command<StompWorld>(`${name}(${client})`, (world) => run(world, client)));

/** Weighted by repetition. */
const commands: fc.Arbitrary<Command>[] = [
  ...commonCommands<StompWorld>(),
  ...Array(5).fill(subscribes),
  ...Array(9).fill(settlements),
  fc
    .tuple(clients, fc.nat({ max: 3 }))
    .map(([client, index]) =>
      command<StompWorld>(`unsubscribe(${client}, ${index})`, (world) => world.unsubscribe(client, index)),
    ),
  of('begin', (world, client) => world.begin(client)),
  of('begin', (world, client) => world.begin(client)),
  of('commit', (world, client) => world.end(client, 'COMMIT')),
  of('commit', (world, client) => world.end(client, 'COMMIT')),
  of('abort', (world, client) => world.end(client, 'ABORT')),
  of('disconnect', (world, client) => world.leave(client, true)),
  of('vanish', (world, client) => world.leave(client, false)),
  of('settleWrong', (world, client) => world.settleWrong(client)),
];

/**
 * Runs the sequential model of the storage contract through STOMP: with windows, all ack modes, transactions, clients
 * that connect and disconnect, and paused queues.
 */
describe('STOMP', () => {
  it('behaves like the sequential model in any history', async () => {
    await checkSessionModel(
      commands,
      (options) => StompNode.start(options),
      (node) => new StompWorld(node),
    );
  });
});
