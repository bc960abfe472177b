import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type ExchangeRecord, TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

/** QuickJS needs seconds per MiB to parse numbers like this. */
const SLOW_TO_PARSE = `[${'1e308,'.repeat(170_000)}1]`;
const json = { contentType: 'application/json' };

describe('An element that overruns the limits of selectors', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'writer', password: 'w', rights: { N: ['write'] } },
    ],
    limits: { callMs: 50, watchdogMs: 150, bodyMsPerMiB: 40 },
  });
  /** Advances time until `holds`, so that rolled-back elements return after 5 s, while no lease expires. */
  const pass = async (x: TestExchange, holds: (record: ExchangeRecord) => boolean): Promise<void> => {
    await until(async () => {
      const record = await x.record();
      if (holds(record)) return true;
      if (Object.keys(record.pending_acks).length === 0) await harness().passTime(500);
      return false;
    });
  };

  it('by its payload goes to __no_route__ with the reason after three tries, and never stops the exchange', async () => {
    const x = new TestExchange(harness());
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector: 'env => env.msg.payload.amount > 100' }] });
    const writer = harness().client('writer:w');
    for (let i = 0; i < 4; i += 1) {
      assert.equal((await writer.insert('N', x.src, SLOW_TO_PARSE, json)).status, 200);
    }
    await pass(x, ({ stats }) => stats.no_route === 4);
    const { stopped, lastError } = await x.record();
    assert.deepEqual([stopped, lastError], [null, null]);
    await writer.insert('N', x.src, '{"amount":101}', json);
    assert.equal((await x.client.get('M', x.dst)).body.toString(), '{"amount":101}');
    const given = await x.client.get('N', '__no_route__');
    assert.equal(headerOf(given, 'x-ks-hdr-x-exchange-name'), x.id);
    assert.match(headerOf(given, 'x-ks-hdr-x-exchange-error') ?? '', /took too long|interrupted/);
    assert.equal(given.body.toString(), SLOW_TO_PARSE);
  });

  it('by its selector goes to __no_route__ after three tries, while other elements pass', async () => {
    const x = new TestExchange(harness());
    const selector = 'env => { if (env.msg.hdrs.evil) while (1); return true }';
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector }] });
    const { client } = x;
    const evil = { headers: { 'x-ks-hdr-evil': '1' } };
    const { id } = jsonOf<{ id: string }>(await client.insert('N', x.src, 'bad', evil));
    await pass(x, ({ stats }) => stats.no_route === 1);
    await client.insert('N', x.src, 'good');
    assert.equal((await client.get('M', x.dst)).body.toString(), 'good');
    const { stopped, saw, errors } = await x.record();
    assert.equal(stopped, null);
    assert.equal(saw.last_no_route?.id, id);
    // On a busy machine, the watchdog's 600 ms may pass before the call has used its 50 ms of processor time.
    for (const { destination, message } of errors) {
      assert.equal(destination, 0);
      assert.match(message, /^overrun: the selector (took too long|could not be interrupted)$/);
    }
    assert.equal(
      errors.reduce((sum, { count }) => sum + count, 0),
      3,
    );
  });

  it('stops the exchange with the reason if it is the third different element in a row', async () => {
    const x = new TestExchange(harness());
    await x.create({ dst: [{ ns: 'M', queue: x.dst, selector: 'env => { while (1); }' }] });
    for (let i = 0; i < 3; i += 1) await x.client.insert('N', x.src, `${i}`);
    await pass(x, ({ stopped }) => stopped === true);
    assert.match((await x.record()).lastError ?? '', /took too long|interrupted/);
    assert.equal((await x.record()).stats.no_route, 0);
  });
});
