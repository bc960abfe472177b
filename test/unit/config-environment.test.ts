import assert from 'node:assert/strict';
import { chmod, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { configOf, folder, load, problemsOf } from '../support/loaded-config.ts';

describe('A configuration file', () => {
  it('may name files with secrets, relative to its own folder, with a warning if everybody may read them', async () => {
    await writeFile(join(folder, 'ann'), 'long secret \n', { mode: 0o600 });
    await writeFile(join(folder, 'redis'), 'redis://:p@h\n', { mode: 0o644 });
    const text = 'http: { users: { ann: { passwordFile: ann } } }\nnamespaces: { N: { urlFile: redis } }';
    const { config, warnings } = await load(text);
    assert.deepEqual(config.http.users, { ann: { password: 'long secret ' } });
    assert.equal(config.namespaces.N?.url, 'redis://:p@h');
    assert.equal(warnings.length, 1);
    assert.match(
      warnings[0] ?? '',
      /quayside\.yaml: everybody on this machine may read .*redis; run chmod 600/,
    );
    const other = await load(text, { QUAYSIDE_HTTP__USERS__ann__PASSWORD: 'other' });
    assert.equal(other.config.http.users.ann?.password, 'other', 'the environment overrides the file');
    const json = await load(null, { QUAYSIDE_HTTP__USERS: '{"bob": {"passwordFile": "ann"}}' });
    assert.equal(json.config.http.users.bob?.password, 'long secret ');
  });

  it('is rejected if it or a secret file is not in UTF-8; a byte order mark is removed', async () => {
    const [utf16] = await problemsOf(Buffer.from('\ufeffhttp: { port: 1 }\n', 'utf16le'));
    assert.deepEqual([utf16?.problem, utf16?.hint], ['is not in UTF-8', 'Save it in UTF-8']);
    const [latin1] = await problemsOf(Buffer.from('http: { users: { j\u00f6rg: secret } }', 'latin1'));
    assert.equal(latin1?.problem, 'is not in UTF-8');
    const text = 'http: { users: { ann: { passwordFile: marked } } }';
    await writeFile(join(folder, 'marked'), Buffer.from('p\u00e4ss\n', 'latin1'), { mode: 0o600 });
    const [secret] = await problemsOf(text);
    assert.match(secret?.problem ?? '', /^the file .*marked is not in UTF-8$/);
    await writeFile(join(folder, 'marked'), '\ufeffp\u00e4ss\r\n', { mode: 0o600 });
    assert.equal((await configOf(`\ufeff${text}`)).http.users.ann?.password, 'p\u00e4ss');
  });

  it('is rejected if a secret file cannot be read, or a secret is given twice', async () => {
    const [missing] = await problemsOf('http: { users: { ann: { passwordFile: none } } }');
    assert.match(missing?.path ?? '', /^http\.users\.ann\.passwordFile$/);
    assert.match(missing?.problem ?? '', /the file .*none cannot be read \(ENOENT\)/);
    const [twice] = await problemsOf('http: { users: { ann: { password: a, passwordFile: ann } } }');
    assert.match(twice?.problem ?? '', /is given by passwordFile as well/);
    const [notSecret] = await problemsOf('http: { portFile: ann }');
    assert.match(notSecret?.problem ?? '', /no such option/);
  });
});

describe('The environment', () => {
  it('overrides the file, with each value converted to the type of its option', async () => {
    const { http, dedup, namespaces } = await configOf('http: { port: 1, bodyLimit: 2 }', {
      QUAYSIDE_HTTP__PORT: '8080',
      QUAYSIDE_HTTP__BODY_LIMIT: '4096',
      QUAYSIDE_HTTP__METRICS_WITHOUT_LOGIN: 'true',
      QUAYSIDE_HTTP__ALLOWED_ORIGINS: 'https://a.example, https://b.example',
      QUAYSIDE_HTTP__USERS__test1__PASSWORD: '12345',
      QUAYSIDE_HTTP__USERS__test1__RIGHTS__jobs: 'read,write',
      QUAYSIDE_DEDUP__WINDOW: '0.5',
      QUAYSIDE_NAMESPACES__jobs__URL: 'sqlite:jobs.db',
      OTHER: 'x',
    });
    assert.equal(http.port, 8080);
    assert.equal(http.bodyLimit, 4096);
    assert.equal(http.metricsWithoutLogin, true);
    assert.deepEqual(http.allowedOrigins, ['https://a.example', 'https://b.example']);
    assert.deepEqual(http.users, { test1: { password: '12345', rights: { jobs: ['read', 'write'] } } });
    assert.equal(dedup.window, 0.5);
    assert.deepEqual(Object.keys(namespaces), ['jobs']);
  });

  it('may set a whole group or map as JSON', async () => {
    const { http, waiting, console } = await configOf(null, {
      QUAYSIDE_CONSOLE: 'false',
      QUAYSIDE_WAITING: '{"total": 5}',
      QUAYSIDE_HTTP__USERS: '{"test1": "short"}',
    });
    assert.equal(console.enabled, false);
    assert.deepEqual(waiting, { total: 5, perUser: 1000 });
    assert.deepEqual(http.users, { test1: { password: 'short' } });
  });

  it('may set a group, also in its short form, together with single options of it', async () => {
    const { http, console } = await configOf(null, {
      QUAYSIDE_CONSOLE: 'false',
      QUAYSIDE_CONSOLE__IDLE: '60',
      QUAYSIDE_HTTP__USERS__ann: 'short',
      QUAYSIDE_HTTP__USERS__ann__RIGHTS: '{"N": ["read"]}',
      QUAYSIDE_HTTP__USERS__bob: '{"password": "long"}',
      QUAYSIDE_HTTP__USERS__bob__RIGHTS__N: 'write',
    });
    assert.deepEqual(console, { enabled: false, idle: 60 });
    assert.deepEqual(http.users, {
      ann: { password: 'short', rights: { N: ['read'] } },
      bob: { password: 'long', rights: { N: ['write'] } },
    });
  });

  it('may not set a group to anything but a JSON object, as the error says', async () => {
    const [problem] = await problemsOf(null, { QUAYSIDE_WAITING: '{total: 5}' });
    assert.deepEqual([problem?.source, problem?.path], ['QUAYSIDE_WAITING', 'waiting']);
    assert.match(problem?.hint ?? '', /a JSON object into a variable/);
  });

  it('does not hide an invalid group by setting a single option of it', async () => {
    const [ofFile] = await problemsOf('http: 3444', { QUAYSIDE_HTTP__PORT: '1' });
    assert.deepEqual([ofFile?.path, ofFile?.problem], ['http', 'must be a group of options']);
    assert.match(ofFile?.source ?? '', /quayside\.yaml$/);
    const [ofVariable] = await problemsOf(null, {
      QUAYSIDE_NAMESPACES: '{"N": {url}}',
      QUAYSIDE_NAMESPACES__jobs__URL: 'sqlite:jobs.db',
    });
    assert.deepEqual(
      [ofVariable?.source, ofVariable?.path, ofVariable?.problem],
      ['QUAYSIDE_NAMESPACES', 'namespaces', 'must be a map by name'],
    );
    const { http } = await configOf('http:', { QUAYSIDE_HTTP__PORT: '1' });
    assert.equal(http.port, 1, 'an empty group is valid');
  });

  it('may name a file with a secret, without its last line end, with a warning if everybody may read it', async () => {
    await writeFile(join(folder, 'secret'), 'long secret \n', { mode: 0o600 });
    const env = { QUAYSIDE_HTTP__USERS__a__PASSWORD_FILE: 'secret' };
    const closed = await load(null, env);
    assert.equal(closed.config.http.users.a?.password, 'long secret ');
    assert.deepEqual(closed.warnings, []);
    const headers = await configOf('tracing: { otlp: "http://x" }', {
      QUAYSIDE_TRACING__HEADERS__authorization_FILE: 'secret',
      'QUAYSIDE_TRACING__HEADERS__x-token': 'in the variable',
    });
    assert.deepEqual(headers.tracing?.headers, {
      authorization: 'long secret ',
      'x-token': 'in the variable',
    });
    await chmod(join(folder, 'secret'), 0o644);
    assert.match((await load(null, env)).warnings.join(), /PASSWORD_FILE.*chmod 600/);
  });

  it('accepts the old name of an option with a warning, as the file does', async () => {
    for (const [text, env, source] of [
      ['http: { openMetrics: true }', {}, 'quayside.yaml'],
      [null, { QUAYSIDE_HTTP__OPEN_METRICS: 'true' }, 'QUAYSIDE_HTTP__OPEN_METRICS'],
      [null, { QUAYSIDE_HTTP: '{"openMetrics": true}' }, 'QUAYSIDE_HTTP'],
    ] as const) {
      const { config, warnings } = await load(text, env);
      assert.equal(config.http.metricsWithoutLogin, true);
      assert.equal('openMetrics' in config.http, false);
      assert.equal(warnings.length, 1);
      assert.match(
        warnings[0] ?? '',
        new RegExp(`${source}: http.openMetrics is now called http.metricsWithoutLogin$`),
      );
    }
    const [twice] = await problemsOf('http: { openMetrics: true, metricsWithoutLogin: true }');
    assert.match(twice?.problem ?? '', /is now called http\.metricsWithoutLogin, which is given as well/);
  });

  it('suggests the right name for a misspelled variable', async () => {
    for (const [variable, meant] of [
      ['QUAYSIDE_HTTP_PORT', 'QUAYSIDE_HTTP__PORT'],
      ['QUAYSIDE_HTTP__BODYLIMIT', 'QUAYSIDE_HTTP__BODY_LIMIT'],
      ['QUAYSIDE_HTTP_PROT', null],
      ['QUAYSIDE_HTTP__PROT', 'QUAYSIDE_HTTP__PORT'],
      ['QUAYSIDE_DATADIR', 'QUAYSIDE_DATA_DIR'],
      ['QUAYSIDE_NAMESPACES_jobs_URL', 'QUAYSIDE_NAMESPACES__jobs__URL'],
      ['QUAYSIDE_HTTP_USERS_ann_PASSWORD_FILE', 'QUAYSIDE_HTTP__USERS__ann__PASSWORD_FILE'],
    ] as const) {
      const [{ hint } = { hint: '' }] = await problemsOf(null, { [variable]: '1' });
      if (meant === null) assert.match(hint, /^Remove the variable/);
      else assert.equal(hint, `Did you mean ${meant}?`);
    }
  });

  it('causes a warning about QUAYSIDE_PORT unless that looks like a service variable of Kubernetes', async () => {
    const { config, warnings } = await load(null, { QUAYSIDE_PORT: '8080' });
    assert.equal(config.http.port, 3444);
    assert.deepEqual(warnings, ['QUAYSIDE_PORT="8080" has no effect. Did you mean QUAYSIDE_HTTP__PORT?']);
    assert.deepEqual((await load(null, { QUAYSIDE_PORT: 'tcp://10.0.0.1:80' })).warnings, []);
  });

  it('may contain the variables of clients and commands', async () => {
    const clients = {
      QUAYSIDE_URL: 'http://127.0.0.1:1',
      QUAYSIDE_USER: 'ann',
      QUAYSIDE_PASSWORD: 'secret',
      QUAYSIDE_TOKEN: 'qs_x',
    };
    const { config, warnings } = await load(null, clients);
    assert.deepEqual([config, warnings], [await configOf(null), []]);
  });

  it('may contain the variables that Kubernetes sets for a service named quayside', async () => {
    const config = await configOf(null, {
      QUAYSIDE_PORT: 'tcp://10.0.0.1:3444',
      QUAYSIDE_PORT_3444_TCP_ADDR: '10.0.0.1',
      QUAYSIDE_SERVICE_HOST: '10.0.0.1',
      QUAYSIDE_SERVICE_PORT_HTTP: '3444',
    });
    assert.equal(config.http.port, 3444);
  });
});
