import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { CertificateAuthority } from '../support/certificate.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import {
  type DrivenClient,
  type ForeignLibrary,
  LIBRARIES,
  makeListenerTls,
  startWithCertificate,
} from './foreign/driven.ts';
import { AmqpNode, until } from './node.ts';

// Libraries that other people wrote, in two languages other than rhea's JavaScript, each put through the same suite.

/** Only for tests that would otherwise hang; nothing is measured with it. */
const PATIENCE_MS = 120_000;
/** These libraries and rhea keep real time, so it is long enough for a busy machine. */
const SILENCE_MS = 2_000;

for (const library of LIBRARIES) foreignSuite(library);

function foreignSuite(library: ForeignLibrary): void {
  describe(`${library.name}`, { timeout: PATIENCE_MS }, () => {
    let node: AmqpNode;
    let proxy: TcpProxy;
    let client: DrivenClient;
    let queues = 0;

    before(async () => {
      node = await start();
      proxy = await TcpProxy.start(node.port);
      client = library.start();
      await client.open(proxy.port);
    });
    after(async () => {
      await client.close();
      await proxy.stop();
      await node.stop();
    });

    const tls = library.isOverTls ? makeListenerTls() : null;
    const start = (options: object = {}): Promise<AmqpNode> =>
      AmqpNode.start({ options: { tls, ...options } });
    /** The address of a queue that no other test uses. */
    const fresh = (): string => {
      queues += 1;
      return `N/foreign-${queues}`;
    };
    const nameOf = (address: string): string => address.split('/')[1] ?? '';
    const settled = async (address: string, expected: object): Promise<void> => {
      for (;;) {
        const sizes = await node.sizes(nameOf(address));
        if (sizes.reserved > 0) continue;
        assert.deepEqual(sizes, expected);
        return;
      }
    };

    it('sends and gets bytes, with their type and application properties', async () => {
      const address = fresh();
      const bytes = Buffer.from(Array.from({ length: 2560 }, (_, i) => i & 255));
      const sent = await client.send(address, bytes, 'image/png', { colour: 'blue', orderId: 'A-1' });
      assert.equal(sent, 'accepted');
      await client.receive(address, 1);
      const { body, contentType, deliveryCount, properties } = await client.next();
      assert.ok(body.equals(bytes));
      assert.deepEqual([contentType, deliveryCount], ['image/png', 0]);
      assert.deepEqual(properties, { colour: 'blue', orderId: 'A-1' });
      await client.settle('accepted');
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('sends and gets a message of many frames, and an empty one', async () => {
      const address = fresh();
      const large = Buffer.alloc(400_000, 'Grüße, ☃');
      if (library.sendsManyFrames) assert.equal(await client.send(address, large), 'accepted');
      else await node.insert(nameOf(address), { body: large });
      assert.equal(await client.send(address, Buffer.alloc(0)), 'accepted');
      await client.receive(address, 2, 'settled');
      assert.ok((await client.next()).body.equals(large));
      assert.equal((await client.next()).body.length, 0);
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('gets many in order, within its credit', async () => {
      const address = fresh();
      for (let i = 0; i < 50; i++) await client.send(address, Buffer.from(`no. ${i}`));
      await client.receive(address, 50);
      for (let i = 0; i < 50; i++) {
        assert.equal((await client.next()).body.toString(), `no. ${i}`);
        await client.settle('accepted');
      }
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('gets what is sent while it waits', async () => {
      const address = fresh();
      await client.receive(address, 1);
      const next = client.next();
      await node.insert(nameOf(address), 'at last');
      assert.equal((await next).body.toString(), 'at last');
      await client.settle('accepted');
    });

    it('settles with every outcome', async () => {
      const address = fresh();
      await client.send(address, Buffer.from('again'));
      await client.receive(address, 4);
      for (const [outcome, tries] of [
        ['released', 0],
        ['modified', 0],
        ['rejected', 1],
      ] as const) {
        const { body, deliveryCount } = await client.next();
        assert.deepEqual([outcome, body.toString(), deliveryCount], [outcome, 'again', tries]);
        await client.settle(outcome);
      }
      await settled(address, { ready: 0, scheduled: 1, reserved: 0 });
      await node.pass(9000, nameOf(address));
      assert.equal((await client.next()).deliveryCount, 2);
      await client.settle('accepted');
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('sends to groups and reads as one', async () => {
      await client.send('S/groups', Buffer.from('for one'), '-', { 'x-ks-groups': 'G1' });
      await client.send('S/groups', Buffer.from('for two'), '-', { 'x-ks-groups': 'G1,G2' });
      await client.receive('S/groups', 1, 'unsettled', 'G2');
      assert.equal((await client.next()).body.toString(), 'for two');
      await client.settle('accepted');
    });

    it('learns that a message is rejected', async () => {
      assert.equal(await client.send(fresh(), Buffer.from('x'), '-', { 'x-delta-t': 'soon' }), 'rejected');
    });

    it('learns that its password is wrong', async () => {
      const other = library.start();
      const why = library.knowsConnections ? /auth/i : /ConnectionClose/;
      await assert.rejects(other.open(node.port, { password: 'wrong' }), why);
      await other.end();
    });

    it('goes on after its connection was cut', async () => {
      const address = fresh();
      await client.send(address, Buffer.from('held'));
      await client.receive(address, 1);
      await client.next();
      proxy.reset();
      await client.lost();
      await client.open(proxy.port);
      await client.receive(address, 2);
      const again = await client.next();
      assert.deepEqual([again.body.toString(), again.deliveryCount], ['held', 1]);
      await client.settle('accepted');
      assert.equal(await client.send(address, Buffer.from('new')), 'accepted');
      assert.equal((await client.next()).body.toString(), 'new');
      await client.settle('accepted');
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    if (library.knowsConnections) {
      it('keeps its connection by heart-beats, notices when the server sends none, and is noticed', async () => {
        const patient = await start({ idleTimeoutMs: SILENCE_MS / 2 });
        patient.runClock();
        const line = await TcpProxy.start(patient.port);
        const beating = library.start();
        const { counts } = patient.server;
        await beating.open(line.port, { silenceMs: SILENCE_MS });
        await beating.receive('N/beats', 2);
        const next = beating.next();
        const { frames } = counts;
        await until(() => counts.frames >= frames + 6);
        await patient.insert('beats', 'alive');
        assert.equal((await next).body.toString(), 'alive');
        assert.equal(counts.connections, 1);
        line.state = 'mute';
        await beating.lost();
        line.state = 'open';
        await beating.open(line.port, { silenceMs: SILENCE_MS });
        await until(() => counts.sessions === 1);
        // The driver waits for its next line, and its library has no thread of its own.
        await until(() => counts.sessions === 0);
        await beating.end();
        await line.stop();
        await patient.stop();
      });
    }

    if (library.namesLinks) {
      it('may name two links alike, one each way, and attach again under the name', async () => {
        await client.ask('same', fresh());
      });

      it('learns why a link is refused', async () => {
        assert.deepEqual(await client.ask('refused', 'X/a'), ['amqp:not-found']);
      });
    }
  });
}

describe('python3-qpid-proton with a client certificate', { timeout: PATIENCE_MS }, () => {
  it('logs in by SASL EXTERNAL, with the rights of the user whom it names, or not at all', async () => {
    const tls = makeListenerTls();
    const authority = new CertificateAuthority();
    const node = await AmqpNode.start({ options: { tls: { ...tls, clientCa: authority.cert } } });
    const reader = startWithCertificate(authority.sign('/CN=reader'));
    const nobody = startWithCertificate(authority.sign('/CN=nobody'));
    try {
      await node.insert('certified', 'for your eyes');
      await reader.open(node.port, { scheme: 'amqps' });
      await reader.receive('N/certified', 1);
      assert.equal((await reader.next()).body.toString(), 'for your eyes');
      await reader.settle('accepted');
      await assert.rejects(reader.send('N/certified', Buffer.from('x')), /unauthorized-access/);
      await assert.rejects(nobody.open(node.port, { scheme: 'amqps' }), /auth/i);
    } finally {
      await reader.end();
      await nobody.end();
      await node.stop();
    }
  });
});
