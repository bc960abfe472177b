import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { newElement } from '../support/elements.ts';
import { headerOf, jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { basic, sharedHarness } from './harness.ts';
import { AUTHORIZATION, type RawAnswer, RawConnection, rawRequest } from './raw.ts';

const MIB = 1_048_576;

function request(method: string, path: string, body = ''): Buffer {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION];
  return rawRequest([...lines, `Content-Length: ${body.length}`], body);
}

describe('A client that closes its sending side after its request, as nc -N does', () => {
  const harness = sharedHarness({ http: { bodyLimit: 64 * MIB } });

  /** Sends and half-closes at once. Resolves with all responses when the server has closed the connection. */
  async function halfClosed(bytes: Buffer): Promise<RawAnswer[]> {
    const connection = await RawConnection.open(harness().port);
    connection.socket.end(bytes);
    return connection.untilClosed();
  }

  async function sizeOf(queue: string): Promise<number> {
    return jsonOf<{ totalSize: number }>(await harness().client().status('N', queue)).totalSize;
  }

  it('receives the response to an insert, which is stored', async () => {
    const queue = harness().queue();
    const [answer] = await halfClosed(request('PUT', queuePath('N', queue), 'a'));
    assert.equal(answer?.status, 200);
    assert.equal((await harness().client().get('N', queue, { to: 0 })).body.toString(), 'a');
  });

  it('receives the responses to several pipelined inserts', async () => {
    const queue = harness().queue();
    const one = request('PUT', queuePath('N', queue), 'a');
    const answers = await halfClosed(Buffer.concat(Array.from({ length: 20 }, () => one)));
    assert.deepEqual(
      answers.map(({ status }) => status),
      Array.from({ length: 20 }, () => 200),
    );
    assert.equal(await sizeOf(queue), 20);
  });

  it('stores nothing with an incomplete request', async () => {
    const queue = harness().queue();
    const whole = request('PUT', queuePath('N', queue), 'abc');
    const [answer] = await halfClosed(whole.subarray(0, -1));
    assert.equal(answer?.status, 400);
    assert.match(answer?.body ?? '', /closed its sending side before the end of the request\./);
    assert.equal(await sizeOf(queue), 0);
  });

  it('receives the response to every operation that takes no element', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const path = queuePath('N', queue);
    const reserve = async (): Promise<string> => {
      await client.insert('N', queue, 'a');
      return headerOf(await client.reserve('N', queue), 'x-ks-id');
    };
    const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a', { delay: 1000 }));
    const declaration = {
      src: { ns: 'N', queue },
      dst: [{ ns: 'N', queue: `${queue}-to` }],
      consumer: {},
    };
    const cases: readonly (readonly [number, Buffer])[] = [
      [200, request('PATCH', `${path}/commit/${await reserve()}`)],
      [200, request('PATCH', `${path}/rollback/${await reserve()}`)],
      [200, request('PATCH', `${path}/extend/${await reserve()}`)],
      [204, request('DELETE', `${path}/${id}`)],
      [201, request('PATCH', `${path}/pause`)],
      [201, request('PATCH', `${path}/resume`)],
      [200, request('GET', `${path}/status`)],
      [200, request('GET', `${path}/consumers`)],
      [200, request('DELETE', `${path}/consumer/nobody`)],
      [200, request('GET', '/q?tree=1')],
      [200, request('GET', '/q/N')],
      [201, request('PUT', `/x/${queue}`, JSON.stringify(declaration))],
      [200, request('GET', `/x/${queue}`)],
      [201, request('DELETE', `/x/${queue}`)],
      [200, request('GET', '/metrics')],
    ];
    for (const [status, bytes] of cases) {
      const [answer] = await halfClosed(bytes);
      assert.equal(answer?.status, status, bytes.toString().split('\r\n', 1)[0]);
    }
  });

  for (const query of ['', '?to=60000', '?reserve=1']) {
    it(`takes nothing with a get${query} that waits, and receives an error`, async () => {
      const queue = harness().queue();
      const connection = await RawConnection.open(harness().port);
      connection.send(request('GET', `${queuePath('N', queue)}${query}`));
      await harness().waiting(1);
      connection.socket.end();
      const [answer] = await connection.untilClosed();
      assert.equal(answer?.status, 400);
      const { code, detail } = JSON.parse(answer.body);
      assert.equal(code, 'malformed-request');
      assert.match(detail, /closed its sending side/);
      assert.equal(harness().broker.waiting, 0);
      await harness().client().insert('N', queue, 'a');
      assert.equal(await sizeOf(queue), 1);
    });
  }

  it('takes nothing with gets that it pipelined behind a waiting one', async () => {
    const queue = harness().queue();
    const connection = await RawConnection.open(harness().port);
    const get = request('GET', queuePath('N', queue));
    connection.send(Buffer.concat([get, get, get]));
    await harness().waiting(1);
    connection.socket.end();
    const answers = await connection.untilClosed();
    assert.deepEqual(
      answers.map(({ status }) => status),
      [400, 400, 400],
    );
  });

  it('receives all of an element that is already being written', async () => {
    const queue = harness().queue();
    const large = Buffer.alloc(32 * MIB, 'x');
    await harness().client().insert('N', queue, large);
    const connection = await RawConnection.open(harness().port);
    connection.send(request('GET', queuePath('N', queue)));
    await connection.next('data');
    connection.socket.end();
    const [answer] = await connection.untilClosed();
    assert.equal(answer?.body.length, large.length);
    assert.equal(await sizeOf(queue), 0);
  });
});

describe('Clients that close their sending sides at once', () => {
  const names = ['test1', ...Array.from({ length: 8 }, (_, i) => `user${i}`)];
  const harness = sharedHarness({ users: names.map((name) => ({ name, password: name, rights: null })) });

  it('receive the elements of a response in progress, exactly once', async () => {
    // The responses to these clients take several turns of the event loop, and so does the long response.
    const others = await Promise.all(
      Array.from({ length: 600 }, async (_, i) => {
        const name = `user${i % 8}`;
        const connection = await RawConnection.open(harness().port);
        const lines = [`GET ${queuePath('N', 'other')} HTTP/1.1`, 'Host: test'];
        connection.send(rawRequest([...lines, `Authorization: ${basic(name, name)}`]));
        return connection;
      }),
    );
    const taker = await RawConnection.open(harness().port);
    taker.send(request('POST', `${queuePath('N', 'many')}/take?count=10`));
    await harness().waiting(others.length + 1);
    const large = newElement({ body: Buffer.alloc(65_536, 'x') });
    await harness().broker.namespace('N').queue('many').insert(new Array(10).fill(large));
    await until(() => harness().broker.waiting <= others.length);
    for (const { socket } of [...others, taker]) socket.end();
    const [answer] = await taker.untilClosed();
    assert.equal(answer?.status, 200);
    assert.equal(answer.body.split('\n').length, 11);
    const { totalSize } = jsonOf<{ totalSize: number }>(await harness().client().status('N', 'many'));
    assert.equal(totalSize, 0);
    for (const connection of others) connection.destroy();
  });
});
