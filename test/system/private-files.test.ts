import assert from 'node:assert/strict';
import { chmod, mkdir, readdir, stat } from 'node:fs/promises';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { writeCertificate } from '../support/certificate.ts';
import { QueueClient } from '../support/http-client.ts';
import { Folder, type Program } from './program.ts';

/** Fewer connections than any limit of open files, of which a start would warn. */
const FEW_SOCKETS = { QUAYSIDE_HTTP__MAX_SOCKETS: '100' };

const skip = process.platform === 'win32' && 'Windows has other rights';

describe('The files of a server', { skip }, () => {
  let folder: Folder;

  beforeEach(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });

  afterEach(() => folder.dispose());

  it('and their folder are accessible only to their owner, whatever the umask', async () => {
    const program = await folder.serve([], { umask: 0, env: FEW_SOCKETS });
    await program.untilPrinted(/reloads/);
    const password = /password {2}(\S+)/.exec(program.stdout)?.[1];
    const client = new QueueClient({ url: program.url, credentials: `admin:${password}` });
    assert.equal((await client.insert('N', 'q', 'x')).status, 200);
    client.close();
    const modes = await modesIn(folder.file('data'));
    assert.equal(modes.get('.'), '700');
    modes.delete('.');
    assert.deepEqual(new Set(modes.values()), new Set(['600']), JSON.stringify([...modes]));
    for (const name of ['users.json', 'quayside.pid', 'N.db', 'N.db-wal']) assert.ok(modes.has(name), name);
    assert.equal(await program.stop(), 0);
    assert.equal((await modesIn(folder.file('data'))).get('logins.json'), '600');
    assert.deepEqual(warningsOf(program), []);
  });

  it('cause a warning at the start if others may access them', async () => {
    const first = await folder.serve([]);
    await first.stop();
    await chmod(folder.file('data'), 0o755);
    await chmod(folder.file('data/users.json'), 0o640);
    const second = await folder.serve([], { env: FEW_SOCKETS });
    await second.untilLogged(() => warningsOf(second).length >= 2);
    const warnings = warningsOf(second);
    assert.equal(warnings.length, 2, warnings.join('\n'));
    assert.match(warnings[0] ?? '', /\/data has mode 0755, so others may use it; run chmod 700/);
    assert.match(warnings[1] ?? '', /users\.json has mode 0640, so others may use it; run chmod 600/);
    assert.equal(await second.stop(), 0);
  });

  describe('without the necessary permissions', () => {
    const DATABASE = '{ N: { url: "sqlite:N.db" } }';
    /** The errors that `doctor` finds in the SQLite file. */
    const examine = async (): Promise<string> => {
      const { stdout } = await folder.run(['doctor', '--config', 'q.yaml'], { respectsModes: true });
      return stdout
        .split('\n')
        .filter((line) => line.includes('"error","check":"sqlite:N.db"'))
        .join('\n');
    };
    const start = async (namespaces: string): Promise<string> => {
      await folder.write('q.yaml', `{ http: { port: 0, users: { u: p } }, namespaces: ${namespaces} }`);
      const program = await folder.run(['--config', 'q.yaml'], { respectsModes: true });
      assert.equal(program.code, 2, program.stderr);
      assert.doesNotMatch(program.stderr, /\n\s+at /, 'a stack trace');
      return program.stderr
        .split('\n')
        .filter((line) => line.startsWith('quayside: '))
        .join('\n');
    };

    it('are reported by name if the server may not enter their folder', async () => {
      await mkdir(folder.file('data'), { mode: 0o000 });
      const hint = 'Let the user that runs the server enter it, or name another folder\\.';
      for (const namespaces of ['{ N: { url: "sqlite::memory:" } }', DATABASE]) {
        const error = await start(namespaces);
        assert.match(
          error,
          new RegExp(`^quayside: q.yaml: dataDir: \\S+data cannot be entered \\(EACCES\\)\\. ${hint}$`),
        );
      }
      const { stdout, stderr } = await folder.run(['doctor', '--config', 'q.yaml'], { respectsModes: true });
      assert.match(
        stdout,
        /"error","check":"dataDir","message":"dataDir \S+data cannot be entered \(EACCES\)"/,
        stderr,
      );
      await chmod(folder.file('data'), 0o700);
    });

    for (const dataDir of ['data', 'data/new']) {
      it(`are reported by doctor if the server may not create them in ${dataDir}`, async () => {
        await mkdir(folder.file('data'), { mode: 0o500 });
        await folder.write('q.yaml', `{ dataDir: ${JSON.stringify(dataDir)}, namespaces: ${DATABASE} }`);
        assert.match(await examine(), /"\S+data may not be written to by this user \(EACCES\)"/);
      });
    }

    for (const [what, mode] of [
      ['may not read', 0o000],
      ['may only read', 0o444],
    ] as const) {
      it(`are reported by name, not as damaged, if the server ${what} them`, async () => {
        await (await folder.serve([])).stop();
        await chmod(folder.file('data/N.db'), mode);
        assert.match(
          await start(DATABASE),
          /^quayside: q\.yaml: namespaces\.N\.url: cannot be opened: \S+N\.db may not be read and written by this user \(EACCES\)\. Give it to the user that runs the server\.$/,
        );
        assert.match(
          await examine(),
          /"\S+N\.db may not be read and written by this user \(EACCES\)","hint":"give it to the user that runs the server"/,
        );
      });
    }
  });

  for (const group of ['http', 'stomp', 'amqp']) {
    it(`include the TLS key of ${group}, for which a warning is logged if others may read it`, async () => {
      writeCertificate({ cert: folder.file('cert.pem'), key: folder.file('key.pem') }, 'a');
      await chmod(folder.file('key.pem'), 0o604);
      const listener = { port: 0, tls: { cert: 'cert.pem', key: 'key.pem' } };
      const config = { http: { users: { u: 'p' } }, namespaces: { N: { url: 'sqlite::memory:' } } };
      const written = { ...config, [group]: { ...config[group as 'http'], ...listener } };
      await folder.write('q.json', written);
      await mkdir(folder.file('data'), { mode: 0o700 });
      const program = await folder.serve(['--config', 'q.json']);
      await program.untilLogged(() =>
        warningsOf(program).some((text) => /may read .*key\.pem; run chmod 600/.test(text)),
      );
      assert.equal(await program.stop(), 0);
    });
  }
});

function warningsOf(program: Program): string[] {
  const lines = program.logged().filter(({ level }) => level === 'warn');
  return lines.map(({ msg }) => String(msg));
}

/** The octal modes of the folder (as `.`) and of each file in it. */
async function modesIn(path: string): Promise<Map<string, string>> {
  const modes = new Map<string, string>();
  for (const name of ['.', ...(await readdir(path))]) {
    modes.set(name, ((await stat(`${path}/${name}`)).mode & 0o777).toString(8));
  }
  return modes;
}
