import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { readLibrary } from '../../src/engines/redis/library.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import type { EventLog } from '../../src/util/log.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { redisEngine } from './redis.ts';

const PAGE = new URL('../../docs/engines/redis.md', import.meta.url);
const LIBRARY = new URL('../../src/engines/redis/library/', import.meta.url);
const QUEUE: QueueKey = { ns: 'plain', name: 'q' };

describe('The commands that the functions use', () => {
  it('are all written as literals, so that each right is checked', () => {
    const computed = readdirSync(LIBRARY).flatMap((name) =>
      Array.from(
        readFileSync(new URL(name, LIBRARY), 'utf8').matchAll(
          /\b(?:redis\.p?call|db|spreadCall)\((?!')[^,]*/g,
        ),
        ([call]) => `${name}: ${call}`,
      ),
    );
    // Only the function that runs literal commands of others.
    assert.deepEqual(computed, ['queue.lua: spreadCall(command', 'queue.lua: db(command']);
  });
});

describe('The user of Redis that the page names', () => {
  it('has all rights that a node needs', async (t) => {
    const server = await startRedis();
    t.after(() => server.stop());
    const [, words = ''] = /^ACL SETUSER quayside (.*)$/m.exec(readFileSync(PAGE, 'utf8')) ?? [];
    redisCli(server.port, 'ACL', 'SETUSER', 'quayside', ...words.replaceAll("'", '').split(' '));
    const open = () =>
      redisEngine({
        url: `redis://quayside:CHANGE-ME@127.0.0.1:${server.port}`,
        prefix: 'quayside',
        namespaces: [plain('plain')],
        clock: null,
      });
    const engine = open();
    await engine.start();
    await engine.storage.insert(QUEUE, newElements('a'));
    const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 10, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['a']);
    // The server has the functions now, by which `doctor` checks more.
    await open().examine?.();
    await engine.stop();
  });
});

describe('A user of Redis that may not access the keys', () => {
  it('fails the start with an error that names them, not each command', async (t) => {
    const server = await startRedis();
    t.after(() => server.stop());
    redisCli(server.port, 'ACL', 'SETUSER', 'some', 'on', '>pw', '~other:*', '&*', '+@all');
    const url = `redis://some:pw@127.0.0.1:${server.port}`;
    const engine = redisEngine({ url, namespaces: [plain('plain')], clock: null });
    await assert.rejects(engine.start(), /: NOPERM .* keys?\b.*; give the user the rights that the page/);
  });
});

describe('A user of Redis that may not run a command that the functions use', () => {
  let server: RedisServer;
  const cli = (...command: string[]): string => redisCli(server.port, ...command).trim();

  const engineFor = (user: string, log?: EventLog) =>
    redisEngine({
      url: `redis://${user}:pw@127.0.0.1:${server.port}`,
      namespaces: [plain('plain')],
      clock: null,
      ownClock: systemClock,
      ...(log !== undefined && { log }),
    });

  before(async () => {
    server = await startRedis();
  });
  after(() => server.stop());

  it('fails the start and the doctor with an error that names the commands, and nothing is stored', async () => {
    cli('ACL', 'SETUSER', 'some', 'on', '>pw', '~*', '&*', '+@all', '-zadd', '-hset');
    const engine = engineFor('some');
    const missing = /the user may not run HSET, ZADD, which .*; give the user \+hset \+zadd \(ACL SETUSER\)/;
    await assert.rejects(engine.start(), missing);
    assert.equal(cli('DBSIZE'), '0');
    await assert.rejects(engineFor('some').examine?.() ?? Promise.resolve(), missing);
  });

  it('fails the start, whichever command it is', async () => {
    const used = readLibrary().commands;
    assert.ok(used.includes('LPUSH') && used.includes('RPUSH'), used.join(' '));
    for (const command of used) {
      if (command === 'INFO' || command === 'TIME') continue; // The node sends these as well.
      cli('ACL', 'SETUSER', 'some', 'reset', 'on', '>pw', '~*', '&*', '+@all', `-${command}`);
      await assert.rejects(engineFor('some').start(), new RegExp(`the user may not run ${command}, which`));
    }
  });

  it('any more, since the right was revoked, is not used until it is granted again', async () => {
    cli('ACL', 'SETUSER', 'other', 'on', '>pw', '~*', '&*', '+@all');
    const downs: object[] = [];
    const { promise: down, resolve: isDown } = Promise.withResolvers<void>();
    const { promise: up, resolve: isUp } = Promise.withResolvers<void>();
    const engine = engineFor('other', {
      info: (_, text) => {
        if (/can be reached again/.test(text)) isUp();
      },
      warn: (fields) => {
        downs.push(fields);
        if (JSON.stringify(downs).includes('may not run ZADD')) isDown();
      },
    });
    await engine.start();
    cli('ACL', 'SETUSER', 'other', '-zadd');
    await down;
    await assert.rejects(engine.storage.insert(QUEUE, newElements('lost')), { code: 'storage-unavailable' });
    assert.equal(cli('DBSIZE'), '0');
    cli('ACL', 'SETUSER', 'other', '+zadd');
    await up;
    await engine.storage.insert(QUEUE, newElements('kept'));
    const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 10, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['kept']);
    await engine.stop();
  });
});
