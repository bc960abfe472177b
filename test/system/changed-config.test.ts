import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { Folder, type Program, type ProgramOptions } from './program.ts';

const FILE = ['--config', 'q.json'];

describe('A change of the configuration', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  const write = (namespaces: object, more: object = {}): Promise<unknown> =>
    folder.write('q.json', { http: { users: { test1: 'test1' }, ...more }, namespaces });

  /** Runs a server while `use` runs. */
  const serving = async <T>(
    use: (client: QueueClient, program: Program) => Promise<T>,
    options: ProgramOptions = {},
  ): Promise<T> => {
    const program = await folder.serve(FILE, options);
    const client = new QueueClient({ url: program.url });
    try {
      return await use(client, program);
    } finally {
      client.close();
      await program.stop();
    }
  };

  it('is applied on SIGHUP as far as possible, and the log names the options that need a restart', async () => {
    await write({ N: { url: 'sqlite::memory:' }, M: { url: 'sqlite::memory:' } });
    const change = async (_: QueueClient, program: Program): Promise<void> => {
      await write(
        { N: { url: 'sqlite::memory:', lease: 5 }, 'O.P': { url: 'redis://:CANARY@h' } },
        { bodyLimit: 5 },
      );
      program.signal('SIGHUP');
      await program.untilLogged((lines) => lines.some(({ options }) => options !== undefined));
      const line = program.logged().find(({ options }) => options !== undefined);
      const names = ['namespaces.N.lease', 'namespaces.M', 'namespaces["O.P"]', 'http.bodyLimit'];
      assert.deepEqual(line?.options, names);
      assert.equal(line?.msg, `${names.join(', ')} changed as well and need a restart`);
      assert.ok(!program.stderr.includes('CANARY'));
    };
    // In a process of its own, whose standard error also has what Node prints.
    await serving(change, { ownProcess: true });
  });

  const REJECTED: [
    what: string,
    change: { http?: object; namespaces?: object; [option: string]: unknown },
    error: RegExp,
  ][] = [
    [
      'a proxy that is not a network',
      { http: { trustedProxies: ['10.0.0.0/33'] } },
      /http\.trustedProxies\.0: .*10\.0\.0\.0\/33/,
    ],
    [
      'an unknown engine',
      { namespaces: { O: { url: 'slqite:O.db' } } },
      /namespaces\.O\.url: there is no engine "slqite:"/,
    ],
    ['a data folder that is a file', { dataDir: 'q.json' }, /dataDir: \S+q\.json is no folder/],
    [
      'a listener whose certificate is missing',
      { stomp: { port: 0, tls: { cert: 'none.pem', key: 'none.pem' } } },
      /stomp\.tls\.cert: \S+none\.pem cannot be read \(ENOENT\)/,
    ],
    [
      'a collector of traces that is no URL',
      { tracing: { otlp: 'http://u:%zz@x' } },
      /tracing\.otlp: is not a URL/,
    ],
    [
      'an exchange without a source',
      { exchanges: { x: { dst: [], consumer: {} } } },
      /exchanges\.x\.src: is missing/,
    ],
    [
      'an exchange with an invalid queue name',
      { exchanges: { x: { src: { ns: 'N', queue: 'a\n' }, dst: [{ ns: 'N', queue: 'b' }], consumer: {} } } },
      /exchanges\.x\.src\.queue: The queue name/,
    ],
    [
      'an exchange to an unknown namespace',
      { exchanges: { x: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'M', queue: 'b' }], consumer: {} } } },
      /exchanges\.x: dst\[0\]\.ns: there is no namespace "M"/,
    ],
    [
      'an exchange with a selector that does not parse',
      {
        exchanges: {
          x: { src: { ns: 'N', queue: 'a' }, dst: [{ ns: 'N', queue: 'b', selector: '=>' }], consumer: {} },
        },
      },
      /exchanges\.x: dst\[0\]\.selector/,
    ],
  ];
  for (const [what, { http = {}, namespaces = {}, ...others }, error] of REJECTED) {
    it(`to ${what} is rejected on SIGHUP like at a start, and its new users are not added`, async () => {
      const N = { url: 'sqlite::memory:' };
      await write({ N });
      await serving(async (client, program) => {
        const users = { test1: 'test1', test2: 'test2' };
        await folder.write('q.json', {
          http: { users, ...http },
          namespaces: { N, ...namespaces },
          ...others,
        });
        program.signal('SIGHUP');
        await program.untilLogged((lines) => lines.some(({ event }) => event === 'reload'));
        const line = program.logged().find(({ event }) => event === 'reload');
        assert.equal(line?.msg, 'the configuration could not be reloaded; nothing was changed');
        assert.match(JSON.stringify(line?.err).replaceAll('\\', ''), error);
        assert.equal((await client.status('N', 'q')).status, 200);
        const stranger = new QueueClient({ url: program.url, credentials: 'test2:test2' });
        assert.equal((await stranger.status('N', 'q')).status, 401);
        stranger.close();
        const start = await folder.run(FILE, { env: { QUAYSIDE_HTTP__PORT: '0' } });
        assert.equal(start.code, 2);
        assert.match(start.stderr, error);
      });
    });
  }

  for (const [now, later] of [
    ['simple', 'stream'],
    ['stream', 'simple'],
  ] as const) {
    it(`from ${now} to ${later} hides the stored elements until the namespace is ${now} again`, async () => {
      const [before, changed] = [now, later].map((variant) => ({ N: { url: `sqlite:${now}.db`, variant } }));
      assert.ok(before !== undefined && changed !== undefined);
      await write(before);
      await serving((client) => client.insert('N', 'q', 'kept'));
      await write(changed);
      await serving(async (client) => {
        assert.equal((await client.get('N', 'q', { to: 0 })).status, 504);
        await client.insert('N', 'q', 'other');
        assert.equal((await client.get('N', 'q', { to: 0 })).body.toString(), 'other');
      });
      await write(before);
      await serving(async (client) => {
        assert.equal((await client.get('N', 'q', { to: 0 })).body.toString(), 'kept');
        assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', 'q')).totalSize, 0);
      });
    });
  }

  it('to another engine leaves elements and pauses in the old engine', async () => {
    await write({ N: { url: 'sqlite:old.db' } });
    await serving(async (client) => {
      await client.insert('N', 'q', 'old');
      await client.pause('N', 'q');
    });
    await write({ N: { url: 'sqlite:new.db' } });
    await serving(async (client) => {
      await client.insert('N', 'q', 'new');
      assert.equal((await client.get('N', 'q', { to: 0 })).body.toString(), 'new');
      assert.equal((await client.get('N', 'q', { to: 0 })).status, 504);
    });
    await write({ N: { url: 'sqlite:old.db' } });
    await serving(async (client) => {
      assert.equal((await client.get('N', 'q', { to: 0 })).status, 504, 'the queue is still paused');
      await client.resume('N', 'q');
      assert.equal((await client.get('N', 'q', { to: 0 })).body.toString(), 'old');
    });
  });
});
