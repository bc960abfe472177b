import assert from 'node:assert/strict';
import { getEventListeners, once } from 'node:events';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import {
  Bury,
  LeaseLostError,
  Quayside,
  type QuaysideError,
  type Reservation,
  RetryLater,
  StoppedError,
  TimeoutError,
  Worker,
  type WorkerEvents,
} from '../../src/client/index.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { until } from '../support/until.ts';
import { AUTH, CLIENT_ENGINES, clientConfig, WatchedClient } from './server.ts';
import { FakeTracing } from './tracing.ts';

const BASIC = `Basic ${btoa(`${AUTH.user}:${AUTH.password}`)}`;
/** Longer than any test here. */
const PATIENCE_MS = 60_000;

for (const engine of CLIENT_ENGINES) {
  describe(`A worker on ${engine.name}`, () => {
    let server: ServerInProcess;
    let client: Quayside;
    before(async () => {
      server = await ServerInProcess.start({ config: clientConfig(await engine.url()) });
      client = new WatchedClient(server.url).client;
    });
    after(async () => {
      await client?.close();
      await server?.dispose();
    });

    it('handles and commits each element once, with at most concurrency handlers at once', async () => {
      const queue = client.queue('N/each once');
      await queue.insertMany(Array.from({ length: 200 }, (_, i) => i));
      const seen: unknown[] = [];
      let running = 0;
      let maxRunning = 0;
      const worker = new Worker(
        queue,
        async ({ data }) => {
          seen.push(data);
          maxRunning = Math.max(maxRunning, ++running);
          await turn();
          running -= 1;
        },
        { concurrency: 8 },
      );
      await nextEvents(worker.start(), 'committed', 200);
      assert.deepEqual(await worker.stop(), { finished: 0, returned: 0 });
      assert.deepEqual(
        seen.sort((a, b) => Number(a) - Number(b)),
        Array.from({ length: 200 }, (_, i) => i),
      );
      assert.ok(maxRunning > 1 && maxRunning <= 8, `${maxRunning} at once`);
      assert.equal((await queue.status()).total, 0);
    });

    it('rolls back if the handler throws, with the delay of a RetryLater, and reports as buried what has no try left or threw a Bury', async () => {
      const queue = client.queue('N/failing');
      await queue.insertMany(['later', 'bury', 'fail']);
      await using worker = new Worker(queue, ({ data }) => {
        if (data === 'later') throw new RetryLater(PATIENCE_MS);
        if (data === 'bury') throw new Bury('never');
        throw new Error(`no ${data}`);
      });
      const buried = nextEvents(worker, 'buried', 2);
      const rolledBack = nextEvents(worker, 'rolledBack', 3);
      worker.start();
      // The third try of `fail` is the last one.
      const dataOfBuried = (await buried).map(([{ data }, error]) => [data, (error as Error).message]);
      assert.deepEqual(dataOfBuried, [
        ['bury', 'never'],
        ['fail', 'no fail'],
      ]);
      const delays = (await rolledBack).map(([{ data }, , delayMs]) => [data, delayMs]);
      assert.deepEqual(delays, [['later', PATIENCE_MS], ...Array(2).fill(['fail', undefined])]);
      const { scheduled, total } = await queue.status();
      assert.deepEqual({ scheduled, total }, { scheduled: 1, total: 1 });
      const dead = client.queue('N/__deadletter__');
      const reasons = new Map<unknown, string | undefined>();
      for await (const { data, headers } of dead.browse()) reasons.set(data, headers['x-dl-reason']);
      assert.equal(reasons.get('bury'), 'never');
      assert.equal(reasons.get('fail'), 'no fail');
    });

    it('renews the lease while the handler runs', async () => {
      const queue = client.queue('N/renewed');
      await queue.insert('x');
      // The lease is renewed after a third of it. A busy machine may be late: one was seen to stand still for a second.
      const leaseMs = 4_500;
      const worker = new Worker(
        queue,
        async (job) => {
          const ends = new Set<number>();
          await until(() => {
            // Without this, a handler that lost its lease would run for ever.
            job.signal.throwIfAborted();
            return ends.add(job.leaseUntil.getTime()).size === 3;
          });
        },
        { leaseMs },
      );
      const [[job] = []] = await nextEvents(worker.start(), 'committed', 1);
      assert.equal(job?.tries, 0);
      await worker.stop();
    });

    it('aborts a handler whose lease is lost, and neither commits nor rolls back', async () => {
      const queue = client.queue('N/lost');
      await queue.insert('x');
      const reasons: unknown[] = [];
      const worker = new Worker(
        queue,
        async (job) => {
          // Another process of the same user settles it.
          const url = `${server.url}/q/N/lost/commit/${job.id}`;
          await fetch(url, { method: 'POST', headers: { authorization: BASIC } });
          if (!job.signal.aborted) await once(job.signal, 'abort');
          reasons.push(job.signal.reason);
        },
        { leaseMs: 300 },
      );
      await nextEvents(worker.start(), 'leaseLost', 1);
      assert.deepEqual(await worker.stop(), { finished: 0, returned: 0 });
      assert.ok(reasons[0] instanceof LeaseLostError);
      assert.equal((await queue.status()).total, 0);
    });
  });
}

describe('A worker', () => {
  let server: ServerInProcess;
  let watched: WatchedClient;
  let client: Quayside;
  const tracing = new FakeTracing();
  before(async () => {
    server = await ServerInProcess.start({ config: clientConfig('sqlite::memory:') });
    watched = new WatchedClient(server.url, { tracing, retry: { minMs: 1 } });
    client = watched.client;
  });
  after(async () => {
    await client?.close();
    await server?.dispose();
  });

  const clientWith = (auth: () => string | Promise<string>): Quayside =>
    new Quayside({ url: server.url, auth });

  it('ends its waiting call when it is stopped, and takes nothing more', async () => {
    const queue = client.queue('N/stopped');
    const worker = new Worker(queue, () => assert.fail('nothing is to be handled')).start();
    await untilConsumerWaits(server, 'stopped');
    const stopped = nextEvents(worker, 'stopped', 1);
    assert.deepEqual(await worker.stop(), { finished: 0, returned: 0 });
    await stopped;
    await queue.insert('late');
    const { ready, reserved } = await queue.status();
    assert.deepEqual({ ready, reserved }, { ready: 1, reserved: 0 });
  });

  it('waits for its handlers when it is stopped', async () => {
    const queue = client.queue('N/drained');
    await queue.insert('x');
    const release = Promise.withResolvers<void>();
    const worker = new Worker(queue, () => release.promise);
    await nextEvents(worker.start(), 'taken', 1);
    const stopped = worker.stop();
    assert.equal((await queue.status()).reserved, 1);
    release.resolve();
    assert.deepEqual(await stopped, { finished: 1, returned: 0 });
    assert.equal((await queue.status()).total, 0);
  });

  it('aborts handlers that outlast the grace period, and returns their elements', async () => {
    const queue = client.queue('N/outlasted');
    await queue.insert('x');
    const aborted = Promise.withResolvers<unknown>();
    const worker = new Worker(queue, async ({ signal }) => {
      await once(signal, 'abort');
      aborted.resolve(signal.reason);
    });
    await nextEvents(worker.start(), 'taken', 1);
    assert.deepEqual(await worker.stop({ graceMs: 0 }), { finished: 0, returned: 1 });
    assert.ok((await aborted.promise) instanceof StoppedError);
    assert.equal((await queue.status()).ready, 1);
  });

  it('shortens the grace period if it is stopped again', async () => {
    const queue = client.queue('N/hurried');
    await queue.insert('x');
    const worker = new Worker(queue, ({ signal }) => once(signal, 'abort'));
    await nextEvents(worker.start(), 'taken', 1);
    const stopped = worker.stop();
    assert.deepEqual(await worker.stop({ graceMs: 0 }), { finished: 0, returned: 1 });
    assert.deepEqual(await stopped, { finished: 0, returned: 1 });
  });

  it('releases elements that arrive while it stops, without counting a try', async () => {
    const queue = client.queue('N/too late');
    await queue.insertMany(['a', 'b']);
    const taken = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    await using late = new Quayside({
      url: server.url,
      auth: AUTH,
      fetch: async (input, init) => {
        const response = await fetch(input, init);
        if (!String(input).endsWith('/take')) return response;
        taken.resolve();
        await held.promise;
        return response;
      },
    });
    const worker = new Worker(late.queue('N/too late'), () => assert.fail('it was started'), {
      concurrency: 2,
    }).start();
    await taken.promise;
    const stopped = worker.stop();
    held.resolve();
    assert.deepEqual(await stopped, { finished: 0, returned: 2 });
    const jobs = await queue.reserveMany(2);
    assert.deepEqual(
      jobs.map(({ data, tries }) => [data, tries]),
      [
        ['a', 0],
        ['b', 0],
      ],
    );
    for (const job of jobs) await job.commit();
  });

  it('stops when its signal is aborted', async () => {
    const controller = new AbortController();
    const worker = new Worker(client.queue('N/signalled'), () => {}, { signal: controller.signal });
    const stopped = nextEvents(worker, 'stopped', 1);
    worker.start();
    controller.abort();
    await stopped;
  });

  it('aborts a handler that takes too long, and rolls its element back', async () => {
    const queue = client.queue('N/too long');
    await queue.insert('x');
    const reasons: unknown[] = [];
    await using worker = new Worker(
      queue,
      async ({ signal }) => {
        await once(signal, 'abort');
        reasons.push(signal.reason);
      },
      { handlerTimeoutMs: 1, backoff: () => PATIENCE_MS },
    );
    const [[, error] = []] = await nextEvents(worker.start(), 'rolledBack', 1);
    assert.ok(error instanceof TimeoutError);
    assert.deepEqual(reasons, [error]);
    assert.equal((await queue.status()).scheduled, 1);
  });

  it('takes nothing while it is paused, and continues when it is resumed', async () => {
    const queue = client.queue('N/paused');
    await using worker = new Worker(queue, () => {}).start();
    await untilConsumerWaits(server, 'paused');
    await worker.pause();
    await queue.insert('x');
    assert.equal((await queue.status()).ready, 1);
    const committed = nextEvents(worker, 'committed', 1);
    worker.resume();
    await committed;
  });

  it('continues after a request that failed, and reports it', async () => {
    const queue = client.queue('N/forbidden');
    await queue.insert('x');
    let failures = 1;
    const failing = new WatchedClient(server.url, {
      fetch: (input, init) => {
        if (failures-- > 0) return Promise.resolve(forbidden());
        return fetch(input, init);
      },
    }).client;
    await using worker = new Worker(failing.queue('N/forbidden'), () => {});
    const errors = nextEvents(worker, 'error', 1);
    const committed = nextEvents(worker, 'committed', 1);
    worker.start();
    const [[error] = []] = await errors;
    assert.equal((error as QuaysideError).code, 'forbidden');
    await committed;
    await worker.stop();
    await failing.close();
  });

  it('repeats a commit that failed until its lease ends, and reports each failure', {
    timeout: PATIENCE_MS,
  }, async () => {
    await client.queue('N/unavailable').insert('x');
    let failures = 3;
    const failing = new WatchedClient(server.url, {
      retry: false,
      fetch: async (input, init) =>
        String(input).endsWith('/settle') && failures-- > 0
          ? new Response(null, { status: 503 })
          : fetch(input, init),
    }).client;
    const queue = failing.queue('N/unavailable');
    await using worker = new Worker(queue, () => {}, { leaseMs: 10 * PATIENCE_MS });
    const errors = nextEvents(worker, 'error', 3);
    await nextEvents(worker.start(), 'committed', 1);
    for (const [error] of await errors) assert.equal(error.code, 'connection-failed');
    assert.equal((await queue.status()).total, 0);
    await worker.stop();
    await failing.close();
  });

  it('repeats no commit once its lease has ended, or the worker was stopped', async () => {
    await client.queue('N/given up').insertMany(['expired', 'stopped']);
    let commits = 0;
    const failing = new WatchedClient(server.url, {
      retry: false,
      fetch: async (input, init) => {
        if (!String(input).endsWith('/settle')) return fetch(input, init);
        if (String(init?.body).includes('commit')) commits += 1;
        return new Response(null, { status: 503 });
      },
    }).client;
    for (const stops of [false, true]) {
      const worker = new Worker(
        failing.queue('N/given up'),
        (job) => {
          if (stops) void worker.stop();
          // Without an `await`, so that no renewal fails: the error that ends the wait is that of the commit.
          else while (!job.signal.aborted);
        },
        { leaseMs: stops ? PATIENCE_MS : 20 },
      );
      const errors = nextEvents(worker, 'error', 1);
      worker.start();
      await errors;
      await worker.stop();
    }
    await failing.close();
    assert.equal(commits, 2);
  });

  it('reports a server that does not respond, and takes again', async (t) => {
    let now = 0;
    let requests = 0;
    t.mock.method(performance, 'now', () => now);
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const fetchesNothing = (_: unknown, { signal }: RequestInit = {}): Promise<Response> => {
      requests += 1;
      return new Promise((_resolve, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason));
      });
    };
    const frozen = new Quayside({ url: 'http://x', auth: AUTH, fetch: fetchesNothing });
    const worker = new Worker(frozen.queue('N/frozen'), () => {}).start();
    const errors = nextEvents(worker, 'error', 1);
    await turn();
    assert.equal(requests, 1);
    now = 60_000;
    t.mock.timers.tick(now);
    const [[error] = []] = await errors;
    assert.ok(error instanceof TimeoutError);
    await until(() => {
      t.mock.timers.tick(1_000);
      return requests > 1;
    });
    await frozen.close();
  });

  it('stops after a commit that gets no response, and does not repeat it ten times', async (t) => {
    let now = 0;
    t.mock.method(performance, 'now', () => now);
    t.mock.timers.enable({ apis: ['setTimeout'] });
    let takes = 0;
    let commits = 0;
    const cut = new Quayside({
      url: 'http://x',
      auth: AUTH,
      fetch: (input, { signal } = {}) => {
        if (String(input).endsWith('/settle')) commits += 1;
        const taken = { id: '1', lease: 'token', leaseUntil: new Date(now), text: '1', tries: 0 };
        if (String(input).endsWith('/take') && takes++ === 0) return Promise.resolve(Response.json(taken));
        return new Promise((_resolve, reject) => {
          signal?.addEventListener('abort', () => reject(signal.reason));
        });
      },
    });
    const worker = new Worker(cut.queue('N/cut'), () => {}, { leaseMs: 10 * PATIENCE_MS }).start();
    const errors = nextEvents(worker, 'error', 1);
    await until(() => commits > 0);
    let isStopped = false;
    void worker.stop().then(() => {
      isStopped = true;
    });
    await until(() => {
      now += 1_000;
      t.mock.timers.tick(1_000);
      return isStopped;
    });
    const [[error] = []] = await errors;
    assert.ok(error instanceof TimeoutError);
    // An attempt takes 20 s, and a commit 30 s.
    assert.ok(commits <= 2, `${commits} attempts`);
    await cut.close();
  });

  it('settles an element whatever value its handler throws, and reports no error', async () => {
    const queue = client.queue('N/odd');
    const thrown = [
      undefined,
      null,
      Symbol('odd'),
      Object.freeze(new Error('frozen')),
      Object.create(null),
      Object.assign(new Error(), { message: { not: 'a text' } }),
      new Bury('never'),
    ];
    await queue.insertMany(thrown.map((_, index) => index));
    await queue.insert('good');
    const errors: unknown[] = [];
    await using worker = new Worker(
      queue,
      ({ data }) => {
        if (typeof data === 'number') throw thrown[data];
      },
      { concurrency: 8, backoff: () => PATIENCE_MS },
    );
    worker.on('error', (error) => errors.push(error));
    const settled = [
      nextEvents(worker, 'rolledBack', 6),
      nextEvents(worker, 'buried', 1),
      nextEvents(worker, 'committed', 1),
    ];
    worker.start();
    await Promise.all(settled);
    assert.deepEqual(errors, []);
    assert.equal((await queue.status()).reserved, 0);
  });

  it('reports no error if a handler settles its element itself', async () => {
    const queue = client.queue('N/settled by the handler');
    await queue.insertMany(['commit', 'rollback', 'not awaited']);
    const errors: unknown[] = [];
    const worker = new Worker(
      queue,
      async (job) => {
        if (job.data === 'rollback') await job.rollback({ delayMs: PATIENCE_MS });
        else if (job.data === 'commit') await job.commit();
        else void job.commit();
      },
      { concurrency: 3 },
    );
    worker.on('error', (error) => errors.push(error));
    await nextEvents(worker.start(), 'taken', 3);
    await worker.stop();
    assert.deepEqual(errors, []);
    const { scheduled, total } = await queue.status();
    assert.deepEqual({ scheduled, total }, { scheduled: 1, total: 1 });
  });

  it('continues if it is resumed before its pause has taken effect', async () => {
    const queue = client.queue('N/paused shortly');
    await using worker = new Worker(queue, () => {}).start();
    await untilConsumerWaits(server, 'paused shortly');
    const paused = worker.pause();
    worker.resume();
    await paused;
    const committed = nextEvents(worker, 'committed', 1);
    await queue.insert('x');
    await committed;
  });

  it('continues if it is resumed while the server cannot be reached', async () => {
    let requests = 0;
    const going = new WatchedClient(server.url, {
      fetch: (input, init) => {
        requests += 1;
        if (requests > 2) return fetch(input, init);
        if (init?.method === 'DELETE') return Promise.reject(new TypeError('fetch failed'));
        return new Promise((_, reject) => {
          init?.signal?.addEventListener('abort', () => reject(init.signal?.reason));
        });
      },
      retry: false,
    }).client;
    await using worker = new Worker(going.queue('N/resumed away'), () => {}, {
      logger: { error() {} },
    }).start();
    await turn();
    const paused = worker.pause();
    worker.resume();
    await paused;
    const committed = nextEvents(worker, 'committed', 1);
    await client.queue('N/resumed away').insert('x');
    await committed;
    await worker.stop();
    await going.close();
  });

  it('leaves no listener on its signal after it has stopped', async () => {
    const { signal } = new AbortController();
    await new Worker(client.queue('N/signalled'), () => {}, { signal }).start().stop();
    assert.deepEqual(getEventListeners(signal, 'abort'), []);
  });

  it('stops at once if its error listener stops it', async (t) => {
    const failing = new Quayside({ url: 'http://x', auth: AUTH, fetch: async () => forbidden() });
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const worker = new Worker(failing.queue('N/failing'), () => {});
    const stopped = new Promise((resolve) => {
      worker.on('error', () => resolve(worker.stop()));
    });
    worker.start();
    assert.deepEqual(await stopped, { finished: 0, returned: 0 });
    await failing.close();
  });

  it('rejects an invalid handlerTimeoutMs', () => {
    for (const handlerTimeoutMs of [0, Number.NaN, null as never, true as never]) {
      assert.throws(() => new Worker(client.queue('N/x'), () => {}, { handlerTimeoutMs }), {
        code: 'invalid-data',
        message: RegExp(`^handlerTimeoutMs is ${handlerTimeoutMs}\\.`),
      });
    }
  });

  it('rejects a generator as its handler, which would do nothing for any element', () => {
    for (const handler of [function* () {}, async function* () {}]) {
      assert.throws(() => new Worker(client.queue('N/x'), handler), {
        code: 'invalid-data',
        message: /^The handler is .*no generator\.$/s,
      });
    }
  });

  it('rejects an invalid leaseMs or concurrency', () => {
    for (const name of ['leaseMs', 'concurrency']) {
      for (const value of [0, -1, Number.NaN, 5n, '5']) {
        assert.throws(() => new Worker(client.queue('N/x'), () => {}, { [name]: value }), {
          code: 'invalid-data',
          message: RegExp(`^${name} is ${value === '5' ? '"5"' : value}\\.`),
        });
      }
    }
  });

  it('rejects a listener of an event that it does not have', () => {
    const worker = new Worker(client.queue('N/x'), () => {});
    assert.throws(() => worker.on('failed' as 'error', () => {}), {
      code: 'invalid-data',
      message: /^The event is "failed"\. Allowed: taken, committed, rolledBack, .*, stopped\.$/,
    });
  });

  // The handlers hang for half a second: a program that did not wait would have ended before.
  it('keeps its process alive until a handler that never settles was given up', async () => {
    for (const [name, end] of [
      ['stopped while it hangs', 'await worker.stop({ graceMs: 500 });'],
      ['timed out', "await new Promise((resolve) => worker.on('rolledBack', resolve)); await worker.stop();"],
    ] as const) {
      await client.queue(`N/${name}`).insert('x');
      const program = `
        import { Quayside, Worker } from ${JSON.stringify(import.meta.resolve('../../src/client/index.ts'))};
        const quayside = new Quayside();
        const options = ${name === 'timed out' ? '{ handlerTimeoutMs: 500, backoff: () => 60_000 }' : '{}'};
        const worker = new Worker(quayside.queue('N/${name}'), () => new Promise(() => {}), options).start();
        await new Promise((resolve) => worker.on('taken', resolve));
        ${end}
        await quayside.close();
        console.log('ended');`;
      const child = spawnOwned(process.execPath, ['--input-type=module', '--eval', program], {
        env: {
          ...process.env,
          QUAYSIDE_URL: server.url,
          QUAYSIDE_USER: AUTH.user,
          QUAYSIDE_PASSWORD: AUTH.password,
        },
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
      assert.deepEqual([printed, code], ['ended\n', 0], name);
      assert.equal((await client.queue(`N/${name}`).status()).reserved, 0);
    }
  });

  it('logs an error if it has no error listener', async () => {
    const queue = client.queue('N/logged');
    await queue.insert('x');
    const logged = Promise.withResolvers<string>();
    await using worker = new Worker(queue, () => {}, {
      logger: { error: (message) => logged.resolve(message) },
    });
    worker.on('committed', () => {
      throw new Error('a fault of the listener');
    });
    worker.start();
    assert.equal(await logged.promise, 'A listener of "committed" threw:');
  });

  it('reports a settlement whose credentials function rejects, even with a value that is not an Error', async () => {
    await client.queue('N/credentials').insert('x');
    let isGone = false;
    await using changing = clientWith(() => (isGone ? Promise.reject() : BASIC));
    const stopped = Promise.withResolvers<unknown>();
    const worker = new Worker(changing.queue('N/credentials'), () => {
      isGone = true;
      stopped.resolve(worker.stop());
    });
    const errors = nextEvents(worker, 'error', 1);
    worker.start();
    assert.deepEqual(await stopped.promise, { finished: 1, returned: 0 });
    const [[error] = []] = await errors;
    assert.deepEqual([error?.code, error?.message], ['failed', 'undefined']);
  });

  it('continues if its logger throws, and logs to the console instead', async (t) => {
    const printed = t.mock.method(console, 'error', () => {});
    await client.queue('N/no log').insert('x');
    let calls = 0;
    await using failingOnce = clientWith(() => {
      calls += 1;
      return calls === 1 ? Promise.reject(new Error('no credentials')) : BASIC;
    });
    await using worker = new Worker(failingOnce.queue('N/no log'), () => {}, {
      logger: { error: () => assert.fail('the disk is full') },
    });
    worker.on('committed', () => {
      throw new Error('a fault of the listener');
    });
    await nextEvents(worker.start(), 'committed', 1);
    await until(() => printed.mock.callCount() === 2);
    assert.deepEqual(
      printed.mock.calls.map(({ arguments: [message, error] }) => [message, error.message]),
      [
        ['The worker of N/no log failed, and continues:', 'no credentials'],
        ['A listener of "committed" threw:', 'a fault of the listener'],
      ],
    );
  });

  it('logs the rejection of an asynchronous listener, which does not end the process', async () => {
    const queue = client.queue('N/logged later');
    await queue.insert('x');
    const logged = Promise.withResolvers<unknown>();
    await using worker = new Worker(queue, () => {}, {
      logger: { error: (_, error) => logged.resolve(error) },
    });
    const failure = new Error('a fault of the listener');
    worker.on('committed', async () => {
      await turn();
      throw failure;
    });
    worker.start();
    assert.equal(await logged.promise, failure);
  });

  it('rolls back an element whose body cannot be decoded', async () => {
    const url = `${server.url}/q/N/undecodable`;
    const headers = { authorization: BASIC, 'content-type': 'application/json' };
    await fetch(url, { method: 'PUT', headers, body: '{no json' });
    const queue = client.queue('N/undecodable');
    await using worker = new Worker(queue, () => assert.fail('it does not decode'), {
      backoff: () => PATIENCE_MS,
    });
    const [[, error] = []] = await nextEvents(worker.start(), 'rolledBack', 1);
    assert.equal((error as QuaysideError).code, 'invalid-data');
  });

  it('rolls back with the retry delay of the queue if backoff throws or returns NaN', async () => {
    const queue = client.queue('N/no-backoff');
    for (const backoff of [() => assert.fail('no backoff'), () => Number.NaN]) {
      await queue.insert('x');
      const failsOnce = ({ tries }: { tries: number }): void => {
        if (tries === 0) throw new Error('failed');
      };
      const logged: string[] = [];
      const logger = { error: (...line: readonly unknown[]) => logged.push(line.join(' ')) };
      await using worker = new Worker(queue, failsOnce, { backoff, logger });
      const committed = nextEvents(worker, 'committed', 1);
      const [[, error, delayMs] = []] = await nextEvents(worker.start(), 'rolledBack', 1);
      assert.match(String(error), /failed/);
      assert.equal(delayMs, undefined);
      assert.match(logged.join('\n'), /no backoff|The retry delay is NaN\. Allowed: milliseconds/);
      await committed;
    }
  });

  it('has a span for each handler, with a link to the span of the insert', async () => {
    const queue = client.queue('N/traced');
    tracing.spans.length = 0;
    const { id } = await queue.insert('x', { headers: { own: 'kept' } });
    await using worker = new Worker(
      queue,
      (job) => {
        assert.equal(job.headers.own, 'kept');
        assert.equal(tracing.active()?.name, 'process N/traced');
        throw new Error('failed');
      },
      { backoff: () => PATIENCE_MS },
    );
    await nextEvents(worker.start(), 'rolledBack', 1);
    const [insert, process] = tracing.spans;
    assert.equal(insert?.name, 'insert N/traced');
    assert.equal(insert?.attributes['messaging.message.id'], id);
    assert.equal(process?.attributes['messaging.message.id'], id);
    assert.deepEqual(process?.links, [insert?.spanContext]);
    assert.deepEqual(
      [insert?.isEnded, insert?.error, process?.isEnded, process?.error],
      [true, null, true, 'failed'],
    );
  });
});

/** Resolves with the arguments of the next `count` events of this name. */
function nextEvents<T, E extends keyof WorkerEvents<T>>(
  worker: Worker<T>,
  event: E,
  count: number,
): Promise<WorkerEvents<T>[E][]> {
  const { promise, resolve } = Promise.withResolvers<WorkerEvents<T>[E][]>();
  const seen: WorkerEvents<T>[E][] = [];
  worker.on(event, (...args) => {
    seen.push(args);
    if (seen.length === count) resolve(seen);
  });
  return promise;
}

/** Resolves when a consumer waits for the queue. */
async function untilConsumerWaits(server: ServerInProcess, queue: string): Promise<void> {
  for (;;) {
    const response = await fetch(`${server.url}/q/N/${queue}/consumers`, {
      headers: { authorization: BASIC },
    });
    if (((await response.json()) as Reservation<unknown>[]).length > 0) return;
  }
}

function forbidden(): Response {
  const headers = { 'content-type': 'application/problem+json' };
  return new Response('{"code": "forbidden"}', { status: 403, headers });
}
