import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { StompClient } from '../stomp/client.ts';
import { writeCertificate } from '../support/certificate.ts';
import { Folder, type Program } from './program.ts';

const USERS = { test1: 'test1' };
const LOGIN = { login: 'test1', passcode: 'test1' };
const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;

describe('STOMP in the server', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create();
  });
  after(() => folder.dispose());

  const serve = async (name: string, stomp: object): Promise<Program> => {
    await folder.write(name, {
      http: { users: USERS },
      stomp,
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    return folder.serve(['--config', name]);
  };

  const call = (program: Program, path: string, method = 'GET'): Promise<Response> =>
    fetch(new URL(path, program.url), { method, headers: { authorization: AUTHORIZATION } });

  it('is off unless a port is configured', async () => {
    const program = await serve('off.json', {});
    assert.equal(program.stdout.split('\n')[0], `Quayside 0.1.0 listens on ${program.url}`);
    assert.doesNotMatch(await (await call(program, '/metrics')).text(), /protocol="stomp"/);
    assert.equal(await program.stop(), 0);
  });

  it('is served over WebSocket only if that is enabled and a port is configured', async () => {
    const closed = await serve('closed.json', { port: 0 });
    assert.equal((await call(closed, '/stomp')).status, 404);
    const refused = new WebSocket(`${closed.url.replace('http', 'ws')}/stomp`, ['v12.stomp']);
    await once(refused, 'error');
    assert.equal(await closed.stop(), 0);

    const open = await serve('open.json', { port: 0, webSocket: true });
    const socket = new WebSocket(`${open.url.replace('http', 'ws')}/stomp`, ['v12.stomp']);
    await once(socket, 'open');
    socket.send('CONNECT\naccept-version:1.2\nlogin:test1\npasscode:test1\n\n\0');
    const [{ data }] = (await once(socket, 'message')) as [MessageEvent];
    assert.match(String(data), /^CONNECTED\n/);
    const ended = once(socket, 'close');
    assert.equal(await open.stop(), 0);
    await ended;

    await folder.write('without.json', { stomp: { webSocket: true } });
    const { code, stderr } = await folder.run(['--config', 'without.json']);
    assert.equal(code, 2);
    assert.match(stderr, /stomp\.webSocket: is on, but stomp is off\. Give stomp\.port, or leave it out/);
  });

  it('shares users, queues, consumer lists and metrics with HTTP', async () => {
    const program = await serve('on.json', { port: 0 });
    const client = await StompClient.login(portOf(program), '1.2', LOGIN);
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's' });
    const listed = (await (await call(program, '/q/N/a/consumers')).json()) as {
      tid: string;
      user: string;
      protocol: string;
      address: string;
    }[];
    assert.deepEqual(
      listed.map(({ user, protocol, address }) => [user, protocol, address]),
      [['test1', 'stomp', '127.0.0.1']],
    );
    const metrics = await (await call(program, '/metrics')).text();
    for (const line of ['quayside_sessions', 'quayside_subscriptions']) {
      assert.ok(metrics.includes(`${line}{protocol="stomp"} 1\n`), line);
    }
    assert.ok(metrics.includes('quayside_subscription_window_elements{protocol="stomp"} 1000\n'));
    await call(program, '/q/N/a', 'PUT');
    assert.equal((await client.expect('MESSAGE')).headers.get('x-tries'), '0');
    assert.equal((await call(program, `/q/N/a/consumer/${listed[0]?.tid}`, 'DELETE')).status, 200);
    await client.expectError('pop-cancelled');
    const stranger = await StompClient.open(portOf(program));
    stranger.send('CONNECT', { 'accept-version': '1.2', host: 'here', ...LOGIN, passcode: 'wrong' });
    await stranger.expectError('unauthorized');
    assert.equal(await program.stop(), 0);
  });

  it('closes connections when the server stops and returns unsettled elements', async () => {
    await folder.write('stop.json', {
      http: { users: USERS },
      stomp: { port: 0 },
      namespaces: { N: { url: 'sqlite:stop.db' } },
    });
    const program = await folder.serve(['--config', 'stop.json']);
    const client = await StompClient.login(portOf(program), '1.2', LOGIN);
    await client.ask('SEND', { destination: '/q/N/a' }, 'held');
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    await client.expect('MESSAGE');
    const stopped = program.stop();
    await client.expectClose();
    assert.equal(await stopped, 0);
    const again = await folder.serve(['--config', 'stop.json']);
    const answer = await call(again, '/q/N/a?to=0');
    assert.equal(await answer.text(), 'held');
    assert.equal(answer.headers.get('x-ks-tries'), '0');
    assert.equal(await again.stop(), 0);
  });

  it('ends the sessions of removed users when the configuration is reloaded', async () => {
    const config = (users: object): object => ({
      http: { users },
      stomp: { port: 0 },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    await folder.write('users.json', config({ ...USERS, test2: 'test2' }));
    const program = await folder.serve(['--config', 'users.json']);
    const stays = await StompClient.login(portOf(program), '1.2', LOGIN);
    const goes = await StompClient.login(portOf(program), '1.2', { login: 'test2', passcode: 'test2' });
    await folder.write('users.json', config(USERS));
    program.signal('SIGHUP');
    await goes.expectError('unauthorized');
    await stays.ask('SEND', { destination: '/q/N/a' });
    await stays.disconnect();
    assert.equal(await program.stop(), 0);
  });

  it('is not served to other machines without TLS unless `insecure` is set', async () => {
    await folder.write('open.json', { http: { users: USERS }, stomp: { host: '0.0.0.0', port: 0 } });
    const refused = await folder.run(['--config', 'open.json']);
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /stomp\.host: 0\.0\.0\.0 can be reached from other machines/);
    const program = await serve('insecure.json', { host: '0.0.0.0', port: 0, insecure: true });
    assert.match(program.stdout, / and stomp:\/\/0\.0\.0\.0:\d+\n/);
    assert.equal(await program.stop(), 0);
  });

  it('names the option if its port is in use', async () => {
    const program = await serve('first.json', { port: 0 });
    await folder.write('second.json', {
      http: { users: USERS, port: 0 },
      stomp: { port: portOf(program) },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    const second = await folder.run(['--config', 'second.json']);
    assert.equal(second.code, 2);
    assert.match(second.stderr, /stomp\.port: cannot listen on 127\.0\.0\.1, port \d+ \(EADDRINUSE\)/);
    assert.equal(await program.stop(), 0);
  });

  it('is served over TLS, and uses a renewed certificate after SIGHUP', async () => {
    const files = { cert: folder.file('cert.pem'), key: folder.file('key.pem') };
    writeCertificate(files, 'first');
    const program = await serve('tls.json', {
      host: '0.0.0.0',
      port: 0,
      tls: { cert: 'cert.pem', key: 'key.pem' },
    });
    assert.match(program.stdout, / and stomp\+ssl:\/\/0\.0\.0\.0:\d+\n/);
    const before = await StompClient.open(portOf(program), { ca: certificate(folder) });
    await before.connect(LOGIN);
    writeCertificate(files, 'second');
    program.signal('SIGHUP');
    await program.untilLogged((lines) =>
      lines.some(({ level, event }) => level === 'info' && event === 'reload'),
    );
    const afterwards = await StompClient.open(portOf(program), { ca: certificate(folder) });
    await afterwards.connect(LOGIN);
    await before.ask('SEND', { destination: '/q/N/a' }, 'the old connection stays');
    for (const client of [before, afterwards]) client.socket.destroy();
    assert.equal(await program.stop(), 0);
  });
});

/** The port on which the server listens for STOMP. */
function portOf({ stdout }: Program): number {
  return Number(/ and stomp(?:\+ssl)?:\/\/[^:]+:(\d+)\n/.exec(stdout)?.[1]);
}

function certificate(folder: Folder): string {
  return readFileSync(folder.file('cert.pem'), 'utf8');
}
