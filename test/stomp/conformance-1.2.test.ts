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

  describe('SEND', () => {
    it('needs a destination', async () => {
      const client = await node.client();
      client.send('SEND', { receipt: 'r' }, 'x');
      assert.equal((await client.expectError('malformed-request')).headers.get('receipt-id'), 'r');
    });

    it('user-defined headers are returned in the MESSAGE', async () => {
      const { client, to } = await subscribed('auto');
      const userDefined = {
        foo: 'bar',
        'correlation-id': '7',
        'reply-to': '/q/N/back',
        priority: '5',
        expires: '0',
        id: '9',
      };
      await client.ask('SEND', { destination: to, ...userDefined }, 'x');
      const { headers } = await client.expect('MESSAGE');
      for (const [name, value] of Object.entries(userDefined)) assert.equal(headers.get(name), value, name);
    });

    it('a SEND that cannot be processed is answered with ERROR, and the connection closes', async () => {
      const wrong = [
        [{ destination: 'queue/N/a' }, 'invalid-name'],
        [{ destination: '/q/N' }, 'invalid-name'],
        [{ destination: '/q/nowhere/a' }, 'namespace-not-found'],
        [{ destination: '/q/N/a', 'x-tries': '-1' }, 'invalid-parameter'],
        [{ destination: '/q/N/a', 'x-ks-hdr-a': 'x\ny' }, 'invalid-header'],
        [{ destination: '/q/N/a', 'two words': 'x' }, 'invalid-header'],
        [{ destination: '/q/N/a', transaction: 'none' }, 'malformed-request'],
      ] as const;
      for (const [headers, code] of wrong) {
        const client = await node.client();
        client.send('SEND', { ...headers, receipt: 'r' }, 'x');
        assert.equal((await client.expectError(code)).headers.get('receipt-id'), 'r');
      }
    });
  });

  describe('SUBSCRIBE and UNSUBSCRIBE', () => {
    it('a SUBSCRIBE that cannot be processed is answered with ERROR, and the connection closes', async () => {
      const wrong = [
        [{ id: '1' }, 'malformed-request'],
        [{ id: '1', destination: '/q/nowhere/a' }, 'namespace-not-found'],
        [{ id: '1', destination: '/q/N/a', ack: 'sometimes' }, 'invalid-parameter'],
        [{ id: '1', destination: '/q/N/a', selector: "a = 'b'" }, 'not-supported'],
        [{ id: '1', destination: '/q/N/a', 'x-wsize': '0' }, 'invalid-parameter'],
      ] as const;
      for (const [headers, code] of wrong) {
        const client = await node.client();
        client.send('SUBSCRIBE', { ...headers, receipt: 'r' });
        assert.equal((await client.expectError(code)).headers.get('receipt-id'), 'r');
      }
    });

    it('SUBSCRIBE needs an id', async () => {
      const client = await node.client();
      client.send('SUBSCRIBE', { destination: fresh() });
      await client.expectError('malformed-request');
    });

    it('an id identifies one subscription of a connection at a time', async () => {
      const client = await node.client();
      await client.ask('SUBSCRIBE', { destination: fresh(), id: '1' });
      client.send('SUBSCRIBE', { destination: fresh(), id: '1' });
      await client.expectError('malformed-request');
      const other = await node.client();
      await other.ask('SUBSCRIBE', { destination: fresh(), id: '1' });
      await other.ask('UNSUBSCRIBE', { id: '1' });
      await other.ask('SUBSCRIBE', { destination: fresh(), id: '1' });
    });

    it('without an ack header the mode is auto: a message is consumed as soon as it is sent', async () => {
      const to = fresh();
      await node.insert(to.slice(5), 'a');
      const client = await node.client();
      await client.ask('SUBSCRIBE', { destination: to, id: 's' });
      assert.equal((await client.expect('MESSAGE')).headers.has('ack'), false);
      await client.vanish();
      assert.deepEqual(await node.sizes(to.slice(5)), { ready: 0, scheduled: 0, reserved: 0 });
    });

    it('in mode client a message without an ACK is delivered to another consumer after a disconnect', async () => {
      const { client, to } = await subscribed('client', 'a');
      await client.expect('MESSAGE');
      await client.disconnect();
      const next = await node.client();
      await next.ask('SUBSCRIBE', { destination: to, id: 's' });
      assert.equal((await next.expect('MESSAGE')).body.toString(), 'a');
    });

    it('in mode client an ACK acknowledges all messages up to the one that it names', async () => {
      const { client, to } = await subscribed('client', 'a', 'b', 'c');
      await client.expect('MESSAGE');
      const second = await client.expect('MESSAGE');
      await client.expect('MESSAGE');
      await client.ask('ACK', { id: second.headers.get('ack') ?? '' });
      await client.disconnect();
      assert.equal(Buffer.from((await node.pop(to.slice(5)))?.body ?? []).toString(), 'c');
      assert.equal(await node.pop(to.slice(5)), null);
    });

    it('in mode client-individual ACK and NACK affect only the message that they name', async () => {
      const { client, to } = await subscribed('client-individual', 'a', 'b', 'c');
      await client.expect('MESSAGE');
      const second = await client.expect('MESSAGE');
      const third = await client.expect('MESSAGE');
      await client.ask('ACK', { id: third.headers.get('ack') ?? '' });
      await client.ask('NACK', { id: second.headers.get('ack') ?? '', 'x-delta-t': '60000' });
      await client.disconnect();
      assert.deepEqual(await node.sizes(to.slice(5)), { ready: 1, scheduled: 1, reserved: 0 });
    });

    it('a subscription receives nothing after UNSUBSCRIBE', async () => {
      const { client, to } = await subscribed('auto');
      await client.ask('UNSUBSCRIBE', { id: 's' });
      await node.insert(to.slice(5), 'a');
      assert.deepEqual(await node.sizes(to.slice(5)), { ready: 1, scheduled: 0, reserved: 0 });
      await client.disconnect();
    });

    it('UNSUBSCRIBE needs the id of a subscription', async () => {
      for (const headers of [{}, { id: 'unknown' }, { destination: '/q/N/a' }]) {
        const client = await node.client();
        client.send('UNSUBSCRIBE', headers);
        await client.expectError('malformed-request');
      }
    });
  });

  describe('ACK and NACK', () => {
    it('a message is consumed by its ACK and not before', async () => {
      const { client, to } = await subscribed('client-individual', 'a');
      const message = await client.expect('MESSAGE');
      assert.equal((await node.sizes(to.slice(5))).reserved, 1);
      await client.ask('ACK', { id: message.headers.get('ack') ?? '' });
      assert.equal((await node.sizes(to.slice(5))).reserved, 0);
    });

    it('both need the ack header of an unacknowledged message', async () => {
      for (const command of ['ACK', 'NACK']) {
        for (const [headers, code] of [
          [{}, 'malformed-request'],
          [{ id: '' }, 'malformed-request'],
          [{ id: '1-1' }, 'element-not-found'],
          [{ id: 'nonsense' }, 'element-not-found'],
          [{ 'message-id': '1', subscription: 's' }, 'malformed-request'],
        ] as const) {
          const client = await node.client();
          client.send(command, { ...headers, receipt: 'r' });
          assert.equal((await client.expectError(code)).headers.get('receipt-id'), 'r');
        }
      }
    });

    it('a second ACK of a message is an error', async () => {
      const { client } = await subscribed('client-individual', 'a');
      const id = (await client.expect('MESSAGE')).headers.get('ack') ?? '';
      await client.ask('ACK', { id });
      client.send('ACK', { id });
      await client.expectError('element-not-found');
    });

    it('in mode client a NACK returns all messages up to the one that it names', async () => {
      const { client, to } = await subscribed('client', 'a', 'b', 'c');
      await client.expect('MESSAGE');
      const second = await client.expect('MESSAGE');
      await client.expect('MESSAGE');
      await client.ask('NACK', { id: second.headers.get('ack') ?? '' });
      assert.deepEqual(await node.sizes(to.slice(5)), { ready: 0, scheduled: 2, reserved: 1 });
    });
  });

  describe('transactions', () => {
    it('BEGIN, COMMIT and ABORT need the id of a transaction', async () => {
      for (const command of ['BEGIN', 'COMMIT', 'ABORT']) {
        const client = await node.client();
        client.send(command, {});
        await client.expectError('malformed-request');
      }
      for (const command of ['COMMIT', 'ABORT']) {
        const client = await node.client();
        client.send(command, { transaction: 'unknown' });
        await client.expectError('malformed-request');
      }
    });

    it('an id identifies one open transaction at a time', async () => {
      const client = await node.client();
      await client.ask('BEGIN', { transaction: 't' });
      client.send('BEGIN', { transaction: 't' });
      await client.expectError('malformed-request');
    });

    it('frames of a transaction take effect at COMMIT, and not at all after ABORT', async () => {
      const to = fresh();
      const client = await node.client();
      for (const [transaction, end] of [
        ['kept', 'COMMIT'],
        ['dropped', 'ABORT'],
      ] as const) {
        await client.ask('BEGIN', { transaction });
        await client.ask('SEND', { destination: to, transaction }, transaction);
        assert.equal((await node.sizes(to.slice(5))).ready, end === 'COMMIT' ? 0 : 1);
        await client.ask(end, { transaction });
      }
      assert.equal(Buffer.from((await node.pop(to.slice(5)))?.body ?? []).toString(), 'kept');
      assert.equal(await node.pop(to.slice(5)), null);
    });

    it('a transaction that is open at DISCONNECT, or when the connection is lost, is aborted', async () => {
      const to = fresh();
      for (const end of ['disconnect', 'vanish'] as const) {
        const client = await node.client();
        await client.ask('BEGIN', { transaction: 't' });
        await client.ask('SEND', { destination: to, transaction: 't' }, 'x');
        await client[end]();
      }
      assert.equal(await node.pop(to.slice(5)), null);
    });
  });

  describe('DISCONNECT', () => {
    it('is answered with its receipt after all earlier frames, and the connection closes', async () => {
      const to = fresh();
      const client = await node.client();
      const sends = Array.from({ length: 50 }, (_, i) =>
        client.frame('SEND', { destination: to, receipt: i }, 'x'),
      );
      client.write(Buffer.concat([...sends, client.frame('DISCONNECT', { receipt: 'last' })]));
      const receipts: string[] = [];
      for (let frame = await client.nextOrEnd(); frame !== null; frame = await client.nextOrEnd()) {
        assert.equal(frame.command, 'RECEIPT');
        receipts.push(frame.headers.get('receipt-id') ?? '');
      }
      assert.equal(receipts.length, 51);
      assert.equal(receipts.at(-1), 'last');
      assert.equal((await node.sizes(to.slice(5))).ready, 50);
    });

    it('frames after DISCONNECT are ignored', async () => {
      const to = fresh();
      const client = await node.client();
      client.write(
        Buffer.concat([
          client.frame('DISCONNECT', { receipt: '1' }),
          client.frame('SEND', { destination: to, receipt: '2' }, 'x'),
          Buffer.from('nonsense'),
        ]),
      );
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), '1');
      assert.equal(await client.nextOrEnd(), null);
      assert.equal((await node.sizes(to.slice(5))).ready, 0);
    });

    it('frames that a client sent before it closed the connection are processed', async () => {
      const to = fresh();
      const client = await node.client();
      client.write(
        Buffer.concat(Array.from({ length: 20 }, () => client.frame('SEND', { destination: to }, 'x'))),
      );
      client.socket.end();
      assert.equal(await client.nextOrEnd(), null);
      assert.equal((await node.sizes(to.slice(5))).ready, 20);
    });
  });

  describe('frames of the server', () => {
    it('MESSAGE has the headers destination, message-id and subscription', async () => {
      const { client, to } = await subscribed('auto');
      const [id] = await node.insert(to.slice(5), 'a');
      const { headers } = await client.expect('MESSAGE');
      assert.equal(headers.get('destination'), to);
      assert.equal(headers.get('message-id'), id);
      assert.equal(headers.get('subscription'), 's');
      assert.equal(headers.get('content-length'), '1');
    });

    it('MESSAGE has a unique ack header if it must be acknowledged', async () => {
      for (const mode of ['client', 'client-individual']) {
        const { client } = await subscribed(mode, 'a', 'b');
        const ids = [await client.expect('MESSAGE'), await client.expect('MESSAGE')].map(({ headers }) =>
          headers.get('ack'),
        );
        assert.ok(ids[0] && ids[1] && ids[0] !== ids[1]);
      }
    });

    it('RECEIPT returns the receipt header of the frame as receipt-id', async () => {
      const client = await node.client();
      client.send('BEGIN', { transaction: 't', receipt: 'a receipt: of my own' });
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'a receipt: of my own');
    });

    it('RECEIPT of a SEND is sent when the element is stored, and not before', async () => {
      const client = await node.client();
      const { release } = node.holdInserts();
      client.send('SEND', { destination: '/q/N/slow', receipt: 'stored' }, 'x');
      client.send('BEGIN', { transaction: 't', receipt: 'begun' });
      const { headers } = await client.expect('RECEIPT');
      release();
      assert.equal(headers.get('receipt-id'), 'begun');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'stored');
      assert.equal((await node.sizes('slow')).ready, 1);
    });

    it('the connection closes after an ERROR, whose message header and body describe the error', async () => {
      const client = await node.client();
      client.send('SELECT', {});
      const { headers, body } = await client.expectError('malformed-request');
      assert.equal(headers.get('content-type'), 'text/plain;charset=utf-8');
      assert.equal(headers.get('content-length'), String(body.length));
      assert.ok(body.length > 0);
    });

    it('an ERROR about a frame returns its receipt header as receipt-id', async () => {
      const client = await node.client();
      client.send('ACK', { id: 'x', receipt: 'r:1' });
      assert.equal((await client.expectError('element-not-found')).headers.get('receipt-id'), 'r:1');
    });
  });
});
