import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { QueueClient } from '../support/http-client.ts';
import { blocksOf, commandsOf } from '../support/page-commands.ts';
import { SERVER_ARGS } from '../support/server-command.ts';
import { Folder, type Program } from './program.ts';

const PAGE = readFileSync(fileURLToPath(new URL('../../docs/operate/security.md', import.meta.url)), 'utf8');
const CONFIG = `http: { users: { test1: test1 } }
namespaces: { N: { url: "sqlite::memory:" }, jobs: { url: "sqlite::memory:" } }
`;

describe('quayside user', () => {
  let folder: Folder;
  let server: Program;

  before(async () => {
    folder = await Folder.create();
    await folder.write('q.yaml', CONFIG);
    server = await folder.serve(['--config', 'q.yaml']);
  });
  after(() => folder.dispose());

  const user = (args: readonly string[], input = ''): Promise<Program> =>
    folder.run(['user', ...args, '--config', 'q.yaml'], { input });

  async function statusAs(credentials: string): Promise<number> {
    const client = new QueueClient({ url: server.url, credentials });
    const { status } = await client.insert('N', 'q', 'x');
    client.close();
    return status;
  }

  /** The log line of the reload that the signal causes. */
  async function reloaded(
    signal = (): void => server.signal('SIGHUP'),
  ): Promise<Record<string, unknown> | undefined> {
    const lines = server.logged().length;
    signal();
    const reloadLines = (all: Record<string, unknown>[]) =>
      all.slice(lines).filter(({ event }) => event === 'reload');
    await server.untilLogged((all) => reloadLines(all).length > 0);
    return reloadLines(server.logged())[0];
  }

  it('adds, changes and removes a user of a running server, which logs the name', async () => {
    const added = await user(['add', 'ann', '--rights', 'N=write'], 'the first password\n');
    assert.equal(added.code, 0, added.stderr);
    assert.equal(
      added.stdout,
      `User ann was added to q.yaml. The server applies it on SIGHUP: kill -HUP ${server.pid}\n`,
    );
    assert.equal(await statusAs('ann:the first password'), 401);
    assert.deepEqual((await reloaded())?.added, ['ann']);
    assert.equal(await statusAs('ann:the first password'), 200);

    assert.equal((await user(['passwd', 'ann'], 'the second password\n')).code, 0);
    assert.equal((await user(['rights', 'ann', '--rights', 'N=browse'])).code, 0);
    assert.deepEqual((await reloaded())?.changed, ['ann']);
    assert.equal(await statusAs('ann:the first password'), 401);
    assert.equal(await statusAs('ann:the second password'), 403);

    assert.match((await user(['list'])).stdout, /^\{"name":"ann","rights":\{"N":\["browse"\]\}/m);
    assert.equal((await user(['remove', 'ann'])).code, 0);
    assert.deepEqual((await reloaded())?.removed, ['ann']);
    assert.equal(await statusAs('ann:the second password'), 401);
    assert.equal(await statusAs('test1:test1'), 200);
  });

  it('rejects a password on the command line, and requires the rights of a new user', async () => {
    const canary = await user(['passwd', 'test1', 'CANARY']);
    assert.equal(canary.code, 2);
    assert.equal(canary.stderr, 'quayside: The command passwd takes no further argument.\n');
    const open = await user(['add', 'bob']);
    assert.equal(open.code, 2);
    assert.equal(open.stderr, 'quayside: Give either --rights or --administrator.\n');
  });

  it('rejects rights that are given twice for a namespace: the last ones would replace the others', async () => {
    const twice = await user(
      ['add', 'bob', '--rights', 'N=read', '--rights', 'N=write'],
      'a good password\n',
    );
    assert.equal(twice.code, 2);
    assert.match(
      twice.stderr,
      /argument 'N=write' is invalid\. Namespace N has rights already; give all of them at once, as in N=read,write\./,
    );
  });

  it('runs the commands of docs/operate/security.md', async () => {
    const quayside = `quayside() { '${process.execPath}' ${SERVER_ARGS.map((arg) => `'${arg}'`).join(' ')} "$@"; }`;
    const run = (command: string): string => {
      const { status, stdout, stderr } = spawnSync('sh', ['-c', `${quayside}\n${command}`], {
        cwd: folder.path,
        env: {
          QUAYSIDE_URL: server.url,
          QUAYSIDE_USER: 'test1',
          QUAYSIDE_PASSWORD: 'test1',
          PATH: '/usr/bin:/bin',
        },
        input: 'a password of the page\n',
        encoding: 'utf8',
      });
      assert.equal(status, 0, `${command}\n${stderr}`);
      return stdout;
    };
    await folder.write('quayside.yaml', CONFIG);
    const commands = blocksOf(PAGE)
      .filter(({ language }) => language === 'sh')
      .flatMap(({ text }) => commandsOf(text));
    const ofUsers = commands.filter((command) => command.startsWith('quayside user '));
    assert.deepEqual(verbsOf(ofUsers), ['add', 'passwd', 'rights', 'list', 'remove']);
    for (const command of ofUsers) run(command);
    await reloaded(() => run(commands[ofUsers.length] ?? ''));

    const [add = '', list = '', revoke = '', ...others] = commands.slice(ofUsers.length + 1);
    assert.deepEqual([verbsOf([add, list, revoke]), others], [['add', 'list', 'revoke'], []]);
    // The date on the page will be in the past one day.
    const added = run(add.replace(/(?<=--expires )\S+/, '2999-01-31T00:00:00Z'));
    const { id } = JSON.parse(added) as { id: string };
    assert.equal((JSON.parse(run(list)) as { id: string }).id, id);
    run(revoke.replace('ID', id));
    assert.equal(run(list), '');
  });

  it('leaves the running server with its users if the file becomes invalid', async () => {
    await folder.write('q.yaml', `${CONFIG}http: {`);
    const line = await reloaded();
    assert.equal(line?.level, 'error');
    assert.equal(line?.msg, 'the configuration could not be reloaded; nothing was changed');
    assert.equal(await statusAs('test1:test1'), 200);
  });
});

/** The third word of each command. */
function verbsOf(commands: readonly string[]): (string | undefined)[] {
  return commands.map((command) => command.split(' ')[2]);
}
