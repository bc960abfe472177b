import type { Mutant } from './mutants.ts';

const edit = (file: string, search: string, replace: string): Mutant['edits'] => [
  { file: `src/${file}`, search, replace },
];

/** Bugs of live events, and of the samples from which rates are calculated. */
export const EVENTS: readonly Mutant[] = [
  {
    name: 'updates are queued for a subscriber who does not read',
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
    name: 'subscribers whose updates take long are written to in one turn',
    suite: 'event publisher',
    edits: edit('events/publisher.ts', 'const TURN_MS = 2;', 'const TURN_MS = 2_000;'),
  },
  {
    name: 'a client that reconnects is not notified of things removed while it was disconnected',
    suite: 'event publisher',
    edits: edit(
      'events/collection.ts',
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
    name: 'a subscriber that was behind for long keeps pictures of removed things',
    suite: 'event publisher',
    edits: edit('events/collection.ts', 'this.#oldest = Math.max(this.#oldest, entry.version);', ''),
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
    name: 'the first full picture is sent only with the next update',
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
    name: 'copies to a hidden destination are visible as an update of the exchange',
    suite: 'HTTP events',
    edits: edit(
      'events/pictures.ts',
      'state: JSON.stringify([shown, places]),',
      'state: JSON.stringify([shown, places, counters]),',
    ),
  },
  {
    name: 'events continue for a removed user',
    suite: 'HTTP events',
    edits: edit(
      'events/publisher.ts',
      "if (user === null) this.#end(subscriber, 'login-lost');",
      'if (user === null) continue;',
    ),
  },
  {
    name: 'a stream continues after its client has closed its side',
    suite: 'HTTP events',
    edits: edit('http/routes/events.ts', '    connection.waitingCall = this;\n', ''),
  },
  {
    name: 'a stream is silent for up to twice as long as it may be',
    suite: 'HTTP events',
    edits: edit('events/publisher.ts', '.within(BEAT_CHECK_MS)', '.within(BEAT_MS)'),
  },
  {
    name: 'unreadable counters of one queue hide those of the others',
    suite: 'buffered statistics',
    edits: edit('engine/stats.ts', '() => store.queuesPerRead,', '() => 100,'),
  },
  {
    name: 'an unreadable queue hides those read after it',
    suite: 'watched queues',
    edits: edit(
      'broker/queue-watch.ts',
      'if (failed.length === batch.length) return',
      'if (failed.length > 0) return',
    ),
  },
  {
    name: 'unreadable queues are read before readable ones',
    suite: 'watched queues',
    edits: edit('broker/queue-watch.ts', '[...fresh, ...again]', '[...again, ...fresh]'),
  },
  {
    name: 'an unreadable queue is tried in every round',
    suite: 'watched queues',
    edits: edit('broker/queue-watch.ts', 'at <= now ? again : unread', 'again'),
  },
  {
    name: 'a deleted queue is listed until all others were read again',
    suite: 'watched queues',
    edits: edit(
      'broker/queue-watch.ts',
      'const gone = activity.forgetUnknown(knownNames, changed.keys());',
      'const gone: string[] = [];',
    ),
  },
  {
    name: 'updates are sent as fast as queues change',
    suite: 'watched queues',
    edits: edit(
      'broker/queue-watch.ts',
      'const paceMs = isLive ? LIVE_MS : RESTING_MS;',
      'const paceMs = isLive ? 0 : RESTING_MS;',
    ),
  },
  {
    name: 'a change after an idle time is dated back to the last sample',
    suite: 'series of queues',
    edits: edit(
      'broker/activity.ts',
      'if (changedAt !== null && changedAt > this.#lastAt) this.#store(changedAt, before);',
      '',
    ),
  },
  {
    name: 'samples of idle queues are kept forever',
    suite: 'series of queues',
    edits: edit(
      'broker/activity.ts',
      'if (isSame && at - this.#sameSince > HOUR_MS) this.close();\n    else',
      '',
    ),
  },
];
