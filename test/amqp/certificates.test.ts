import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, beforeEach, describe, it } from 'node:test';
import type { SecureVersion, TLSSocket } from 'node:tls';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import type { TlsMaterial } from '../../src/util/sockets.ts';
import { CertificateAuthority, type ClientIdentity, makeCertificate } from '../support/certificate.ts';
import { FakeClock } from '../support/clock.ts';
import { SlowAuthenticator } from '../support/session-node.ts';
import { until } from '../support/until.ts';
import { AmqpClient, textOf } from './client.ts';
import { AmqpNode } from './node.ts';
import { codeOf, conditionOf, KIND, RawClient } from './raw-client.ts';
import {
  AMQP,
  attachReceiver,
  attachSender,
  begin,
  bin,
  dataSection,
  described,
  list8,
  open,
  plain,
  rawFrame,
  SASL,
  saslInit,
  transfer,
} from './wire.ts';

const server = makeCertificate();
const authority = new CertificateAuthority();
const foreign = new CertificateAuthority();
const TLS = { ...server, clientCa: authority.cert };

describe('Login by SASL EXTERNAL', () => {
  let node: AmqpNode;
  const clients: RawClient[] = [];

  before(async () => {
    node = await AmqpNode.start({ options: { tls: TLS } });
  });
  // One failure per network and minute is logged.
  beforeEach(() => node.clock.advance(60_000));
  after(async () => {
    for (const { socket } of clients) socket.destroy();
    await node.stop();
  });

  /** Connects, sends the SASL header, and returns the client and the mechanisms that the server offers. */
  const connect = async (
    identity: Partial<ClientIdentity> & { maxVersion?: SecureVersion; session?: Buffer },
    to = node,
  ): Promise<{ client: RawClient; offered: string[] }> => {
    const client = await RawClient.openTls(to.port, { ca: server.cert, ...identity });
    clients.push(client);
    client.write(SASL);
    const frame = (await client.until(KIND.mechanisms)).toString('latin1');
    const offered = ['EXTERNAL', 'PLAIN', 'ANONYMOUS'].filter((name) => frame.includes(name));
    return { client, offered };
  };
  const login = async (client: RawClient, init: Buffer): Promise<number | undefined> => {
    client.write(init);
    return codeOf(await client.until(KIND.outcome));
  };
  const reason = (): string => {
    const last = node.logged.findLast(({ message }) => message === 'an AMQP connection was ended');
    return String((last?.fields as { description?: string } | undefined)?.description);
  };

  it('grants the rights of the user named by the common name of the client certificate', async () => {
    const { client, offered } = await connect(authority.sign('/O=Works/CN=reader'));
    assert.deepEqual(offered, ['EXTERNAL', 'PLAIN']);
    assert.equal(await login(client, saslInit('EXTERNAL', '')), 0);
    client.write(AMQP, open(), begin(), attachReceiver(), attachSender({ name: 'm', handle: 1 }));
    assert.equal(conditionOf(await client.until(KIND.detach)), 'amqp:unauthorized-access');
    assert.equal(node.server.counts.subscriptions, 1);
  });

  it('works with rhea, which sends no password', async () => {
    await node.insert('rhea', 'x');
    const client = await AmqpClient.open(node.port, 'test', {
      transport: 'tls',
      ca: server.cert,
      servername: 'localhost',
      ...authority.sign('/CN=test'),
      enable_sasl_external: true,
      password: undefined,
      username: undefined,
    });
    assert.equal(textOf(await (await client.receiver('N/rhea', {}, 1)).next()), 'x');
    await client.close();
  });

  it('sends a challenge if the init has no initial response', async () => {
    const { client } = await connect(authority.sign('/CN=test'));
    client.write(saslInit('EXTERNAL', null));
    await client.until(KIND.challenge);
    assert.equal(await login(client, rawFrame(1, 0, described(0x43, list8(bin(''))))), 0);
  });

  it('accepts an authorization identity only if it is the name in the certificate', async () => {
    const identity = authority.sign('/CN=test');
    assert.equal(await login((await connect(identity)).client, saslInit('EXTERNAL', 'test')), 0);
    assert.equal(await login((await connect(identity)).client, saslInit('EXTERNAL', 'reader')), 1);
    assert.match(reason(), /names "test", who may not act as "reader"/);
  });

  it('is optional: the same client may log in with a password as another user', async () => {
    const { client } = await connect(authority.sign('/CN=reader'));
    assert.equal(await login(client, plain('test', 'test')), 0);
  });

  for (const [what, identity, why] of [
    ['no certificate', {}, /the client sent no certificate/],
    ['a certificate of another authority', foreign.sign('/CN=test'), /not accepted/],
    ['a self-signed certificate', makeCertificate('test'), /not accepted/],
    ['an expired certificate', authority.sign('/CN=test', { days: -1 }), /CERT_HAS_EXPIRED/],
    ['a certificate for servers', authority.sign('/CN=test', { usage: 'serverAuth' }), /INVALID_PURPOSE/],
    ['a certificate with two common names', authority.sign('/CN=reader/CN=test'), /one common name/],
    ['a certificate without a common name', authority.sign('/O=test'), /one common name/],
  ] as const) {
    for (const maxVersion of ['TLSv1.2', 'TLSv1.3'] as const) {
      it(`is neither offered to nor accepted from a client with ${what}, over ${maxVersion}`, async () => {
        const { client, offered } = await connect({ ...identity, maxVersion });
        assert.deepEqual(offered, ['PLAIN']);
        assert.equal(await login(client, saslInit('EXTERNAL', '')), 1);
        assert.match(reason(), why);
      });
    }
  }

  for (const [what, subject] of [
    ['an unknown user', '/CN=nobody'],
    ['a user in different case', '/CN=Test'],
    ['a user with a leading space', '/CN= test'],
  ] as const) {
    it(`fails if the certificate names ${what}`, async () => {
      const { client } = await connect(authority.sign(subject));
      assert.equal(await login(client, saslInit('EXTERNAL', '')), 1);
      assert.match(reason(), /There is no user/);
    });
  }

  it('checks the certificate on each connection, because TLS sessions are never resumed', async () => {
    for (const maxVersion of ['TLSv1.2', 'TLSv1.3'] as const) {
      const { client } = await connect({ ...authority.sign('/CN=test'), maxVersion });
      const session = (client.socket as TLSSocket).getSession();
      const again = await connect({ maxVersion, ...(session !== undefined && { session }) });
      assert.equal((again.client.socket as TLSSocket).isSessionReused(), false);
      assert.deepEqual(again.offered, ['PLAIN'], maxVersion);
    }
  });

  it('is counted and logged like a password login; a repeated failure is logged again only after a minute', async () => {
    const accounts = readAccounts([{ name: 'test', password: 'test', rights: null }], []);
    const logged: object[] = [];
    const clock = new FakeClock();
    const note = (fields: object): void => void logged.push(fields);
    const authenticator = new PasswordAuthenticator({ accounts, clock, log: { debug: note, warn: note } });
    const other = await AmqpNode.start({ options: { tls: TLS }, authenticator });
    const address = '127.0.0.1';
    const failed = { event: 'login-failed', user: null, address };
    try {
      const external = async (subject: string, as = ''): Promise<number | undefined> =>
        login((await connect(authority.sign(subject), other)).client, saslInit('EXTERNAL', as));
      assert.equal(await external('/CN=test'), 0);
      assert.deepEqual(logged.splice(0), [{ event: 'login', user: 'test', address }]);
      for (const _ of [1, 2]) assert.equal(await external('/CN=nobody'), 1);
      assert.equal(await external('/CN=test', 'reader'), 1);
      assert.deepEqual(logged.splice(0), [failed, failed]);
      clock.advance(60_000);
      assert.equal(await external('/CN=nobody'), 1);
      assert.deepEqual(logged, [{ ...failed, repeats: 2 }]);
      assert.deepEqual(authenticator.counts, { accepted: 1, failed: 4, limited: 0 });
    } finally {
      for (const { socket } of clients) socket.destroy();
      await other.stop();
    }
  });

  const reloading = async (tls: TlsMaterial, run: (node: AmqpNode) => Promise<void>): Promise<void> => {
    const other = await AmqpNode.start({ options: { tls: TLS } });
    try {
      other.server.reloadTls(tls);
      await run(other);
    } finally {
      for (const { socket } of clients) socket.destroy();
      await other.stop();
    }
  };

  it('uses the authorities that were read last', async () => {
    await reloading({ ...server, clientCa: foreign.cert }, async (other) => {
      assert.deepEqual((await connect(authority.sign('/CN=test'), other)).offered, ['PLAIN']);
      assert.deepEqual((await connect(foreign.sign('/CN=test'), other)).offered, ['EXTERNAL', 'PLAIN']);
    });
  });

  it('trusts no authority after a reload without any', async () => {
    await reloading(server, async (other) => {
      assert.deepEqual((await connect(authority.sign('/CN=test'), other)).offered, ['PLAIN']);
    });
  });

  it('is off and requests no client certificate if no authorities are configured', async () => {
    const other = await AmqpNode.start({ options: { tls: server } });
    const { client, offered } = await connect(authority.sign('/CN=test'), other);
    assert.deepEqual(offered, ['PLAIN']);
    assert.equal(await login(client, saslInit('EXTERNAL', '')), 1);
    await other.stop();
  });
});

describe('A TLS connection that its client closes', () => {
  it('executes and answers frames sent before the close, even if the login check took longer', async () => {
    const authenticator = new SlowAuthenticator();
    const node = await AmqpNode.start({ options: { tls: server }, authenticator });
    const connect = (): Promise<RawClient> => RawClient.openTls(node.port, { ca: server.cert });
    try {
      const client = await connect();
      const frames = [open(), begin(), attachSender(), transfer(dataSection('x'))];
      client.socket.allowHalfOpen = true;
      client.socket.end(Buffer.concat([SASL, plain('test', 'test'), AMQP, ...frames]));
      await once(client.socket, 'finish');
      // After this handshake, the server has also processed the end of the first connection.
      const next = await connect();
      authenticator.acceptLogins();
      await client.until(KIND.disposition);
      assert.equal((await node.sizes('q')).ready, 1);
      // The server closes its side without a timeout: the test never advances its clock.
      await client.readToEnd();
      await until(() => node.server.counts.sessions === 0);
      next.socket.destroy();
    } finally {
      await node.stop();
    }
  });
});
