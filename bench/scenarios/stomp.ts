import { createServer, NAMESPACE, portOf } from '../quayside.ts';
import { compareRates, startSide } from '../rates.ts';
import { RabbitServer } from '../reference/rabbitmq.ts';
import type { BenchContext, Finding, Scenario } from '../scenario.ts';

const CLIENT = new URL('../load/stomp-client.ts', import.meta.url);

/**
 * STOMP on the embedded engine, one connection, compared with RabbitMQ's STOMP plugin with a durable queue and the same
 * client: persistent SENDs with a receipt each; `client-individual` with an ACK each. Window 256.
 */
export const stomp: Scenario = {
  name: 'stomp',
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
  await using server = await createServer(context, undefined, { stomp: { port: 0 } });
  await server.start();
  const login = { port: portOf(server, 'stomp'), login: 'test1', passcode: 'test1' };
  const own = await startSide(CLIENT, login, server.pid, `/queue/${NAMESPACE}/bench`);
  const rabbitLogin = { port: rabbit.stompPort, login: rabbit.user, passcode: rabbit.password };
  const other = await startSide(CLIENT, rabbitLogin, rabbit.pid, '/queue/bench');
  try {
    const findings = await compareRates(context, {
      own,
      other,
      send: { what: 'SEND, persistent, a receipt each, window 256', ratio: 3 },
      consume: { what: 'client-individual, an ACK each, window 256', ratio: 2 },
    });
    await server.stop();
    return findings;
  } finally {
    for (const { helper } of [own, other]) await helper.stop();
  }
}
