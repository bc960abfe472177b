import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, exchange, lastRequest, RawConnection, rawRequest } from './raw.ts';

const HEAD = ['Host: test', AUTHORIZATION];
/** A request that must never be executed: it is sent inside the body of another one or after a malformed one. */
const HIDDEN = `PUT /q/N/smuggled HTTP/1.1\r\nHost: test\r\n${AUTHORIZATION}\r\nContent-Length: 1\r\n\r\nx`;

function put(...lines: string[]): string[] {
  return ['PUT /q/N/outer HTTP/1.1', ...HEAD, ...lines];
}

/** Requests whose framing two parsers could interpret differently. Each must be rejected and end its connection. */
const REJECTED: readonly (readonly [string, Buffer])[] = [
  [
    'Content-Length and Transfer-Encoding',
    rawRequest(put('Content-Length: 5', 'Transfer-Encoding: chunked'), `0\r\n\r\n${HIDDEN}`),
  ],
  [
    'Transfer-Encoding and Content-Length',
    rawRequest(put('Transfer-Encoding: chunked', 'Content-Length: 5'), `0\r\n\r\n${HIDDEN}`),
  ],
  ['two lengths that differ', rawRequest(put('Content-Length: 1', 'Content-Length: 2'), `a${HIDDEN}`)],
  ['two lengths that agree', rawRequest(put('Content-Length: 1', 'Content-Length: 1'), `a${HIDDEN}`)],
  ['a list of lengths', rawRequest(put('Content-Length: 1, 1'), `a${HIDDEN}`)],
  ['a negative length', rawRequest(put('Content-Length: -1'), `a${HIDDEN}`)],
  ['a length with a sign', rawRequest(put('Content-Length: +1'), `a${HIDDEN}`)],
  ['a length in hexadecimal', rawRequest(put('Content-Length: 0x1'), `a${HIDDEN}`)],
  ['a length that is no number', rawRequest(put('Content-Length: one'), `a${HIDDEN}`)],
  ['a length beyond 2^64', rawRequest(put('Content-Length: 18446744073709551617'), `a${HIDDEN}`)],
  ['chunked, but not last', rawRequest(put('Transfer-Encoding: chunked, identity'), `0\r\n\r\n${HIDDEN}`)],
  [
    'chunked twice',
    rawRequest(put('Transfer-Encoding: chunked', 'Transfer-Encoding: chunked'), `0\r\n\r\n${HIDDEN}`),
  ],
  ['an unknown coding', rawRequest(put('Transfer-Encoding: xchunked'), `0\r\n\r\n${HIDDEN}`)],
  [
    'a coding with white space before it',
    rawRequest(put('Transfer-Encoding:\x0bchunked'), `0\r\n\r\n${HIDDEN}`),
  ],
  ['a chunk size that is no number', rawRequest(put('Transfer-Encoding: chunked'), `zz\r\n${HIDDEN}`)],
  [
    'a chunk longer than its size',
    rawRequest(put('Transfer-Encoding: chunked'), `1\r\nabc\r\n0\r\n\r\n${HIDDEN}`),
  ],
  ['a negative chunk size', rawRequest(put('Transfer-Encoding: chunked'), `-1\r\n${HIDDEN}`)],
  [
    'a chunk size beyond 2^64',
    rawRequest(put('Transfer-Encoding: chunked'), `10000000000000001\r\n${HIDDEN}`),
  ],
  ['a chunk line that ends with LF', rawRequest(put('Transfer-Encoding: chunked'), `1\na\n0\n\n${HIDDEN}`)],
  ['white space before a colon', rawRequest(put('Content-Length : 1'), `a${HIDDEN}`)],
  ['a folded header', rawRequest(put('X-A: b', ' Content-Length: 1'), `a${HIDDEN}`)],
  ['a header without a colon', rawRequest(put('Content-Length'), `a${HIDDEN}`)],
  ['a header without a name', rawRequest(put(': 1'), `a${HIDDEN}`)],
  ['a bare CR in a header', rawRequest(put('X-A: b\rContent-Length: 1'), `a${HIDDEN}`)],
  ['a bare LF behind a header', Buffer.from(`${put('X-A: b').join('\n')}\n\n${HIDDEN}`, 'latin1')],
  ['NUL in a header', rawRequest(put('X-A: b\0c'), HIDDEN)],
  ['NUL in a header name', rawRequest(put('X\0A: b'), HIDDEN)],
  ['a target with a space', rawRequest(['GET /q/N/ou ter HTTP/1.1', ...HEAD], HIDDEN)],
  ['an unknown version', rawRequest(['GET /q/N/outer HTTP/1.2', ...HEAD], HIDDEN)],
  ['HTTP/2 over HTTP/1', rawRequest(['PRI * HTTP/2.0'], 'SM\r\n\r\n')],
];

describe('Requests with ambiguous or malformed framing', () => {
  const harness = sharedHarness();

  for (const [what, bytes] of REJECTED) {
    it(`(${what}) are rejected and end the connection, and nothing after them is read`, async () => {
      const answers = await exchange(harness().port, bytes);
      assert.ok(answers.length <= 1, JSON.stringify(answers));
      const [answer] = answers;
      if (answer !== undefined) {
        assert.equal(answer.status, 400);
        assert.equal(answer.headers.get('connection'), 'close');
        assert.equal(answer.headers.get('content-type'), 'application/problem+json');
        assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
        assert.equal(JSON.parse(answer.body).code, 'malformed-request');
      }
    });
  }

  it('store nothing', async () => {
    const queues = jsonOf<object>(await harness().client().queues('N'));
    assert.ok(!('smuggled' in queues));
    for (const [name, record] of Object.entries(queues)) assert.equal(record.totalSize, 0, name);
  });
});

describe('Requests that two parsers could interpret differently', () => {
  const harness = sharedHarness();

  it('two Host headers, two Authorization headers, or no Host are answered with 400', async () => {
    const lines = [[...HEAD, 'Host: other'], [...HEAD, 'authorization: Basic eDp5'], [AUTHORIZATION]];
    for (const headers of lines) {
      const bytes = rawRequest(['GET /q HTTP/1.1', ...headers, 'Connection: close']);
      const [answer] = await exchange(harness().port, bytes);
      assert.equal(answer?.status, 400);
      assert.equal(JSON.parse(answer?.body ?? '').code, 'malformed-request');
    }
  });

  it('a transfer coding other than chunked is answered with 400', async () => {
    for (const codings of [
      ['gzip, chunked'],
      ['chunked, chunked'],
      ['gzip', 'chunked'],
      ['identity', 'chunked'],
    ]) {
      const lines = [
        'PUT /q/N/coded HTTP/1.1',
        ...HEAD,
        ...codings.map((coding) => `Transfer-Encoding: ${coding}`),
        'Connection: close',
      ];
      const [answer] = await exchange(harness().port, rawRequest(lines, '1\r\na\r\n0\r\n\r\n'));
      assert.equal(answer?.status, 400);
    }
  });

  it('a version other than 1.1 and 1.0, or none, is answered with 400 and ends the connection', async () => {
    for (const version of [' HTTP/0.9', ' HTTP/2.0', '']) {
      const bytes = rawRequest([`PUT /q/N/versions${version}`, ...HEAD, 'Content-Length: 1'], 'x');
      const [answer, ...more] = await exchange(harness().port, bytes);
      assert.deepEqual(
        [answer?.status, answer?.headers.get('connection'), more],
        [400, 'close', []],
        version,
      );
      assert.equal(JSON.parse(answer?.body ?? '').code, 'malformed-request');
    }
    const status = jsonOf<{ totalSize: number }>(
      await harness().client().request('GET', '/q/N/versions/status'),
    );
    assert.equal(status.totalSize, 0);
  });

  it('Transfer-Encoding on HTTP/1.0 is answered with 400', async () => {
    const bytes = rawRequest(
      ['PUT /q/N/old HTTP/1.0', ...HEAD, 'Transfer-Encoding: chunked'],
      '1\r\na\r\n0\r\n\r\n',
    );
    const [answer] = await exchange(harness().port, bytes);
    assert.equal(answer?.status, 400);
    assert.equal(answer?.headers.get('connection'), 'close');
  });

  it('HTTP/1.0 without Host is served, and its connection is closed', async () => {
    const bytes = rawRequest(['PUT /q/N/old HTTP/1.0', AUTHORIZATION, 'Content-Length: 1'], 'a');
    const [answer] = await exchange(harness().port, bytes);
    assert.equal(answer?.status, 200);
    assert.equal(answer?.headers.get('connection'), 'close');
  });

  it('an absolute-form target is accepted, and its host is ignored', async () => {
    for (const target of ['http://elsewhere/q/N/abs?delay=0', 'HTTPS://a:b@elsewhere:99/q/N/abs']) {
      const bytes = rawRequest(
        [`PUT ${target} HTTP/1.1`, ...HEAD, 'Connection: close', 'Content-Length: 1'],
        'a',
      );
      assert.equal((await exchange(harness().port, bytes))[0]?.status, 200);
    }
    assert.equal(jsonOf<{ size: number }>(await harness().client().status('N', 'abs')).size, 2);
  });

  it('targets that are not paths are answered with 400 or 404', async () => {
    for (const target of [
      '*',
      'q/N/x',
      'http://elsewhere',
      'ftp://elsewhere/q',
      '//elsewhere\\q',
      '/q#x',
      '/q/\xfc',
    ]) {
      const [answer] = await exchange(harness().port, lastRequest('GET', target));
      assert.ok(answer !== undefined, target);
      assert.ok([400, 404].includes(answer.status), `${target}: ${answer.status}`);
    }
  });

  it('tunnels and protocol upgrades are not granted', async () => {
    const [tunnel] = await exchange(harness().port, rawRequest(['CONNECT other:443 HTTP/1.1', ...HEAD]));
    assert.equal(tunnel?.status, 405);
    const upgrade = ['GET /q HTTP/1.1', ...HEAD, 'Connection: upgrade, close', 'Upgrade: websocket'];
    const [answer] = await exchange(harness().port, rawRequest(upgrade));
    assert.equal(answer?.status, 200);
  });

  it('clients that request a tunnel and reset the connection do no harm', async () => {
    for (let i = 0; i < 20; i++) {
      const connection = await RawConnection.open(harness().port);
      connection.send(rawRequest(['CONNECT other:443 HTTP/1.1', ...HEAD]));
      connection.socket.resetAndDestroy();
    }
    const [tunnel] = await exchange(harness().port, rawRequest(['CONNECT other:443 HTTP/1.1', ...HEAD]));
    assert.equal(tunnel?.status, 405);
  });

  it('a tunnel requested behind pending requests is rejected after their responses', async () => {
    const good = rawRequest(['PUT /q/N/tunnel HTTP/1.1', ...HEAD, 'Content-Length: 1'], 'a');
    const connect = rawRequest(['CONNECT other:443 HTTP/1.1', ...HEAD]);
    const answers = await exchange(harness().port, Buffer.concat([good, good, connect]));
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 405],
    );
    const waits = rawRequest(['GET /q/N/untouched HTTP/1.1', ...HEAD]);
    const ended = await exchange(harness().port, Buffer.concat([waits, connect]));
    assert.deepEqual(
      ended.map(({ status }) => status),
      [400, 405],
    );
  });

  it('unknown methods are answered with 405, and bytes that are not HTTP with 400', async () => {
    const [unknown] = await exchange(harness().port, rawRequest(['FROBNICATE /q HTTP/1.1', ...HEAD]));
    assert.equal(unknown?.status, 405);
    assert.equal(unknown?.headers.get('allow'), 'GET, HEAD');
    for (const method of ['TRACE', 'PROPFIND', 'LOCK', 'OPTIONS', 'PURGE']) {
      const [answer] = await exchange(harness().port, lastRequest(method, '/q'));
      assert.equal(answer?.status, 405, method);
    }
    for (const bytes of ['\x16\x03\x01\x02\x00\x01\x00\x01', '{"json":1}\r\n\r\n', '\r\n\r\n\0\0\0']) {
      const [answer] = await exchange(harness().port, bytes);
      assert.equal(answer?.status, 400, JSON.stringify(bytes));
    }
  });

  it('an unknown method without the end of its line takes little processor time, however long its target is', async () => {
    const timeOf = async (length: number): Promise<number> => {
      const before = process.cpuUsage();
      for (let i = 0; i < 50; i += 1) {
        const [answer] = await exchange(harness().port, `FROBNICATE /${'a'.repeat(length)}`);
        assert.equal(answer?.status, 400);
      }
      return process.cpuUsage(before).user;
    };
    const short = await timeOf(100);
    const long = await timeOf(4000);
    assert.ok(long < 4 * short, `${short} and ${long} µs`);
  });

  it('pipelined requests are answered in order, up to a malformed one', async () => {
    const good = rawRequest(['PUT /q/N/pipe HTTP/1.1', ...HEAD, 'Content-Length: 1'], 'a');
    const connection = await RawConnection.open(harness().port);
    connection.send(good);
    await connection.answers(1);
    connection.send(Buffer.concat([good, good]));
    await connection.answers(3);
    connection.send('no http\r\n\r\n');
    const answers = await connection.untilClosed();
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200, 400],
    );
    assert.equal(jsonOf<{ size: number }>(await harness().client().status('N', 'pipe')).size, 3);
  });

  it('a malformed request behind pending ones is answered after them, and they are executed', async () => {
    const good = rawRequest(['PUT /q/N/ahead HTTP/1.1', ...HEAD, 'Content-Length: 1'], 'a');
    const sent = Buffer.concat([good, good, rawRequest(['GET /q/N/ahead?to=0 HTTP/1.1', ...HEAD])]);
    for (const broken of ['no http\r\n\r\n', 'GET /q HTTP/9\r\n\r\n']) {
      const answers = await exchange(harness().port, Buffer.concat([sent, Buffer.from(broken)]));
      assert.deepEqual(
        answers.map(({ status }) => status),
        [200, 200, 400, 400],
      );
    }
    // A common mistake: a body longer than its Content-Length, whose rest is parsed as the next request.
    const short = rawRequest(['PUT /q/N/ahead HTTP/1.1', ...HEAD, 'Content-Length: 1'], 'é is two bytes\r\n');
    const [stored, rest] = await exchange(harness().port, short);
    assert.deepEqual([stored?.status, rest?.status], [200, 400]);
    assert.match(JSON.parse(rest?.body ?? '').detail, /behind a complete request.*Content-Length.*bytes/);
    assert.equal(jsonOf<{ size: number }>(await harness().client().status('N', 'ahead')).size, 5);
  });

  it('a malformed request behind a waiting call ends that call, which takes no element', async () => {
    const connection = await RawConnection.open(harness().port);
    connection.send(rawRequest(['GET /q/N/blocked HTTP/1.1', ...HEAD]));
    await harness().waiting(1);
    connection.send('no http\r\n\r\n');
    const answers = await connection.untilClosed();
    assert.ok(answers.every(({ status }) => status === 400));
    await harness().waiting(0);
    await harness().client().insert('N', 'blocked', 'a');
    assert.equal(jsonOf<{ size: number }>(await harness().client().status('N', 'blocked')).size, 1);
  });

  it('a request line and headers over 16 KiB are answered with 431', async () => {
    for (const lines of [
      [`GET /q?${'x'.repeat(17_000)} HTTP/1.1`, ...HEAD],
      ['GET /q HTTP/1.1', ...HEAD, ...Array.from({ length: 3_000 }, (_, i) => `a${i}: b`)],
    ]) {
      const [answer] = await exchange(harness().port, rawRequest(lines));
      assert.equal(answer?.status, 431);
      assert.equal(JSON.parse(answer?.body ?? '').code, 'headers-too-large');
    }
  });

  it('no header is dropped silently, however many are sent', async () => {
    const many = Array.from({ length: 2_100 }, () => 'a: ');
    const lines = [
      'GET /q HTTP/1.1',
      'Host: test',
      ...many,
      AUTHORIZATION,
      AUTHORIZATION,
      'Connection: close',
    ];
    const [answer] = await exchange(harness().port, rawRequest(lines));
    assert.equal(answer?.status, 400);
  });
});
