import { setTimeout as delay } from 'node:timers/promises';
import { QueueClient } from '../../test/support/http-client.ts';
import type { EventClientsCount, EventClientsRequest } from '../load/event-clients.ts';
import { Helper, residentBytesOf } from '../process.ts';
import { createServer, ELEMENT, NAMESPACE } from '../quayside.ts';
import type { Scenario } from '../scenario.ts';
import { idleShare, limit } from '../shared.ts';

const KIBIBYTE = 1024;
const QUEUES = 100;
/** Interval between inserts into each queue: it changes between any two updates. */
const CHANGE_MS = 400;
/** Time for the garbage collector and the kernel to settle after many new connections. */
const SETTLE_MS = 3_000;

/** The cost of 1,000 subscribers of `/events`, idle and while 100 queues change constantly. */
export const events: Scenario = {
  name: 'events',
  async run(context) {
    const { quick } = context;
    const count = quick ? 100 : 1_000;
    const lengthMs = quick ? 1_000 : 20_000;
    await using server = await createServer(context, undefined, { events: { total: 2_000, perUser: 2_000 } });
    await server.start();
    const port = Number(new URL(server.url).port);
    const producer = new QueueClient({ url: server.url });
    const insertAll = async (): Promise<void> => {
      await Promise.all(
        Array.from({ length: QUEUES }, (_, i) => producer.insert(NAMESPACE, `changing-${i}`, ELEMENT)),
      );
    };
    await insertAll();
    const [clients] = await Helper.start(new URL('../load/event-clients.ts', import.meta.url), [
      String(port),
    ]);
    const ask = (request: EventClientsRequest): Promise<EventClientsCount> => clients.ask(request);
    try {
      // The first connections load code and tables that all share.
      await ask({ what: 'listen', count: 10 });
      const changing = async <T>(measure: () => Promise<T>): Promise<T> => {
        const measured = measure().then((result) => ({ result }));
        for (;;) {
          const ended = await Promise.race([measured, delay(CHANGE_MS, null)]);
          if (ended !== null) return ended.result;
          await insertAll();
        }
      };
      await changing(() => delay(quick ? 0 : SETTLE_MS));
      const withFew = await changing(() => idleShare(server, lengthMs));
      await delay(quick ? 0 : SETTLE_MS);
      const before = residentBytesOf(server.pid);
      await ask({ what: 'listen', count: count - 10 });
      await delay(quick ? 0 : SETTLE_MS);
      const each = (residentBytesOf(server.pid) - before) / (count - 10) / KIBIBYTE;
      const atRest = await idleShare(server, lengthMs);
      await ask({ what: 'count' });
      const withMany = await changing(() => idleShare(server, lengthMs));
      const counts = await ask({ what: 'count' });
      const eachBusy = (residentBytesOf(server.pid) - before) / (count - 10) / KIBIBYTE;
      const seconds = lengthMs / 1000;
      context.note(
        `updates of each subscriber: ${(counts.updates / count / seconds).toFixed(2)} a second, ${(counts.bytes / seconds / 1e6).toFixed(1)} MB a second in all; CPU with 10 subscribers ${(withFew * 100).toFixed(1)} %, at rest with ${count} ${(atRest * 100).toFixed(2)} %; memory each while queues change ${eachBusy.toFixed(1)} KiB`,
      );
      const added = Math.max(0, withMany - withFew);
      const name = `${count} subscribers of /events`;
      return [
        limit(`${name}: memory each`, `${each.toFixed(1)} KiB`, '32 KiB', each / 32),
        limit(
          `${name}: CPU at ${QUEUES} changing queues, more than with 10`,
          `${(added * 100).toFixed(2)} %`,
          '5 %',
          added / 0.05,
        ),
      ];
    } finally {
      producer.close();
      await clients.stop();
    }
  },
};
