import { compareThroughput } from '../compare.ts';
import { type HttpLoad, runLoad } from '../load/http-load.ts';
import { AUTHORIZATION, benchPath, createServer, ELEMENT } from '../quayside.ts';
import { startInsertReference } from '../reference/reference.ts';
import type { Scenario } from '../scenario.ts';

/** `PUT` of 46 bytes over 64 connections, authenticated and durable, against a server that stores nothing. */
export const insert: Scenario = {
  name: 'insert',
  async run(context) {
    await using server = await createServer(context);
    await using reference = await startInsertReference();
    await server.start();
    const load = (target: { url: string; pid: number }, queue: string, seconds: number): HttpLoad => ({
      url: target.url,
      pid: target.pid,
      method: 'PUT',
      path: benchPath(queue),
      headers: { authorization: AUTHORIZATION, 'content-type': 'application/json' },
      body: ELEMENT,
      connections: 64,
      seconds,
    });
    if (!context.quick) for (const target of [server, reference]) await runLoad(load(target, 'warm-up', 3));
    const seconds = context.quick ? 1 : 5;
    const finding = await compareThroughput(context, {
      what: 'PUT insert, 46 bytes, 64 connections',
      target: { kind: 'at least', ratio: 0.85 },
      rounds: context.quick ? 1 : 7,
      measure: (round) => runLoad(load(server, `insert-${round}`, seconds)),
      reference: (round) => runLoad(load(reference, `insert-${round}`, seconds)),
    });
    await server.stop();
    return [finding];
  },
};
