import assert from 'node:assert/strict';
import { chmod, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { CommandFailed } from '../../src/app/command-line.ts';
import { changeUser, listUsers, resetAdministrator, type UserChange } from '../../src/app/user-commands.ts';
import { ConfigError } from '../../src/config/errors.ts';
import { loadConfig } from '../../src/config/load.ts';
import { FileLocked, whileLocked } from '../../src/util/files.ts';

const HASH = '$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNo';
const YAML = `# who may do what
http:
  port: 3444 # ours
  users:
    # the first one
    ann: { password: '${HASH}', rights: { N: [read] } } # of the warehouse
    short: secret # for trials
namespaces:
  N: { url: 'sqlite:N.db' }
`;

describe('quayside user', () => {
  let folder: string;
  let file: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-user-'));
    file = join(folder, 'q.yaml');
  });
  afterEach(() => rm(folder, { recursive: true }));

  const load = (env = {}, configFile: string | null = file) =>
    loadConfig({ file: configFile, env: { QUAYSIDE_DATA_DIR: folder, ...env }, cwd: folder });

  async function run(change: UserChange, env = {}, configFile: string | null = file): Promise<string> {
    const passwords = { input: Readable.from(['a long enough password\n']), ask: new PassThrough() };
    return changeUser(change, configFile, () => load(env, configFile), passwords);
  }

  const add = (name: string, rights: Record<string, string[]> | null = { N: ['read'] }): UserChange => ({
    verb: 'add',
    name,
    rights,
    maskBodies: false,
  });

  it('changes only its user in a YAML file, and keeps comments, mode and symbolic links', async () => {
    await writeFile(join(folder, 'real.yaml'), YAML);
    await chmod(join(folder, 'real.yaml'), 0o640);
    await symlink('real.yaml', file);
    assert.match(
      await run(add('bob')),
      /^User bob was added to .*q\.yaml\. A server applies it when it starts\.\n$/,
    );
    await run({ verb: 'rights', name: 'ann', rights: { '*': ['browse'] }, maskBodies: true });
    await run({ verb: 'passwd', name: 'short' });
    const text = await readFile(join(folder, 'real.yaml'), 'utf8');
    for (const comment of [
      '# who may do what',
      '# ours',
      '# the first one',
      '# of the warehouse',
      '# for trials',
    ])
      assert.ok(text.includes(comment), comment);
    assert.match(text, /short: '\$argon2id\$[^']+' # for trials/);
    const { users } = (await load()).config.http;
    assert.deepEqual(users.ann, { password: HASH, rights: { '*': ['browse'] }, maskBodies: true });
    assert.deepEqual(users.bob?.rights, { N: ['read'] });
    assert.match(users.bob?.password ?? '', /^\$argon2id\$/);
    await run({ verb: 'remove', name: 'bob' });
    assert.deepEqual(Object.keys((await load()).config.http.users), ['ann', 'short']);
    assert.equal((await stat(join(folder, 'real.yaml'))).mode & 0o777, 0o640);
  });

  it('keeps line ends of CR and LF in YAML and in JSON', async () => {
    const json = '{\r\n"http": {"users": {"ann": "secret"}}}\r\n';
    for (const text of [YAML.replaceAll('\n', '\r\n'), json]) {
      await writeFile(file, text);
      await run(add('bob'));
      const lines = (await readFile(file, 'utf8')).split('\n');
      assert.deepEqual(
        lines.filter((line) => !line.endsWith('\r')),
        [''],
      );
      assert.deepEqual((await load()).config.http.users.bob?.rights, { N: ['read'] });
    }
  });

  it('keeps JSON valid, and adds the first user to a file that has none', async () => {
    file = join(folder, 'q.json');
    await writeFile(file, '{"namespaces": {"N": {"url": "sqlite:N.db"}}}');
    await run(add('bob', null));
    assert.deepEqual(Object.keys(JSON.parse(await readFile(file, 'utf8')).http.users), ['bob']);
    file = join(folder, 'empty.yaml');
    await writeFile(file, '# nothing yet\n');
    await run(add('bob', null));
    assert.match(await readFile(file, 'utf8'), /^# nothing yet\n/);
  });

  it('changes users.json if the configuration has no users', async () => {
    const users = join(folder, 'users.json');
    await writeFile(users, JSON.stringify({ admin: { password: HASH } }));
    const list = async (): Promise<string> => listUsers(null, await load({}, null), true);
    await run(add('bob', { N: ['read', 'write'] }), {}, null);
    assert.equal(await list(), 'admin  administrator\nbob  N=read,write\n');
    await run({ verb: 'rights', name: 'bob', rights: { N: ['browse'] }, maskBodies: true }, {}, null);
    await run({ verb: 'passwd', name: 'bob' }, {}, null);
    assert.equal(await list(), 'admin  administrator\nbob  N=browse  sees no bodies\n');
    await run({ verb: 'remove', name: 'admin' }, {}, null);
    assert.equal(await list(), 'bob  N=browse  sees no bodies\n');
    assert.equal((await stat(users)).mode & 0o777, 0o600);
  });

  for (const [where, configFile] of [
    ['users.json', null],
    ['the configuration file', 'q.yaml'],
  ] as const) {
    it(`keeps concurrent changes of ${where} while a password is typed`, async () => {
      await writeFile(join(folder, 'users.json'), JSON.stringify({ admin: { password: HASH } }));
      await writeFile(file, YAML);
      const path = configFile && join(folder, configFile);
      const begin = async (change: UserChange) => {
        const reading = Promise.withResolvers<void>();
        const input = new Readable({ read: () => reading.resolve() });
        const passwords = { input, ask: new PassThrough() };
        const done = changeUser(change, path, () => load({}, path), passwords);
        await reading.promise;
        return {
          type: () => {
            input.push('a long enough password\n');
            input.push(null);
            return done;
          },
        };
      };
      const slow = await begin(add('slow'));
      const same = await begin(add('quick'));
      await run(add('quick'), {}, path);
      const before = await listUsers(path, await load({}, path), true);
      await slow.type();
      await assert.rejects(same.type(), /^Error: There is a user "quick" already\.$/);
      assert.equal(await listUsers(path, await load({}, path), true), `${before}slow  N=read\n`);
    });
  }

  for (const [where, configFile] of [
    ['users.json', null],
    ['the configuration file', 'q.yaml'],
  ] as const) {
    it(`loses no change of ${where} when several commands run at once`, async () => {
      const names = Array.from({ length: 8 }, (_, index) => `user${index}`);
      const users = Object.fromEntries(
        names.map((name) => [name, { password: HASH, rights: { N: ['read'] } }]),
      );
      await writeFile(join(folder, 'users.json'), JSON.stringify(users));
      await writeFile(file, JSON.stringify({ http: { users }, namespaces: { N: { url: 'sqlite:N.db' } } }));
      const path = configFile && join(folder, configFile);
      await Promise.all(
        names.map((name) =>
          run({ verb: 'rights', name, rights: { N: ['browse'] }, maskBodies: false }, {}, path),
        ),
      );
      const lines = names.map((name) => `${name}  N=browse\n`).join('');
      assert.equal(await listUsers(path, await load({}, path), true), lines);
      assert.deepEqual((await readdir(folder)).sort(), ['q.yaml', 'users.json']);
    });
  }

  it('says which file cannot be used, and how to mend it', async () => {
    const users = join(folder, 'users.json');
    for (const [text, message] of [
      ['{"admin":', /users\.json: cannot be used: it is not JSON\. Create the administrator again with/],
      ['{"\xff": {}}', /users\.json: cannot be used: it is not in UTF-8\. Save it in UTF-8\.$/],
    ] as const) {
      await writeFile(users, text, 'latin1');
      const isReported = (error: Error): boolean =>
        error instanceof ConfigError && message.test(error.message);
      await assert.rejects(async () => listUsers(null, await load({}, null), true), isReported, text);
      await assert.rejects(run(add('bob'), {}, null), isReported, text);
    }
  });

  it('resets the administrator of a damaged file, but does not replace users who are only in another encoding', async () => {
    const users = join(folder, 'users.json');
    const text = JSON.stringify({ admin: { password: HASH }, 'j\u00f6rg': { password: HASH } });
    await writeFile(users, text, 'latin1');
    await assert.rejects(async () => resetAdministrator(await load({}, null)), /Save it in UTF-8/);
    assert.equal(await readFile(users, 'latin1'), text);
    await writeFile(users, text.slice(1));
    assert.match(await resetAdministrator(await load({}, null)), /user {6}admin/);
    assert.deepEqual(Object.keys(JSON.parse(await readFile(users, 'utf8'))), ['admin']);
  });

  it('names the lock file that a killed command left behind', async () => {
    await writeFile(file, YAML);
    await writeFile(`${file}.lock`, '');
    await assert.rejects(
      whileLocked(file, () => Promise.reject(new Error('it ran all the same')), 0),
      new FileLocked(
        `${file} is locked by another command. If none is running, remove the lock of one that was killed, ${file}.lock, and try again.`,
      ),
    );
    const waiting = run(add('bob'));
    await rm(`${file}.lock`);
    assert.match(await waiting, /^User bob was added/);
  });

  it('leaves the file unchanged if a change is not possible, and says why', async () => {
    const cases: readonly (readonly [UserChange, RegExp, { yaml?: string; env?: object }?])[] = [
      [add('ann'), /^There is a user "ann" already\.$/],
      [{ verb: 'passwd', name: 'nn' }, /^There is no user "nn" in .*q\.yaml\. Allowed: ann, short\.$/],
      [add('a:b'), /^User "a:b": cannot be sent in Basic credentials\. Choose a name/],
      [add('__proto__'), /^A user of .*q\.yaml cannot be called "__proto__"\. Choose another name\.$/],
      [
        add('bob', { N: ['raed'] }),
        /^User "bob" "rights" "N": there is no right "raed"\. Choose among read, write/,
      ],
      [
        add('bob', { M: ['read'] }),
        /^User "bob" "rights" "M": there is no such namespace\. Name one of N, or \*\.$/,
      ],
      [
        { verb: 'remove', name: 'env' },
        /^User "env" is defined by an environment variable; change it there\.$/,
        { env: { QUAYSIDE_HTTP__USERS__env__PASSWORD: 'x' } },
      ],
      [
        { verb: 'passwd', name: 'ann' },
        /^The password of "ann" is in the file secret; write what `npm start -- hash-password` prints there\.$/,
        { yaml: 'http: { users: { ann: { passwordFile: secret } } }' },
      ],
      [
        { verb: 'remove', name: 'ann' },
        /^"ann" is the only user; add another one before you remove it\.$/,
        { yaml: 'http: { users: { ann: x } }' },
      ],
      [
        { verb: 'remove', name: 'ann' },
        /^"ann" is amqp\.anonymousUser; change that option/,
        { yaml: 'http: { users: { ann: x, bob: x } }\namqp: { port: 0, anonymousUser: ann }' },
      ],
      [
        add('bob', null),
        /^http\.users in .*q\.yaml is a reference to another part; change it by hand\.$/,
        { yaml: 'exchanges: &e {}\nhttp: { users: *e }' },
      ],
    ];
    await writeFile(join(folder, 'secret'), HASH, { mode: 0o600 });
    for (const [change, says, { yaml = YAML, env = {} } = {}] of cases) {
      await writeFile(file, yaml);
      const isRight = (error: unknown): boolean => {
        assert.ok(error instanceof CommandFailed);
        assert.match(error.message, says);
        return true;
      };
      await assert.rejects(run(change, env), isRight);
      assert.equal(await readFile(file, 'utf8'), yaml);
    }
  });

  it('rejects a change of a part that another user of the file shares', async () => {
    await writeFile(file, 'http: { users: { ann: &a { password: x, rights: { N: [read] } }, bob: *a } }');
    const change = { verb: 'rights', name: 'ann', rights: { N: ['write'] }, maskBodies: false } as const;
    await assert.rejects(run(change), /User ann shares a part of .*q\.yaml with something else/);
  });

  it('rejects a removal of a part to which another user of the file refers', async () => {
    const rights =
      'http: { users: { ann: { password: x, rights: &r { N: [read] } }, bob: { password: y, rights: *r } } }';
    const changes = [
      { verb: 'rights', name: 'ann', rights: { N: ['write'] }, maskBodies: false },
      { verb: 'remove', name: 'ann' },
    ] as const;
    for (const change of changes) {
      await writeFile(file, rights);
      await assert.rejects(run(change), /User ann shares a part of .*q\.yaml with something else/);
      assert.equal(await readFile(file, 'utf8'), rights);
    }
  });
});
