import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import type { User } from '../../src/access/user.ts';
import { PictureJournal } from '../../src/events/collection.ts';
import { EVENT_KINDS, type Picture } from '../../src/events/pictures.ts';
import { EventPublisher, type EventSink } from '../../src/events/publisher.ts';
import { FakeClock } from '../support/clock.ts';

const USER: User = {
  name: 'u',
  isAdministrator: true,
  may: () => true,
  maySee: () => true,
  maySeeBodies: () => true,
};

function picture(key: string, state: string): Picture {
  return {
    kind: 'operations',
    key,
    places: [],
    state,
    isFor: () => true,
    json: () => JSON.stringify({ id: key, state }),
    goneJson: () => JSON.stringify({ id: key, gone: true }),
  };
}

/** Completes its pending write when the test calls `take`. */
class Sink implements EventSink {
  readonly writes: string[] = [];
  #taken: (() => void) | null = null;

  get isWaiting(): boolean {
    return this.#taken !== null;
  }

  write(bytes: Buffer, taken: () => void): void {
    assert.equal(this.#taken, null, 'a write waits until the previous one is completed');
    this.writes.push(bytes.toString());
    this.#taken = taken;
  }

  end(bytes: Buffer): void {
    this.writes.push(bytes.toString());
  }

  take(): void {
    const taken = this.#taken;
    this.#taken = null;
    taken?.();
  }

  takeAll(): void {
    while (this.isWaiting) this.take();
  }
}

/** A clock on which work takes time, without a turn of the event loop. */
class BusyClock extends FakeClock {
  busyMs = 0;

  override monotonic(): number {
    return super.monotonic() + this.busyMs;
  }
}

describe('The publisher of events', () => {
  let clock: BusyClock;
  let publisher: EventPublisher;
  let pictures: Iterable<Picture> = [];
  let followed = 0;

  beforeEach(async () => {
    clock = new BusyClock();
    pictures = [];
    followed = 0;
    publisher = new EventPublisher({
      namespaces: [],
      watch: {
        follow: (follower) => {
          followed += follower === null ? -1 : 1;
        },
      },
      sources: [{ kind: 'operations', read: () => pictures }],
      clock,
      random: () => 0,
      limits: { total: 1_000, perUser: 1_000 },
    });
    await publisher.start();
  });

  afterEach(async () => {
    await publisher.stop();
    assert.equal(followed, 0);
    assert.equal(clock.pending, 0, 'no timer is left');
    assert.equal(publisher.counts.subscribers, 0);
  });

  const subscribe = (sink: Sink, lastEventId: string | null = null) =>
    publisher.subscribe({
      user: USER,
      filter: { kinds: new Set(EVENT_KINDS), ns: null, queue: null },
      lastEventId,
      sink,
    });

  /** Things are read in several turns of the event loop. */
  async function finishReading(): Promise<void> {
    for (let i = 0; i < 50; i += 1) await turn();
  }

  async function pass(ms: number): Promise<void> {
    await finishReading();
    clock.advance(ms);
    await finishReading();
    clock.advance(0);
  }

  it('serves other requests while it reads many things, which are complete afterwards', async () => {
    let turns = 0;
    const readIn: number[] = [];
    pictures = {
      *[Symbol.iterator]() {
        for (let i = 0; i < 1_000; i += 1) {
          readIn.push(turns);
          yield picture(`${i}`, '');
        }
      },
    };
    const sink = new Sink();
    subscribe(sink);
    while (readIn.length < 1_000 || !sink.isWaiting) {
      await turn();
      turns += 1;
    }
    await pass(0);
    sink.takeAll();
    const perTurn = [...Map.groupBy(readIn, (at) => at).values()].map((reads) => reads.length);
    assert.ok(Math.max(...perTurn) <= 50, `${Math.max(...perTurn)} in one turn`);
    assert.equal(sink.writes.join('').match(/"id":"\d+"/g)?.length, 1_000);
  });

  it('writes one chunk at a time, and buffers none for a slow subscriber', async () => {
    const [quick, slow] = [new Sink(), new Sink()];
    subscribe(quick);
    subscribe(slow);
    pictures = [picture('a', '0')];
    for (let round = 1; round <= 100; round += 1) {
      pictures = [picture('a', String(round)), picture('b', String(round))];
      await pass(2_000);
      quick.takeAll();
    }
    assert.equal(slow.writes.length, 1, 'its first write is still pending');
    assert.ok(quick.writes.length > 100);
    slow.takeAll();
    const [start, latest, complete] = slow.writes;
    assert.match(start ?? '', /event: start/);
    assert.match(
      latest ?? '',
      /data: \[\{"id":"a","state":"100"\},\{"id":"b","state":"100"\}\]\nid: \S+\n\n$/,
    );
    assert.equal(complete, 'event: complete\ndata: {}\n\n');
    assert.equal(slow.writes.length, 3);
  });

  it('writes to many subscribers in several turns, so that other requests are served in between', async () => {
    const sinks = Array.from({ length: 500 }, () => new Sink());
    for (const sink of sinks) subscribe(sink);
    await pass(0);
    for (const sink of sinks) sink.takeAll();
    const countOf = (text: string): number =>
      sinks.filter(({ writes }) => writes.some((written) => written.includes(text))).length;
    const steps = async (text: string): Promise<number[]> => {
      let before = countOf(text);
      const written = [before];
      for (let at = 0; before < sinks.length; at += 1) {
        assert.ok(at < sinks.length, `only ${before} subscribers were written to`);
        await turn();
        for (const sink of sinks) sink.takeAll();
        const now = countOf(text);
        written.push(now - before);
        before = now;
      }
      return written;
    };
    pictures = [picture('a', 'changed')];
    await turn();
    clock.advance(2_000);
    await turn();
    clock.advance(500);
    const ofUpdate = await steps('"changed"');
    assert.ok(Math.max(...ofUpdate) <= 100, `${ofUpdate}`);
    clock.advance(30_000);
    const ofBeat = await steps('event: alive');
    assert.ok(Math.max(...ofBeat) <= 100, `${ofBeat}`);
  });

  it('serves other requests between subscribers with filters of their own, which take long', async () => {
    const sinks = Array.from({ length: 20 }, (_, at) => {
      const sink = new Sink();
      const filter = { kinds: new Set(EVENT_KINDS), ns: 'N', queue: `q${at}` };
      publisher.subscribe({ user: USER, filter, lastEventId: null, sink });
      return sink;
    });
    await pass(0);
    for (const sink of sinks) sink.takeAll();
    const change = picture('a', 'changed');
    const slow = (): string => {
      clock.busyMs += 10;
      return change.json(USER);
    };
    pictures = [{ ...change, places: [{ ns: 'N', queue: null }], json: slow }];
    await turn();
    clock.advance(2_000);
    await turn();
    clock.advance(500);
    const perTurn: number[] = [];
    for (let before = 0; before < sinks.length && perTurn.length < 2 * sinks.length; ) {
      const now = sinks.filter(({ isWaiting }) => isWaiting).length;
      perTurn.push(now - before);
      before = now;
      await turn();
    }
    assert.equal(Math.max(...perTurn), 1, `${perTurn}`);
  });

  it('splits a large picture into chunks of about 24 KiB', async () => {
    pictures = Array.from({ length: 100 }, (_, i) => picture(String(i), 'x'.repeat(1_000)));
    const sink = new Sink();
    subscribe(sink);
    await pass(0);
    sink.takeAll();
    const pieces = sink.writes.filter((text) => text.startsWith('event: operations'));
    assert.equal(pieces.length, 4);
    for (const piece of pieces) assert.ok(piece.length < 28_000, `${piece.length} characters`);
    assert.equal(pieces.join('').match(/"id"/g)?.length, 100);
  });

  it('writes the same buffer to subscribers who see the same', async () => {
    pictures = [picture('a', '1')];
    const written: Buffer[] = [];
    const sink: EventSink = {
      write: (bytes, taken) => {
        written.push(bytes);
        queueMicrotask(taken);
      },
      end: () => {},
    };
    for (let i = 0; i < 3; i += 1) {
      publisher.subscribe({
        user: USER,
        filter: { kinds: new Set(EVENT_KINDS), ns: null, queue: null },
        lastEventId: null,
        sink,
      });
    }
    await pass(0);
    pictures = [picture('a', '2')];
    written.length = 0;
    await pass(2_000);
    const updates = written.filter((bytes) => bytes.includes('"state":"2"'));
    assert.equal(updates.length, 3);
    assert.equal(new Set(updates).size, 1);
  });

  it('tells a reconnecting subscriber what is gone, or sends everything if its journal does not reach back far enough', async () => {
    pictures = [picture('a', '1'), picture('b', '1')];
    const [first, second, third] = [new Sink(), new Sink(), new Sink()];
    const kept = subscribe(first);
    await pass(0);
    first.takeAll();
    const id = /id: (\S+)/.exec(first.writes.join(''))?.[1] ?? '';
    pictures = [picture('a', '1')];
    await pass(2_000);
    first.takeAll();
    subscribe(second, id);
    second.takeAll();
    assert.match(second.writes.join(''), /"full":false[\s\S]*\[\{"id":"b","gone":true\}\]/);
    for (let i = 0; i < 3; i += 1) {
      pictures = Array.from({ length: 600 }, (_, j) => picture(`${i} ${j}`, '1'));
      await pass(2_000);
    }
    kept.close();
    second.takeAll();
    assert.match(
      second.writes.slice(2).join(''),
      /"full":true/,
      'it missed more changes than the journal keeps',
    );
    subscribe(third, id);
    assert.match(third.writes[0] ?? '', /"full":true/);
  });
});

describe('The journal of pictures', () => {
  const keysBetween = (journal: PictureJournal, from: number, to: number): string[] =>
    [...journal.between(from, to)].map(({ picture: { key }, isGone }) => (isGone ? `-${key}` : key));

  it('has one entry per picture, in the order of their last changes', () => {
    const journal = new PictureJournal();
    for (let i = 0; i < 10_000; i += 1) journal.put(picture(String(i % 7), String(i)));
    assert.equal(journal.put(picture('3', '9999')), false);
    assert.deepEqual(keysBetween(journal, 0, journal.version).length, 7);
    const before = journal.version;
    journal.put(picture('5', 'new'));
    journal.put(picture('2', 'new'));
    journal.remove({ kind: 'operations', key: '0' });
    assert.deepEqual(keysBetween(journal, before, journal.version), ['5', '2', '-0']);
    assert.deepEqual(keysBetween(journal, before, before + 1), ['5']);
    assert.equal(journal.remove({ kind: 'operations', key: '0' }), false);
    assert.equal(journal.put(picture('0', 'back')), true);
    assert.deepEqual(keysBetween(journal, before + 1, journal.version), ['2', '0']);
  });

  it('remembers a bounded number of removed pictures, and knows since when it is complete', () => {
    const journal = new PictureJournal();
    for (let i = 0; i < 1_001; i += 1) journal.put(picture(String(i), '1'));
    for (let i = 0; i < 1_001; i += 1) journal.remove({ kind: 'operations', key: String(i) });
    assert.equal(journal.hasSince(1_001), false);
    assert.equal(journal.hasSince(journal.version), true);
    assert.equal(journal.hasSince(journal.version + 1), false);
    assert.equal(keysBetween(journal, 0, journal.version).length, 501);
  });
});
