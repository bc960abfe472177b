import { measureIdleSessions } from '../idle-sessions.ts';
import type { Scenario } from '../scenario.ts';

export const stompIdle: Scenario = {
  name: 'stomp-idle',
  run: (context) =>
    measureIdleSessions(context, {
      sessions: 'STOMP sessions',
      options: { stomp: { port: 0 } },
      scheme: 'stomp',
      client: new URL('../load/stomp-client.ts', import.meta.url),
      destinationIn: (namespace) => `/queue/${namespace}/idle`,
    }),
};
