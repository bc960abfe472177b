import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { StompClient } from '../stomp/client.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { MODES, type SharedEngine } from './modes.ts';
import { eventually, Nodes } from './nodes.ts';

/** Longer than any test here: every blocked call is cancelled before. */
const PATIENCE_MS = 120_000;
const PLACES = [0, 1, 2] as const;

const CONFIG = {
  http: {
    users: {
      test1: 'test1',
      manager: { password: 'pw', rights: { N: ['manage', 'read'] } },
      worker: { password: 'pw', rights: { N: ['read'], events: ['read'] } },
    },
  },
  stomp: { port: 0 },
  console: { secret: 'the same secret on all of the nodes' },
  namespaces: { own: { url: 'sqlite::memory:' } },
};

interface OfNodes {
  readonly node: string;
  readonly missing: readonly string[];
  readonly total: number;
}

interface Row {
  readonly node: string;
}

interface Consumers extends OfNodes {
  readonly consumers: readonly (Row & {
    readonly ns: string;
    readonly queue: string;
    readonly tid: string;
  })[];
}

interface Sessions extends OfNodes {
  readonly sessions: readonly (Row & { readonly user: string; readonly consumers: readonly object[] })[];
}

interface Changes extends OfNodes {
  readonly lines: readonly (Row & {
    readonly at: string;
    readonly action: string;
    readonly queue: string | null;
  })[];
}

interface Engines extends OfNodes {
  readonly engines: readonly (Row & { readonly engine: string; readonly namespaces: readonly string[] })[];
}

interface ConsoleSessions extends OfNodes {
  readonly sessions: readonly (Row & { readonly id: string })[];
}

for (const { name, start } of MODES.filter((mode) => mode.name !== 'a Redis cluster')) {
  describe(`Lists across three nodes behind ${name}`, () => {
    let engine: SharedEngine;
    let nodes: Nodes;
    let ids: readonly string[] = [];
    const clients: QueueClient[] = [];

    const nodesAt = async (at: number): Promise<{ id: string; isSelf: boolean }[]> =>
      jsonOf(await nodes.client(at).request('GET', '/nodes'));
    const allSeen = async (): Promise<boolean> =>
      (await Promise.all(PLACES.map(nodesAt))).every((seen) => seen.length === 3);

    before(async () => {
      engine = await start();
      nodes = await Nodes.start(engine.url, 3, {}, CONFIG);
      await eventually('every node lists all nodes', allSeen);
      const own = async (at: number): Promise<string> =>
        (await nodesAt(at)).find(({ isSelf }) => isSelf)?.id ?? '';
      ids = await Promise.all(PLACES.map(own));
    });

    after(async () => {
      for (const client of clients) client.close();
      await nodes?.stop();
      await engine?.stop();
    });

    const idOf = (at: number): string => ids[at] ?? assert.fail();

    async function read<T>(at: number, path: string, client = nodes.client(at)): Promise<T> {
      const answer = await client.request('GET', path);
      assert.equal(answer.status, 200, answer.body.toString());
      return jsonOf<T>(answer);
    }

    /** Reads a list until all nodes replied: on a busy machine, a node may exceed its time to reply. */
    async function complete<T extends OfNodes>(
      at: number,
      path: string,
      isRight: (list: T) => boolean,
      client?: QueueClient,
    ): Promise<T> {
      let list: T | null = null;
      await eventually(`${path} of all nodes`, async () => {
        list = await read<T>(at, path, client);
        return list.missing.length === 0 && isRight(list);
      });
      return list ?? assert.fail();
    }

    function as(user: string, at: number): QueueClient {
      const client = new QueueClient({ url: nodes.server(at).url, credentials: `${user}:pw` });
      clients.push(client);
      return client;
    }

    it('contain the blocked calls of every node, for users who manage their namespace', async () => {
      const waits = PLACES.map((at) =>
        nodes.client(at).get('N', `waited-${at}`, { to: PATIENCE_MS, tid: `t${at}` }),
      );
      const apart = nodes.client(1).get('own', 'apart', { to: PATIENCE_MS, tid: 'apart' });
      for (const at of PLACES) {
        const list = await complete<Consumers>(at, '/consumers?ns=N', ({ total }) => total === 3);
        assert.equal(list.node, idOf(at));
        assert.deepEqual(
          list.consumers.map(({ node, ns, queue, tid }) => [node, ns, queue, tid]).sort(byText),
          PLACES.map((of) => [idOf(of), 'N', `waited-${of}`, `t${of}`]).sort(byText),
        );
      }
      const managed = await complete<Consumers>(
        0,
        '/consumers',
        ({ total }) => total === 3,
        as('manager', 0),
      );
      assert.equal(managed.consumers.length, 3);
      const none = await complete<Consumers>(0, '/consumers', () => true, as('worker', 0));
      assert.deepEqual([none.total, none.consumers], [0, []]);
      const first = await complete<Consumers>(2, '/consumers?ns=N&limit=2', ({ total }) => total === 3);
      assert.deepEqual([first.total, first.consumers.length], [3, 2]);
      const ofOwn = await complete<Consumers>(1, '/consumers?ns=own', ({ total }) => total === 1);
      assert.deepEqual(
        ofOwn.consumers.map(({ tid }) => tid),
        ['apart'],
      );
      const elsewhere = await complete<Consumers>(0, '/consumers?ns=own', () => true);
      assert.equal(elsewhere.total, 0, 'an unshared namespace is a different one on each node');
      for (const { ns, queue, tid } of first.consumers) await nodes.client(2).cancel(ns, queue, tid);
      const left = await complete<Consumers>(2, '/consumers?ns=N', ({ total }) => total === 1);
      for (const { ns, queue, tid } of left.consumers) await nodes.client(0).cancel(ns, queue, tid);
      await nodes.client(1).cancel('own', 'apart', 'apart');
      const ended = await Promise.all([...waits, apart]);
      assert.deepEqual(
        ended.map(({ status }) => status),
        [410, 410, 410, 410],
      );
    });

    it('contain the sessions of every node, for their users and for managers of the namespaces they consume', async () => {
      const portOf = (at: number): number =>
        Number(/stomp:\/\/[^ "]*:(\d+)/.exec(nodes.server(at).output)?.[1]);
      const sessions = await Promise.all(
        PLACES.map((at) => StompClient.login(portOf(at), '1.2', { login: 'worker', passcode: 'pw' })),
      );
      sessions[1]?.send('SUBSCRIBE', { id: '1', destination: '/q/N/sub', receipt: 'r' });
      await sessions[1]?.expect('RECEIPT');
      const all = await complete<Sessions>(2, '/sessions', ({ total }) => total === 3);
      assert.deepEqual(all.sessions.map(({ node }) => node).sort(), [...ids].sort());
      const own = await complete<Sessions>(0, '/sessions', ({ total }) => total === 3, as('worker', 0));
      assert.equal(own.sessions.length, 3);
      const managed = await complete<Sessions>(0, '/sessions', ({ total }) => total === 1, as('manager', 0));
      assert.deepEqual(
        managed.sessions.map(({ node, user, consumers }) => [node, user, consumers.length]),
        [[idOf(1), 'worker', 1]],
      );
      for (const session of sessions) session.socket.destroy();
      await complete<Sessions>(2, '/sessions', ({ total }) => total === 0);
    });

    it('contain the changes made on every node, the latest first', async () => {
      for (const at of PLACES) await nodes.client(at).pause('N', `changed-${at}`);
      await as('manager', 1).resume('N', 'changed-0');
      const changed = ({ lines }: Changes): Changes['lines'] =>
        lines.filter(({ queue }) => queue?.startsWith('changed-') === true);
      const list = await complete<Changes>(2, '/audit', (all) => changed(all).length === 4);
      assert.deepEqual(
        changed(list)
          .map(({ node, action, queue }) => [node, action, queue ?? ''])
          .sort(byText),
        [[idOf(1), 'resume', 'changed-0'], ...PLACES.map((at) => [idOf(at), 'pause', `changed-${at}`])].sort(
          byText,
        ),
      );
      const moments = list.lines.map(({ at }) => Date.parse(at));
      assert.deepEqual(
        moments,
        moments.toSorted((a, b) => b - a),
      );
      const hidden = await complete<Changes>(0, '/audit', () => true, as('worker', 0));
      assert.deepEqual(hidden.lines, []);
    });

    it('contain a cancel of a call on another node only if it is of another user', async () => {
      const cancelOf = async (client: QueueClient, queue: string): Promise<number> => {
        const waiting = client.get('N', queue, { to: PATIENCE_MS, tid: 'here' });
        await complete<Consumers>(0, '/consumers?ns=N', ({ total }) => total === 1);
        await nodes.client(0).cancel('N', queue, 'here');
        assert.equal((await waiting).status, 410);
        const { lines } = await complete<Changes>(0, '/audit', () => true);
        return lines.filter((line) => line.action === 'cancel' && line.queue === queue).length;
      };
      assert.equal(await cancelOf(as('worker', 1), 'foreign'), 1);
      // If a node does not reply in time, the cancel is audited.
      let round = 0;
      await eventually('an own cancel without a line', async () => {
        round += 1;
        return (await cancelOf(nodes.client(1), `own-${round}`)) === 0;
      });
    });

    it('contain the engines of every node, each once, even if it serves several namespaces', async () => {
      const { engines } = await complete<Engines>(0, '/engines', ({ total }) => total >= 6);
      const shared = engines.filter(({ namespaces }) => namespaces.includes('N'));
      assert.deepEqual(shared.map(({ node }) => node).sort(), [...ids].sort());
      assert.equal(new Set(shared.map(({ engine: url }) => url)).size, 1);
      assert.equal(engines.length, 6, 'the shared engine and an unshared one on each node');
      const visible = await complete<Engines>(1, '/engines', ({ total }) => total === 3, as('manager', 1));
      assert.ok(visible.engines.every(({ namespaces }) => namespaces.join() === 'N'));
    });

    it('contain the console sessions of every node, each once', async () => {
      const body = JSON.stringify({ user: 'test1', password: 'test1' });
      const cookies = await Promise.all(
        PLACES.map(async (at) => {
          const { rawHeaders } = await nodes.client(at).request('POST', '/console/session', { body });
          return rawHeaders[rawHeaders.indexOf('set-cookie') + 1]?.split(';')[0] ?? assert.fail();
        }),
      );
      const headers = { cookie: cookies[0] ?? '' };
      assert.equal((await nodes.client(1).request('GET', '/q', { headers })).status, 200);
      const list = await complete<ConsoleSessions>(2, '/console/sessions', ({ total }) => total === 3);
      assert.deepEqual(list.sessions.map(({ node }) => node).sort(), [idOf(1), idOf(1), idOf(2)].sort());
      assert.equal(new Set(list.sessions.map(({ id }) => id)).size, 3);
      const others = await complete<ConsoleSessions>(0, '/console/sessions', () => true, as('manager', 0));
      assert.deepEqual(others.sessions, []);
    });

    it('name a node that does not reply, and contain the entries of the others', async () => {
      const waits = PLACES.map((at) =>
        nodes.client(at).get('N', 'frozen', { to: PATIENCE_MS, tid: `frozen-${at}` }),
      );
      await complete<Consumers>(0, '/consumers', ({ total }) => total === 3);
      const { pid } = nodes.server(2);
      const lists: Consumers[] = [];
      try {
        // Thawed and frozen again in each round: a node that is silent for 7 s leaves the list, and a busy machine may
        // take that long for a call.
        await eventually('the list is missing the frozen node', async () => {
          process.kill(pid, 'SIGCONT');
          await eventually('every node lists all nodes', allSeen);
          process.kill(pid, 'SIGSTOP');
          const list = await read<Consumers>(0, '/consumers');
          lists.push(list);
          return list.missing.join() === idOf(2);
        });
      } finally {
        process.kill(pid, 'SIGCONT');
      }
      const { total, consumers } = lists.at(-1) ?? assert.fail();
      assert.equal(total, 2);
      assert.deepEqual(consumers.map(({ tid }) => tid).sort(), ['frozen-0', 'frozen-1']);
      const again = await complete<Consumers>(0, '/consumers', (one) => one.total === 3);
      for (const { tid } of again.consumers) await nodes.client(1).cancel('N', 'frozen', tid);
      await Promise.all(waits);
    });
  });
}

function byText(a: readonly string[], b: readonly string[]): number {
  return a.join() < b.join() ? -1 : 1;
}
