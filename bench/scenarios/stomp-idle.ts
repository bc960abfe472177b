import { setTimeout as delay } from 'node:timers/promises';
import type { StompAnswer, StompRequest } from '../load/stomp-client.ts';
import { Helper, residentBytesOf } from '../process.ts';
import { createServer, NAMESPACE } from '../quayside.ts';
import type { Scenario } from '../scenario.ts';
import { idleShare, limit } from '../shared.ts';
import { stompPortOf } from './stomp.ts';

const KIBIBYTE = 1024;
const BEAT_MS = 10_000;
/** Long enough for the collector and the kernel to settle after many new connections. */
const SETTLE_MS = 3_000;

/** What 1,000 sessions cost that are logged in, subscribed, and send and get a heart-beat every ten seconds. */
export const stompIdle: Scenario = {
  name: 'stomp-idle',
  async run({ quick, ...context }) {
    const count = quick ? 100 : 1_000;
    await using server = await createServer({ quick, ...context }, undefined, { stomp: { port: 0 } });
    await server.start();
    const target = { port: stompPortOf(server), login: 'test1', passcode: 'test1' };
    const program = new URL('../load/stomp-client.ts', import.meta.url);
    const [client] = await Helper.start(program, [JSON.stringify(target)]);
    const open = (sessions: number): Promise<StompAnswer> => {
      const request: StompRequest = {
        what: 'idle',
        destination: `/queue/${NAMESPACE}/idle`,
        count: sessions,
        beatMs: BEAT_MS,
      };
      return client.ask(request);
    };
    try {
      // The first ones bring code and tables with them that all share.
      await open(10);
      await delay(quick ? 0 : SETTLE_MS);
      const before = residentBytesOf(server.pid);
      await open(count);
      await delay(quick ? 0 : SETTLE_MS);
      const each = (residentBytesOf(server.pid) - before) / count / KIBIBYTE;
      const idle = await idleShare(server, quick ? 500 : 2 * BEAT_MS);
      await client.stop();
      await server.stop();
      const name = `${count} idle sessions with heart-beats`;
      return [
        limit(`${name}: memory each`, `${each.toFixed(1)} KiB`, '64 KiB', each / 64),
        limit(`${name}: CPU`, `${(idle * 100).toFixed(2)} %`, '3 %', idle / 0.03),
      ];
    } finally {
      await client.stop();
    }
  },
};
