import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { StompClient } from './client.ts';
import { StompNode } from './node.ts';

// One test for each MUST of the STOMP 1.2 specification, in its order, and for each SHOULD that a client can observe.
// The names paraphrase the specification. For a requirement on clients, the test shows how this server treats a client
// that violates it.

describe('STOMP 1.2', () => {
  let node: StompNode;
  let queues = 0;

  before(async () => {
    node = await StompNode.start();
  });

  after(() => node.stop());

  /** A destination that no other test uses. */
  const fresh = (): string => {
    queues += 1;
    return `/q/N/conformance-${queues}`;
  };

  const subscribed = async (
    ack: string,
    ...bodies: string[]
  ): Promise<{ client: StompClient; to: string }> => {
    const to = fresh();
    await node.insert(to.slice('/q/N/'.length), ...bodies);
    const client = await node.client();
    await client.ask('SUBSCRIBE', { destination: to, id: 's', ack });
    return { client, to };
  };

  describe('frames', () => {
    it('a line ends with LF or CR LF', async () => {
      const client = await node.client();
      client.write('SEND\r\ndestination:/q/N/crlf\nx-ks-hdr-a:b\r\nreceipt:1\r\n\r\nbody\0');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), '1');
      const stored = await node.pop('crlf');
      assert.deepEqual(stored?.headers, ['a', 'b']);
    });

    it('a frame ends with a NUL, and any number of line ends may follow', async () => {
      const client = await node.client();
      client.write(
        '\n\r\n\nBEGIN\ntransaction:1\nreceipt:1\n\n\0\n\n\r\n\nABORT\ntransaction:1\nreceipt:2\n\n\0',
      );
      await client.expect('RECEIPT');
      await client.expect('RECEIPT');
    });

    it('commands and header names are case-sensitive', async () => {
      const lower = await node.client();
      lower.write('begin\ntransaction:1\n\n\0');
      await lower.expectError('malformed-request');
      const other = await node.client();
      other.send('SEND', { Destination: fresh() });
      await other.expectError('malformed-request');
    });

    it('header names and values are UTF-8', async () => {
      const { client } = await subscribed('auto');
      await client.ask('SEND', { destination: '/q/N/%C3%BC', 'x-ks-hdr-a': 'Ünï ☃ 𝄞' });
      await client.ask('SUBSCRIBE', { destination: '/q/N/ü', id: 'ü' });
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.get('x-ks-hdr-a'), 'Ünï ☃ 𝄞');
      assert.equal(headers.get('subscription'), 'ü');
      assert.equal(headers.get('destination'), '/q/N/ü');
      client.write(Buffer.from('BEGIN\ntransaction:\xfc\n\n\0', 'latin1'));
      await client.expectError('malformed-request');
    });

    it('colon, line feed, carriage return and backslash are escaped in every frame but CONNECT and CONNECTED', async () => {
      const to = fresh();
      const client = await node.client();
      client.write(`SEND\ndestination:${to}\nx-ks-hdr-a:x\\cy\\\\n\nreceipt:a\\cb\\nc\\rd\\\\e\n\nbody\0`);
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'a:b\nc\rd\\e');
      assert.ok(client.received.includes('receipt-id:a\\cb\\nc\\rd\\\\e\n'));
      assert.deepEqual((await node.pop(to.slice(5)))?.headers, ['a', 'x:y\\n']);
    });

    it('an undefined escape sequence is a fatal error', async () => {
      for (const sequence of ['\\t', '\\a', '\\']) {
        const client = await node.client();
        client.write(`SEND\ndestination:${fresh()}\na:${sequence}\n\n\0`);
        await client.expectError('malformed-request');
      }
    });

    it('login and passcode are not unescaped, since CONNECT has no escapes', async () => {
      const client = await node.stranger();
      client.send('CONNECT', { 'accept-version': '1.2', host: 'h', login: 'te\\cst', passcode: 'te\\cst' });
      await client.expectError('unauthorized');
    });

    it('spaces of a header are neither trimmed nor added', async () => {
      const { client } = await subscribed('auto');
      await client.ask('BEGIN', { transaction: ' t ' });
      client.send('COMMIT', { transaction: 't' });
      await client.expectError('malformed-request');
      const other = await node.client();
      other.send('BEGIN', { transaction: 'x', receipt: '  r ' });
      assert.equal((await other.expect('RECEIPT')).headers.get('receipt-id'), '  r ');
    });

    it('of the frames of a client only SEND may have a body', async () => {
      for (const text of [
        'BEGIN\ntransaction:1\n\nbody\0',
        'BEGIN\ntransaction:1\ncontent-length:1\n\nx\0',
      ]) {
        const client = await node.client();
        client.write(text);
        await client.expectError('malformed-request');
      }
    });
  });

  describe('standard headers', () => {
    it('exactly content-length octets are read as the body, and a NUL must follow', async () => {
      const to = fresh();
      const client = await node.client();
      const body = Buffer.from([0, 1, 0, 10, 0, 255]);
      await client.ask('SEND', { destination: to, 'content-length': body.length }, body);
      assert.deepEqual([...((await node.pop(to.slice(5)))?.body ?? [])], [...body]);
      client.write(`SEND\ndestination:${to}\ncontent-length:2\n\nabc\0`);
      await client.expectError('malformed-request');
    });

    it('content-type is returned unchanged; without one the MESSAGE has none', async () => {
      const { client, to } = await subscribed('auto');
      await client.ask('SEND', { destination: to, 'content-type': 'text/plain;charset=iso-8859-15' }, 'x');
      const typed = await client.expect('MESSAGE');
      assert.equal(typed.headers.get('content-type'), 'text/plain;charset=iso-8859-15');
      client.send('SEND', { destination: to }, 'x');
      assert.equal((await client.expect('MESSAGE')).headers.has('content-type'), false);
    });

    it('every frame but CONNECT may ask for a receipt', async () => {
      const { client, to } = await subscribed('client', 'a', 'b');
      const ids = [await client.expect('MESSAGE'), await client.expect('MESSAGE')].map(
        ({ headers }) => headers.get('ack') ?? '',
      );
      await client.ask('SUBSCRIBE', { destination: fresh(), id: 'other' });
      await client.ask('UNSUBSCRIBE', { id: 'other' });
      await client.ask('BEGIN', { transaction: 't' });
      await client.ask('SEND', { destination: fresh(), transaction: 't' });
      await client.ask('COMMIT', { transaction: 't' });
      await client.ask('BEGIN', { transaction: 't' });
      await client.ask('ABORT', { transaction: 't' });
      await client.ask('ACK', { id: ids[0] ?? '' });
      await client.ask('NACK', { id: ids[1] ?? '' });
      await client.ask('SEND', { destination: to });
      await client.expect('MESSAGE');
      await client.disconnect();
    });

    it('of repeated headers the first one is used', async () => {
      const [first, second] = [fresh(), fresh()];
      const client = await node.client();
      client.write(
        `SEND\ndestination:${first}\ndestination:${second}\nfoo:1\nfoo:2\nreceipt:1\nreceipt:2\n\n\0`,
      );
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), '1');
      assert.deepEqual((await node.pop(first.slice(5)))?.headers, ['foo', '1']);
      assert.equal(await node.pop(second.slice(5)), null);
    });

    it('a frame over a limit is answered with ERROR, and the connection closes', async () => {
      const many = await node.client();
      many.write(`SEND\n${'a:b\n'.repeat(129)}\n\0`);
      await many.expectError('headers-too-large');
      const long = await node.client();
      long.write(`SEND\na:${'x'.repeat(24_600)}\n\n\0`);
      await long.expectError('headers-too-large');
      const large = await node.client();
      large.send('SEND', { destination: fresh(), 'content-length': 1_048_577, receipt: 'r' });
      assert.equal((await large.expectError('body-too-large')).headers.get('receipt-id'), 'r');
    });
  });

  describe('connecting', () => {
    it('a STOMP frame is handled as a CONNECT frame', async () => {
      const client = await node.stranger();
      client.send('STOMP', { 'accept-version': '1.2', host: 'h', login: 'test', passcode: 'test' });
      assert.equal((await client.expect('CONNECTED')).headers.get('version'), '1.2');
    });

    it('a client without accept-version is served with STOMP 1.0, even without a host', async () => {
      const client = await node.stranger();
      client.send('CONNECT', { login: 'test', passcode: 'test' });
      assert.equal((await client.expect('CONNECTED')).headers.get('version'), '1.0');
    });

    it('any host is accepted', async () => {
      const client = await node.stranger();
      client.send('CONNECT', {
        'accept-version': '1.2',
        host: 'elsewhere.example',
        login: 'test',
        passcode: 'test',
      });
      await client.expect('CONNECTED');
    });

    it('CONNECTED has the version of the session, and a server header that starts with a name', async () => {
      const client = await node.stranger();
      client.send('CONNECT', { 'accept-version': '1.2', host: 'h', login: 'test', passcode: 'test' });
      const { headers } = await client.expect('CONNECTED');
      assert.equal(headers.get('version'), '1.2');
      assert.match(headers.get('server') ?? '', /^[^/ ]+(\/[^ ]+)?( .*)?$/);
      assert.ok(headers.get('session'));
    });

    it('the highest version that both sides support is used', async () => {
      const cases = [
        ['1.0', '1.0'],
        ['1.0,1.1', '1.1'],
        ['1.1,1.2,1.0', '1.2'],
        ['1.2,2.0', '1.2'],
        ['0.9,1.0,7', '1.0'],
        ['1.1, 1.2', '1.2'],
      ] as const;
      for (const [accepts, spoken] of cases) {
        const client = await node.stranger();
        client.send('CONNECT', { 'accept-version': accepts, host: 'h', login: 'test', passcode: 'test' });
        assert.equal((await client.expect('CONNECTED')).headers.get('version'), spoken, accepts);
        client.socket.destroy();
      }
    });

    it('without a common version an ERROR lists the supported versions, and the connection closes', async () => {
      for (const accepts of ['2.0', '1.3,3.1', '']) {
        const client = await node.stranger();
        client.send('CONNECT', { 'accept-version': accepts, host: 'h', login: 'test', passcode: 'test' });
        const { headers } = await client.expectError('malformed-request');
        assert.equal(headers.get('version'), '1.0,1.1,1.2');
        assert.equal(headers.get('content-type'), 'text/plain;charset=utf-8');
      }
    });

    it('a rejected login is answered with the ERROR unauthorized', async () => {
      const client = await node.stranger();
      client.send('CONNECT', { 'accept-version': '1.2', host: 'h', login: 'test', passcode: 'wrong' });
      await client.expectError('unauthorized');
    });

    it('heart-beat must be two whole numbers separated by a comma', async () => {
      for (const beats of ['10', '1,2,3', 'a,b', '-1,5', '1.5,1', '1;2', '1, 2', '']) {
        const client = await node.stranger();
        client.send('CONNECT', {
          'accept-version': '1.2',
          host: 'h',
          login: 'test',
          passcode: 'test',
          'heart-beat': beats,
        });
        await client.expectError('malformed-request');
      }
    });
  });
});
