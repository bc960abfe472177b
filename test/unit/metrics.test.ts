import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Broker } from '../../src/broker/broker.ts';
import type { GetRequest, Sink } from '../../src/broker/consumer.ts';
import { FINISH, type Queue } from '../../src/broker/queue.ts';
import type { ExchangeOverview } from '../../src/exchange/record.ts';
import { MAX_QUEUE_SERIES, Metrics, type MetricsSources } from '../../src/metrics/metrics.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';
import type { EngineHealth } from '../../src/model/records.ts';
import type { SessionCounts } from '../../src/session/server.ts';
import { Histogram } from '../../src/util/histogram.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { TestEngine } from '../engines.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';

const POLICY = plain('N');

const EXCHANGE: ExchangeOverview = {
  key: 'x1',
  declaration: { src: { ns: 'N', queue: 'src' }, dst: [{ ns: 'N', queue: 'to' }], consumer: {} },
  stopped: true,
  isStopStored: true,
  lastError: null,
  counters: {
    totals: { noRoute: 1, tooManyHops: 2, requeued: 3, selectorMs: 1500 },
    destinations: [{ matched: 4, skipped: 5, failed: 6 }],
  },
};

const UNKNOWN_ELEMENT = { id: 'none', group: null, token: null };
const ROLLBACK = { kind: 'release', delayMs: 0, countTry: true } as const;
const WAITING_GET: GetRequest = { group: null, leaseMs: null, timeoutMs: null, tid: null, owner: 'u' };
const IGNORING_SINK: Sink = { deliver: () => {}, end: () => {} };

const EVERYTHING = { may: () => true, maySee: () => true };

const NO_SESSIONS: SessionCounts = {
  sessions: 0,
  subscriptions: 0,
  links: 0,
  unacknowledged: 0,
  window: 0,
  outgoingBytes: 0,
  stalled: 0,
  connections: 0,
  receivedBytes: 0,
  frames: 0,
  messages: 0,
  errors: 0,
};

/** An engine that replies. @param disk null: it has no files that can be read */
function healthy(engine: string, disk: EngineHealth['disk']): EngineHealth {
  return { engine, type: 'sqlite', state: 'healthy', check: 'ok', pingMs: 1, disk };
}

describe('Metrics', () => {
  let engine: TestEngine;
  let broker: Broker;
  let metrics: Metrics;
  let exchanges: ExchangeOverview[];
  let collected: number;
  let requestTimes: Map<string, Histogram>;
  let sources: MetricsSources;

  /** The text of a scrape that shares nothing with an earlier one. */
  const freshText = (): Promise<string> => new Metrics(sources).text(EVERYTHING);

  beforeEach(async () => {
    engine = await MEMORY_SQLITE.open({ namespaces: [POLICY] });
    broker = brokerOn([{ policy: POLICY, engine: engine.engine }], engine.clock);
    await broker.start();
    exchanges = [EXCHANGE];
    collected = 0;
    requestTimes = new Map([['take', new Histogram([0.01, 0.1])]]);
    sources = {
      broker,
      clock: engine.clock,
      perQueue: true,
      requestTimes: () => requestTimes,
      engines: async () => [
        healthy('sqlite:test', { fileBytes: 4096, freeBytes: 1e9, minFreeBytes: 1e6 }),
        healthy('sqlite:lost', null),
      ],
      exchanges: {
        overview: () => {
          collected += 1;
          return exchanges;
        },
      },
      operations: {
        overview: () => ({
          running: [{ ns: 'N', action: 'move', count: 2 }],
          changed: [{ ns: 'N', action: 'move', count: 700 }],
        }),
      },
      version: '1.2.3',
      events: () => ({ subscribers: 3, bytes: 42 }),
      logins: () => ({ accepted: 3, failed: 1 }),
      spans: () => ({ exported: 5, dropped: 0, failed: 0 }),
      sessions: () => new Map([['stomp', { ...NO_SESSIONS, sessions: 2, unacknowledged: 7 }]]),
    };
    metrics = new Metrics(sources);
  });

  afterEach(async () => {
    await broker.stop();
    await engine.close();
  });

  it('count the elements of each queue by state', async () => {
    const queue = broker.namespace('N').queue('a "quoted" \\ name');
    await queue.insert([newElement(), newElement(), newElement(), newElement({ delayMs: 60_000 })]);
    await broker.namespace('N').storage.take(queue.key, { group: PLAIN_GROUP, count: 1, leaseMs: 1000 });
    const text = await metrics.text(EVERYTHING);
    const shown = 'namespace="N",queue="a \\"quoted\\" \\\\ name"';
    assert.match(text, /^# TYPE quayside_queue_elements gauge$/m);
    assert.ok(text.includes(`quayside_queue_elements{${shown},state="ready"} 2\n`), text);
    assert.ok(text.includes(`quayside_queue_elements{${shown},state="scheduled"} 1\n`), text);
    assert.ok(text.includes(`quayside_queue_elements{${shown},state="reserved"} 1\n`), text);
    assert.ok(text.includes('quayside_elements{namespace="N",state="ready"} 2\n'), text);
    assert.ok(text.includes('quayside_queues{namespace="N"} 1\n'), text);
    assert.ok(text.includes('quayside_storage_up{namespace="N"} 1\n'), text);
  });

  it('count what each exchange did with its elements', async () => {
    const text = await metrics.text(EVERYTHING);
    for (const line of [
      'quayside_exchanges{namespace="N"} 1',
      'quayside_bulk_operations_running{namespace="N",action="move"} 2',
      'quayside_bulk_operation_elements_total{namespace="N",action="move"} 700',
      'quayside_exchange_stopped{exchange="x1",namespace="N"} 1',
      'quayside_exchange_copies_total{exchange="x1",namespace="N",destination="N/to",outcome="matched"} 4',
      'quayside_exchange_copies_total{exchange="x1",namespace="N",destination="N/to",outcome="failed"} 6',
      'quayside_exchange_strays_total{exchange="x1",namespace="N",outcome="too_many_hops"} 2',
      'quayside_exchange_selector_seconds_total{exchange="x1",namespace="N"} 1.5',
    ]) {
      assert.ok(text.includes(`${line}\n`), `${line} is missing in\n${text}`);
    }
  });

  it('add up the copies of several destinations of an exchange that have the same queue', async () => {
    const to = { ns: 'N', queue: 'to' };
    exchanges = [
      {
        ...EXCHANGE,
        declaration: { ...EXCHANGE.declaration, dst: [to, { ns: 'N', queue: 'other' }, to] },
        counters: {
          ...EXCHANGE.counters,
          destinations: [
            { matched: 4, skipped: 5, failed: 6 },
            { matched: 1, skipped: 1, failed: 1 },
            { matched: 10, skipped: 20, failed: 30 },
          ],
        },
      },
    ];
    const copies = samplesOf(await metrics.text(EVERYTHING), 'quayside_exchange_copies_total');
    assert.deepEqual(
      ['matched', 'skipped', 'failed'].map((outcome) =>
        copies.get(`{exchange="x1",namespace="N",destination="N/to",outcome="${outcome}"}`),
      ),
      [14, 25, 36],
    );
    assert.equal(copies.get('{exchange="x1",namespace="N",destination="N/other",outcome="matched"}'), 1);
    assert.equal(copies.size, 6);
  });

  it(`show at most ${MAX_QUEUE_SERIES} queues, the first by name, but count all of them`, async (t) => {
    const read = t.mock.method(broker.namespace('N').stats, 'read');
    const names = Array.from({ length: MAX_QUEUE_SERIES + 5 }, (_, i) => `q${String(i).padStart(5, '0')}`);
    await broker.namespace('N').storage.declare(names.map((name) => ({ ns: 'N', name })));
    const samples = samplesOf(await metrics.text(EVERYTHING), 'quayside_queue_elements');
    assert.equal(samples.size, MAX_QUEUE_SERIES * 3);
    assert.ok(samples.has(`{namespace="N",queue="${names[MAX_QUEUE_SERIES - 1]}",state="ready"}`));
    assert.ok(!samples.has(`{namespace="N",queue="${names[MAX_QUEUE_SERIES]}",state="ready"}`));
    assert.deepEqual(
      samplesOf(await metrics.text(EVERYTHING), 'quayside_queues'),
      new Map([['{namespace="N"}', 1005]]),
    );
    // Dead letters have series of single queues only.
    assert.equal(read.mock.callCount(), MAX_QUEUE_SERIES);
  });

  it('support more queues than a function call can have arguments', async () => {
    const namespace = broker.namespace('N');
    const counts = await namespace.storage.counts({ ns: 'N', name: 'none' });
    const names = Array.from({ length: 150_000 }, (_, i) => `q${i}`);
    // Not mocks, which would record all calls.
    namespace.queueNames = async () => names;
    namespace.storage.counts = async () => counts;
    sources = { ...sources, perQueue: false };
    const samples = samplesOf(await freshText(), 'quayside_oldest_ready_element_age_seconds');
    assert.deepEqual(samples, new Map([['{namespace="N"}', 0]]));
  });

  it('have every counter from 0 on, so that its first event is an increase', async () => {
    const zeros = await freshText();
    const before = samplesOf(zeros, 'quayside_operations_total');
    const queue = broker.namespace('N').queue('q');
    await queue.insert([newElement()]);
    await outcomeOf(queue, { leaseMs: 1000 });
    await outcomeOf(queue, { timeoutMs: 0 });
    await assert.rejects(queue.settle(UNKNOWN_ELEMENT, FINISH), {
      code: 'element-not-found',
    });
    await assert.rejects(queue.settle(UNKNOWN_ELEMENT, ROLLBACK));
    await assert.rejects(queue.remove('none'));
    await queue.pause();
    await queue.resume();
    queue.cancel('nobody', null);
    broker.drain();
    assert.throws(() => queue.get(WAITING_GET, IGNORING_SINK), { code: 'shutting-down' });
    const after = samplesOf(await freshText(), 'quayside_operations_total');
    assert.deepEqual([...after.keys()], [...before.keys()]);
    assert.ok([...before.values()].every((value) => value === 0));
    assert.ok([...after.values()].filter((value) => value > 0).length >= 9);
    assert.equal(samplesOf(zeros, 'quayside_storage_duration_seconds_count').get('{operation="extend"}'), 0);
    assert.equal(
      samplesOf(zeros, 'quayside_http_request_duration_seconds_count').get('{operation="take"}'),
      0,
    );
  });

  it('show for how long the oldest ready element has been ready', async () => {
    const age = async (name: string, labels: string) => samplesOf(await freshText(), name).get(labels);
    const ofNamespace = () => age('quayside_oldest_ready_element_age_seconds', '{namespace="N"}');
    const queue = broker.namespace('N').queue('old');
    await queue.insert([newElement({ delayMs: 10_000 })]);
    await broker
      .namespace('N')
      .queue('young')
      .insert([newElement({ delayMs: 15_000 })]);
    assert.equal(await ofNamespace(), 0, 'a scheduled element is not ready');
    await engine.passTime(30_000);
    assert.equal(await ofNamespace(), 20);
    const ofQueue = 'quayside_queue_oldest_ready_element_age_seconds';
    assert.equal(await age(ofQueue, '{namespace="N",queue="old"}'), 20);
    assert.equal(await age(ofQueue, '{namespace="N",queue="young"}'), 15);
    assert.equal(await outcomeOf(queue, {}), 1);
    assert.equal(await ofNamespace(), 15);
  });

  it('leave dead letters out of the age of the oldest ready element of a namespace', async () => {
    const policy = plain('D', { deadLetter: { maxTries: 1, queue: 'dead' } });
    const deadLetterEngine = await MEMORY_SQLITE.open({ namespaces: [policy] });
    const node = brokerOn([{ policy, engine: deadLetterEngine.engine }], deadLetterEngine.clock);
    await node.start();
    const namespace = node.namespace('D');
    await namespace.queue('dead').insert([newElement()]);
    await deadLetterEngine.passTime(10_000);
    await namespace.queue('q').insert([newElement()]);
    await deadLetterEngine.passTime(20_000);
    const text = await new Metrics({ ...sources, broker: node }).text(EVERYTHING);
    const age = (name: string, labels: string) => samplesOf(text, name).get(labels);
    assert.equal(age('quayside_queue_oldest_ready_element_age_seconds', '{namespace="D",queue="dead"}'), 30);
    assert.equal(age('quayside_oldest_ready_element_age_seconds', '{namespace="D"}'), 20);
    await node.stop();
    await deadLetterEngine.close();
  });

  it('show which queues are paused', async () => {
    await broker.namespace('N').queue('q').pause();
    await broker.namespace('N').queue('r').insert([newElement()]);
    const text = await freshText();
    assert.ok(text.includes('quayside_paused_queues{namespace="N"} 1\n'), text);
    assert.ok(text.includes('quayside_queue_paused{namespace="N",queue="q"} 1\n'), text);
    assert.ok(text.includes('quayside_queue_paused{namespace="N",queue="r"} 0\n'), text);
  });

  it('count dead letters by their source queue, and show how many are in dead-letter queues', async () => {
    const policy = plain('D', { deadLetter: { maxTries: 1, queue: 'dead' } });
    const own = await MEMORY_SQLITE.open({ namespaces: [policy] });
    const node = brokerOn([{ policy, engine: own.engine }], own.clock);
    await node.start();
    const queue = node.namespace('D').queue('q');
    const text = () => new Metrics({ ...sources, broker: node }).text(EVERYTHING);
    assert.ok((await text()).includes('quayside_dead_letter_elements{namespace="D"} 0\n'));
    const [id = ''] = await queue.insert([newElement(), newElement()]);
    assert.ok((await text()).includes('quayside_queue_dead_letters_total{namespace="D",queue="q"} 0\n'));
    assert.equal(await outcomeOf(queue, { leaseMs: 1000 }), 1);
    await queue.settle({ id, group: null, token: null }, ROLLBACK);
    assert.ok((await text()).includes('quayside_queue_dead_letters_total{namespace="D",queue="q"} 1\n'));
    assert.ok((await text()).includes('quayside_dead_letter_elements{namespace="D"} 1\n'));
    const other = node.namespace('D').queue('other');
    await other.storeOptions({ deadLetter: { maxTries: 1, queue: 'own-dead' } });
    const [failed = ''] = await other.insert([newElement()]);
    assert.equal(await outcomeOf(other, { leaseMs: 1000 }), 1);
    await other.settle({ id: failed, group: null, token: null }, ROLLBACK);
    assert.ok((await text()).includes('quayside_dead_letter_elements{namespace="D"} 2\n'));
    await other.storeOptions(null);
    assert.ok((await text()).includes('quayside_dead_letter_elements{namespace="D"} 1\n'));
    await node.stop();
    await own.close();
  });

  it('show the file size of an engine and the free disk space, if they can be read', async () => {
    const text = await freshText();
    assert.deepEqual(
      samplesOf(text, 'quayside_storage_file_bytes'),
      new Map([['{engine="sqlite:test"}', 4096]]),
    );
    assert.deepEqual(
      samplesOf(text, 'quayside_storage_free_bytes'),
      new Map([['{engine="sqlite:test"}', 1e9]]),
    );
  });

  it('show an engine to viewers who may see one of its namespaces', async () => {
    const used = async (name: string): Promise<number> => {
      const text = await metrics.text({ may: () => false, maySee: (one) => one === name });
      return samplesOf(text, 'quayside_storage_file_bytes').size;
    };
    assert.equal(await used('N'), 1);
    assert.equal(await used('third'), 0);
  });

  it('show a destination in a namespace that is not configured only to viewers who may see that one', async () => {
    const dst = [{ ns: 'gone', queue: 'to' }];
    exchanges = [{ ...EXCHANGE, declaration: { ...EXCHANGE.declaration, dst } }];
    const copies = async (...seen: readonly string[]): Promise<number> => {
      const text = await metrics.text({ may: () => false, maySee: (ns) => seen.includes(ns) });
      return samplesOf(text, 'quayside_exchange_copies_total').size;
    };
    assert.deepEqual([await copies('N', 'gone'), await copies('N')], [3, 0]);
  });

  it('omit the series of queues unless they are enabled', async () => {
    await broker.namespace('N').queue('q').insert([newElement()]);
    const text = await new Metrics({ ...sources, perQueue: false }).text(EVERYTHING);
    assert.doesNotMatch(text, /queue=|quayside_queue_/);
    assert.ok(text.includes('quayside_elements{namespace="N",state="ready"} 1\n'), text);
  });

  it('count operations by outcome, and storage times in cumulative buckets', async () => {
    await broker.namespace('N').queue('q').insert([newElement(), newElement()]);
    const text = await metrics.text(EVERYTHING);
    const operations = samplesOf(text, 'quayside_operations_total');
    assert.equal(operations.get('{namespace="N",operation="insert",outcome="ok"}'), 2);
    assert.equal(operations.get('{namespace="N",operation="commit",outcome="ok"}'), 0);
    const buckets = [...samplesOf(text, 'quayside_storage_duration_seconds_bucket').entries()].filter(
      ([labels]) => labels.includes('operation="insert"'),
    );
    const values = buckets.map(([, value]) => value);
    assert.deepEqual(
      values,
      values.toSorted((a, b) => a - b),
    );
    assert.equal(buckets.at(-1)?.[0], '{operation="insert",le="+Inf"}');
    assert.equal(values.at(-1), 1);
    assert.equal(samplesOf(text, 'quayside_storage_duration_seconds_count').get('{operation="insert"}'), 1);
  });

  it('count the elements of each get and reserve, or the error that it ended with', async () => {
    const queue = broker.namespace('N').queue('q');
    await queue.insert([newElement(), newElement(), newElement()]);
    assert.equal(await outcomeOf(queue, { count: 2 }), 2);
    assert.equal(await outcomeOf(queue, { leaseMs: 1000 }), 1);
    assert.equal(await outcomeOf(queue, { timeoutMs: 0 }), 'pop-timeout');
    assert.equal(await outcomeOf(queue, { leaseMs: 1000, timeoutMs: 0 }), 'pop-timeout');
    assert.throws(() => queue.get({ ...WAITING_GET, group: 'g' }, IGNORING_SINK), {
      code: 'invalid-parameter',
    });
    const consumers = Array.from({ length: 100 }, () => queue.get(WAITING_GET, IGNORING_SINK));
    assert.throws(() => queue.get(WAITING_GET, IGNORING_SINK), { code: 'too-many-consumers' });
    assert.throws(() => queue.get({ ...WAITING_GET, leaseMs: 1 }, IGNORING_SINK), {
      code: 'too-many-consumers',
    });
    for (const consumer of consumers) queue.leave(consumer);
    const cancelled = outcomeOf(queue, { tid: 'named', leaseMs: 1000 });
    queue.cancel('named', null);
    assert.equal(await cancelled, 'pop-cancelled');
    await engine.engine.stop();
    const failure = await outcomeOf(queue, { timeoutMs: 0 });
    const waiting = outcomeOf(queue, {});
    broker.drain();
    assert.equal(await waiting, 'shutting-down');
    const text = await metrics.text(EVERYTHING);
    assert.deepEqual(outcomesOf(text, 'get'), {
      ok: 2,
      'pop-timeout': 1,
      'invalid-parameter': 1,
      'too-many-consumers': 1,
      [failure]: 1,
      'shutting-down': 1,
    });
    assert.deepEqual(outcomesOf(text, 'reserve'), {
      ok: 1,
      'pop-timeout': 1,
      'too-many-consumers': 1,
      'pop-cancelled': 1,
    });
  });

  it('measure the time of each take as a get or a reserve', async () => {
    const queue = broker.namespace('N').queue('q');
    await outcomeOf(queue, { timeoutMs: 0 });
    const slow = outcomeOf(queue, { timeoutMs: 0 });
    await engine.passTime(250);
    await slow;
    await outcomeOf(queue, { leaseMs: 1000, timeoutMs: 0 });
    const text = await metrics.text(EVERYTHING);
    const counts = samplesOf(text, 'quayside_storage_duration_seconds_count');
    assert.equal(counts.get('{operation="get"}'), 2);
    assert.equal(counts.get('{operation="reserve"}'), 1);
    assert.equal(samplesOf(text, 'quayside_storage_duration_seconds_sum').get('{operation="get"}'), 0.25);
  });

  it('count a transfer as a commit of each element that it finished', async () => {
    const [from, to] = ['from', 'to'].map((name) => broker.namespace('N').queue(name));
    assert.ok(from !== undefined && to !== undefined);
    const [id = ''] = await from.insert([newElement()]);
    const { key } = from;
    const { deliveries } = await broker
      .namespace('N')
      .storage.take(key, { group: PLAIN_GROUP, count: 1, leaseMs: 1000 });
    const finish = { id, group: PLAIN_GROUP, token: deliveries[0]?.lease?.token ?? '' };
    const inserts = [{ queue: to, element: newElement() }];
    const unknown = { ...finish, id: 'none' };
    await from.transfer([
      { finish, inserts },
      { finish: unknown, inserts },
    ]);
    assert.deepEqual(outcomesOf(await metrics.text(EVERYTHING), 'commit'), { ok: 1, 'element-not-found': 1 });
  });

  it('show waiting consumers, logins, sessions and the process', async () => {
    broker.namespace('N').queue('q').get(WAITING_GET, IGNORING_SINK);
    const text = await metrics.text(EVERYTHING);
    assert.ok(text.includes('quayside_waiting_consumers{namespace="N"} 1\n'), text);
    assert.ok(text.includes('quayside_queue_waiting_consumers{namespace="N",queue="q"} 1\n'), text);
    assert.ok(text.includes('quayside_logins_total{outcome="accepted"} 3\n'), text);
    assert.ok(text.includes('quayside_event_subscribers 3\n'), text);
    assert.ok(text.includes('quayside_event_bytes_total 42\n'), text);
    assert.ok(text.includes('quayside_sessions{protocol="stomp"} 2\n'), text);
    assert.ok(text.includes('quayside_unacknowledged_elements{protocol="stomp"} 7\n'), text);
    assert.ok(text.includes('quayside_subscriptions{protocol="stomp"} 0\n'), text);
    assert.ok(text.includes(`quayside_build_info{version="1.2.3",node="${process.version}"} 1\n`), text);
    for (const name of [
      'process_cpu_seconds_total',
      'process_resident_memory_bytes',
      'process_start_time_seconds',
    ]) {
      assert.ok((samplesOf(text, name).get('') ?? 0) > 0, name);
    }
  });

  it('are well-formed: one HELP and TYPE per family, every sample a number', async () => {
    await broker.namespace('N').queue('q').insert([newElement()]);
    const families = new Set<string>();
    for (const line of (await metrics.text(EVERYTHING)).split('\n')) {
      if (line === '' || line.startsWith('# TYPE ')) continue;
      if (line.startsWith('# HELP ')) {
        const name = line.split(' ')[2] ?? '';
        assert.ok(!families.has(name), `${name} occurs twice`);
        families.add(name);
        assert.match(name, /^(quayside|process|nodejs)_[a-z_]+$/);
      } else {
        assert.match(line, /^[a-z_]+(\{[a-z]+=".*"\})? [0-9.e+-]+$/);
      }
    }
  });

  it('are those that docs/reference/metrics.md lists, and no others', async () => {
    const page = await readFile(new URL('../../docs/reference/metrics.md', import.meta.url), 'utf8');
    const listed = [...page.matchAll(/^\| `([a-z_]+)` \| (gauge|counter|histogram) \|/gm)].map(
      ([, name, type]) => `${name} ${type}`,
    );
    const types = [...(await metrics.text(EVERYTHING)).matchAll(/^# TYPE (.*)$/gm)].map(([, type]) => type);
    assert.deepEqual(types.toSorted(), listed.toSorted());
  });

  it('are collected once for concurrent scrapes', async () => {
    const [first, second] = await Promise.all([metrics.text(EVERYTHING), metrics.text(EVERYTHING)]);
    assert.equal(first, second);
    assert.equal(collected, 1);
  });

  it('let other requests be served between two families, as the series of a thousand exchanges take a while', async () => {
    await metrics.text(EVERYTHING);
    // Another viewer gets the collected values, so only the text is rendered again.
    let turns = 0;
    let isMade = false;
    const count = (): void => {
      turns += 1;
      if (!isMade) setImmediate(count);
    };
    setImmediate(count);
    const text = await metrics.text({ may: () => false, maySee: () => true });
    isMade = true;
    const families = text.match(/^# TYPE /gm)?.length ?? 0;
    assert.ok(turns >= families - 1, `${turns} turns for ${families} families`);
  });

  it('let other requests be served within a family, as exchanges may have thousands of destinations', async () => {
    const dst = Array.from({ length: 256 }, (_, i) => ({ ns: 'N', queue: `to${i}` }));
    exchanges = Array.from({ length: 6 }, (_, i) => ({
      ...EXCHANGE,
      key: `x${i}`,
      declaration: { ...EXCHANGE.declaration, dst },
    }));
    let turns = 0;
    let isMade = false;
    const count = (): void => {
      turns += 1;
      if (!isMade) setImmediate(count);
    };
    await metrics.text(EVERYTHING);
    setImmediate(count);
    const text = await metrics.text({ may: () => false, maySee: () => true });
    isMade = true;
    const lines = text.split('\n');
    const copies = lines.filter((line) => line.startsWith('quayside_exchange_copies_total{'));
    assert.equal(new Set(copies).size, 6 * 256 * 3);
    assert.equal(copies.length, 6 * 256 * 3);
    assert.equal(lines.filter((line) => line.includes('TYPE quayside_exchange_copies_total')).length, 1);
    const families = text.match(/^# TYPE /gm)?.length ?? 0;
    assert.ok(turns >= families + 3, `${turns} turns for ${families} families`);
  });

  it('are collected again after a second, and not before', async () => {
    await engine.passTime(5_000);
    const first = await metrics.text(EVERYTHING);
    await engine.passTime(999);
    assert.equal(await metrics.text(EVERYTHING), first);
    assert.equal(collected, 1);
    await engine.passTime(1);
    await metrics.text(EVERYTHING);
    assert.equal(collected, 2);
  });

  it('are collected once at a time, however long an engine takes, and again after a collection that failed', async () => {
    const health = Promise.withResolvers<EngineHealth[]>();
    let failures = 1;
    const failing = new Metrics({
      ...sources,
      engines: () => health.promise,
      logins: () => {
        if (failures-- > 0) throw new Error('not counted');
        return {};
      },
    });
    const first = failing.text(EVERYTHING);
    await engine.passTime(60_000);
    const second = failing.text(EVERYTHING);
    health.resolve([]);
    await assert.rejects(first, /not counted/);
    await assert.rejects(second, /not counted/);
    assert.equal(collected, 1);
    await engine.passTime(1_000);
    assert.match(await failing.text(EVERYTHING), /^quayside_build_info/m);
    assert.equal(collected, 2);
  });

  it('show each viewer only what it may see, even in concurrent scrapes', async () => {
    await broker.namespace('N').queue('q').insert([newElement()]);
    const [all, none] = await Promise.all([
      metrics.text(EVERYTHING),
      metrics.text({ may: () => false, maySee: () => false }),
    ]);
    assert.equal(collected, 1);
    assert.match(all, /namespace="N"/);
    assert.match(all, /exchange="x1"/);
    assert.doesNotMatch(none, /namespace=|exchange=|destination=/);
    assert.doesNotMatch(none, /engine=/);
  });

  it('report an unavailable engine, and still everything else', async () => {
    await broker.stop();
    await engine.engine.stop();
    const text = await metrics.text(EVERYTHING);
    assert.ok(text.includes('quayside_storage_up{namespace="N"} 0\n'), text);
    assert.equal(samplesOf(text, 'quayside_queue_elements').size, 0);
    assert.ok(text.includes('process_cpu_seconds_total '), text);
  });
});

/** Resolves when a get ends: with the number of its elements, or with the code of its error. */
function outcomeOf(queue: Queue, request: Partial<GetRequest>): Promise<number | string> {
  return new Promise((resolve) => {
    queue.get(
      { ...WAITING_GET, ...request },
      { deliver: (_, more) => resolve(1 + more.length), end: ({ code }) => resolve(code) },
    );
  });
}

/** How often an operation ended with each outcome, without outcomes that never occurred. */
function outcomesOf(text: string, operation: string): Record<string, number> {
  const found: Record<string, number> = {};
  for (const [labels, value] of samplesOf(text, 'quayside_operations_total')) {
    const [, of, outcome = ''] = /,operation="(.*)",outcome="(.*)"\}$/.exec(labels) ?? [];
    if (of === operation && value > 0) found[outcome] = value;
  }
  return found;
}

/** The samples of one metric: labels as written, and value. */
function samplesOf(text: string, name: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const line of text.split('\n')) {
    const match = /^([a-z_]+)(\{.*\})? (\S+)$/.exec(line);
    if (match?.[1] === name) found.set(match[2] ?? '', Number(match[3]));
  }
  return found;
}
