import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import rhea from 'rhea';
import { AmqpClient, textOf } from '../amqp/client.ts';
import { StompClient } from '../stomp/client.ts';
import { CertificateAuthority, writeCertificate } from '../support/certificate.ts';
import { until } from '../support/until.ts';
import { Folder, type Program, type ProgramOptions } from './program.ts';

const USERS = { test1: 'test1' };
const LOGIN = { login: 'test1', passcode: 'test1' };
const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;
/** Both protocols on free ports. */
const BOTH = { stomp: { port: 0 }, amqp: { port: 0 } };

interface Listed {
  readonly tid: string;
  readonly user: string;
  readonly protocol: string;
  readonly address: string;
}

describe('STOMP and AMQP in the server', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  /** Starts a server with these sections of the configuration, `stomp` and `amqp` among them. */
  const serve = async (name: string, sections: object, options: ProgramOptions = {}): Promise<Program> => {
    const namespaces = { N: { url: 'sqlite::memory:' } };
    await folder.write(name, { http: { users: USERS }, namespaces, ...sections });
    return folder.serve(['--config', name], options);
  };

  const call = (program: Program, path: string, method = 'GET'): Promise<Response> =>
    fetch(new URL(path, program.url), { method, headers: { authorization: AUTHORIZATION } });

  /** The queue's consumer, as soon as there is one: the frame that grants credit may arrive after the first request. */
  const consumer = async (program: Program, queue: string): Promise<Listed> => {
    let listed: Listed[] = [];
    await until(async () => {
      listed = (await (await call(program, `/q/N/${queue}/consumers`)).json()) as Listed[];
      return listed.length > 0;
    });
    const [found, ...others] = listed;
    assert.ok(found !== undefined && others.length === 0);
    return found;
  };

  const reloaded = async (program: Program): Promise<void> => {
    const lines = program.logged().length;
    program.signal('SIGHUP');
    await program.untilLogged((all) =>
      all.slice(lines).some(({ level, event }) => level === 'info' && event === 'reload'),
    );
  };

  it('are off unless a port is configured', async () => {
    const program = await serve('off.json', { stomp: {}, amqp: {} });
    assert.equal(program.stdout.split('\n')[0], `Quayside 0.1.0 listens on ${program.url}`);
    assert.doesNotMatch(await (await call(program, '/metrics')).text(), /protocol="(stomp|amqp)"/);
    assert.equal(await program.stop(), 0);
  });

  it('share the bytes that bodies of a user may occupy with HTTP', async () => {
    const bodyLimit = 33_554_432;
    const program = await serve('bodies.json', { stomp: { port: 0, bodyLimit } });
    const open = (): Promise<StompClient> => StompClient.login(stompPort(program), '1.2', LOGIN);
    const clients = await Promise.all([open(), open(), open(), open()]);
    const head = `SEND\ndestination:/q/N/slow\ncontent-length:${bodyLimit}\n\n`;
    for (const client of clients) client.write(head + 'x'.repeat(200_000));
    await until(async () => {
      const metrics = await (await call(program, '/metrics')).text();
      const [, bytes] =
        /^quayside_session_received_bytes_total\{protocol="stomp"\} (\d+)/m.exec(metrics) ?? [];
      return Number(bytes) > 4 * 200_000;
    });
    const put = async (body: string): Promise<number> =>
      (
        await fetch(new URL('/q/N/put', program.url), {
          method: 'PUT',
          body,
          headers: { authorization: AUTHORIZATION },
        })
      ).status;
    let isStored = false;
    const stored = put('x'.repeat(100_000)).finally(() => {
      isStored = true;
    });
    for (let i = 0; i < 5; i += 1) assert.equal(await put('small'), 200);
    assert.equal(isStored, false);
    clients[0]?.socket.destroy();
    assert.equal(await stored, 200);
    for (const { socket } of clients) socket.destroy();
    assert.equal(await program.stop(), 0);
  });

  it('share users, queues, consumer lists and metrics with HTTP', async () => {
    const program = await serve('on.json', BOTH, { ownProcess: true });
    const stomp = await StompClient.login(stompPort(program), '1.2', LOGIN);
    await stomp.ask('SUBSCRIBE', { destination: '/q/N/s', id: 's' });
    const amqp = await AmqpClient.open(amqpPort(program), 'test1');
    const receiver = await amqp.receiver('N/a', {}, 7);
    for (const [queue, protocol, window] of [
      ['s', 'stomp', 1000],
      ['a', 'amqp', 7],
    ] as const) {
      const { user, address, ...listed } = await consumer(program, queue);
      assert.deepEqual([user, listed.protocol, address], ['test1', protocol, '127.0.0.1']);
      const metrics = await (await call(program, '/metrics')).text();
      for (const metric of ['quayside_sessions', 'quayside_subscriptions'])
        assert.ok(metrics.includes(`${metric}{protocol="${protocol}"} 1\n`), metric);
      const line = `quayside_subscription_window_elements{protocol="${protocol}"} ${window}\n`;
      assert.ok(metrics.includes(line), line);
    }
    assert.match(await (await call(program, '/metrics')).text(), /^quayside_links\{protocol="amqp"\} 1$/m);

    for (const queue of ['s', 'a']) await call(program, `/q/N/${queue}`, 'PUT');
    assert.equal((await stomp.expect('MESSAGE')).headers.get('x-tries'), '0');
    (await receiver.next()).delivery.accept();
    for (const queue of ['s', 'a']) {
      const { tid } = await consumer(program, queue);
      assert.equal((await call(program, `/q/N/${queue}/consumer/${tid}`, 'DELETE')).status, 200);
    }
    await stomp.expectError('pop-cancelled');
    assert.equal((await receiver.ended())?.info.code, 'pop-cancelled');

    const stranger = await StompClient.open(stompPort(program));
    stranger.send('CONNECT', { 'accept-version': '1.2', host: 'here', ...LOGIN, passcode: 'wrong' });
    await stranger.expectError('unauthorized');
    await assert.rejects(AmqpClient.open(amqpPort(program), 'test1', { password: 'wrong' }));
    await amqp.close();
    assert.equal(await program.stop(), 0);
  });

  it('close connections when the server stops, and return unsettled elements', async () => {
    const program = await serve('stop.json', { ...BOTH, namespaces: { N: { url: 'sqlite:stop.db' } } });
    const stomp = await StompClient.login(stompPort(program), '1.2', LOGIN);
    await stomp.ask('SEND', { destination: '/q/N/s' }, 'held by s');
    await stomp.ask('SUBSCRIBE', { destination: '/q/N/s', id: 's', ack: 'client' });
    await stomp.expect('MESSAGE');
    const amqp = await AmqpClient.open(amqpPort(program), 'test1');
    const sender = await amqp.sender('N/a');
    await sender.send({ body: rhea.message.data_section(Buffer.from('held by a')) });
    await (await amqp.receiver('N/a', {}, 1)).next();
    const stopped = program.stop();
    await stomp.expectClose();
    assert.equal((await amqp.closed)?.condition, 'amqp:connection:forced');
    assert.equal(await stopped, 0);
    const again = await folder.serve(['--config', 'stop.json']);
    for (const queue of ['s', 'a']) {
      const answer = await call(again, `/q/N/${queue}?to=0`);
      assert.equal(await answer.text(), `held by ${queue}`);
      assert.equal(answer.headers.get('x-ks-tries'), '0');
    }
    assert.equal(await again.stop(), 0);
  });

  it('end the sessions of removed users when the configuration is reloaded', async () => {
    const http = { users: { ...USERS, test2: 'test2' } };
    const program = await serve('users.json', { ...BOTH, http });
    const stompStays = await StompClient.login(stompPort(program), '1.2', LOGIN);
    const stompGoes = await StompClient.login(stompPort(program), '1.2', {
      login: 'test2',
      passcode: 'test2',
    });
    const amqpStays = await AmqpClient.open(amqpPort(program), 'test1');
    const amqpGoes = await AmqpClient.open(amqpPort(program), 'test2');
    await folder.write('users.json', {
      ...BOTH,
      http: { users: USERS },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    program.signal('SIGHUP');
    await stompGoes.expectError('unauthorized');
    assert.equal((await amqpGoes.closed)?.condition, 'amqp:unauthorized-access');
    await stompStays.ask('SEND', { destination: '/q/N/s' });
    await stompStays.disconnect();
    const sender = await amqpStays.sender('N/a');
    assert.equal((await sender.send({ body: 'still here' })).kind, 'accepted');
    await amqpStays.close();
    assert.equal(await program.stop(), 0);
  });

  it('are not served to other machines without TLS unless `insecure` is set', async () => {
    for (const protocol of ['stomp', 'amqp']) {
      await folder.write('open.json', { http: { users: USERS }, [protocol]: { host: '0.0.0.0', port: 0 } });
      const refused = await folder.run(['--config', 'open.json']);
      assert.equal(refused.code, 2);
      const expected = new RegExp(`${protocol}\\.host: 0\\.0\\.0\\.0 can be reached from other machines`);
      assert.match(refused.stderr, expected);
    }
    const everywhere = { host: '0.0.0.0', port: 0, insecure: true };
    const program = await serve('insecure.json', { stomp: everywhere, amqp: everywhere });
    assert.match(program.stdout, / and stomp:\/\/0\.0\.0\.0:\d+ and amqp:\/\/0\.0\.0\.0:\d+\n/);
    assert.equal(await program.stop(), 0);
  });

  it('are served over TLS, and use a renewed certificate after SIGHUP', async () => {
    const files = { cert: folder.file('cert.pem'), key: folder.file('key.pem') };
    const certificate = (): string => readFileSync(files.cert, 'utf8');
    writeCertificate(files, 'first');
    const tls = { host: '0.0.0.0', port: 0, tls: { cert: 'cert.pem', key: 'key.pem' } };
    const program = await serve('tls.json', { stomp: tls, amqp: tls });
    assert.match(program.stdout, / and stomp\+ssl:\/\/0\.0\.0\.0:\d+ and amqps:\/\/0\.0\.0\.0:\d+\n/);
    const before = await StompClient.open(stompPort(program), { ca: certificate() });
    await before.connect(LOGIN);
    const throughTls = { transport: 'tls', ca: certificate(), host: 'localhost' };
    const amqp = await AmqpClient.open(amqpPort(program), 'test1', throughTls);
    await (await amqp.sender('N/a')).send({ body: 'secret' });
    assert.equal(textOf(await (await amqp.receiver('N/a', {}, 1)).next()), 'secret');
    await amqp.close();
    writeCertificate(files, 'second');
    await reloaded(program);
    const afterwards = await StompClient.open(stompPort(program), { ca: certificate() });
    await afterwards.connect(LOGIN);
    await before.ask('SEND', { destination: '/q/N/s' }, 'the old connection stays');
    for (const client of [before, afterwards]) client.socket.destroy();
    assert.equal(await program.stop(), 0);
  });

  it('name the option if the port of STOMP is in use', async () => {
    const program = await serve('first.json', { stomp: { port: 0 } });
    await folder.write('second.json', {
      http: { users: USERS, port: 0 },
      stomp: { port: stompPort(program) },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    const second = await folder.run(['--config', 'second.json']);
    assert.equal(second.code, 2);
    assert.match(second.stderr, /stomp\.port: cannot listen on 127\.0\.0\.1, port \d+ \(EADDRINUSE\)/);
    assert.equal(await program.stop(), 0);
  });

  it('serve STOMP over WebSocket only if that is enabled and a port is configured', async () => {
    const closed = await serve('closed.json', { stomp: { port: 0 } });
    assert.equal((await call(closed, '/stomp')).status, 404);
    const refused = new WebSocket(`${closed.url.replace('http', 'ws')}/stomp`, ['v12.stomp']);
    await once(refused, 'error');
    assert.equal(await closed.stop(), 0);

    const open = await serve('open-socket.json', { stomp: { port: 0, webSocket: true } });
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

  it('authenticate AMQP clients by certificates of the CAs in a file, which SIGHUP reloads', async () => {
    writeCertificate({ cert: folder.file('cert.pem'), key: folder.file('key.pem') });
    const ca = readFileSync(folder.file('cert.pem'), 'utf8');
    const first = new CertificateAuthority();
    const second = new CertificateAuthority();
    const open = (program: Program, authority: CertificateAuthority): Promise<AmqpClient> =>
      AmqpClient.open(amqpPort(program), '', {
        ...{ transport: 'tls', ca, host: 'localhost', ...authority.sign('/CN=test1') },
        ...{ enable_sasl_external: true, username: undefined, password: undefined },
      });

    await folder.write('ca.pem', first.cert);
    const program = await serve('certificates.json', {
      stomp: { port: 0 },
      amqp: { port: 0, tls: { cert: 'cert.pem', key: 'key.pem', clientCa: 'ca.pem' } },
    });
    assert.match(program.stdout, / and stomp:\/\/127\.0\.0\.1:\d+ and amqps:\/\/127\.0\.0\.1:\d+\n/);
    await (await open(program, first)).close();
    await assert.rejects(open(program, second));
    await folder.write('ca.pem', first.cert + second.cert);
    await reloaded(program);
    await (await open(program, second)).close();
    assert.equal(await program.stop(), 0);

    for (const wrong of ['nothing of the kind', first.cert.replace(/\n.{20}/, '\n')]) {
      await folder.write('ca.pem', wrong);
      const { code, stderr } = await folder.run(['--config', 'certificates.json']);
      assert.equal(code, 2);
      assert.match(stderr, /amqp\.tls\.clientCa: .*ca\.pem (has no certificate|cannot be used)/);
    }
  });
});

/** The port on which the server listens for STOMP. */
function stompPort({ stdout }: Program): number {
  return Number(/ and stomp(?:\+ssl)?:\/\/[^:]+:(\d+)[ \n]/.exec(stdout)?.[1]);
}

/** The port on which the server listens for AMQP. */
function amqpPort({ stdout }: Program): number {
  return Number(/ and amqps?:\/\/[^:]+:(\d+)\n/.exec(stdout)?.[1]);
}
