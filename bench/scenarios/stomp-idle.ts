import { measureIdleSessions } from '../idle-sessions.ts';
import type { Scenario } from '../scenario.ts';
import { stompPortOf } from './stomp.ts';

export const stompIdle: Scenario = {
  name: 'stomp-idle',
  run: (context) =>
    measureIdleSessions(context, {
      sessions: 'STOMP sessions',
      options: { stomp: { port: 0 } },
      portOf: stompPortOf,
      client: new URL('../load/stomp-client.ts', import.meta.url),
      destinationIn: (namespace) => `/queue/${namespace}/idle`,
    }),
};
