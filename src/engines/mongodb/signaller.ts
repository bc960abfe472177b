import { randomBytes } from 'node:crypto';
import type { FindCursor, WithId } from 'mongodb';
import type { JsonValue } from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { LocalSignaller } from '../../engine/local-signaller.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { ToldOnce } from '../../model/told-once.ts';
import { describe } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

/** Signals that left a node together. */
export interface SignalDocument {
  readonly _id: string;
  /** The node that sent them, which has delivered them to itself already. */
  readonly from: string;
  /** Topic and message of each, as JSON: BSON does not take every name that JSON has. */
  readonly signals: string;
  /** Where the sender begins to listen. */
  readonly mark?: string;
}

type Signals = readonly (readonly [topic: string, message: JsonValue])[];

/** Signals are gathered this long after some were sent, so that a busy node writes at most 200 times a second. */
const GAP_MS = 5;
/** While MongoDB is away, more hints than these are not worth keeping. */
const MOST_WAITING = 10_000;
/** In one document; 16 MiB is the most that MongoDB takes, and the collection has 4. */
const MOST_BYTES = 64 * 1024;
/** How long what is said last, such as a node's farewell, may hold up `stop`. */
const LAST_SEND_MS = 1000;
/** How long the server holds an unanswered look for signals. */
const AWAIT_MS = 1000;
const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1000;

/**
 * Signals between nodes, through a capped collection that every node follows with a tailable cursor. Change
 * streams would do the same, but each of them reads the whole oplog, all traffic of elements included, and shows
 * nothing before most members have it; a signal is a hint, and is written without waiting for any journal.
 *
 * A cursor ends when the primary changes. The next one begins at a mark of its own: what was signalled between the
 * two is lost, and definitions that changed meanwhile are looked up (`heard`).
 */
export class MongoSignaller implements Signaller {
  readonly type = 'mongodb';
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #node = randomBytes(6).toString('base64url');
  /** Those who listen on this node. */
  readonly #local: LocalSignaller;
  /** By topic and message as JSON, so that equal ones are one. */
  #waiting = new Map<string, readonly [string, JsonValue]>();
  #isSending = false;
  #sentAt = Number.NEGATIVE_INFINITY;
  #cancelSend: CancelTimer | null = null;
  #cursor: FindCursor<WithId<SignalDocument>> | null = null;
  readonly #told: ToldOnce;
  #endPause: (() => void) | null = null;
  #following: Promise<void> = Promise.resolve();
  #written = 0;
  #stopped = false;
  #heard: () => void = () => {};

  constructor(store: Store, clock: Clock, log: EngineLog) {
    this.#store = store;
    this.#clock = clock;
    this.#log = log;
    this.#told = new ToldOnce({
      failed: (error) => log.info({ err: describe(error) }, 'signals to other nodes are lost'),
      worksAgain: () => log.info({}, 'signals to other nodes are sent again'),
    });
    this.#local = new LocalSignaller(log);
  }

  /** Called whenever this node hears others again; not for the first time. */
  set heard(listener: () => void) {
    this.#heard = listener;
  }

  /** Resolves when signals of other nodes are heard. @throws what the driver throws */
  async start(): Promise<void> {
    const mark = await this.#writeMark();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#following = this.#follow(mark, resolve);
    await this.#store.within(promise, (fault) => fault);
  }

  /** Takes nothing more, and sends what waits as far as MongoDB answers soon. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#cancelSend?.();
    this.#endPause?.();
    const late = Promise.withResolvers<void>();
    const cancel = this.#clock.after(LAST_SEND_MS, late.resolve);
    await Promise.race([this.#send(), late.promise]);
    cancel();
    await this.#cursor?.close().catch(() => {});
    await this.#following;
  }

  publish(topic: string, message: JsonValue): void {
    this.#local.publish(topic, message);
    if (this.#waiting.size >= MOST_WAITING || this.#stopped) return;
    this.#waiting.set(JSON.stringify([topic, message]), [topic, message]);
    this.#scheduleSend();
  }

  subscribe(topic: string, listener: (message: JsonValue) => void): () => void {
    return this.#local.subscribe(topic, listener);
  }

  #scheduleSend(): void {
    if (this.#isSending || this.#cancelSend !== null) return;
    const waitMs = this.#sentAt + GAP_MS - this.#clock.monotonic();
    if (waitMs <= 0) {
      // After the current turn: what else it signals goes along.
      this.#isSending = true;
      setImmediate(() => void this.#send());
      return;
    }
    this.#cancelSend = this.#clock.after(waitMs, () => {
      this.#cancelSend = null;
      this.#isSending = true;
      void this.#send();
    });
  }

  async #send(): Promise<void> {
    const waiting = this.#waiting;
    this.#waiting = new Map();
    this.#sentAt = this.#clock.monotonic();
    try {
      await this.#write(packed(waiting));
      if (waiting.size > 0) this.#told.worked();
    } catch (error) {
      this.#told.failed(error);
    }
    this.#isSending = false;
    if (this.#waiting.size > 0 && !this.#stopped) this.#scheduleSend();
  }

  async #write(packs: readonly string[]): Promise<void> {
    if (packs.length === 0) return;
    this.#store.assertUp();
    const documents = packs.map((signals) => ({ _id: this.#nextId(), from: this.#node, signals }));
    await this.#store.collections.signals.insertMany(documents, LIGHT);
  }

  async #writeMark(): Promise<string> {
    const mark = this.#nextId();
    await this.#store.collections.signals.insertOne(
      { _id: mark, from: this.#node, signals: '[]', mark },
      LIGHT,
    );
    return mark;
  }

  #nextId(): string {
    this.#written += 1;
    return `${this.#node} ${this.#written}`;
  }

  /** Follows the collection until `stop`, with a new cursor whenever one ends. */
  async #follow(firstMark: string, isFollowing: () => void): Promise<void> {
    let mark: string | null = firstMark;
    let pauseMs = 0;
    let lastReason = '';
    let isFirst = true;
    while (!this.#stopped) {
      try {
        mark ??= await this.#writeMark();
        await this.#followFrom(mark, () => {
          isFollowing();
          if (!isFirst) this.#heard();
          isFirst = false;
          if (lastReason !== '')
            this.#log.info({ server: this.#store.settings.shown }, 'signals are heard again');
          lastReason = '';
          pauseMs = 0;
        });
      } catch (error) {
        const reason = describe(error).message;
        if (!this.#stopped && reason !== lastReason) {
          this.#log.warn(
            { server: this.#store.settings.shown, reason },
            'signals of other nodes are not heard',
          );
        }
        lastReason = reason;
      }
      mark = null;
      if (this.#stopped) break;
      pauseMs = Math.min(Math.max(pauseMs * 2, FIRST_PAUSE_MS), LONGEST_PAUSE_MS);
      await this.#pause(pauseMs);
    }
    isFollowing();
  }

  /** Delivers what others signal after the mark. Returns or throws when the cursor ends. */
  async #followFrom(mark: string, onMark: () => void): Promise<void> {
    const cursor = this.#store.collections.signals.find(
      {},
      { tailable: true, awaitData: true, maxAwaitTimeMS: AWAIT_MS, noCursorTimeout: true },
    );
    this.#cursor = cursor;
    let isBefore = true;
    try {
      for await (const document of cursor) {
        if (isBefore) {
          if (document.mark !== mark) continue;
          isBefore = false;
          onMark();
        } else if (document.from !== this.#node) this.#deliver(document.signals);
      }
    } finally {
      this.#cursor = null;
      await cursor.close().catch(() => {});
    }
    if (isBefore && !this.#stopped) throw new Error('the mark was overwritten before it was read');
  }

  #deliver(json: string): void {
    let signals: Signals;
    try {
      signals = JSON.parse(json) as Signals;
    } catch {
      this.#log.warn({ server: this.#store.settings.shown }, 'a signal that is none of ours was ignored');
      return;
    }
    for (const [topic, message] of signals) this.#local.publish(topic, message);
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const cancel = this.#clock.after(ms, resolve);
      this.#endPause = () => {
        cancel();
        resolve();
      };
    });
  }
}

/** What a hint is worth: the primary has it in memory. */
const LIGHT = { writeConcern: { w: 1, journal: false }, maxTimeMS: MAX_TIME_MS, ordered: true } as const;

/** Signals as few documents as hold them. */
function packed(waiting: ReadonlyMap<string, unknown>): string[] {
  const packs: string[] = [];
  let pack: string[] = [];
  let bytes = 0;
  for (const json of waiting.keys()) {
    if (bytes > 0 && bytes + json.length > MOST_BYTES) {
      packs.push(`[${pack.join(',')}]`);
      pack = [];
      bytes = 0;
    }
    pack.push(json);
    bytes += json.length;
  }
  if (pack.length > 0) packs.push(`[${pack.join(',')}]`);
  return packs;
}
