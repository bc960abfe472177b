import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LeaseSweeper } from '../../src/broker/sweeper.ts';
import { unavailable } from '../../src/engine/calls.ts';
import { BufferedStats } from '../../src/engine/stats.ts';
import type { Storage } from '../../src/engine/storage.ts';
import type { AuxiliaryConnection, Link } from '../../src/engines/postgres/link.ts';
import { PostgresSignaller } from '../../src/engines/postgres/signaller.ts';
import { FakeClock } from '../support/clock.ts';

const OUTAGE_SECONDS = 30;

/** An engine that is unavailable until a test makes it available, and the log of its caller. */
class OutageWorld {
  readonly clock = new FakeClock();
  readonly logged: string[] = [];
  isUnavailable = true;
  calls = 0;
  readonly log = {
    info: (_: object, text: string) => void this.logged.push(`info ${text}`),
    warn: (_: object, text: string) => void this.logged.push(`warn ${text}`),
  };

  async call<T>(answer: T): Promise<T> {
    this.calls += 1;
    if (this.isUnavailable) throw unavailable('It is away.', new Error('away'));
    return answer;
  }

  /** Lets a second pass, and everything run that becomes due in it. */
  async passSecond(): Promise<void> {
    for (let i = 0; i < 10; i++) {
      this.clock.advance(100);
      await new Promise(setImmediate);
    }
  }

  /**
   * Keeps the engine unavailable for half a minute, then makes it available. Returns the number of calls until then.
   */
  async runOutage(use: () => void = () => {}): Promise<number> {
    for (let second = 0; second < OUTAGE_SECONDS; second++) {
      use();
      await this.passSecond();
    }
    const callsDuringOutage = this.calls;
    this.isUnavailable = false;
    for (let second = 0; second < 3; second++) {
      use();
      await this.passSecond();
    }
    return callsDuringOutage;
  }
}

describe('While an engine is unavailable', () => {
  it('the sweeper logs one warning, and one message when it works again', async () => {
    const world = new OutageWorld();
    const storage = { sweep: () => world.call(null), takeAffected: () => [] } as unknown as Storage;
    const sweeper = new LeaseSweeper(storage, { ...world, random: () => 0.5 }, () => {});
    await sweeper.sweep();
    assert.ok((await world.runOutage()) > 10);
    await sweeper.stop();
    assert.deepEqual(world.logged, [
      'warn elements with expired leases could not be released yet; the node retries until they are',
      'info elements with expired leases are released again',
    ]);
  });

  it('the statistics log one warning, and one message when they are stored again', async () => {
    const world = new OutageWorld();
    const store = {
      isOrdered: true,
      groupsPerWrite: 1,
      queuesPerRead: 1,
      write: () => world.call(undefined),
      read: async () => {},
    };
    const stats = new BufferedStats(store, world.clock, world.log);
    assert.ok((await world.runOutage(() => stats.add({ ns: 'N', name: 'q' }, '', { put: 1 }))) > 10);
    await stats.stop(false);
    assert.deepEqual(world.logged, [
      'warn statistics could not be stored',
      'info statistics are stored again',
    ]);
  });

  it('the signaller of PostgreSQL logs one message, and one when it sends again', async () => {
    const world = new OutageWorld();
    const auxiliary = { query: () => world.call([]) } as unknown as AuxiliaryConnection;
    const options = { auxiliary, listener: {} as Link, channel: 'c', clock: world.clock, log: world.log };
    const signaller = new PostgresSignaller(options);
    assert.ok((await world.runOutage(() => signaller.publish('topic', 'x'))) > 10);
    await signaller.stop();
    assert.deepEqual(world.logged, [
      'info signals to other nodes are lost',
      'info signals to other nodes are sent again',
    ]);
  });
});
