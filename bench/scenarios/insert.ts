import { compareThroughput } from '../compare.ts';
import { runLoad } from '../load/http-load.ts';
import { createServer } from '../quayside.ts';
import { startInsertReference } from '../reference/reference.ts';
import type { Scenario } from '../scenario.ts';
import { insertLoad } from '../shared.ts';

/** `PUT` of 46 bytes over 64 connections, authenticated and durable, compared with a server that stores nothing. */
export const insert: Scenario = {
  name: 'insert',
  async run(context) {
    await using server = await createServer(context);
    await using reference = await startInsertReference();
    await server.start();
    if (!context.quick)
      for (const target of [server, reference]) await runLoad(insertLoad(target, 'warm-up', 3));
    const seconds = context.quick ? 1 : 5;
    const finding = await compareThroughput(context, {
      what: 'PUT insert, 46 bytes, 64 connections',
      target: { kind: 'at least', ratio: 0.85 },
      rounds: context.quick ? 1 : 7,
      measure: (round) => runLoad(insertLoad(server, `insert-${round}`, seconds)),
      reference: (round) => runLoad(insertLoad(reference, `insert-${round}`, seconds)),
    });
    await server.stop();
    return [finding];
  },
};
