import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { until } from '../support/until.ts';
import { TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const ATTACKS = {
  'is interrupted': 'env => { while (1); }',
  'cannot be interrupted': 'env => /^(a+)+$/.test("a".repeat(40) + "b")',
  'fills its memory': 'env => { const a = []; for (;;) a.push(new Array(1e5).fill(0)); }',
};

describe('While a selector that takes long to parse is created', () => {
  const harness = sharedHarness({ namespaces: [plain('N'), plain('M')], limits: {} });

  for (const pattern of ['/[PROPERTIES]/v', '/PROPERTIES/v', '/[PROPERTIES]/iu']) {
    it(`(${pattern} of 8 KiB) requests are answered and an exchange forwards`, async () => {
      const evil = new TestExchange(harness());
      const honest = new TestExchange(harness());
      await honest.create({ dst: [{ ns: 'M', queue: honest.dst, selector: 'env => env.msg.tries === 0' }] });
      const property = pattern.endsWith('iu') ? '\\p{L}' : '\\p{RGI_Emoji}';
      const properties = property.repeat(Math.floor(8100 / property.length));
      const selector = `env => ${pattern.replace('PROPERTIES', () => properties)}.test("a")`;
      let done = false;
      const creating = evil.create({ dst: [{ ns: 'M', queue: evil.dst, selector }] }).finally(() => {
        done = true;
      });
      let answered = 0;
      while (!done) {
        assert.equal((await honest.client.status('N', honest.src)).status, 200);
        answered += 1;
      }
      assert.equal((await creating).status, 400);
      // A blocked main thread would answer all requests of the meantime at once: two, including the create.
      assert.ok(answered > 5, `${answered} requests were answered`);
      await honest.client.insert('N', honest.src, 'x');
      assert.equal((await honest.client.get('M', honest.dst)).body.toString(), 'x');
    });
  }
});

describe('While another user has many slow exchanges in the same namespace', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'evil', password: 'e', rights: null },
    ],
    // An element takes about 5 ms; a call of a full batch therefore ends early, after 25 ms.
    limits: { callMs: 1000, watchdogMs: 5000, batch: 5 },
  });

  it('an element waits for a few of their calls, not for one call of each', async () => {
    const slow = 'env => { for (let i = 0; i < 5e4; i += 1); return true }';
    const others = Array.from({ length: 30 }, () => new TestExchange(harness()));
    const honest = new TestExchange(harness());
    await honest.create({ dst: [{ ns: 'M', queue: honest.dst, selector: 'env => env.msg.tries === 0' }] });
    const forward = async (body: string): Promise<void> => {
      await honest.client.insert('N', honest.src, body);
      assert.equal((await honest.client.get('M', honest.dst)).body.toString(), body);
    };
    await forward('first');
    await forward('second');
    const ELEMENTS = 20;
    for (const x of others) {
      const queue = harness().broker.namespace('N').queue(x.src);
      await queue.insert(Array.from({ length: ELEMENTS }, () => newElement({ groups: queue.groups(null) })));
    }
    const evil = harness().client('evil:e');
    await Promise.all(
      others.map((x) => x.create({ dst: [{ ns: 'M', queue: x.dst, selector: slow }] }, 'PUT', evil)),
    );
    const done = () =>
      harness()
        .exchanges.overview()
        .filter(({ key }) => key !== honest.id)
        .reduce((sum, { counters }) => sum + (counters.destinations[0]?.matched ?? 0), 0);
    await until(() => done() > 0);
    const before = done();
    for (let i = 0; i < 5; i += 1) await forward(`${i}`);
    const forwardedToOthers = done() - before;
    // One call of each exchange before each of the five elements would be all of their elements.
    assert.ok(
      forwardedToOthers < (others.length * ELEMENTS) / 2,
      `${forwardedToOthers} of theirs went before five`,
    );
  });
});

describe('While the selector of one exchange attacks', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    // Kept short: each test occupies two cores for three times the length of an attack.
    limits: { compileMs: 1_000, callMs: 200, watchdogMs: 400 },
  });

  for (const [how, selector] of Object.entries(ATTACKS)) {
    it(`and ${how}, another exchange forwards and requests are answered, until the attacker is stopped`, async () => {
      const evil = new TestExchange(harness());
      const honest = new TestExchange(harness());
      await evil.create({ dst: [{ ns: 'M', queue: evil.dst, selector }] });
      await honest.create({ dst: [{ ns: 'M', queue: honest.dst, selector: 'env => env.msg.tries === 0' }] });
      for (let i = 0; i < 3; i++) await evil.client.insert('N', evil.src, `${i}`);
      let forwarded = 0;
      let answered = 0;
      const forwarding = (async () => {
        while ((await evil.record()).stopped !== true) {
          await honest.client.insert('N', honest.src, `${forwarded}`);
          const got = await honest.client.get('M', honest.dst, { to: 30_000 });
          assert.equal(got.body.toString(), `${forwarded}`);
          forwarded += 1;
        }
      })();
      let done = false;
      void forwarding.finally(() => {
        done = true;
      });
      while (!done) {
        assert.equal((await honest.client.status('N', honest.src)).status, 200);
        answered += 1;
      }
      await forwarding;
      assert.ok(forwarded >= 1, 'an element was forwarded during the attack');
      // Requests do not queue behind selectors: many are answered while one element waits for its selector.
      assert.ok(answered > forwarded, `${answered} requests, ${forwarded} elements`);
      assert.notEqual((await evil.record()).lastError, null);
    });
  }
});
