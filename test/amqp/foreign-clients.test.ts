import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { CertificateAuthority } from '../support/certificate.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import {
  type DrivenClient,
  type ForeignLibrary,
  LIBRARIES,
  makeListenerTls,
  startWithCertificate,
  VALUE_KINDS,
} from './foreign/driven.ts';
import { AmqpNode } from './node.ts';

// Third-party AMQP libraries, each run through the same suite.

/** Bounds tests that would otherwise hang; not a measurement. */
const PATIENCE_MS = 120_000;
/** Third-party libraries run on real time, so this is long enough for a busy machine. */
const SILENCE_MS = 4_000;
const BEAT_MS = 1_000;

for (const library of LIBRARIES.filter(({ name }) => !process.env.ONLY || name === process.env.ONLY))
  foreignSuite(library);

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
      const sizes = () => node.sizes(nameOf(address), address.split('/')[0]);
      await until(async () => (await sizes()).reserved === 0);
      assert.deepEqual(await sizes(), expected);
    };

    it('sends and receives bytes with their content type and application properties', async () => {
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

    it('sends and receives a message of many frames, and an empty one', async () => {
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

    it('receives many messages in order, within its credit', async () => {
      const address = fresh();
      for (let i = 0; i < 50; i++) await client.send(address, Buffer.from(`no. ${i}`));
      await client.receive(address, 50);
      for (let i = 0; i < 50; i++) {
        assert.equal((await client.next()).body.toString(), `no. ${i}`);
        await client.settle('accepted');
      }
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('receives a message that is sent while it waits', async () => {
      const address = fresh();
      await client.receive(address, 1);
      const next = client.next();
      await node.insert(nameOf(address), 'at last');
      assert.equal((await next).body.toString(), 'at last');
      await client.settle('accepted');
    });

    it('settles with every outcome', async () => {
      const address = fresh();
      const failed = library.failsByModifying ? 1 : 0;
      await client.send(address, Buffer.from('again'));
      await client.receive(address, 4);
      for (const [outcome, tries] of [
        ['released', 0],
        ['modified', 0],
        ['rejected', failed],
      ] as const) {
        const { body, deliveryCount } = await client.next();
        assert.deepEqual([outcome, body.toString(), deliveryCount], [outcome, 'again', tries]);
        await client.settle(outcome);
      }
      await settled(address, { ready: 0, scheduled: 1, reserved: 0 });
      await node.pass(failed === 1 ? 9000 : 3000, nameOf(address));
      assert.equal((await client.next()).deliveryCount, failed + 1);
      await client.settle('accepted');
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('sends to groups and receives as one of them', async () => {
      await client.send('S/groups', Buffer.from('for one'), '-', { 'x-ks-groups': 'G1' });
      await client.send('S/groups', Buffer.from('for two'), '-', { 'x-ks-groups': 'G1,G2' });
      await client.receive('S/groups', 1, 'unsettled', 'G2');
      assert.equal((await client.next()).body.toString(), 'for two');
      await client.settle('accepted');
    });

    it('reports that a message was rejected', async () => {
      assert.equal(await client.send(fresh(), Buffer.from('x'), '-', { 'x-delta-t': 'soon' }), 'rejected');
    });

    it('reports a wrong password', async () => {
      const other = library.start();
      // One of the libraries reports only that its connection was closed.
      await assert.rejects(other.open(node.port, { password: 'wrong' }), /auth|ConnectionClose/i);
      await other.end();
    });

    it('recovers from a cut connection, which counts a failed try for its unsettled message', async () => {
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

    it('receives the dead letter of a message that failed too often', async () => {
      await client.send('D/foreign', Buffer.from('hopeless'), 'text/plain');
      await client.receive('D/foreign', 2);
      for (const tries of [0, 1]) {
        assert.equal((await client.next()).deliveryCount, tries);
        await client.settle('rejected');
        await settled('D/foreign', { ready: 0, scheduled: 1 - tries, reserved: 0 });
        if (tries === 0) await node.pass(3000, 'foreign', 'D');
      }
      await client.receive('D/__deadletter__', 1);
      const { body, contentType, properties } = await client.next();
      assert.deepEqual([body.toString(), contentType], ['hopeless', 'text/plain']);
      assert.deepEqual([properties['x-dl-from-queue'], properties['x-dl-tries']], ['foreign', '2']);
      await client.settle('accepted');
    });

    it('recovers from a server restart, which counts no try for its unsettled message', async () => {
      const address = fresh();
      await client.send(address, Buffer.from('held'));
      await client.receive(address, 1);
      await client.next();
      await node.restart();
      proxy.targetPort = node.port;
      await client.lost();
      await client.open(proxy.port);
      await client.receive(address, 2);
      const again = await client.next();
      assert.deepEqual([again.body.toString(), again.deliveryCount], ['held', 0]);
      await client.settle('accepted');
      assert.equal(await client.send(address, Buffer.from('new')), 'accepted');
      assert.equal((await client.next()).body.toString(), 'new');
      await client.settle('accepted');
      await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
    });

    if (library.sendsValues) {
      it('sends and receives bodies of the common AMQP types', async () => {
        const address = fresh();
        for (const kind of VALUE_KINDS) assert.equal(await client.sendValue(address, kind), 'accepted', kind);
        await client.receive(address, VALUE_KINDS.length);
        for (const kind of VALUE_KINDS) {
          assert.equal(await client.nextValue(), kind);
          await client.settle('accepted');
        }
      });
    }

    if (library.browses) {
      it('browses without removing what it settles', async () => {
        const address = fresh();
        for (const body of ['x', 'y']) await client.send(address, Buffer.from(body));
        await client.receive(address, 5, 'copy');
        for (const [body, outcome] of [
          ['x', 'accepted'],
          ['y', 'rejected'],
        ] as const) {
          assert.equal((await client.next()).body.toString(), body);
          await client.settle(outcome);
        }
        await settled(address, { ready: 2, scheduled: 0, reserved: 0 });
      });
    }

    if (library.drains) {
      it('reports the end of a drain, with elements and on an empty queue', async () => {
        const address = fresh();
        for (let i = 0; i < 3; i++) await client.send(address, Buffer.from(`no. ${i}`));
        assert.equal(await client.drain(address, 10), 3);
        assert.equal(await client.drain(address, 10), 0);
        await settled(address, { ready: 0, scheduled: 0, reserved: 0 });
      });
    }

    if (library.beatsWhenAsked) {
      it('keeps its connection alive by heart-beats, detects a silent server, and is detected when silent', async () => {
        const patient = await start({ idleTimeoutMs: BEAT_MS });
        patient.runClock(BEAT_MS);
        const line = await TcpProxy.start(patient.port);
        const beating = library.start();
        const { counts } = patient.server;
        await beating.open(line.port, { silenceMs: SILENCE_MS });
        await beating.receive('N/beats', 2);
        const next = beating.next();
        const { frames } = counts;
        // Beats are half a period apart, so this takes longer than the silence that the client tolerates.
        await until(() => counts.frames >= frames + 10);
        await patient.insert('beats', 'alive');
        assert.equal((await next).body.toString(), 'alive');
        assert.equal(counts.connections, 1);
        line.state = 'mute';
        await beating.lost();
        line.state = 'open';
        await beating.open(line.port, { silenceMs: SILENCE_MS });
        await until(() => counts.sessions === 1);
        patient.runClock();
        // The driver waits for its next command, and its library has no thread that could send heart-beats.
        await until(() => counts.sessions === 0);
        await beating.end();
        await line.stop();
        await patient.stop();
      });
    }

    if (library.namesLinks) {
      it('allows two links of opposite direction to share a name, and to attach again', async () => {
        await client.ask('same', fresh());
      });

      it('reports why a link was rejected', async () => {
        assert.deepEqual(await client.ask('refused', 'X/a'), ['amqp:not-found']);
      });
    }
  });
}

describe('python3-qpid-proton with a client certificate', { timeout: PATIENCE_MS }, () => {
  it('logs in by SASL EXTERNAL with the rights of the user whom the certificate names, or is rejected', async () => {
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
