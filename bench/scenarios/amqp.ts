import { createServer, NAMESPACE, portOf } from '../quayside.ts';
import { compareRates, startSide } from '../rates.ts';
import { RabbitServer } from '../reference/rabbitmq.ts';
import type { BenchContext, Finding, Scenario } from '../scenario.ts';

const CLIENT = new URL('../load/amqp-client.ts', import.meta.url);

/**
 * AMQP 1.0 on the embedded engine, one connection, compared with RabbitMQ's AMQP 1.0 plugin with a durable queue and
 * the same client, rhea: sends durable, unsettled messages, then accepts each element. Window 256.
 */
export const amqp: Scenario = {
  name: 'amqp',
  async run(context) {
    const rabbit = await RabbitServer.start(context.note);
    try {
      return await measure(context, rabbit);
    } finally {
      await rabbit.stop();
    }
  },
};

async function measure(context: BenchContext, rabbit: RabbitServer): Promise<Finding[]> {
  await using server = await createServer(context, undefined, { amqp: { port: 0 } });
  await server.start();
  const login = { port: portOf(server, 'amqp'), login: 'test1', passcode: 'test1' };
  const own = await startSide(CLIENT, login, server.pid, `${NAMESPACE}/bench`);
  const rabbitLogin = { port: rabbit.amqpPort, login: rabbit.user, passcode: rabbit.password };
  const other = await startSide(CLIENT, rabbitLogin, rabbit.pid, '/queue/bench');
  try {
    const findings = await compareRates(context, {
      own,
      other,
      send: { what: 'AMQP send, durable, unsettled, window 256', ratio: 2 },
      consume: { what: 'AMQP receive, accept each, window 256', ratio: 2 },
    });
    await server.stop();
    return findings;
  } finally {
    for (const { helper } of [own, other]) await helper.stop();
  }
}
