import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import { MAIN_ENGINES_AND_CLUSTER, type TestEngine } from '../engines.ts';
import { sharedSandbox } from '../sandbox/elements.ts';
import { plain } from '../support/broker.ts';
import { engineWith } from '../support/engine-with.ts';
import { until } from '../support/until.ts';
import { OPERATOR, OperationNode } from './node.ts';

/** How much time passes per step while an operation waits for its rate. */
const RATE_STEP_MS = 100;
const HOUR_MS = 3_600_000;

for (const engine of MAIN_ENGINES_AND_CLUSTER) {
  describe(`Bulk operations on ${engine.name}`, () => {
    let opened: TestEngine;
    let node: OperationNode;
    const sandbox = sharedSandbox();
    let queues = 0;
    const queue = (): string => `q${++queues}`;
    const namespaces = [
      plain('N'),
      plain('other'),
      plain('jobs', { deadLetter: { maxTries: 2, queue: 'dead' } }),
      plain('stream', { groups: ['g1', 'g2'] }),
      plain('strict', { groups: ['g1', 'g2'], deadLetter: { maxTries: 1, queue: 'dead' } }),
      plain('narrow', { deadLetter: { maxTries: 1, queue: 'dead' } }),
      plain('failing', { deadLetter: { maxTries: 1, queue: 'dead' } }),
      plain('few', { groups: ['g1'], maxGroups: 1, deadLetter: { maxTries: 1, queue: 'dead' } }),
    ];

    before(async () => {
      opened = await engine.open({ namespaces });
      const all = namespaces.map((policy) => ({
        policy,
        engine: opened.engine,
        ...(policy.name === 'narrow' && { maxQueues: 3 }),
      }));
      node = await new OperationNode(all, opened.clock, sandbox).start();
    });
    after(async () => {
      await node.stop();
      await sandbox.stop();
      await opened.close();
    });

    it('count counts the matching elements in all states, and changes nothing', async () => {
      const q = queue();
      await node.insertMany('N', q, 5);
      await node.insert('N', q, { delayMs: HOUR_MS });
      await node.reserve('N', q, 2);
      const all = await node.run({ action: 'count', source: { ns: 'N', queue: q } }, opened);
      assert.deepEqual([all.state, all.seen, all.matched, all.changed, all.estimate], ['done', 6, 6, 0, 6]);
      const where = { state: 'reserved' };
      const reserved = await node.run({ action: 'count', source: { ns: 'N', queue: q }, where }, opened);
      assert.equal(reserved.matched, 2);
      assert.equal((await node.elements('N', q)).length, 6);
    });

    it('an operation fails at its next page if its user is removed or loses a right that it needs', async () => {
      const may = (right: string, ns: string): boolean => right !== 'write' || ns !== 'other';
      const losses = [
        [null, 'User "leaver", who started this operation, is no longer a user.'],
        [{ may }, 'User "leaver", who started this operation, has lost a right that the operation needs.'],
      ] as const;
      for (const [rights, error] of losses) {
        const [q, to] = [queue(), queue()];
        await node.insertMany('N', q, 300);
        const request = {
          action: 'move',
          source: { ns: 'N', queue: q },
          to: { ns: 'other', queue: to },
          rate: 100,
        };
        const id = await node.create(request, { ...OPERATOR, name: 'leaver' });
        await until(async () => (await node.get(id)).changed !== 0);
        node.users.set('leaver', rights);
        const record = await node.ended(id, opened, RATE_STEP_MS);
        node.users.delete('leaver');
        assert.deepEqual([record.state, record.error, record.changed], ['failed', error, 100]);
        assert.equal((await node.elements('N', q)).length, 200);
        assert.equal((await node.elements('other', to)).length, 100);
      }
    });

    it('an operation completes if its user loses a right that it does not need', async () => {
      const q = queue();
      await node.insertMany('N', q, 300);
      const request = { action: 'delete', source: { ns: 'N', queue: q }, rate: 100 };
      const id = await node.create(request, { ...OPERATOR, name: 'leaver' });
      node.users.set('leaver', { may: (right) => right === 'manage' });
      const record = await node.ended(id, opened, RATE_STEP_MS);
      node.users.delete('leaver');
      assert.deepEqual([record.state, record.error, record.changed], ['done', null, 300]);
    });

    it('delete removes ready and scheduled elements over many pages, and leaves reserved ones', async () => {
      const q = queue();
      await node.insertMany('N', q, 700);
      await node.insert('N', q, { delayMs: HOUR_MS });
      const held = await node.reserve('N', q, 3);
      const done = await node.run({ action: 'delete', source: { ns: 'N', queue: q } }, opened);
      assert.deepEqual([done.state, done.matched, done.changed, done.failed], ['done', 698, 698, 0]);
      const left = await node.elements('N', q);
      assert.deepEqual(left.map(({ id }) => id).sort(), held.map(({ id }) => id).sort());
    });

    it('move keeps bodies, tries, maturity and order, and wakes a consumer that waits for the target', async () => {
      const [from, to] = [queue(), queue()];
      await node.insertMany('N', from, 300);
      await node.insert('N', from, { body: 'late', delayMs: HOUR_MS, tries: 3 });
      const [scheduled] = await node.elements('N', from, ['scheduled']);
      const waiting = new Promise<string>((resolve, reject) => {
        const request = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: null };
        const sink = {
          deliver: ({ body }: { body: Uint8Array }) => resolve(Buffer.from(body).toString()),
          end: reject,
        };
        node.broker.namespace('other').queue(to).get(request, sink);
      });
      const request = { action: 'move', source: { ns: 'N', queue: from }, to: { ns: 'other', queue: to } };
      const done = await node.run(request, opened);
      assert.deepEqual([done.state, done.changed, done.error], ['done', 301, null]);
      const first = await waiting;
      const rest = await node.bodies('other', to, ['ready']);
      assert.deepEqual(
        [first, ...rest],
        Array.from({ length: 300 }, (_, i) => String(i)),
      );
      const [late, ...others] = await node.elements('other', to, ['scheduled']);
      assert.deepEqual([late?.tries, late?.matureAt, others.length], [3, scheduled?.matureAt, 0]);
      assert.deepEqual(await node.bodies('N', from), []);
      const status = await node.broker.namespace('other').queue(to).status(null);
      assert.equal(status.stats.put, 301);
    });

    it('copy stores copies and leaves the originals', async () => {
      const [from, to] = [queue(), queue()];
      const expiresAt = opened.now() + 10 * HOUR_MS;
      await node.insertMany('N', from, 20);
      await node.insert('N', from, {
        body: 'late',
        delayMs: HOUR_MS,
        tries: 3,
        headers: ['a', 'b'],
        expiresAt,
      });
      const request = { action: 'copy', source: { ns: 'N', queue: from }, to: { ns: 'other', queue: to } };
      const done = await node.run(request, opened);
      assert.deepEqual([done.state, done.changed], ['done', 21]);
      assert.equal((await node.elements('N', from)).length, 21);
      const copies = await node.elements('other', to);
      assert.equal(copies.length, 21);
      const late = copies.find(({ state }) => state === 'scheduled');
      assert.deepEqual(
        [late?.tries, [...(late?.headers ?? [])], late?.expiresAt],
        [3, ['a', 'b'], expiresAt],
      );
    });

    it('copy reports how many copies it stored if it fails in the middle of a page', async () => {
      const [from, to] = [queue(), queue()];
      const body = 'x'.repeat(102_400);
      for (let i = 0; i < 6; i += 1) await node.insert('N', from, ...Array<string>(20).fill(body));
      await node.broker.namespace('other').queue(to).storeOptions({ maxElements: 100 });
      const request = { action: 'copy', source: { ns: 'N', queue: from }, to: { ns: 'other', queue: to } };
      const { state, error, matched, changed } = await node.run(request, opened);
      assert.equal(state, 'failed');
      assert.match(error ?? '', /is full/);
      const copies = (await node.elements('other', to)).length;
      assert.ok(copies > 0, `${copies} copies`);
      assert.deepEqual([changed, matched], [copies, 120]);
    });

    it('redrive returns dead letters to their queues, with tries 0 and without dead-letter headers', async () => {
      const [a, b] = [queue(), queue()];
      for (const q of [a, b]) {
        await node.insert('jobs', q, { body: q, headers: ['own', '1'] });
        for (let tries = 0; tries < 2; tries += 1) {
          const [held] = await node.reserve('jobs', q, 1);
          const action = { kind: 'release', delayMs: 0, countTry: true, reason: 'broken' } as const;
          const item = node.broker
            .namespace('jobs')
            .queue(q)
            .item({ id: held?.id ?? '', group: null, token: held?.lease?.token ?? null }, action);
          await node.broker.namespace('jobs').queue(q).settleAll([item]);
        }
      }
      const tried = queue();
      await node.insert('jobs', 'dead', { tries: 1, headers: ['x-dl-from-queue', tried] }, 'no dead letter');
      const done = await node.run({ action: 'redrive', source: { ns: 'jobs', queue: 'dead' } }, opened);
      assert.deepEqual([done.state, done.matched, done.changed, done.failed], ['done', 4, 3, 1]);
      assert.match(done.error ?? '', /no header x-dl-from-queue/);
      for (const q of [a, b]) {
        const [back] = await node.elements('jobs', q);
        assert.equal(Buffer.from(back?.body ?? []).toString(), q);
        assert.deepEqual([back?.tries, back?.headers[0], back?.headers[2]], [0, 'own', 'x-ks-origin-id']);
        assert.equal(back?.headers.length, 4);
      }
      assert.deepEqual(
        (await node.elements('jobs', tried)).map(({ tries }) => tries),
        [0],
      );
      assert.deepEqual(await node.bodies('jobs', 'dead'), ['no dead letter']);
    });

    it('an element that fails and is redriven many times keeps its headers and its size', async () => {
      const q = queue();
      await node.insert('failing', q, { headers: ['own', '1'] });
      /** Returns the headers of the dead letter, without the moment, and the bytes stored. */
      async function fail(): Promise<[headers: string[], bytes: number]> {
        const reason = 'broken '.repeat(100);
        const [held] = await node.reserve('failing', q, 1);
        const failing = node.broker.namespace('failing').queue(q);
        const ref = { id: held?.id ?? '', group: null, token: held?.lease?.token ?? null };
        await failing.settleAll([failing.item(ref, { kind: 'release', delayMs: 0, countTry: true, reason })]);
        const [dead] = await node.elements('failing', 'dead');
        const headers = [...(dead?.headers ?? [])];
        const { bytes } = await opened.engine.storage.usage('failing');
        const done = await node.run({ action: 'redrive', source: { ns: 'failing', queue: 'dead' } }, opened);
        assert.deepEqual([done.state, done.changed, done.failed], ['done', 1, 0]);
        // The records of a hundred operations would take as much space in SQLite's file.
        await opened.engine.definitions.delete('operation', done.id, 'any');
        return [headers.toSpliced(headers.indexOf('x-dl-at') + 1, 1), bytes ?? 0];
      }
      await fail();
      const [headers, bytes] = await fail();
      for (let i = 2; i < 99; i += 1) await fail();
      const [later, grown] = await fail();
      assert.deepEqual(later, headers);
      assert.ok(grown < bytes + 65_536, `${bytes} bytes became ${grown}`);
      await node.run({ action: 'delete', source: { ns: 'failing', queue: q } }, opened);
    });

    it('redrive returns a dead letter of a stream to the group for which it failed', async () => {
      const from = queue();
      await node.insert('strict', from, { body: 'shared', groups: ['x', 'y'] });
      const source = node.broker.namespace('strict').queue(from);
      const [failed] = (
        await node.broker
          .namespace('strict')
          .storage.take(source.key, { group: 'x', count: 1, leaseMs: HOUR_MS })
      ).deliveries;
      const action = { kind: 'release', delayMs: 0, countTry: true } as const;
      const id = failed?.id ?? '';
      await source.settleAll([source.item({ id, group: 'x', token: failed?.lease?.token ?? null }, action)]);
      assert.deepEqual(await node.bodies('strict', from, ['ready'], 'x'), []);
      const done = await node.run({ action: 'redrive', source: { ns: 'strict', queue: 'dead' } }, opened);
      assert.deepEqual([done.state, done.changed], ['done', 1]);
      const counts = await Promise.all(
        ['x', 'y', 'g1', 'g2'].map(
          async (group) => (await node.elements('strict', from, ['ready'], group)).length,
        ),
      );
      assert.deepEqual(counts, [1, 1, 0, 0]);
      const [back] = await node.elements('strict', from, ['ready'], 'x');
      assert.deepEqual(back?.headers, ['x-ks-origin-id', id]);
    });

    it('redrive leaves the dead letters of groups that do not fit, and returns the others', async () => {
      const from = queue();
      await node.insert('few', from, { groups: ['x'] });
      for (const group of ['y', 'x', 'z', 'g1', 'x']) {
        const headers = ['x-dl-from-queue', from, 'x-dl-group', group];
        await node.insert('few', 'dead', { body: group, headers, groups: ['g1'] });
      }
      const done = await node.run({ action: 'redrive', source: { ns: 'few', queue: 'dead' } }, opened);
      assert.deepEqual([done.state, done.matched, done.changed, done.failed], ['done', 5, 3, 2]);
      assert.match(done.error ?? '', /raise maxGroups/);
      assert.deepEqual(await node.bodies('few', 'dead', ['ready'], 'g1'), ['y', 'z']);
      assert.deepEqual(await node.bodies('few', from, ['ready'], 'g1'), ['g1']);
      assert.equal((await node.elements('few', from, ['ready'], 'x')).length, 3);
    });

    it('redrive creates no more queues than maxQueues, and returns the dead letters of those that fit', async () => {
      const [a, b, c] = [queue(), queue(), queue()];
      for (const from of [a, b, c, a, b]) {
        await node.insert('narrow', 'dead', { body: from, headers: ['x-dl-from-queue', from] });
      }
      const done = await node.run({ action: 'redrive', source: { ns: 'narrow', queue: 'dead' } }, opened);
      assert.deepEqual([done.state, done.matched, done.changed, done.failed], ['done', 5, 4, 1]);
      assert.match(done.error ?? '', /raise maxQueues/);
      assert.deepEqual(await node.broker.namespace('narrow').queueNames(), [a, b, 'dead'].sort());
      assert.deepEqual(await node.bodies('narrow', 'dead'), [c]);
    });

    it('release ends the leases of the chosen elements only, and counts no try', async () => {
      const q = queue();
      await node.insertMany('N', q, 6);
      const held = await node.reserve('N', q, 4);
      const where = { ids: held.slice(0, 3).map(({ id }) => id) };
      const done = await node.run({ action: 'release', source: { ns: 'N', queue: q }, where }, opened);
      assert.deepEqual([done.state, done.changed], ['done', 3]);
      assert.deepEqual(await node.bodies('N', q, ['ready']), ['0', '1', '2', '4', '5']);
      const [first] = await node.elements('N', q);
      assert.equal(first?.tries, 0);
      const all = await node.run({ action: 'release', source: { ns: 'N', queue: q } }, opened);
      assert.equal(all.changed, 1);
    });

    it('release leaves alone elements that a consumer reserves as soon as they are released', async () => {
      const q = queue();
      await node.insertMany('N', q, 3);
      await node.reserve('N', q, 3, HOUR_MS);
      const id = await node.create({ action: 'release', source: { ns: 'N', queue: q }, rate: 1 });
      await until(async () => {
        if ((await node.get(id)).changed !== 0) return true;
        await opened.passTime(1);
        return false;
      });
      const [held] = await node.reserve('N', q, 1, HOUR_MS);
      assert.equal((await node.ended(id, opened, RATE_STEP_MS)).changed, 3);
      assert.deepEqual(
        (await node.elements('N', q, ['reserved'])).map(({ id }) => id),
        [held?.id],
      );
    });

    it('delay sets the same maturity for all elements, and 0 makes scheduled elements ready', async () => {
      const q = queue();
      await node.insertMany('N', q, 40);
      await node.insert('N', q, { delayMs: 2 * HOUR_MS });
      const source = { ns: 'N', queue: q };
      const later = await node.run({ action: 'delay', source, delay: HOUR_MS }, opened);
      assert.deepEqual([later.state, later.changed], ['done', 41]);
      const moments = (await node.elements('N', q, ['scheduled'])).map(({ matureAt }) => matureAt);
      assert.equal(moments.length, 41);
      assert.equal(new Set(moments).size, 1);
      const now = await node.run({ action: 'delay', source, delay: 0 }, opened);
      assert.equal(now.changed, 41);
      // The node sets a maturity by its estimate of the engine's clock, which may be ahead of that clock.
      await opened.passTime(60_000);
      assert.equal((await node.elements('N', q, ['ready'])).length, 41);
    });

    it('set changes headers and tries of each element once, although its results are in the same queue', async () => {
      const q = queue();
      await node.insert(
        'N',
        q,
        ...Array.from({ length: 300 }, (_, i) => ({ body: String(i), headers: ['gone', 'x'] })),
      );
      const set = { headers: { Colour: 'red', GONE: null }, tries: 5 };
      const done = await node.run({ action: 'set', source: { ns: 'N', queue: q }, set }, opened);
      assert.deepEqual([done.state, done.changed, done.failed], ['done', 300, 0]);
      const found = await node.elements('N', q);
      assert.deepEqual(
        found.map(({ body }) => Number(Buffer.from(body))),
        [...Array(300).keys()],
      );
      assert.ok(found.every(({ headers, tries }) => headers.join() === 'colour,red' && tries === 5));
    });

    it('set works on a full queue, and a move of one group does not count towards the maxElements of others', async () => {
      const [full, to] = [queue(), queue()];
      await node.insertMany('N', full, 3);
      await node.broker.namespace('N').queue(full).storeOptions({ maxElements: 3 });
      const set = { action: 'set', source: { ns: 'N', queue: full }, set: { tries: 1 } };
      const changed = await node.run(set, opened);
      assert.deepEqual([changed.state, changed.changed, changed.error], ['done', 3, null]);
      const groups = ['g1', 'g2'];
      for (let i = 0; i < 3; i += 1) await node.insert('stream', full, { groups });
      await node.broker.namespace('stream').queue(to).storeOptions({ maxElements: 3 });
      const ends = { source: { ns: 'stream', queue: full }, to: { ns: 'stream', queue: to } };
      const moved = await node.run({ action: 'move', ...ends, where: { group: 'g1' } }, opened);
      assert.deepEqual([moved.state, moved.changed, moved.error], ['done', 3, null]);
    });

    it('a selector, an age or ids choose elements, and a limit bounds their number', async () => {
      const q = queue();
      const source = { ns: 'N', queue: q };
      const headers = (i: number): string[] => ['n', String(i)];
      const ids = await node.insert(
        'N',
        q,
        ...Array.from({ length: 30 }, (_, i) => ({ headers: headers(i) })),
      );
      const even = { selector: 'env => env.msg.hdrs.n % 2 === 0' };
      assert.equal((await node.run({ action: 'delete', source, where: even }, opened)).changed, 15);
      const limited = await node.run({ action: 'delete', source, limit: 5 }, opened);
      assert.deepEqual([limited.state, limited.changed], ['done', 5]);
      const one = await node.run({ action: 'delete', source, where: { ids: [ids[0], ids[29]] } }, opened);
      assert.deepEqual([one.changed, one.estimate], [1, 2]);
      const young = await node.run({ action: 'delete', source, where: { olderThan: 3600 } }, opened);
      assert.equal(young.changed, 0);
      assert.equal((await node.elements('N', q)).length, 9);
    });

    it('a dry run counts, returns ten samples, and changes nothing', async () => {
      const [q, to] = [queue(), queue()];
      await node.insert('N', q, ...Array.from({ length: 25 }, () => ({ headers: ['a', 'é'] })));
      const request = {
        action: 'move',
        source: { ns: 'N', queue: q },
        to: { ns: 'N', queue: to },
        dryRun: true,
      };
      const done = await node.run(request, opened);
      assert.deepEqual([done.matched, done.changed, done.samples.length], [25, 0, 10]);
      assert.equal(done.samples[0]?.bytes, 4);
      assert.equal((await node.elements('N', q)).length, 25);
    });

    it('an operation leaves alone elements that are inserted after its start', async () => {
      const q = queue();
      await node.insertMany('N', q, 50);
      const id = await node.create({ action: 'delete', source: { ns: 'N', queue: q }, rate: 25 });
      await opened.passTime(500);
      await node.insert('N', q, 'new');
      assert.equal((await node.ended(id, opened, RATE_STEP_MS)).changed, 50);
      assert.deepEqual(await node.bodies('N', q), ['new']);
    });

    it('an operation keeps its rate, and after a cancel leaves the remaining elements', async () => {
      const q = queue();
      await node.insertMany('N', q, 100);
      const countRemaining = async (): Promise<number> => (await node.elements('N', q)).length;
      const id = await node.create({ action: 'delete', source: { ns: 'N', queue: q }, rate: 10 });
      await until(async () => (await node.get(id)).changed >= 10);
      // Each of these reads is a call of the engine, as is the next page, which would have been read by now.
      for (let reads = 0; reads < 20; reads += 1)
        assert.equal(await countRemaining(), 90, 'no time has passed');
      while ((await countRemaining()) > 80) await opened.passTime(1000);
      const cancelling = node.operations.cancel(id, OPERATOR);
      assert.equal(await cancelling, true);
      const record = await node.get(id);
      assert.equal(record.state, 'cancelled');
      assert.equal(await countRemaining(), 100 - record.changed);
    });

    it('an operation on one group of a stream does not affect the other groups', async () => {
      const [q, to] = [queue(), queue()];
      await node.insertMany('stream', q, 5);
      const source = { ns: 'stream', queue: q };
      const where = { group: 'g1' };
      const moved = await node.run(
        { action: 'move', source, where, to: { ns: 'stream', queue: to }, limit: 2 },
        opened,
      );
      assert.equal(moved.changed, 2);
      assert.deepEqual(await node.bodies('stream', to, undefined, 'g1'), ['0', '1']);
      assert.deepEqual(await node.bodies('stream', to, undefined, 'g2'), []);
      assert.equal((await node.elements('stream', q, undefined, 'g2')).length, 5);
      assert.equal((await node.run({ action: 'delete', source, where }, opened)).changed, 3);
      assert.equal((await node.elements('stream', q, undefined, 'g1')).length, 0);
    });
  });
}

describe('Bulk operations that have ended', () => {
  it('are listed for a week, at most the last 100 of them and the last 100 dry runs', async () => {
    const sandbox = sharedSandbox();
    const opened = await MEMORY_SQLITE.open({ namespaces: [plain('N')] });
    const start = (seed: number): Promise<OperationNode> =>
      new OperationNode([{ policy: plain('N'), engine: opened.engine }], opened.clock, sandbox, seed).start();
    const count = { action: 'count', source: { ns: 'N', queue: 'q' } };
    let starts = 0;
    /** Runs this many operations on a node that then stops; returns their ids, the last one first. */
    const run = async (operations: number, more = {}): Promise<string[]> => {
      const node = await start(++starts);
      const ids: string[] = [];
      for (let i = 0; i < operations; i += 1) ids.unshift((await node.run({ ...count, ...more }, opened)).id);
      await node.stop();
      return ids;
    };
    const kept = async (): Promise<string[]> => {
      const node = await start(++starts);
      const records = await node.operations.list({ ns: null, queue: null, state: null }, OPERATOR);
      await node.stop();
      return records.map(({ id }) => id);
    };
    try {
      const first = await run(1);
      await opened.passTime(7 * 24 * HOUR_MS - 1_000);
      const second = await run(1);
      assert.deepEqual(await kept(), [...second, ...first]);
      await opened.passTime(2_000);
      const third = await run(1);
      assert.deepEqual(await kept(), [...third, ...second]);
      const last = (await run(101)).slice(0, 100);
      assert.deepEqual(await kept(), last);
      const dry = (await run(101, { action: 'delete', dryRun: true })).slice(0, 100);
      assert.deepEqual(await kept(), [...dry, ...last]);
      assert.deepEqual(await opened.engine.definitions.list('operation-progress'), []);
    } finally {
      await sandbox.stop();
      await opened.close();
    }
  });
});

describe('Bulk operations while the clock stands still', () => {
  it('set changes nothing yet, since its results could not be distinguished from the original elements', async () => {
    const sandbox = sharedSandbox();
    const opened = await MEMORY_SQLITE.open({ namespaces: [plain('N')] });
    const node = new OperationNode([{ policy: plain('N'), engine: opened.engine }], opened.clock, sandbox);
    try {
      await node.start();
      await node.insertMany('N', 'q', 300);
      const id = await node.create({ action: 'set', source: { ns: 'N', queue: 'q' }, set: { tries: 1 } });
      // Each of these reads is a call of the engine, as are those of a page, which would have been changed by now.
      for (let reads = 0; reads < 30; reads += 1) await node.elements('N', 'q');
      assert.equal((await node.get(id)).changed, 0);
      const { state, matched, changed } = await node.ended(id, opened);
      assert.deepEqual([state, matched, changed], ['done', 300, 300]);
    } finally {
      await node.stop();
      await sandbox.stop();
      await opened.close();
    }
  });
});

describe('Bulk operations of several users', () => {
  it('run their pages in turn: ten operations of one user delay that of another by about as many pages as it has', async () => {
    const sandbox = sharedSandbox();
    const opened = await MEMORY_SQLITE.open({ namespaces: [plain('N')] });
    const held = Promise.withResolvers<void>();
    const pages: string[] = [];
    const engine = engineWith(opened.engine, (real) => ({
      scan: async (queue, options) => {
        pages.push(queue.name);
        await held.promise;
        return real.scan(queue, options);
      },
    }));
    const node = new OperationNode([{ policy: plain('N'), engine }], opened.clock, sandbox);
    try {
      await node.start();
      for (const queue of ['flooded', 'honest']) await node.insertMany('N', queue, 4_000);
      const count = (queue: string) => ({ action: 'count', source: { ns: 'N', queue } });
      const floods = await Promise.all(
        Array.from({ length: 10 }, () => node.create(count('flooded'), { ...OPERATOR, name: 'flood' })),
      );
      const id = await node.create(count('honest'), { ...OPERATOR, name: 'honest' });
      held.resolve();
      for (const one of [id, ...floods]) assert.equal((await node.ended(one, opened)).matched, 4_000);
      const [first, last] = [pages.indexOf('honest'), pages.lastIndexOf('honest')];
      const own = pages.filter((queue) => queue === 'honest').length;
      assert.ok(own >= 4);
      const others = last - first + 1 - own;
      assert.ok(others <= own + 1, `${others} pages of another user among ${own}`);
    } finally {
      await node.stop();
      await sandbox.stop();
      await opened.close();
    }
  });

  it('are not read further at a stop: it waits for the page in progress, not for one page of each operation', async () => {
    const sandbox = sharedSandbox();
    const opened = await MEMORY_SQLITE.open({ namespaces: [plain('N')] });
    const held = Promise.withResolvers<void>();
    let reads = 0;
    const engine = engineWith(opened.engine, (real) => ({
      scan: async (queue, options) => {
        reads += 1;
        await held.promise;
        return real.scan(queue, options);
      },
    }));
    const node = new OperationNode([{ policy: plain('N'), engine }], opened.clock, sandbox);
    try {
      await node.start();
      await node.insert('N', 'q', 'x');
      const count = { action: 'count', source: { ns: 'N', queue: 'q' } };
      const ids = await Promise.all(Array.from({ length: 10 }, () => node.create(count)));
      await until(() => reads > 0);
      const stopped = node.operations.stop();
      held.resolve();
      await stopped;
      assert.deepEqual([ids.length, reads], [10, 1]);
    } finally {
      held.resolve();
      await node.stop();
      await sandbox.stop();
      await opened.close();
    }
  });
});
