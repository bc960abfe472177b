import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { slotOf } from '../../src/engines/redis/client/topology.ts';
import {
  decodeContent,
  elementId,
  encodeContent,
  ID_BYTES,
  writeId,
} from '../../src/engines/redis/encoding.ts';
import { Keys, parseQueueText, queueText } from '../../src/engines/redis/keys.ts';
import { readSettings, type Settings, tlsTo } from '../../src/engines/redis/settings.ts';
import { systemClock } from '../../src/util/clock.ts';

function read(url: string, settings: Record<string, unknown> = {}): Settings {
  const log = { info: () => {}, warn: () => {} };
  return readSettings({
    url,
    settings,
    dataDir: '',
    namespaces: [],
    clock: systemClock,
    dedupWindowMs: 1,
    log,
  });
}

describe('URLs and settings of the Redis engine', () => {
  it('accept one server, with and without port, user, password and database', () => {
    assert.deepEqual(read('redis://localhost').addresses, [{ host: 'localhost', port: 6379 }]);
    const { addresses, login } = read('redis://user:p%40ss%3Aword@[::1]:7000/3');
    assert.deepEqual(addresses, [{ host: '::1', port: 7000 }]);
    assert.deepEqual(login, { username: 'user', password: 'p@ss:word', db: 3, tls: null });
    assert.deepEqual(read('redis://:only%20password@h').login.password, 'only password');
    assert.deepEqual(read('redis://:with@sign@h').login.password, 'with@sign');
  });

  it('accept several servers, and leave open whether they are a cluster unless a setting says so', () => {
    const { addresses, cluster } = read('redis://a:1,b:2,c');
    assert.deepEqual(addresses, [
      { host: 'a', port: 1 },
      { host: 'b', port: 2 },
      { host: 'c', port: 6379 },
    ]);
    assert.equal(cluster, null);
    assert.equal(read('redis://a?cluster=true').cluster, true);
    assert.equal(read('redis://a', { cluster: false }).cluster, false);
  });

  it('accept Sentinels and the name of their master', () => {
    const { sentinel } = read('redis://:pw@a:26379,b:26379?sentinel=main&sentinelPassword=spw');
    assert.equal(sentinel?.master, 'main');
    assert.equal(sentinel?.login.password, 'spw');
  });

  it('enable TLS for rediss, with the host as the name that is checked', () => {
    const nameFor = (url: string, host: string, settings = {}): string | undefined => {
      const { tls } = read(url, settings).login;
      assert.ok(tls !== null);
      return tlsTo(host, tls).servername;
    };
    assert.equal(nameFor('rediss://example.org', 'example.org'), 'example.org');
    assert.equal(nameFor('rediss://10.0.0.1', '10.0.0.1'), undefined);
    assert.equal(nameFor('rediss://10.0.0.1', '10.0.0.1', { servername: 'inner' }), 'inner');
    const several = 'rediss://10.0.0.1,a.org,b.org';
    assert.equal(nameFor(several, 'b.org'), 'b.org');
    assert.equal(nameFor(several, 'announced.org'), 'announced.org');
    assert.equal(nameFor(several, '10.0.0.1'), undefined);
    assert.equal(nameFor(several, '10.0.0.9'), 'a.org', 'an address that was announced');
    assert.equal(nameFor(several, 'b.org', { servername: 'inner' }), 'inner');
  });

  it('prefer settings to the query', () => {
    assert.equal(read('redis://a?prefix=one&wait=1', { prefix: 'two' }).prefix, 'two');
    assert.equal(read('redis://a?wait=2').wait, 2);
    assert.equal(read('redis://a').wait, null);
    assert.equal(read('redis://a?prefix=one', { prefix: undefined, durability: undefined }).prefix, 'one');
    for (const variant of ['simple', 'stream', 'list']) {
      assert.equal(read('redis://a', { variant }).variant, variant);
      assert.equal(read(`redis://a?variant=${variant}`).variant, variant);
    }
  });

  it('are rejected if they are invalid, with an error that hides the password', () => {
    const wrong: [string, Record<string, unknown>, RegExp][] = [
      ['redis://:secret@a?colour=red', {}, /unknown setting "colour"/],
      ['redis://:secret@a?wait=some', {}, /"wait" must be a whole number from 0, not "some"/],
      ['redis://:secret@a/x', {}, /"db" must be a whole number from 0, not "x"/],
      ['redis://:secret@a:99999', {}, /"99999" is not a port/],
      ['redis://:sec%ret@a', {}, /write %25 for a percent sign/],
      ['redis://:secret@[a', {}, /is not a host and port/],
      ['redis://:se/cret@a', {}, /percent-encode special characters/],
      ['redis:a', {}, /write redis:\/\/user:password@host:port/],
      ['redis://:secret@a', { prefix: '{x}' }, /"prefix" contains a brace/],
      ['redis://:secret@a/1?cluster=true', {}, /"db" must be 0 on a cluster/],
      ['redis://:secret@a?cluster=true&sentinel=x', {}, /"sentinel" cannot be combined with cluster=true/],
      ['redis://:secret@a', { variant: 'tape' }, /"variant" must be/],
      ['redis://:secret@a', { givenTime: 5 }, /"givenTime" is for tests/],
      ['rediss://:secret@a', { ca: '/nowhere/ca.pem' }, /"ca" names a file that cannot be read/],
    ];
    for (const [url, settings, expected] of wrong) {
      assert.throws(
        () => read(url, settings),
        ({ message }: Error) => {
          assert.match(message, expected);
          return !/sec|ret@/.test(message.replaceAll('password', ''));
        },
        url,
      );
    }
  });
});

const names = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 12 });
const nasty = fc.oneof(
  names,
  fc.string({ unit: fc.constantFrom('{', '}', '/', ':', '%', 'a', '25', '7B'), minLength: 1 }),
);

describe('Keys of the Redis engine', () => {
  it('have the slots that the cluster specification computes', () => {
    assert.equal(slotOf('123456789'), 0x31c3);
    assert.equal(slotOf('{user1000}.following'), slotOf('{user1000}.followers'));
    assert.equal(slotOf('foo{}{bar}'), slotOf('foo{}{bar}'));
    assert.equal(slotOf('foo{{bar}}zap'), slotOf('{bar'));
    assert.equal(slotOf('foo{bar}{zap}'), slotOf('bar'));
  });

  it('share a slot if they are of one queue, and differ if they are of two, whatever the names', () => {
    const keys = new Keys('prefix');
    const queue = fc.record({ ns: nasty, name: nasty }, { noNullPrototype: true });
    fc.assert(
      fc.property(queue, queue, (a, b) => {
        const [first, second] = [keys.queue(a), keys.queue(b)];
        const all = [first.hash, first.order, first.stats, keys.list(a), keys.listDedup(a, '{x}')];
        assert.equal(new Set(all.map(slotOf)).size, 1);
        assert.equal(first.hash === second.hash, a.ns === b.ns && a.name === b.name);
        assert.ok(!all.includes(keys.names(b.ns)));
        assert.deepEqual(parseQueueText(queueText(a)), a);
      }),
    );
  });

  it('of two prefixes differ, even if one prefix extends the other', () => {
    const inside = fc.constantFrom(
      'queues',
      'definitions',
      'changed',
      'signal',
      'signal@1',
      'due',
      'tidy',
      'queues:N',
    );
    const name = fc.oneof(fc.constantFrom('due', 'tidy', 'queue', 'changed:queue', 'signal:a'), nasty);
    const db = fc.constantFrom(0, 1);
    fc.assert(
      fc.property(inside, name, name, db, db, (word, a, b, dbA, dbB) => {
        const outer = allOf(new Keys('app', dbA), a);
        const inner = allOf(new Keys(`app:${word}`, dbB), b);
        assert.deepEqual(
          inner.filter((key) => outer.includes(key)),
          [],
        );
      }),
      { numRuns: 1000 },
    );
  });
});

/**
 * Every kind of key and of channel for this name of a namespace, queue or topic. Channels are marked: they cannot
 * collide with keys.
 */
function allOf(keys: Keys, name: string): string[] {
  const queue = { ns: name, name };
  const kinds = ['queue', 'exchange'] as const;
  const { hash, order, stats } = keys.queue(queue);
  const channels = [keys.signalChannel(name), ...kinds.map((kind) => keys.definitionChannel(kind))];
  return [
    ...[hash, order, stats, keys.list(queue), keys.listDedup(queue, name)],
    ...[keys.names(name), keys.due, keys.tidy, ...kinds.map((kind) => keys.definitions(kind))],
    ...channels.map((channel) => `channel ${channel}`),
  ];
}

describe('Ids of elements in Redis', () => {
  it('consist of the tag and the number in base 32, and can be decoded', () => {
    const tags = fc.constantFrom('0123456789ab', 'ba9876543210');
    const numbers = fc.oneof(fc.nat(5_000), fc.integer({ min: 0, max: 2 ** 48 - 1 }));
    fc.assert(
      fc.property(tags, numbers, (tag, number) => {
        const id = elementId(tag, number);
        assert.equal(id, tag + number.toString(32).padStart(10, '0'));
        const written = Buffer.alloc(ID_BYTES);
        writeId(id, written, 0);
        assert.deepEqual([written.toString('latin1', 0, 12), written.readUIntBE(12, 6)], [tag, number]);
      }),
    );
  });
});

describe('Content in Redis', () => {
  it('is decoded as it was encoded', () => {
    const content = fc.record({
      body: fc.uint8Array({ maxLength: 50 }),
      contentType: fc.option(fc.string({ maxLength: 255 })),
      contentEncoding: fc.option(fc.string({ maxLength: 20 })),
      headers: fc
        .array(fc.string(), { maxLength: 6 })
        .map((all) => all.slice(0, all.length - (all.length % 2))),
    });
    fc.assert(
      fc.property(content, (given) => {
        const value = Buffer.concat([Buffer.from('before'), encodeContent(given)]);
        const { body, headers, ...rest } = decodeContent(value, 6);
        assert.deepEqual([...headers], given.headers);
        assert.deepEqual(rest, { contentType: given.contentType, contentEncoding: given.contentEncoding });
        assert.ok(Buffer.from(body).equals(given.body));
      }),
    );
  });
});
