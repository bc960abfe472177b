import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { MAIN_ENGINES } from '../engines.ts';
import { plain } from '../support/broker.ts';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

const NAMESPACES = [
  plain('N', {
    queues: [
      { pattern: 'mails-*', options: { leaseMs: 30_000, ttlMs: 60_000 } },
      { pattern: 'small', options: { maxElements: 2 } },
    ],
  }),
  plain('jobs', { deadLetter: { maxTries: 3, queue: '__deadletter__' } }),
  plain('events', { groups: ['default'] }),
];

interface Shown {
  readonly stored: Record<string, unknown>;
  readonly pattern: string | null;
  readonly effective: Record<string, unknown>;
  readonly sources: Record<string, string>;
}

const shown = async (client: QueueClient, ns: string, queue: string): Promise<Shown> =>
  jsonOf<Shown>(await client.options(ns, queue));

function problemOf(answer: Answer): [number, string, string | undefined] {
  const { code, parameter } = jsonOf<{ code: string; parameter?: string }>(answer);
  return [answer.status, code, parameter];
}

const NONE = {
  lease: 120,
  deadLetter: null,
  retryDelay: null,
  retention: null,
  ttl: null,
  maxElements: null,
};

/** Bodies that are rejected, with the path of the wrong member. */
const WRONG: readonly (readonly [body: unknown, parameter: string])[] = [
  [[], ''],
  [null, ''],
  [{ leese: 1 }, 'leese'],
  [{ lease: 0 }, 'lease'],
  [{ lease: null }, 'lease'],
  [{ lease: '5' }, 'lease'],
  [{ ttl: -1 }, 'ttl'],
  [{ ttl: 315_360_001 }, 'ttl'],
  [{ retention: 'x' }, 'retention'],
  [{ maxElements: 0 }, 'maxElements'],
  [{ maxElements: 1.5 }, 'maxElements'],
  [{ maxElements: 1e300 }, 'maxElements'],
  [{ deadLetter: 3 }, 'deadLetter'],
  [{ deadLetter: {} }, 'deadLetter.maxTries'],
  [{ deadLetter: { maxTries: 1_000_001 } }, 'deadLetter.maxTries'],
  [{ deadLetter: { maxTries: 1, queue: 5 } }, 'deadLetter.queue'],
  [{ deadLetter: { maxTries: 1, quee: 'a' } }, 'deadLetter.quee'],
  [{ retryDelay: {} }, 'retryDelay.first'],
  [{ retryDelay: { first: 1, factor: 0.5 } }, 'retryDelay.factor'],
  [{ retryDelay: { first: 1, factor: 101 } }, 'retryDelay.factor'],
  [{ retryDelay: { first: 2, max: 1 } }, 'retryDelay.max'],
  [{ retryDelay: { first: 1, jitter: 1.1 } }, 'retryDelay.jitter'],
  [{ retryDelay: { first: 1, jiter: 1 } }, 'retryDelay.jiter'],
];

describe('Options of a queue', () => {
  const harness = sharedHarness({ namespaces: NAMESPACES });

  it('default to those of a pattern or the namespace, and name the source of each', async () => {
    const client = harness().client();
    const plainOnes = await shown(client, 'N', 'plain');
    assert.deepEqual(plainOnes.effective, NONE);
    assert.deepEqual([plainOnes.stored, plainOnes.pattern], [{}, null]);
    assert.deepEqual(new Set(Object.values(plainOnes.sources)), new Set(['namespace']));
    const ofPattern = await shown(client, 'N', 'mails-1');
    assert.deepEqual(ofPattern.effective, { ...NONE, lease: 30, ttl: 60 });
    assert.deepEqual([ofPattern.pattern, ofPattern.sources.ttl], ['mails-*', 'pattern']);
    const names = jsonOf<object>(await client.queues('N'));
    assert.ok(!('plain' in names), 'reading creates no queue');
  });

  it('of the dead-letter queue include no dead letters: its own elements stay', async () => {
    const client = harness().client();
    const deadLetter = { maxTries: 3, queue: '__deadletter__' };
    assert.deepEqual((await shown(client, 'jobs', 'any')).effective, { ...NONE, deadLetter });
    assert.deepEqual((await shown(client, 'jobs', '__deadletter__')).effective, NONE);
  });

  it('that are stored take precedence over those of the pattern, null included, and are replaced as a whole', async () => {
    const client = harness().client();
    const first = jsonOf<Shown>(await client.setOptions('N', 'mails-2', { lease: 10, ttl: null }));
    assert.deepEqual(first, await shown(client, 'N', 'mails-2'));
    assert.deepEqual(first.stored, { lease: 10, ttl: null });
    assert.deepEqual(first.effective, { ...NONE, lease: 10 });
    assert.deepEqual([first.sources.lease, first.sources.ttl], ['stored', 'stored']);
    const retryDelay = { first: 0.5, factor: 2, max: 3600, jitter: 0 };
    await client.setOptions('N', 'mails-2', { retryDelay: { first: 0.5 } });
    const second = await shown(client, 'N', 'mails-2');
    assert.deepEqual(second.effective, { ...NONE, lease: 30, ttl: 60, retryDelay });
    assert.equal((await client.removeOptions('N', 'mails-2')).status, 204);
    assert.equal((await client.removeOptions('N', 'mails-2')).status, 204, 'also if nothing is stored');
    assert.deepEqual((await shown(client, 'N', 'mails-2')).stored, {});
  });

  it('are changed with If-Match only if their version matches', async () => {
    const client = harness().client();
    const path = '/q/N/seen/options';
    const change = (method: string, version: string, body?: object): Promise<Answer> =>
      client.request(method, path, {
        headers: { 'if-match': version },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
    const none = await client.options('N', 'seen');
    const seen = headerOf(none, 'etag') ?? '';
    assert.equal(seen, `"${jsonOf<{ version: string }>(none).version}"`);
    const stored = await change('PUT', seen, { ttl: 60 });
    assert.equal(stored.status, 200);
    for (const late of [await change('PUT', seen, { ttl: 30 }), await change('DELETE', seen)]) {
      assert.equal(late.status, 412);
      assert.equal(jsonOf<{ code: string }>(late).code, 'precondition-failed');
    }
    assert.deepEqual((await shown(client, 'N', 'seen')).stored, { ttl: 60 });
    const together = await Promise.all(
      [10, 20, 30].map((ttl) => change('PUT', headerOf(stored, 'etag') ?? '', { ttl })),
    );
    assert.deepEqual(together.map(({ status }) => status).sort(), [200, 412, 412]);
    assert.equal((await change('DELETE', '*')).status, 204);
    assert.equal(headerOf(await client.options('N', 'seen'), 'etag'), seen);
  });

  it('that are stored during a conditional delete of none are not deleted by it', async () => {
    const client = harness().client();
    const path = '/q/N/raced/options';
    await client.insert('N', 'raced', 'x');
    const seen = headerOf(await client.options('N', 'raced'), 'etag') ?? '';
    const headers = { 'if-match': seen };
    const [deleted, stored] = await Promise.all([
      client.request('DELETE', path, { headers }),
      client.request('PUT', path, { headers, body: JSON.stringify({ ttl: 60 }) }),
    ]);
    assert.ok([204, 412].includes(deleted.status));
    assert.equal(stored.status, 200);
    assert.deepEqual((await shown(client, 'N', 'raced')).stored, { ttl: 60 });
  });

  for (const [body, parameter] of WRONG) {
    it(`are not stored if they are wrong: ${JSON.stringify(body)}`, async () => {
      const client = harness().client();
      const answer = await client.setOptions('N', 'wrong', body);
      assert.deepEqual(problemOf(answer), [400, 'invalid-parameter', parameter]);
      assert.deepEqual((await shown(client, 'N', 'wrong')).stored, {});
    });
  }

  it('are not stored if the queue would be its own dead-letter queue', async () => {
    const client = harness().client();
    for (const [queue, deadLetter] of [
      ['failed', { maxTries: 1, queue: 'failed' }],
      ['__deadletter__', { maxTries: 1 }],
    ] as const) {
      const answer = await client.setOptions('N', queue, { deadLetter });
      assert.deepEqual(problemOf(answer), [400, 'invalid-parameter', 'deadLetter.queue']);
      assert.match(answer.body.toString(), /the queue itself\. Name another queue/);
      assert.deepEqual((await shown(client, 'N', queue)).stored, {});
    }
    assert.equal((await client.setOptions('N', '__deadletter__', { deadLetter: null })).status, 200);
  });

  it('are not stored with a name that no queue can have', async () => {
    const client = harness().client();
    for (const queue of ['', 'a\u0000', 'x'.repeat(256)]) {
      const answer = await client.setOptions('N', 'wrong', { deadLetter: { maxTries: 1, queue } });
      assert.deepEqual(problemOf(answer), [400, 'invalid-name', 'deadLetter.queue']);
    }
  });

  it('are rejected if the body is not JSON, or too large', async () => {
    const client = harness().client();
    const put = (body: string | Buffer): Promise<Answer> =>
      client.request('PUT', '/q/N/wrong/options', { body });
    assert.equal(problemOf(await put('{'))[1], 'invalid-body');
    assert.equal(problemOf(await put(Buffer.from([0x22, 0xff, 0x22])))[1], 'invalid-body');
    assert.equal(problemOf(await put(' '.repeat(16 * 1024 + 1)))[1], 'body-too-large');
  });

  it('are rejected if the namespace does not support them', async () => {
    const client = harness().client();
    const answer = await client.setOptions('N', 'wrong', { retention: 5 });
    assert.deepEqual(problemOf(answer).slice(0, 2), [405, 'not-supported']);
    assert.equal((await client.setOptions('events', 'kept', { retention: 5 })).status, 200);
  });

  it('are logged with the user who changed them', async () => {
    const client = harness().client();
    await client.setOptions('N', 'audited', { lease: 1 });
    const line = harness().log.findLast(({ fields }) => fields.action === 'setQueueOptions');
    assert.deepEqual([line?.fields.user, line?.fields.queue], ['test1', 'audited']);
  });

  it('limit a queue: inserts beyond maxElements are answered with 507, while consuming continues', async () => {
    const client = harness().client();
    for (const body of ['a', 'b']) assert.equal((await client.insert('N', 'small', body)).status, 200);
    assert.deepEqual(problemOf(await client.insert('N', 'small', 'c')).slice(0, 2), [507, 'queue-full']);
    assert.equal((await client.get('N', 'small', { to: 0 })).body.toString(), 'a');
    assert.equal((await client.insert('N', 'small', 'c')).status, 200);
    assert.equal((await client.insert('N', 'small', 'd')).status, 507);
  });
});

describe('A full namespace', () => {
  const harness = sharedHarness({ namespaces: [plain('N')], maxElements: 2 });

  it('accepts an insert right after an element was removed, by whatever request, and rejects the next one', async () => {
    const client = harness().client();
    const commit = async (): Promise<Answer> =>
      client.commit('N', 'q', headerOf(await client.reserve('N', 'q', { to: 0 }), 'x-ks-id'));
    const remove = async (): Promise<Answer> => {
      const id = headerOf(await client.reserve('N', 'q', { to: 0 }), 'x-ks-id');
      await client.rollback('N', 'q', id);
      return client.remove('N', 'q', id);
    };
    const removals: Record<string, () => Promise<Answer>> = {
      pop: () => client.get('N', 'q', { to: 0 }),
      commit,
      remove,
      purge: () => client.request('DELETE', '/q/N/q/elements'),
      delete: () => client.request('DELETE', '/q/N/q', { query: { force: 1 } }),
    };
    for (const [name, removal] of Object.entries(removals)) {
      while ((await client.insert('N', 'q', 'x')).status === 200);
      assert.ok((await removal()).status < 300, name);
      assert.equal((await client.insert('N', 'q', 'x')).status, 200, name);
      assert.equal((await harness().opened.engine.storage.usage('N')).elements <= 2, true);
    }
    await client.insert('N', 'q', 'x');
    assert.deepEqual(problemOf(await client.insert('N', 'q', 'x')).slice(0, 2), [507, 'namespace-full']);
  });
});

function keyed(key: string): { readonly headers: Readonly<Record<string, string>> } {
  return { headers: { 'idempotency-key': key } };
}

for (const engine of MAIN_ENGINES) {
  describe(`Options of a queue: ${engine.name}`, () => {
    const harness = sharedHarness({ engine, namespaces: NAMESPACES });

    it('apply to elements that are already stored, and to reserves without a lease', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('jobs', queue, 'a');
      const options = {
        lease: 10,
        retryDelay: { first: 20 },
        deadLetter: { maxTries: 2, queue: `dead ${queue}` },
      };
      await client.setOptions('jobs', queue, options);
      const first = await client.reserve('jobs', queue, { to: 0 });
      const until = Date.parse(headerOf(first, 'x-ks-lease-until'));
      assert.equal(until - harness().opened.now(), 10_000);
      await client.rollback('jobs', queue, headerOf(first, 'x-ks-id'));
      assert.equal((await client.reserve('jobs', queue, { to: 0 })).status, 504);
      await harness().passTime(20_000);
      const second = await client.reserve('jobs', queue, { to: 0 });
      await client.rollback('jobs', queue, headerOf(second, 'x-ks-id'), { delay: 0 });
      assert.equal((await client.get('jobs', `dead ${queue}`, { to: 0 })).body.toString(), 'a');
    });

    it('do not override the delay of a rollback, and have no effect once they are removed', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.setOptions('jobs', queue, { retryDelay: { first: 60 }, deadLetter: null });
      await client.insert('jobs', queue, 'a');
      const first = await client.reserve('jobs', queue, { to: 0 });
      await client.rollback('jobs', queue, headerOf(first, 'x-ks-id'), { delay: 0 });
      const second = await client.reserve('jobs', queue, { to: 0 });
      assert.equal(second.status, 200);
      await client.removeOptions('jobs', queue);
      await client.rollback('jobs', queue, headerOf(second, 'x-ks-id'));
      assert.equal((await client.reserve('jobs', queue, { to: 0 })).status, 200);
    });

    it('wake a blocked reserve when the retry delay after an expired lease ends', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.setOptions('N', queue, { retryDelay: { first: 5 } });
      await client.insert('N', queue, 'a');
      await client.reserve('N', queue, { to: 0, lease: 1000 });
      const blocked = client.reserve('N', queue);
      await harness().waiting(1);
      await harness().passTime(1000);
      await harness().passTime(5000);
      assert.equal(headerOf(await blocked, 'x-ks-tries'), '1');
    });

    it('set the time to live of elements whose insert gave none', async () => {
      const client = harness().client();
      const queue = `mails-${harness().queue()}`;
      await client.insert('N', queue, 'usual');
      await client.insert('N', queue, 'long', { query: { ttl: '120' } });
      await harness().passTime(61_000);
      assert.equal((await client.get('N', queue, { to: 0 })).body.toString(), 'long');
      assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    });

    it('limit a queue, but a repeated insert is answered with its first id even if the queue is full', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.setOptions('N', queue, { maxElements: 3 });
      const insert = (body: string) => client.insert('N', queue, body, keyed('k'));
      const lines = (...bodies: string[]) => bodies.map((text) => ({ text, key: text }));
      const first = await insert('a');
      const two = await client.insertLines('N', queue, lines('b', 'c'));
      assert.equal((await client.insert('N', queue, 'd', keyed('other'))).status, 507);
      const again = await insert('a');
      assert.deepEqual([again.status, again.body.toString()], [200, first.body.toString()]);
      assert.equal(headerOf(again, 'x-ks-repeated'), 'true');
      assert.equal((await insert('z')).status, 422);
      const { ids } = jsonOf<{ ids: string[] }>(two);
      const twoAgain = await client.insertLines('N', queue, lines('b', 'c'));
      assert.deepEqual(jsonOf(twoAgain), { ids, repeated: [0, 1] });
      assert.equal((await client.insertLines('N', queue, lines('b', 'd'))).status, 507);
      assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 3);
    });

    it('limit a queue, but a repeated batch with a request key is answered with its first ids even if the queue is full', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.setOptions('N', queue, { maxElements: 2 });
      const insert = (key: string) =>
        client.insertLines('N', queue, [{ text: 'a' }, { text: 'b' }], keyed(key));
      const { ids } = jsonOf<{ ids: string[] }>(await insert('k'));
      assert.equal((await insert('other')).status, 507);
      assert.deepEqual(jsonOf(await insert('k')), { ids, repeated: [0, 1] });
    });

    it('limit a stream by the deliveries of all its groups', async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.setOptions('events', queue, { maxElements: 3 });
      assert.equal((await client.insert('events', queue, 'a', { groups: 'g1,g2' })).status, 200);
      assert.equal((await client.insert('events', queue, 'b', { groups: 'g1,g2' })).status, 507);
      assert.equal((await client.insert('events', queue, 'b', { groups: 'g1' })).status, 200);
    });
  });
}
