import { measureIdleSessions } from '../idle-sessions.ts';
import type { Scenario } from '../scenario.ts';

export const amqpIdle: Scenario = {
  name: 'amqp-idle',
  run: (context) =>
    measureIdleSessions(context, {
      sessions: 'AMQP connections, a session and a receiver each,',
      options: { amqp: { port: 0 } },
      scheme: 'amqp',
      client: new URL('../load/amqp-client.ts', import.meta.url),
      destinationIn: (namespace) => `${namespace}/idle`,
    }),
};
