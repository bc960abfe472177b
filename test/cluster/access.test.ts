import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { MODES, type SharedEngine } from './modes.ts';
import { eventually, Nodes } from './nodes.ts';

interface Started {
  readonly cookie: string;
  readonly csrfToken: string;
}

interface OwnSessions {
  readonly sessions: readonly { readonly id: string; readonly isThis: boolean }[];
}

interface Token {
  readonly token: string;
}

const PASSWORDS = { test1: 'test1', ann: 'pw' };

/** @param ann the password of user `ann`; null: without that user */
function configWith(ann: string | null): Readonly<Record<string, object>> {
  return {
    http: { users: { test1: 'test1', ...(ann !== null && { ann }) } },
    console: { secret: 'the same secret on all of the nodes' },
  };
}

for (const { name, start } of MODES.filter((mode) => mode.name !== 'a Redis cluster')) {
  describe(`Two nodes behind ${name}`, () => {
    let engine: SharedEngine;
    let nodes: Nodes;
    const clients: QueueClient[] = [];

    before(async () => {
      engine = await start();
      nodes = await Nodes.start(engine.url, 2, {}, configWith('pw'));
      for (const at of [0, 1]) {
        const { url } = nodes.server(at);
        clients.push(new QueueClient({ url, credentials: null }));
      }
    });

    after(async () => {
      for (const client of clients) client.close();
      await nodes?.stop();
      await engine?.stop();
    });

    /** A client without credentials. */
    const browser = (at: number): QueueClient => clients[at] ?? assert.fail();

    async function signIn(
      at: number,
      user: keyof typeof PASSWORDS,
      password = PASSWORDS[user],
    ): Promise<Started> {
      const answer = await browser(at).request('POST', '/console/session', {
        body: JSON.stringify({ user, password }),
      });
      assert.equal(answer.status, 200, answer.body.toString());
      const { rawHeaders } = answer;
      const cookie = rawHeaders[rawHeaders.indexOf('set-cookie') + 1]?.split(';')[0] ?? '';
      return { cookie, csrfToken: jsonOf<{ csrfToken: string }>(answer).csrfToken };
    }

    async function ask(at: number, method: string, path: string, session: Started): Promise<number> {
      const headers = { cookie: session.cookie, 'x-csrf-token': session.csrfToken };
      return (await browser(at).request(method, path, { headers })).status;
    }

    const isOver = (at: number, session: Started): Promise<void> =>
      eventually(
        `the session has ended on node ${at}`,
        async () => (await ask(at, 'GET', '/q', session)) === 401,
      );
    const isThere = async (at: number, session: Started): Promise<boolean> =>
      (await ask(at, 'GET', '/q', session)) === 200;

    async function idOf(at: number, session: Started): Promise<string> {
      const headers = { cookie: session.cookie };
      const answer = await browser(at).request('GET', '/console/sessions', { headers });
      return jsonOf<OwnSessions>(answer).sessions.find(({ isThis }) => isThis)?.id ?? assert.fail();
    }

    /** Reloads one node with another password of `ann`. */
    async function reload(at: number, ann: string | null): Promise<void> {
      const server = nodes.server(at);
      const config = JSON.parse(await readFile(server.configFile, 'utf8')) as { http: object };
      const http = { ...config.http, ...configWith(ann).http };
      await writeFile(server.configFile, JSON.stringify({ ...config, http }));
      const lines = server.output.length;
      process.kill(server.pid, 'SIGHUP');
      await eventually('the reload is logged', async () =>
        server.output.slice(lines).includes('"event":"reload"'),
      );
    }

    it('end a console session that was signed out on another node, even after a restart', async () => {
      const [session, kept] = [await signIn(0, 'ann'), await signIn(0, 'ann')];
      assert.ok(await isThere(1, session));
      assert.equal(await ask(0, 'DELETE', '/console/session', session), 204);
      await isOver(1, session);
      await nodes.server(1).kill();
      await nodes.server(1).start();
      clients[1]?.close();
      clients[1] = new QueueClient({ url: nodes.server(1).url, credentials: null });
      assert.equal(await ask(1, 'GET', '/q', session), 401);
      assert.ok(await isThere(1, kept));
    });

    it('end a session that its user or an administrator signed out from the session list of another node', async () => {
      const [one, other] = [await signIn(0, 'ann'), await signIn(0, 'ann')];
      const admin = await signIn(1, 'test1');
      const [id, otherId] = [await idOf(0, one), await idOf(0, other)];
      assert.equal(await ask(1, 'DELETE', `/console/sessions/${otherId}`, one), 204);
      await isOver(0, other);
      assert.ok(await isThere(0, one));
      assert.equal(await ask(1, 'DELETE', `/console/sessions/${id}?user=ann`, admin), 204);
      await isOver(0, one);
      const [third, fourth] = [await signIn(0, 'ann'), await signIn(1, 'ann')];
      assert.equal(await ask(1, 'DELETE', '/console/sessions?user=ann', admin), 204);
      for (const at of [0, 1]) for (const session of [third, fourth]) await isOver(at, session);
      assert.ok(await isThere(0, admin));
    });

    it('end the sessions of a user whose password changed or who was removed, as soon as one node reloads', async () => {
      const before = await signIn(1, 'ann');
      await reload(0, 'changed');
      await isOver(1, before);
      const next = await signIn(0, 'ann', 'changed');
      await reload(1, 'changed');
      assert.ok(
        await isThere(1, next),
        'a session with the new password survives the reload of the other node',
      );
      assert.ok(await isThere(0, next));
      await reload(0, null);
      await isOver(1, next);
      for (const at of [0, 1]) await reload(at, 'pw');
    });

    it('reject the tokens of a removed user for good, as soon as one node reloads', async () => {
      const ann = new QueueClient({ url: nodes.server(1).url, credentials: 'ann:pw' });
      const created = await ann.request('POST', '/tokens', { body: JSON.stringify({ name: 'of ann' }) });
      ann.close();
      const { token } = jsonOf<Token>(created);
      const headers = { authorization: `Bearer ${token}` };
      const statusAt = async (at: number): Promise<number> =>
        (await browser(at).request('GET', '/q', { headers })).status;
      for (const at of [0, 1])
        await eventually('the token is accepted', async () => (await statusAt(at)) === 200);
      await reload(0, null);
      for (const at of [0, 1])
        await eventually('the token is rejected', async () => (await statusAt(at)) === 401);
      for (const at of [0, 1]) await reload(at, 'pw');
      for (const at of [0, 1]) assert.equal(await statusAt(at), 401);
    });
  });
}
