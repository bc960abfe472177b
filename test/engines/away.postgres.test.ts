import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import pg from 'pg';
import type { Engine } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { FakeClock } from '../support/clock.ts';
import { newElement, newElements } from '../support/elements.ts';
import { followDefinitions } from '../support/followed-definitions.ts';
import { codeOf } from '../support/outcome.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import { ANSWERED_MS, inTime, settledOf, turns } from './fake-time.ts';
import { checkOutage } from './outage.ts';
import { freshSchema, runSql } from './postgres.ts';
import { endSessions, openNode } from './postgres-node.ts';

const MEGABYTE = 1024 * 1024;

/** Ways in which a server can be unavailable. */
const AWAY = {
  frozen: {
    begin: async (server) => server.signalAll('SIGSTOP'),
    end: async (server) => server.signalAll('SIGCONT'),
  },
  killed: { begin: (server) => server.stop('immediate'), end: (server) => server.start() },
} satisfies Record<string, Record<'begin' | 'end', (server: PostgresServer) => Promise<void>>>;

for (const [state, { begin, end }] of Object.entries(AWAY)) {
  describe(`A PostgreSQL server that is ${state}`, () => {
    let server: PostgresServer;
    let engine: Engine;
    /** The clock of the engine's timeouts. It stands still unless a test advances it. */
    const clock = new FakeClock();
    let queues = 0;

    before(async () => {
      server = await PostgresServer.start({ settings: { fsync: 'off' } });
      engine = await openNode(server, { schema: freshSchema(), clock });
    });
    after(async () => {
      await passWhile(clock, engine.stop());
      server.dispose();
    });

    const freshQueue = async (...bodies: string[]): Promise<QueueKey> => {
      const queue = { ns: 'plain', name: `queue ${++queues}` };
      await engine.storage.insert(queue, newElements(...bodies));
      return queue;
    };

    /** Ends the outage. Resolves when both connections that calls use are open again. */
    const back = async (): Promise<void> => {
      await end(server);
      for (const ask of [() => engine.ping(), () => engine.definitions.list('queue')]) {
        await until(async () => {
          clock.advance(10);
          return (await passWhile(clock, codeOf(ask()))) === 'done';
        });
      }
    };

    it('has every call rejected within 5 s, immediately once it is known to be unavailable, and is used again when it is back', async () => {
      const used = await freshQueue('a', 'b', 'c');
      await checkOutage({ engine, clock, used, begin: () => begin(server), end: back });
    });

    it('has at most 64 MiB of inserts waiting for it', async () => {
      const queue = await freshQueue('a');
      await begin(server);
      const element = newElement({ body: Buffer.alloc(MEGABYTE) });
      const calls: Promise<string>[] = [];
      for (let i = 0; i < 200; i++) calls.push(codeOf(engine.storage.insert(queue, [element])));
      await turns();
      const waiting = (await settledOf(calls)).filter((settled) => !settled).length;
      assert.ok(waiting <= 64, `${waiting} MiB wait`);
      assert.deepEqual(await inTime(clock, calls), []);
      await back();
    });

    it('has at most 5,000 reads of definitions and 20,000 reads of statistics waiting for it', async () => {
      const queue = await freshQueue('a');
      await begin(server);
      const reads = Array.from({ length: 21_000 }, () => codeOf(engine.stats.read(queue)));
      await turns();
      const questions = Array.from({ length: 6_000 }, () => codeOf(engine.definitions.get('queue', 'any')));
      await turns();
      const waiting = async (calls: readonly Promise<string>[]): Promise<number> =>
        (await settledOf(calls)).filter((settled) => !settled).length;
      assert.ok((await waiting(questions)) <= 5_000);
      assert.ok((await waiting(reads)) <= 20_000);
      assert.deepEqual(await inTime(clock, [...questions, ...reads]), []);
      await back();
    });
  });
}

describe('A PostgreSQL server whose notifications arrive before its definitions can be read', () => {
  it('causes no missed definition: those changed in the gap are read later', async () => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    const proxy = await TcpProxy.start(server.port);
    const clock = new FakeClock();
    const schema = freshSchema();
    const messages: string[] = [];
    const note = (fields: object, message: string): void => {
      messages.push(`${'role' in fields ? fields.role : ''} ${message}`);
    };
    const engine = await openNode(server, {
      schema,
      port: proxy.port,
      clock,
      log: { info: note, warn: note },
    });
    const { cache, read, failures } = followDefinitions(engine.definitions, clock);
    await engine.definitions.put('queue', 'known', 1, null);
    await until(() => read.length > 0);

    const passUntil = (holds: () => boolean): Promise<void> =>
      until(() => {
        clock.advance(50);
        return holds();
      });
    let isHeld = true;
    const holding = (async () => {
      while (isHeld) await proxy.catch(/quayside second/, 'deaf');
    })();
    await endSessions(server, 'second');
    await until(() => messages.includes('second PostgreSQL is unavailable'));
    clock.advance(ANSWERED_MS / 2);
    await runSql(
      server,
      `INSERT INTO ${schema}.definition VALUES ('queue', 'missed', '1', nextval('${schema}.definition_version'))`,
    );
    await endSessions(server, 'listener');
    await passUntil(() => failures.length > 0);
    assert.deepEqual(read, ['known']);
    isHeld = false;
    await passUntil(() => read.includes('missed'));
    cache.stop();
    await holding;
    await passWhile(clock, engine.stop());
    await proxy.stop();
    server.dispose();
  });
});

describe('A PostgreSQL server on which another session locks a table', () => {
  it('has each of many calls answered within 5 s, although a failed batch is repeated call by call', async () => {
    const server = await PostgresServer.start({ settings: { fsync: 'off' } });
    const clock = new FakeClock();
    const schema = freshSchema();
    const engine = await openNode(server, { schema, clock });
    const keys = Array.from({ length: 10 }, (_, index) => ({ ns: 'plain', name: `queue ${index}` }));
    await engine.storage.declare(keys);
    const holder = new pg.Client({ connectionString: server.url() });
    await holder.connect();
    await holder.query(`BEGIN; LOCK TABLE ${schema}.delivery`);
    const calls = keys.map((key) => codeOf(engine.storage.insert(key, newElements('x'))));
    await turns();
    clock.advance(1_000);
    // The first settled call shows that the batch has failed and its calls are repeated one by one; each waits for the
    // lock.
    await until(async () => (await settledOf(calls)).includes(true));
    assert.deepEqual(await inTime(clock, calls, ANSWERED_MS - 1_000), []);
    await holder.query('ROLLBACK');
    await holder.end();
    await passWhile(clock, engine.stop());
    server.dispose();
  });
});

/** Lets fake and real time pass until the call has settled. */
async function passWhile<T>(clock: FakeClock, answer: Promise<T>): Promise<T> {
  while (!(await settledOf([answer]))[0]) {
    await new Promise((resolve) => setTimeout(resolve, 2));
    clock.advance(10);
  }
  return answer;
}
