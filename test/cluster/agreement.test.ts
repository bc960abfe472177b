import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { ServerProcess } from '../support/server-process.ts';
import { MODES, type SharedEngine } from './modes.ts';
import { eventually } from './nodes.ts';

interface Node {
  readonly id: string;
  readonly isSelf: boolean;
  readonly conflicts: readonly object[];
}

interface LogLine {
  readonly event?: string;
  readonly option?: string;
  readonly here?: string;
  readonly there?: string;
  readonly node?: { readonly id: string };
  readonly namespaces?: readonly string[];
}

for (const { name, start } of MODES) {
  describe(`Nodes behind ${name} that configure a namespace differently`, () => {
    let engine: SharedEngine;
    let namespaces = 0;
    const servers: (ServerProcess | ServerInProcess)[] = [];
    const clients: QueueClient[] = [];

    const configOf = (ns: string, options: object): Record<string, unknown> => ({
      http: { users: { test1: 'test1', other: { password: 'other', rights: { mine: ['read'] } } } },
      namespaces: { [ns]: { url: engine.url, ...options }, mine: { url: 'sqlite::memory:' } },
    });
    const startNode = async (ns: string, options: object): Promise<ServerInProcess> => {
      const server = await ServerInProcess.start({ config: configOf(ns, options) });
      servers.push(server);
      return server;
    };
    const clientOf = ({ url }: { readonly url: string }, credentials = 'test1:test1'): QueueClient => {
      const client = new QueueClient({ url, credentials });
      clients.push(client);
      return client;
    };
    const nodesAt = async (client: QueueClient): Promise<Node[]> =>
      jsonOf<Node[]>(await client.request('GET', '/nodes'));
    const conflictsAt = async (client: QueueClient): Promise<object[]> =>
      (await nodesAt(client)).flatMap(({ conflicts }) => conflicts);

    before(async () => {
      engine = await start();
    });

    afterEach(async () => {
      for (const client of clients.splice(0)) client.close();
      await Promise.all(servers.splice(0).map((server) => server.dispose()));
    });

    after(() => engine?.stop());

    it('each warn about every option and node, and list the conflicts in /nodes, /readyz and metrics', async () => {
      const ns = `N${++namespaces}`;
      const a = await startNode(ns, { lease: 60, deadLetter: { maxTries: 5 } });
      const b = await startNode(ns, { lease: 90 });
      const [ofA, ofB] = [clientOf(a), clientOf(b)];
      await eventually('A lists the conflicts with B', async () => (await conflictsAt(ofA)).length === 2);
      await eventually('B lists the conflicts with A', async () => (await conflictsAt(ofB)).length === 2);
      const deadLetter = '{"maxTries":5,"queue":"__deadletter__"}';
      assert.deepEqual(await conflictsAt(ofA), [
        { namespace: ns, option: 'lease', here: '60', there: '90' },
        { namespace: ns, option: 'deadLetter', here: deadLetter, there: 'not set' },
      ]);
      const ready = jsonOf<{ nodes: Node[] }>(await ofB.request('GET', '/readyz?verbose'));
      assert.deepEqual(ready.nodes.find(({ isSelf }) => !isSelf)?.conflicts[0], {
        namespace: ns,
        option: 'lease',
        here: '90',
        there: '60',
      });
      assert.deepEqual(ready.nodes.find(({ isSelf }) => isSelf)?.conflicts, []);
      const metrics = (await ofA.request('GET', '/metrics')).body.toString();
      assert.ok(metrics.includes(`quayside_configuration_conflicts{namespace="${ns}"} 2\n`));
      assert.ok(metrics.includes('quayside_configuration_conflicts{namespace="mine"} 0\n'));
      const others = (await nodesAt(ofA)).filter(({ isSelf }) => !isSelf);
      for (const [server, ids] of [
        [a, others.map(({ id }) => id)],
        [b, (await nodesAt(ofB)).filter(({ isSelf }) => !isSelf).map(({ id }) => id)],
      ] as const) {
        const warned = warningsOf(server, 'configuration-conflict');
        assert.deepEqual(
          warned.map(({ option }) => option),
          ['lease', 'deadLetter'],
          'one warning per option',
        );
        assert.deepEqual([...new Set(warned.map(({ node }) => node?.id))], ids);
      }
      const stranger = clientOf(a, 'other:other');
      assert.deepEqual(await conflictsAt(stranger), [], 'conflicts of hidden namespaces are omitted');
    });

    it('do not warn if they configure it alike, but warn about unshared namespaces once another node runs', async () => {
      const ns = `N${++namespaces}`;
      const options = { variant: 'stream', groups: ['a', 'b'], retention: 60 };
      const a = await startNode(ns, options);
      assert.deepEqual(warningsOf(a, 'namespaces-apart'), [], 'a single node does not warn');
      const b = await startNode(ns, options);
      const client = clientOf(a);
      await eventually('two nodes are listed', async () => (await nodesAt(client)).length === 2);
      assert.deepEqual(await conflictsAt(client), []);
      for (const server of [a, b]) {
        assert.deepEqual(warningsOf(server, 'configuration-conflict'), []);
        await eventually(
          'the warning is logged',
          async () => warningsOf(server, 'namespaces-apart').length > 0,
        );
        const warned = warningsOf(server, 'namespaces-apart');
        assert.deepEqual(
          warned.map((line) => line.namespaces),
          [['mine']],
        );
      }
    });

    it('are rejected at start for another variant while a node runs, and warn about it when none does', async () => {
      const ns = `N${++namespaces}`;
      const plain = await ServerProcess.start({ config: configOf(ns, {}) });
      servers.push(plain);
      await assert.rejects(startNode(ns, { variant: 'stream' }), {
        // Makes the process exit with code 2.
        name: 'ConfigError',
        message: new RegExp(
          `namespaces\\.${ns}\\.variant: is stream, and node \\w+ \\(process ${plain.pid} on .* as simple\\. `,
        ),
      });
      assert.equal((await clientOf(plain).insert(ns, 'q', 'x')).status, 200, 'the other node still works');
      await plain.kill();
      const changed = await startNode(ns, { variant: 'stream' });
      assert.equal(warningsOf(changed, 'variant-changed').length, 1);
      await changed.dispose();
      const again = await startNode(ns, { variant: 'stream' });
      assert.deepEqual(
        warningsOf(again, 'variant-changed'),
        [],
        'a changed variant is warned about only once',
      );
    });
  });
}

describe('Nodes whose engine can be shared', () => {
  it('warn at start if no users are configured, because each node would generate its own', async () => {
    const engine = await MODES[0]?.start();
    assert.ok(engine);
    const { url } = engine;
    const namespaces = { N: { url }, M: { url: 'sqlite::memory:' } };
    const warning = /other nodes can share the engine of N, but http\.users is empty/;
    for (const [config, warns] of [
      [{ namespaces }, true],
      [{ namespaces, http: { users: { test1: 'test1' } } }, false],
      [{ namespaces: { M: namespaces.M } }, false],
      [{ namespaces: { N: { url, signaller: { url: 'local:' } } } }, false],
    ] as const) {
      const server = await ServerInProcess.start({ config });
      await server.dispose();
      assert.equal(warning.test(server.output), warns, JSON.stringify(config));
    }
    await engine.stop();
  });
});

function warningsOf({ output }: { readonly output: string }, event: string): LogLine[] {
  return output
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as LogLine)
    .filter((line) => line.event === event);
}
