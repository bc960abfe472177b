import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of live events, and of the samples that rates come from. */
export const EVENTS: readonly Mutant[] = [
  {
    name: 'a subscriber who does not read gets a queue of updates',
    suite: 'event publisher',
    edits: edit(
      'events/publisher.ts',
      'if (subscriber.isWriting || !this.#subscribers.has(subscriber)) return;',
      'if (!this.#subscribers.has(subscriber)) return;',
    ),
  },
  {
    name: 'thousands of subscribers are written to in one turn',
    suite: 'event publisher',
    edits: edit('events/publisher.ts', 'const WRITES_PER_TURN = 50;', 'const WRITES_PER_TURN = 5_000;'),
  },
  {
    name: 'a client that reconnects is not sent what was removed since',
    suite: 'event publisher',
    edits: edit(
      'events/journal.ts',
      'this.#write(key, previous.picture, true);',
      'this.#entries.delete(key);',
    ),
  },
  {
    name: 'a client whose rights have changed continues after its last event id',
    suite: 'HTTP events',
    edits: edit('events/publisher.ts', 'textFingerprint(viewKey)', "''"),
  },
  {
    name: 'who was behind for long keeps what was forgotten',
    suite: 'event publisher',
    edits: edit('events/journal.ts', 'this.#oldest = Math.max(this.#oldest, entry.version);', ''),
  },
  {
    name: 'each subscriber has its own copy of an update',
    suite: 'event publisher',
    edits: edit('events/publisher.ts', 'this.#pieces.set(key, piece);', ''),
  },
  {
    name: 'the collector continues after the last subscriber has left',
    suite: 'event publisher',
    edits: edit('events/publisher.ts', 'this.#parts.watch.follow(null);', ''),
  },
  {
    name: 'the full picture waits for the next update',
    suite: 'HTTP events',
    edits: edit(
      'events/collection.ts',
      'return !this.#isPublished && this.#unread.size === 0;',
      'return false;',
    ),
  },
  {
    name: 'counts of queues are sent to users without read',
    suite: 'HTTP events',
    edits: edit(
      'events/pictures.ts',
      "viewer.may('read', ns),\n    json: () => json,",
      'viewer.maySee(ns),\n    json: () => json,',
    ),
  },
  {
    name: 'what an exchange copies to a hidden destination shows as an update',
    suite: 'HTTP events',
    edits: edit(
      'events/pictures.ts',
      'state: picture.state + JSON',
      'state: JSON.stringify(exchange.counters) + JSON',
    ),
  },
  {
    name: 'events go on for a user who is gone',
    suite: 'HTTP events',
    edits: edit(
      'events/publisher.ts',
      "if (user === null) this.#end(subscriber, 'login-lost');",
      'if (user === null) continue;',
    ),
  },
  {
    name: 'a stream whose client ended its side goes on',
    suite: 'HTTP events',
    edits: edit('http/routes/events.ts', 'onInputEnd(socket, onEnd)', 'onInputEnd(socket, () => {})'),
  },
  {
    name: 'a stream is silent for up to twice as long as it may be',
    suite: 'HTTP events',
    edits: edit('events/publisher.ts', 'clock.after(BEAT_CHECK_MS,', 'clock.after(BEAT_MS,'),
  },
  {
    name: 'counters of one queue that cannot be read hide those of the others',
    suite: 'buffered statistics',
    edits: edit(
      'engine/buffered-stats.ts',
      'this.#store.isOrdered ? [readers] : readers.map((reader) => [reader])',
      '[readers]',
    ),
  },
  {
    name: 'a queue that cannot be read hides those that are read after it',
    suite: 'watched queues',
    edits: edit(
      'broker/queue-watch.ts',
      'if (failed.length === batch.length) return',
      'if (failed.length > 0) return',
    ),
  },
  {
    name: 'queues that cannot be read are read before those that can',
    suite: 'watched queues',
    edits: edit('broker/queue-watch.ts', '[...fresh, ...again]', '[...again, ...fresh]'),
  },
  {
    name: 'a queue that cannot be read is tried in each round',
    suite: 'watched queues',
    edits: edit('broker/queue-watch.ts', 'at <= now ? again : unread', 'again'),
  },
  {
    name: 'updates come as fast as queues change',
    suite: 'watched queues',
    edits: edit(
      'broker/queue-watch.ts',
      'const paceMs = isLive ? LIVE_MS : RESTING_MS;',
      'const paceMs = isLive ? 0 : RESTING_MS;',
    ),
  },
  {
    name: 'a change after a rest is dated back to the last reading',
    suite: 'series of queues',
    edits: edit(
      'broker/activity.ts',
      'if (changedAt !== null && changedAt > this.#lastAt) this.#store(changedAt, before);',
      '',
    ),
  },
  {
    name: 'samples of queues at rest are kept for ever',
    suite: 'series of queues',
    edits: edit(
      'broker/activity.ts',
      'if (isSame && at - this.#sameSince > HOUR_MS) this.close();\n    else',
      '',
    ),
  },
];
