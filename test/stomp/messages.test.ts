import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { Headers, StompClient, StompVersion } from './client.ts';
import { StompNode } from './node.ts';

describe('a STOMP error names the wrong value and what is allowed', () => {
  let node: StompNode;

  before(async () => {
    node = await StompNode.start({ options: { bodyLimit: 1000 } });
  });
  after(() => node.stop());

  /** The body of the ERROR that answers these bytes. */
  const answer = async (client: StompClient, bytes: string | Uint8Array): Promise<string> => {
    client.write(bytes);
    for (;;) {
      const { command, body } = await client.next();
      if (command !== 'ERROR') continue;
      client.socket.destroy();
      return body.toString();
    }
  };

  for (const [bytes, message] of [
    ['SEND\n\n\0', 'The first frame is "SEND". Allowed: CONNECT, STOMP.'],
    [
      'GET / HTTP/1.1\r\n\r\n\0',
      '"GET / HTTP/1.1" is not a STOMP command. A frame starts with a command in capital letters, such as SEND.',
    ],
    [
      'get / HTTP/1.1\r\n',
      '"get / HTTP/1.1" is not a STOMP command. A frame starts with a command in capital letters, such as SEND.',
    ],
    [
      'CONNECT\naccept-version:2.0,3.0\n\n\0',
      'Unsupported accept-version "2.0,3.0". Allowed: 1.0, 1.1, 1.2.',
    ],
    [
      'CONNECT\nheart-beat:often\n\n\0',
      'Invalid heart-beat "often". Allowed: two whole numbers of milliseconds, such as 0,10000.',
    ],
    ['CONNECT\nlogin test\n\n\0', 'The header line "login test" is not name:value.'],
    ['CONNECT\npasscode hush\n\n\0', 'The header line of a password is not name:value.'],
  ] as const) {
    it(`before the login: ${message}`, async () => {
      assert.equal(await answer(await node.stranger(), bytes), message);
    });
  }

  const cases: [string, Headers, string, StompVersion?][] = [
    [
      'EAT',
      {},
      'STOMP 1.2 has no command "EAT". Allowed: SEND, SUBSCRIBE, UNSUBSCRIBE, ACK, NACK, BEGIN, COMMIT, ABORT, DISCONNECT.',
    ],
    [
      'NACK',
      {},
      'STOMP 1.0 has no command "NACK". Allowed: SEND, SUBSCRIBE, UNSUBSCRIBE, ACK, BEGIN, COMMIT, ABORT, DISCONNECT.',
      '1.0',
    ],
    ['SEND', {}, 'The header destination of SEND is missing.'],
    [
      'SEND',
      { destination: '/topic/a' },
      'The destination "/topic/a" does not name a queue. Use /q/<namespace>/<queue>, with a / within a name as %2F.',
    ],
    [
      'SEND',
      { destination: '/q/N/%zz' },
      '"%zz" in the destination is not percent-encoded UTF-8. Write % as %25.',
    ],
    [
      'SEND',
      { destination: '/q/N/a', 'x-delta-t': '-5' },
      'Invalid x-delta-t "-5". Allowed: milliseconds, a whole number from 0 to 315360000000.',
    ],
    [
      'SEND',
      { destination: '/q/N/a', transaction: 't' },
      'There is no open transaction "t" in this session. It has "open".',
    ],
    [
      'SUBSCRIBE',
      { destination: '/q/N/a', id: '1', ack: 'Auto' },
      'Invalid ack "Auto". Allowed: auto, client, client-individual.',
    ],
    [
      'SUBSCRIBE',
      { destination: '/q/N/a', id: '1', 'x-wsize': '☃' },
      'Invalid x-wsize "☃". Allowed: a count of elements, a whole number from 1 to 65536.',
    ],
    [
      'SUBSCRIBE',
      { destination: '/q/N/a', id: '1', 'x-lease': '9' },
      'x-lease is "9", but ack:auto has no lease. Allowed with client and client-individual.',
    ],
    [
      'SUBSCRIBE',
      { destination: '/q/N/a', id: '1', selector: 'a = 1' },
      'Selectors such as "a = 1" are not supported. Omit the header selector, or use an exchange.',
    ],
    [
      'SUBSCRIBE',
      { destination: '/q/N/a', id: 'one' },
      'Subscription "one" exists already. Choose another id, or UNSUBSCRIBE first.',
    ],
    ['UNSUBSCRIBE', { id: 'two' }, 'There is no subscription "two" in this session. It has "one".'],
    ['ACK', { id: '1-1' }, 'This session has no unacknowledged message "1-1".'],
    [
      'BEGIN',
      { transaction: 'open' },
      'Transaction "open" is open already. Choose another id, or end it first.',
    ],
    [
      'COMMIT',
      { transaction: 'other' },
      'There is no open transaction "other" in this session. It has "open".',
    ],
    [
      'SEND',
      { destination: '/q/N/a', 'content-length': '9.5' },
      'Invalid content-length "9.5". Allowed: a whole number from 0.',
    ],
    [
      'SEND',
      { destination: '/q/N/a', 'content-length': '1001' },
      'The body has 1001 bytes or more. Allowed: at most 1000.',
    ],
    ['ACK', { 'content-length': '1' }, 'The ACK frame has a body. Only SEND may have one.'],
  ];

  for (const [command, headers, message, version] of cases) {
    it(`after the login: ${command} ${message}`, async () => {
      const client = await node.client(version ?? '1.2');
      await client.ask('SUBSCRIBE', { destination: '/q/N/other', id: 'one' });
      client.send('BEGIN', { transaction: 'open' });
      assert.equal(await answer(client, client.frame(command, headers)), message);
    });
  }

  it('after the login: an undefined escape sequence', async () => {
    const client = await node.client('1.1');
    assert.equal(
      await answer(client, 'SEND\na:\\t\n\n\0'),
      'Undefined escape sequence "\\\\t" in a header. Allowed: \\\\ \\n \\c',
    );
  });

  it('with at most 64 characters of the value, invisible ones escaped', async () => {
    const client = await node.client();
    const id = `\u202e${'x'.repeat(100)}`;
    const { length } = (await answer(client, client.frame('UNSUBSCRIBE', { id }))).replace('\\u202e', ' ');
    assert.equal(
      length,
      'There is no subscription "'.length + 64 + '"… in this session. It has none.'.length,
    );
  });
});
