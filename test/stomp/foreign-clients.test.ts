import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { FakeClock } from '../support/clock.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { until } from '../support/until.ts';
import type { ForeignClient, ForeignLibrary, ForeignMessage } from './foreign/client.ts';
import { LIBRARIES } from './foreign/libraries.ts';
import { StompNode } from './node.ts';

// Runs the same suite with third-party client libraries, each in every STOMP version that it supports.

/** Ends tests that would otherwise hang; nothing is measured with it. */
const TEST_TIMEOUT_MS = 120_000;
/** The libraries use real time, so that this must be long enough for a busy machine. */
const BEAT_MS = 500;

for (const library of LIBRARIES) {
  for (const version of library.versions) foreignSuite(library, version);
}

function foreignSuite(library: ForeignLibrary, version: string): void {
  describe(`${library.name}, STOMP ${version}`, { timeout: TEST_TIMEOUT_MS }, () => {
    let node: StompNode;
    let proxy: TcpProxy;
    let client: ForeignClient;
    let queues = 0;
    let queue = '';

    before(async () => {
      node = await start();
      proxy = await TcpProxy.start(node.port);
      client = await open();
    });
    after(async () => {
      await client.disconnect();
      await proxy.stop();
      await node.stop();
    });

    const start = (): Promise<StompNode> =>
      StompNode.start({
        options: { sendBeatMs: 50, wantBeatMs: 100 },
        overWebSocket: library.isOverWebSocket === true,
      });
    const open = (more: object = {}): Promise<ForeignClient> =>
      library.open({ port: proxy.port, version, login: 'test', passcode: 'test', beats: [0, 0], ...more });

    /** Subscribes to a destination that no other test uses, and returns it. */
    const subscribed = async (ack: 'auto' | 'client' | 'client-individual'): Promise<string> => {
      queues += 1;
      queue = `foreign-${queues}`;
      const destination = `/q/N/${queue}`;
      await client.subscribe(destination, `s${queues}`, ack);
      return destination;
    };

    const text = ({ body }: ForeignMessage): string => body.toString();
    const untilEmpty = (): Promise<void> =>
      until(async () => {
        const { ready, scheduled, reserved } = await node.sizes(queue);
        return ready + scheduled + reserved === 0;
      });

    it('sends and receives text with its content type and headers', async () => {
      const destination = await subscribed('auto');
      await client.send(destination, Buffer.from('Grüße, ☃'), {
        'content-type': 'text/plain;charset=utf-8',
        'x-ks-hdr-colour': 'blue',
        own: 'passed on',
      });
      const message = await client.next();
      assert.equal(text(message), 'Grüße, ☃');
      assert.equal(message.headers['content-type'], 'text/plain;charset=utf-8');
      assert.equal(message.headers['x-ks-hdr-colour'], 'blue');
      assert.equal(message.headers.own, 'passed on');
      assert.equal(message.headers.destination, destination);
    });

    it('sends and receives bytes, including NULs', async () => {
      const destination = await subscribed('auto');
      const bytes = Buffer.from(Array.from({ length: 2560 }, (_, i) => i & 255));
      await client.send(destination, bytes);
      assert.deepEqual((await client.next()).body, bytes);
    });

    it('receives many messages in order', async () => {
      const destination = await subscribed('auto');
      for (let i = 0; i < 20; i++) await client.send(destination, Buffer.from(`no. ${i}`));
      for (let i = 0; i < 20; i++) assert.equal(text(await client.next()), `no. ${i}`);
    });

    it('acknowledges messages individually', async () => {
      const destination = await subscribed('client-individual');
      for (const body of ['a', 'b', 'c']) await client.send(destination, Buffer.from(body));
      const [a, b, c] = [await client.next(), await client.next(), await client.next()];
      await client.ack(c);
      await client.ack(a);
      assert.equal((await node.sizes(queue)).reserved, 1);
      await client.ack(b);
      await untilEmpty();
    });

    it('acknowledges all messages up to one', async () => {
      const destination = await subscribed('client');
      for (const body of ['a', 'b', 'c']) await client.send(destination, Buffer.from(body));
      await client.next();
      await client.next();
      await client.ack(await client.next());
      await untilEmpty();
    });

    // STOMP 1.0 has no NACK.
    if (version !== '1.0') {
      it('receives a message again after a NACK, with one failed try', async () => {
        const destination = await subscribed('client-individual');
        await client.send(destination, Buffer.from('again'));
        await client.nack(await client.next(), { 'x-delta-t': '0' });
        const again = await client.next();
        assert.equal(text(again), 'again');
        assert.equal(again.headers['x-tries'], '1');
        await client.ack(again);
        await untilEmpty();
      });
    }

    it('commits and aborts transactions', async () => {
      const destination = await subscribed('client-individual');
      await client.begin('dropped');
      await client.send(destination, Buffer.from('dropped'), { transaction: 'dropped' });
      await client.abort('dropped');
      await client.begin('kept');
      await client.send(destination, Buffer.from('kept'), { transaction: 'kept' });
      await client.commit('kept');
      const message = await client.next();
      assert.equal(text(message), 'kept');
      await client.begin('settled');
      await client.ack(message, 'settled');
      assert.equal((await node.sizes(queue)).reserved, 1);
      await client.commit('settled');
      await untilEmpty();
    });

    it('sends to consumer groups and consumes as one of them', async () => {
      const destination = '/q/S/groups';
      await client.subscribe(destination, 'group', 'client-individual', { 'x-ks-group': 'G2' });
      await client.send(destination, Buffer.from('for one'), { 'x-ks-groups': 'G1' });
      await client.send(destination, Buffer.from('for two'), { 'x-ks-groups': 'G1,G2' });
      const message = await client.next();
      assert.equal(text(message), 'for two');
      assert.equal(message.headers['x-ks-group'], 'G2');
      await client.ack(message);
      const { groups } = await node.broker.namespace('S').visit('groups').status(null);
      assert.deepEqual([groups?.G1?.totalSize, groups?.G2?.totalSize ?? 0], [2, 0]);
    });

    it('reports a wrong password', async () => {
      await assert.rejects(open({ passcode: 'wrong' }), /unauthorized/);
    });

    it('continues after its connection was reset', async () => {
      const destination = await subscribed('client-individual');
      await client.send(destination, Buffer.from('held'));
      await client.next();
      proxy.reset();
      await client.recover();
      const again = await client.next();
      assert.equal(text(again), 'held');
      assert.equal(again.headers['x-tries'], '1');
      await client.ack(again);
      await client.send(destination, Buffer.from('new'));
      const next = await client.next();
      assert.equal(text(next), 'new');
      await client.ack(next);
      await untilEmpty();
    });

    if (library.beats && version !== '1.0') {
      it('keeps its connection alive with heart-beats, and reconnects when the server sends none', async () => {
        const { counts } = node.server;
        let stopClock = driveClock(node.clock);
        const beating = await open({ beats: [BEAT_MS, BEAT_MS] });
        try {
          await beating.subscribe('/q/N/beats', 'beats', 'auto');
          await beating.send('/q/N/beats', Buffer.from('alive'));
          assert.equal(text(await beating.next()), 'alive');
          // Line ends of four intervals: without them the server would have closed the connection after two.
          const { receivedBytes } = counts;
          await until(() => counts.receivedBytes >= receivedBytes + 4);
          assert.equal(counts.errors, expectedErrors());
          // The server sends no more heart-beats, until the client gives the connection up.
          const { sessions, connections } = counts;
          stopClock();
          // Some libraries reconnect before the server has noticed that they left.
          await until(() => counts.sessions < sessions || counts.connections > connections);
          stopClock = driveClock(node.clock);
          await beating.recover();
        } finally {
          await beating.disconnect();
          stopClock();
        }
      });
    }

    it('continues on another node after its own was stopped', async () => {
      const destination = await subscribed('client-individual');
      const before = node;
      node = await start();
      proxy.targetPort = node.port;
      await before.stop();
      await client.recover();
      await client.send(destination, Buffer.from('new'));
      const message = await client.next();
      assert.equal(text(message), 'new');
      await client.ack(message);
      await untilEmpty();
    });

    /** The only ERROR of this suite is that of the wrong password. */
    const expectedErrors = (): number => 1;
  });
}

/**
 * Advances the server's clock with real time, but never so far at once that a delay of a busy machine looks like
 * silence. Returns a function that stops it.
 */
function driveClock(clock: FakeClock): () => void {
  let at = performance.now();
  const timer = setInterval(() => {
    const now = performance.now();
    clock.advance(Math.min(100, now - at));
    at = now;
  }, 20);
  return () => clearInterval(timer);
}
