import { compareThroughput } from '../compare.ts';
import { runLoad } from '../load/http-load.ts';
import { createServer } from '../quayside.ts';
import type { Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

/** The cost for HTTP if the other front ends are enabled: `PUT` of 46 bytes compared with a server without them. */
export const frontEnds: Scenario = {
  name: 'front-ends',
  async run(context) {
    await using all = await createServer(context, undefined, { stomp: { port: 0 }, amqp: { port: 0 } });
    await using alone = await createServer({ ...context, profileDir: null });
    for (const server of [all, alone]) await server.start();
    if (!context.quick) for (const server of [all, alone]) await runLoad(insertLoad(server, 'warm-up', 3));
    const seconds = context.quick ? 1 : 5;
    const finding = await compareThroughput(context, {
      what: 'PUT insert with STOMP and AMQP on, 64 connections',
      target: { kind: 'at least', ratio: 0.97 },
      rounds: context.quick ? 1 : 7,
      measure: (round) => runLoad(insertLoad(all, `insert-${round}`, seconds)),
      reference: (round) => runLoad(insertLoad(alone, `insert-${round}`, seconds)),
    });
    for (const server of [all, alone]) await server.stop();
    return [finding];
  },
};
