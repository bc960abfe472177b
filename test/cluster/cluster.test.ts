import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { EventClient } from '../support/event-client.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { assertOnce, CONSUMERS, ELEMENTS, popAll, reserveAll } from './load.ts';
import { MODES, type SharedEngine } from './modes.ts';
import { eventually, Nodes } from './nodes.ts';

/** Longer than any test here: every blocked get is answered or cancelled before. */
const PATIENCE_MS = 60_000;

interface Waiting {
  readonly tid: string;
}

for (const { name, start } of MODES) {
  describe(`Three nodes behind ${name}`, () => {
    let engine: SharedEngine;
    let nodes: Nodes;

    before(async () => {
      engine = await start();
      nodes = await Nodes.start(engine.url, 3);
    });

    after(async () => {
      await nodes?.stop();
      await engine?.stop();
    });

    const tidsAt = async (at: number, queue: string): Promise<string[]> =>
      jsonOf<Waiting[]>(await nodes.client(at).consumers('N', queue)).map(({ tid }) => tid);

    it('list each other', async () => {
      const seen = async (at: number): Promise<number> =>
        jsonOf<unknown[]>(await nodes.client(at).request('GET', '/nodes')).length;
      for (const at of [0, 1, 2])
        await eventually('three nodes are listed', async () => (await seen(at)) === 3);
      const ready = await nodes.client(1).request('GET', '/readyz?verbose');
      assert.equal(jsonOf<{ nodes: unknown[] }>(ready).nodes.length, 3);
    });

    it('accept a token that another node created, until a third one revokes it', async () => {
      const body = JSON.stringify({ name: 'shared' });
      const created = await nodes.client(0).request('POST', '/tokens', { body });
      const { id, token } = jsonOf<{ id: string; token: string }>(created);
      const headers = { authorization: `Bearer ${token}` };
      const statusAt = async (at: number): Promise<number> =>
        (await fetch(`${nodes.server(at).url}/q`, { headers })).status;
      for (const at of [0, 1, 2])
        await eventually('the token is accepted', async () => (await statusAt(at)) === 200);
      assert.equal((await nodes.client(2).request('DELETE', `/tokens/${id}`)).status, 204);
      for (const at of [0, 1, 2])
        await eventually('the token is rejected', async () => (await statusAt(at)) === 401);
    });

    it('wake a get blocked on one node by an insert on another', async () => {
      const got = nodes.client(0).get('N', 'woken', { to: 20_000, tid: 'sleeper' });
      await eventually('the get waits', async () => (await tidsAt(1, 'woken')).includes('sleeper'));
      await nodes.client(1).insert('N', 'woken', 'good morning');
      assert.equal((await got).body.toString(), 'good morning');
    });

    it('wake as many blocked gets as elements are inserted, on whatever node, and no more', async () => {
      const [waiting, elements] = [24, 16];
      const gets = Array.from({ length: waiting }, (_, i) =>
        nodes.client(1 + (i % 2)).get('N', 'several', { to: PATIENCE_MS, tid: `several-${i}` }),
      );
      await eventually('all gets wait', async () => (await tidsAt(0, 'several')).length === waiting);
      // Inserted one by one, so that each publishes its own signal.
      for (let i = 0; i < elements; i++) await nodes.client(0).insert('N', 'several', `${i}`);
      await eventually(
        'all elements are delivered',
        async () => (await tidsAt(0, 'several')).length === waiting - elements,
      );
      for (const tid of await tidsAt(0, 'several')) await nodes.client(0).cancel('N', 'several', tid);
      const answers = await Promise.all(gets);
      const bodies = answers
        .filter(({ status }) => status === 200)
        .map(({ body }) => Number(body.toString()));
      assert.deepEqual(
        bodies.sort((a, b) => a - b),
        Array.from({ length: elements }, (_, i) => i),
      );
      assert.equal(answers.filter(({ status }) => status === 410).length, waiting - elements);
    });

    it('send events about changes made on other nodes', async () => {
      const listener = new EventClient({ url: nodes.server(0).url, query: 'ns=N&kinds=queues,nodes' });
      try {
        await eventually('the full picture has arrived', async () => listener.isComplete);
        await eventually('three nodes are listed', async () => listener.of('nodes').length === 3);
        for (let i = 0; i < 5; i++) await nodes.client(1).insert('N', 'watched', `${i}`);
        await eventually(
          'the queue has five elements',
          async () => listener.queue('N', 'watched')?.size === 5,
        );
        await nodes.client(2).get('N', 'watched');
        await eventually(
          'the queue has four elements',
          async () => listener.queue('N', 'watched')?.size === 4,
        );
        await nodes.client(1).pause('N', 'watched');
        await eventually('the queue is paused', async () => listener.queue('N', 'watched')?.paused === true);
        await eventually('the counts of all nodes are summed', async () => {
          const { put, get } = (listener.queue('N', 'watched')?.stats ?? {}) as {
            put?: number;
            get?: number;
          };
          return put === 5 && get === 1;
        });
        const record = jsonOf<{ rates: { '1m': { insert: number } } }>(
          await nodes.client(2).status('N', 'watched'),
        );
        assert.ok(record.rates['1m'].insert > 0, 'the rate of inserts is known on another node');
      } finally {
        listener.close();
      }
    });

    it('pause the consumers of all nodes after a pause on one, until a resume on one', async () => {
      await nodes.client(0).pause('N', 'held');
      const gets = [1, 2].map((at) => nodes.client(at).get('N', 'held', { to: 20_000, tid: `held-${at}` }));
      await eventually('two gets wait', async () => (await tidsAt(0, 'held')).length === 2);
      for (const at of [1, 2]) {
        await eventually('the queue is paused', async () =>
          jsonOf(await nodes.client(at).paused('N', 'held')),
        );
      }
      await nodes.client(1).insert('N', 'held', '1');
      await nodes.client(2).insert('N', 'held', '2');
      assert.equal((await nodes.client(1).get('N', 'held', { to: 200 })).status, 504);
      assert.equal((await tidsAt(0, 'held')).length, 2);
      await nodes.client(2).resume('N', 'held');
      assert.deepEqual((await Promise.all(gets)).map(({ body }) => body.toString()).sort(), ['1', '2']);
    });

    it('apply a pause, a resume and a deletion on all nodes before they are answered', async () => {
      for (const round of [1, 2, 3, 4, 5]) {
        const queue = `settled-${round}`;
        await nodes.client(0).insert('N', queue, 'kept');
        await nodes.client(0).pause('N', queue);
        assert.equal((await nodes.client(1).get('N', queue, { to: 0 })).status, 504, 'paused');
        await nodes.client(2).resume('N', queue);
        assert.equal((await nodes.client(1).get('N', queue, { to: 0 })).status, 200, 'resumed');
        await nodes.client(1).pause('N', queue);
        assert.equal((await nodes.client(0).request('DELETE', `/q/N/${queue}?force=1`)).status, 204);
        assert.equal(jsonOf(await nodes.client(2).paused('N', queue)), false, 'deleted');
      }
    });

    it('apply options of a queue on all nodes before the request that stores them is answered', async () => {
      const leaseAt = async (at: number): Promise<number> =>
        jsonOf<{ effective: { lease: number } }>(
          await nodes.client(at).request('GET', '/q/N/settled/options'),
        ).effective.lease;
      const before = await leaseAt(1);
      for (const lease of [7, 8, 9, 10, 11]) {
        const body = JSON.stringify({ lease });
        await nodes.client(0).request('PUT', '/q/N/settled/options', { body });
        assert.equal(await leaseAt(1), lease);
      }
      await nodes.client(2).request('DELETE', '/q/N/settled/options');
      assert.equal(await leaseAt(1), before);
    });

    it('name the groups of a stream in the order of their names', async () => {
      const groups = Array.from({ length: 30 }, (_, i) => `g${(i * 7) % 30}`);
      await nodes.client(0).insert('events', 'ordered', 'x', { groups: groups.join(',') });
      const record = (): Promise<{ groups: object; stats: { groups: object } }> =>
        nodes
          .client(0)
          .status('events', 'ordered')
          .then((answer) => jsonOf(answer));
      await eventually(
        'the counters are stored',
        async () => Object.keys((await record()).stats.groups).length === 30,
      );
      const { groups: sizes, stats } = await record();
      assert.deepEqual(Object.keys(sizes), [...groups].sort());
      assert.deepEqual(Object.keys(stats.groups), [...groups].sort());
    });

    it('have the same view of an exchange when its creation, stop, start or deletion is answered', async () => {
      const body = JSON.stringify({
        src: { ns: 'N', queue: 'settled-from' },
        dst: [{ ns: 'N', queue: 'settled-to' }],
        consumer: {},
      });
      for (const round of [1, 2, 3, 4, 5]) {
        const path = `/x/settled-${round}`;
        const stoppedAt = async (at: number): Promise<unknown> =>
          jsonOf<{ stopped: unknown }>(await nodes.client(at).request('GET', path)).stopped;
        await nodes.client(0).request('PUT', path, { body });
        const listed = jsonOf<object>(await nodes.client(1).request('GET', '/x'));
        assert.ok(`settled-${round}` in listed, 'created');
        await nodes.client(1).request('POST', `${path}/stop`);
        assert.equal(await stoppedAt(2), true);
        await nodes.client(2).request('POST', `${path}/start`);
        assert.equal(await stoppedAt(0), false);
        await nodes.client(0).request('DELETE', path);
        assert.equal((await nodes.client(1).request('GET', path)).status, 404, 'deleted');
      }
    });

    it('cancel a call blocked on another node', async () => {
      const got = nodes.client(0).get('N', 'cancelled', { to: 20_000, tid: 'enough' });
      await eventually('the get waits', async () => (await tidsAt(2, 'cancelled')).includes('enough'));
      assert.equal((await nodes.client(2).cancel('N', 'cancelled', 'enough')).status, 200);
      assert.equal((await got).status, 410);
      await eventually(
        'the get is no longer listed',
        async () => (await tidsAt(1, 'cancelled')).length === 0,
      );
    });

    it(`deliver each of ${ELEMENTS} elements once to ${CONSUMERS} consumers that pop`, async () => {
      const load = await popAll(nodes, 'popped');
      await assertOnce(nodes, 'popped', load);
      assert.deepEqual(
        [...load.consumed].filter(([, ids]) => ids.length !== 1),
        [],
      );
    });

    it('deliver each element at least once to consumers that reserve and roll back, and commit none twice', async () => {
      await assertOnce(nodes, 'reserved', await reserveAll(nodes, 'reserved'));
    });

    it('forward each element once through an exchange that was created on one node', async () => {
      const declaration = {
        src: { ns: 'N', queue: 'from' },
        // Accepts any number of tries: on a machine that is busy for seconds, a lease of the exchange may expire.
        dst: [{ ns: 'N', queue: 'to', selector: 'env => env.msg.tries >= 0' }],
        consumer: {},
      };
      const body = JSON.stringify(declaration);
      assert.equal((await nodes.client(0).request('PUT', '/x/shared', { body })).status, 201);
      const runs = async (at: number): Promise<boolean> =>
        (await nodes.client(at).request('GET', '/x/shared')).status === 200;
      for (const at of [1, 2]) await eventually('the exchange exists on every node', () => runs(at));
      await assertOnce(nodes, 'to', await popAll(nodes, 'to', 'from'));
    });

    it('stop an exchange on every node, including one that starts later', async () => {
      assert.equal((await nodes.client(1).request('POST', '/x/shared/stop')).status, 201);
      const stopped = async (at: number): Promise<boolean> =>
        jsonOf<{ stopped: boolean }>(await nodes.client(at).request('GET', '/x/shared')).stopped;
      for (const at of [0, 2]) await eventually('the exchange is stopped on every node', () => stopped(at));
      const late = await nodes.add();
      assert.equal(await stopped(late), true);
      assert.equal((await nodes.client(late).request('DELETE', '/x/shared')).status, 201);
      const isGone = async (at: number): Promise<boolean> =>
        (await nodes.client(at).request('GET', '/x/shared')).status === 404;
      for (const at of [0, 1, 2]) await eventually('the exchange is deleted on every node', () => isGone(at));
    });

    it('lose nothing when one node is killed under load and restarted', async () => {
      const load = await reserveAll(nodes, 'killed', async (committed) => {
        await committed(ELEMENTS / 10);
        await nodes.server(1).kill();
        await nodes.server(1).start();
      });
      await assertOnce(nodes, 'killed', load);
    });

    it('forget a killed node with its consumers, and recover its reservations', async () => {
      // The node that the exchange test added, if that test ran.
      const at = nodes.count > 3 ? 3 : await nodes.add();
      await nodes.client(0).insert('N', 'left', 'one');
      const held = await nodes.client(at).reserve('N', 'left', { to: 0 });
      assert.notEqual(headerOf(held, 'x-ks-id'), undefined);
      const waiting = nodes.client(at).get('N', 'gone', { to: 60_000, tid: 'ghost' });
      waiting.catch(() => {});
      await eventually('the get is listed', async () => (await tidsAt(0, 'gone')).includes('ghost'));
      await nodes.server(at).kill();
      await eventually(
        'the get is no longer listed',
        async () => !(await tidsAt(0, 'gone')).includes('ghost'),
      );
      const again = await nodes.client(0).reserve('N', 'left', { to: 20_000 });
      assert.equal(headerOf(again, 'x-ks-id'), headerOf(held, 'x-ks-id'));
      assert.equal(headerOf(again, 'x-ks-tries'), '1');
    });
  });
}
