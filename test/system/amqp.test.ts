import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import rhea from 'rhea';
import { AmqpClient, textOf } from '../amqp/client.ts';
import { CertificateAuthority, writeCertificate } from '../support/certificate.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

const USERS = { test1: 'test1' };
const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;

describe('AMQP in the server', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create();
  });
  after(() => folder.dispose());

  const serve = async (name: string, amqp: object, url = 'sqlite::memory:'): Promise<Program> => {
    await folder.write(name, { http: { users: USERS }, amqp, namespaces: { N: { url } } });
    return folder.serve(['--config', name]);
  };

  const call = (program: Program, path: string, method = 'GET'): Promise<Response> =>
    fetch(new URL(path, program.url), { method, headers: { authorization: AUTHORIZATION } });

  it('is off unless a port is configured', async () => {
    const program = await serve('off.json', {});
    assert.equal(program.stdout.split('\n')[0], `Quayside 0.1.0 listens on ${program.url}`);
    assert.doesNotMatch(await (await call(program, '/metrics')).text(), /protocol="amqp"/);
    assert.equal(await program.stop(), 0);
  });

  it('shares users, queues, consumer lists and metrics with HTTP', async () => {
    const program = await serve('on.json', { port: 0 });
    const client = await AmqpClient.open(portOf(program), 'test1');
    const receiver = await client.receiver('N/a', {}, 7);
    const listed = await consumers(() => call(program, '/q/N/a/consumers'));
    assert.deepEqual(
      listed.map(({ user, protocol, address }) => [user, protocol, address]),
      [['test1', 'amqp', '127.0.0.1']],
    );
    const metrics = await (await call(program, '/metrics')).text();
    for (const line of ['quayside_sessions', 'quayside_subscriptions', 'quayside_links']) {
      assert.ok(metrics.includes(`${line}{protocol="amqp"} 1\n`), line);
    }
    assert.ok(metrics.includes('quayside_subscription_window_elements{protocol="amqp"} 7\n'));
    await call(program, '/q/N/a', 'PUT');
    (await receiver.next()).delivery.accept();
    const [again] = await consumers(() => call(program, '/q/N/a/consumers'));
    assert.equal((await call(program, `/q/N/a/consumer/${again?.tid}`, 'DELETE')).status, 200);
    assert.equal((await receiver.ended())?.info.code, 'pop-cancelled');
    await assert.rejects(AmqpClient.open(portOf(program), 'test1', { password: 'wrong' }));
    await client.close();
    assert.equal(await program.stop(), 0);
  });

  it('closes connections when the server stops and returns unsettled elements', async () => {
    const program = await serve('stop.json', { port: 0 }, 'sqlite:stop.db');
    const client = await AmqpClient.open(portOf(program), 'test1');
    const sender = await client.sender('N/a');
    await sender.send({ body: rhea.message.data_section(Buffer.from('held')) });
    await (await client.receiver('N/a', {}, 1)).next();
    const stopped = program.stop();
    assert.equal((await client.closed)?.condition, 'amqp:connection:forced');
    assert.equal(await stopped, 0);
    const again = await folder.serve(['--config', 'stop.json']);
    const answer = await call(again, '/q/N/a?to=0');
    assert.equal(await answer.text(), 'held');
    assert.equal(answer.headers.get('x-ks-tries'), '0');
    assert.equal(await again.stop(), 0);
  });

  it('ends the connections of removed users when the configuration is reloaded', async () => {
    const config = (users: object): object => ({
      http: { users },
      amqp: { port: 0 },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    await folder.write('users.json', config({ ...USERS, test2: 'test2' }));
    const program = await folder.serve(['--config', 'users.json']);
    const stays = await AmqpClient.open(portOf(program), 'test1');
    const goes = await AmqpClient.open(portOf(program), 'test2');
    await folder.write('users.json', config(USERS));
    program.signal('SIGHUP');
    assert.equal((await goes.closed)?.condition, 'amqp:unauthorized-access');
    const sender = await stays.sender('N/a');
    assert.equal((await sender.send({ body: 'still here' })).kind, 'accepted');
    await stays.close();
    assert.equal(await program.stop(), 0);
  });

  it('is not served to other machines without TLS unless `insecure` is set', async () => {
    await folder.write('open.json', { http: { users: USERS }, amqp: { host: '0.0.0.0', port: 0 } });
    const refused = await folder.run(['--config', 'open.json']);
    assert.equal(refused.code, 2);
    assert.match(refused.stderr, /amqp\.host: 0\.0\.0\.0 can be reached from other machines/);
    const program = await serve('insecure.json', { host: '0.0.0.0', port: 0, insecure: true });
    assert.match(program.stdout, / and amqp:\/\/0\.0\.0\.0:\d+\n/);
    assert.equal(await program.stop(), 0);
  });

  it('is served over TLS', async () => {
    writeCertificate({ cert: folder.file('cert.pem'), key: folder.file('key.pem') });
    await folder.write('tls.json', {
      http: { users: USERS },
      stomp: { port: 0 },
      amqp: { host: '0.0.0.0', port: 0, tls: { cert: 'cert.pem', key: 'key.pem' } },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    const program = await folder.serve(['--config', 'tls.json']);
    assert.match(program.stdout, / and stomp:\/\/127\.0\.0\.1:\d+ and amqps:\/\/0\.0\.0\.0:\d+\n/);
    const tls = { transport: 'tls', ca: readFileSync(folder.file('cert.pem'), 'utf8'), host: 'localhost' };
    const client = await AmqpClient.open(portOf(program), 'test1', tls);
    await (await client.sender('N/a')).send({ body: 'secret' });
    assert.equal(textOf(await (await client.receiver('N/a', {}, 1)).next()), 'secret');
    await client.close();
    assert.equal(await program.stop(), 0);
  });

  it('authenticates clients by certificates of the CAs in a file, which SIGHUP reloads', async () => {
    writeCertificate({ cert: folder.file('cert.pem'), key: folder.file('key.pem') });
    const ca = readFileSync(folder.file('cert.pem'), 'utf8');
    const first = new CertificateAuthority();
    const second = new CertificateAuthority();
    const start = (): Promise<Program> =>
      serve('certificates.json', { port: 0, tls: { cert: 'cert.pem', key: 'key.pem', clientCa: 'ca.pem' } });
    const open = (program: Program, authority: CertificateAuthority): Promise<AmqpClient> =>
      AmqpClient.open(portOf(program), '', {
        ...{ transport: 'tls', ca, host: 'localhost', ...authority.sign('/CN=test1') },
        ...{ enable_sasl_external: true, username: undefined, password: undefined },
      });

    await folder.write('ca.pem', first.cert);
    const program = await start();
    await (await open(program, first)).close();
    await assert.rejects(open(program, second));
    await folder.write('ca.pem', first.cert + second.cert);
    const lines = program.logged().length;
    program.signal('SIGHUP');
    await program.untilLogged((all) => all.slice(lines).some(({ event }) => event === 'reload'));
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

/** The port on which the server listens for AMQP. */
function portOf({ stdout }: Program): number {
  return Number(/ and amqps?:\/\/[^:]+:(\d+)\n/.exec(stdout)?.[1]);
}

/** The queue's consumers as soon as there are any: the frame that grants credit may arrive after this request. */
interface Listed {
  readonly tid: string;
  readonly user: string;
  readonly protocol: string;
  readonly address: string;
}

async function consumers(list: () => Promise<Response>): Promise<Listed[]> {
  let listed: Listed[] = [];
  await until(async () => {
    listed = (await (await list()).json()) as Listed[];
    return listed.length > 0;
  });
  return listed;
}
