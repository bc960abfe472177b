import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { elementHeadersOf, headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';

describe('Elements', () => {
  const harness = sharedHarness();

  it('the content type is returned character for character, without an added charset', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const contentType of [
      'text/plain',
      'Application/JSON',
      'text/html; Charset="latin1"',
      'odd',
      'é/ü',
    ]) {
      await client.insert('N', queue, 'a', { contentType });
      assert.equal(headerOf(await client.get('N', queue), 'content-type'), contentType);
    }
  });

  it('the content type is application/octet-stream if it was missing or empty', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    await client.insert('N', queue, 'a', { contentType: '' });
    for (let i = 0; i < 2; i++) {
      assert.equal(headerOf(await client.get('N', queue), 'content-type'), 'application/octet-stream');
    }
  });

  it('an empty content-encoding line does not hide the next one', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a', { headers: { 'content-encoding': ['', 'gzip'] } });
    assert.equal(headerOf(await client.get('N', queue), 'content-encoding'), 'gzip');
  });

  it('the content-encoding is returned as it was sent, with the unchanged body', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const body = Buffer.from('not really gzip');
    await client.insert('N', queue, body, { headers: { 'content-encoding': ['br', 'gzip'] } });
    const answer = await client.get('N', queue);
    assert.equal(headerOf(answer, 'content-encoding'), 'br, gzip');
    assert.ok(answer.body.equals(body));
  });

  it('an empty body is an element of zero bytes', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, '');
    await client.request('PUT', `/q/N/${queue}`);
    for (let i = 0; i < 2; i++) {
      const answer = await client.get('N', queue);
      assert.equal(answer.status, 200);
      assert.equal(answer.body.length, 0);
      assert.equal(headerOf(answer, 'content-length'), '0');
    }
  });

  it('names of element headers become lower-case, and repeated headers are joined', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a', { headers: { 'X-Ks-Hdr-Colour': ['red', 'blue'] } });
    const answer = await client.get('N', queue);
    assert.deepEqual(elementHeadersOf(answer), new Map([['colour', 'red, blue']]));
    assert.ok(answer.rawHeaders.includes('x-ks-hdr-colour'));
  });

  it('a header that is almost the prefix is not an element header, and one without a name is rejected', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a', {
      headers: { 'x-ks-hdrs': 'b', 'x-ks-hdr': 'c' },
    });
    const nameless = await client.insert('N', queue, 'b', { headers: { 'x-ks-hdr-': 'a' } });
    assert.deepEqual([nameless.status, jsonOf<{ code: string }>(nameless).code], [400, 'invalid-header']);
    assert.deepEqual(elementHeadersOf(await client.get('N', queue)), new Map());
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
  });

  it('no element header overwrites the content type, the id or the tries', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const headers = {
      'x-ks-hdr-content-type': 'text/evil',
      'x-ks-id': 'forged',
      'x-ks-tries': '99',
      'x-ks-hdr-__proto__': 'kept',
    };
    const inserted = await client.insert('N', queue, 'a', { contentType: 'text/plain', headers });
    const answer = await client.get('N', queue);
    assert.equal(headerOf(answer, 'content-type'), 'text/plain');
    assert.equal(headerOf(answer, 'x-ks-id'), jsonOf<{ id: string }>(inserted).id);
    assert.equal(headerOf(answer, 'x-ks-tries'), '0');
    assert.equal(elementHeadersOf(answer).get('__proto__'), 'kept');
  });

  it('header values are returned byte for byte, including tabs, inner spaces, empty values and bytes above 0x7f', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const values = ['a\tb', 'a  b', '', latin1('Grüße ☃'), '\xa0\xff'];
    const headers = Object.fromEntries(values.map((value, i) => [`x-ks-hdr-v${i}`, value]));
    await client.insert('N', queue, 'a', { headers });
    const got = elementHeadersOf(await client.get('N', queue));
    assert.deepEqual(
      values.map((_, i) => got.get(`v${i}`)),
      values,
    );
  });

  it('64 headers of 8192 bytes together are stored, and an element with more is rejected', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const most = Object.fromEntries(
      Array.from({ length: 64 }, (_, i) => [`x-ks-hdr-h${String(i).padStart(2, '0')}`, 'v'.repeat(125)]),
    );
    assert.equal((await client.insert('N', queue, 'a', { headers: most })).status, 200);
    assert.equal(elementHeadersOf(await client.get('N', queue)).size, 64);
    for (const more of [{ 'x-ks-hdr-one': 'more' }, { 'x-ks-hdr-h00': 'v'.repeat(126) }]) {
      const answer = await client.insert('N', queue, 'a', { headers: { ...most, ...more } });
      assert.equal(answer.status, 400);
      assert.equal(jsonOf<{ code: string }>(answer).code, 'invalid-header');
    }
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
  });

  it('mature and delay accept fractions of seconds', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const matureAt = harness().opened.now() + 1_234;
    await client.insert('N', queue, 'a', { query: { mature: (matureAt / 1000).toFixed(3) } });
    await client.insert('N', queue, 'b', { query: { delay: '0.25' } });
    const first = client.get('N', queue);
    await harness().waiting(1);
    const second = client.get('N', queue);
    await harness().waiting(2);
    // Both consumers wait before the engine has returned when the next element is due, and the test clock stands still.
    const consumers = () => harness().broker.namespace('N').queue(queue).consumers();
    const asleep = () => until(() => consumers().every(({ wakeup_timeout }) => wakeup_timeout === 'set'));
    await asleep();
    await harness().passTime(250);
    assert.equal((await first).body.toString(), 'b');
    await asleep();
    await harness().passTime(984);
    assert.equal(headerOf(await second, 'x-ks-mature'), new Date(matureAt).toISOString());
  });

  it('a mature that can only be milliseconds is rejected with an error that says so', async () => {
    const client = harness().client();
    const answer = await client.insert('N', harness().queue(), 'a', { mature: Date.now() });
    assert.equal(answer.status, 400);
    assert.match(jsonOf<{ detail: string }>(answer).detail, /milliseconds/);
  });

  it('ids are opaque strings, unique in the namespace, URL-safe, at most 64 characters', async () => {
    const client = harness().client();
    const ids = new Set<string>();
    for (const queue of [harness().queue(), harness().queue()]) {
      for (let i = 0; i < 20; i++) ids.add(jsonOf<{ id: string }>(await client.insert('N', queue, 'a')).id);
    }
    assert.equal(ids.size, 40);
    for (const id of ids) assert.match(id, /^[A-Za-z0-9_-]{1,64}$/);
  });

  it('elements are delivered by maturity, then insertion; a rolled-back element matures after its delay', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'late', { delay: 2 });
    await client.insert('N', queue, 'early', { delay: 1 });
    await client.insert('N', queue, 'first');
    await client.insert('N', queue, 'second');
    const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
    await client.rollback('N', queue, id, { delay: 1500 });
    await harness().passTime(2_000);
    const order: string[] = [];
    for (let i = 0; i < 4; i++) order.push((await client.get('N', queue)).body.toString());
    assert.deepEqual(order, ['second', 'early', 'first', 'late']);
  });

  it('an insert that repeats an idempotency key stores nothing and is answered with the first id', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const options = { headers: { 'idempotency-key': 'order 17' } };
    const first = await client.insert('N', queue, 'a', options);
    const again = await client.insert('N', queue, 'a', options);
    assert.deepEqual(jsonOf(again), jsonOf(first));
    assert.equal((await client.get('N', queue)).body.toString(), 'a');
    assert.deepEqual(
      jsonOf(await client.insert('N', queue, 'a', options)),
      jsonOf(first),
      'the key is known even after the element was consumed',
    );
    assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
  });

  it('a repeated insert is marked x-ks-repeated and not counted as a put', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const options = { headers: { 'idempotency-key': 'order 18' } };
    assert.equal((await client.insert('N', queue, 'a', options)).headers['x-ks-repeated'], undefined);
    assert.equal(headerOf(await client.insert('N', queue, 'a', options), 'x-ks-repeated'), 'true');
    const { stats } = jsonOf<{ stats: { put: number } }>(await client.status('N', queue));
    assert.equal(stats.put, 1);
  });

  it('an idempotency key reused with another body, type, header or parameter is rejected with 422 and stores nothing', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const key = { 'idempotency-key': 'order 19' };
    const insert = (
      body: string,
      more: object = {},
      headers: object = {},
    ): ReturnType<typeof client.insert> =>
      client.insert('N', queue, body, {
        contentType: 'text/plain',
        ...more,
        headers: { ...key, ...headers },
      });
    assert.equal((await insert('a')).status, 200);
    const others = [
      insert('b'),
      insert('a', { contentType: 'text/html' }),
      insert('a', {}, { 'content-encoding': 'gzip' }),
      insert('a', {}, { 'x-ks-hdr-a': '1' }),
      insert('a', { delay: 1 }),
      insert('a', { tries: 1 }),
    ];
    for (const answer of await Promise.all(others)) {
      assert.equal(answer.status, 422);
      const { code, detail } = jsonOf<{ code: string; detail: string }>(answer);
      assert.equal(code, 'idempotency-mismatch');
      assert.match(detail, /"order 19"/);
    }
    const record = jsonOf<{ totalSize: number; stats: { put: number } }>(await client.status('N', queue));
    assert.deepEqual([record.totalSize, record.stats.put], [1, 1]);
  });
});

describe('Elements of several users', () => {
  const users = ['a', 'b'].map((name) => ({ name, password: 'pw', rights: null }));
  const harness = sharedHarness({ users });

  it('idempotency keys of different users are independent', async () => {
    const queue = harness().queue();
    for (const name of ['a', 'b']) {
      const client = harness().client(`${name}:pw`);
      const headers = { 'idempotency-key': 'x' };
      await client.insert('N', queue, name, { headers });
      await client.insertLines('N', queue, [{ text: name }], { headers });
    }
    const status = await harness().client('a:pw').status('N', queue);
    assert.equal(jsonOf<{ totalSize: number }>(status).totalSize, 4);
  });
});

/** Encodes a string so that Node's client, which writes header values as Latin-1, sends it as UTF-8. */
function latin1(text: string): string {
  return Buffer.from(text, 'utf8').toString('latin1');
}
