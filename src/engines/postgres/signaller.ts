import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import { type Listener, type Signaller, Topics } from '../../engine/signaller.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import type { EventLog } from '../../util/log.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import { Pause } from '../../util/pause.ts';
import type { AuxiliaryConnection, Link } from './link.ts';
import type { Statement } from './statement.ts';

/** The content of one notification. */
interface Payload {
  /** The sending node, which has already delivered the signals to its own subscribers. */
  readonly from: string;
  readonly signals: readonly (readonly [topic: string, message: JsonValue])[];
  /** The number of a probe, by which the sender checks that it receives its own notifications; 0: this is none. */
  readonly probe: number;
}

const NOTIFY: Statement = { name: 'notify', text: 'SELECT pg_notify($1, $2)' };

/** PostgreSQL limits a notification to less than 8000 bytes. */
const PAYLOAD_BYTES = 7800;
/** After a notification, signals are gathered for this long, so that a busy node sends at most 200 a second. */
const GATHER_MS = 5;
/** How many signals are kept while PostgreSQL is unavailable; they are hints, so more are not worth their memory. */
const MAX_PENDING = 10_000;
/** How long sending the last signals, such as that this node stops, may delay `stop`. */
const FINAL_SEND_MS = 1000;
const PROBE_EVERY_MS = 15_000;
const PROBE_TIMEOUT_MS = 5000;

interface SignallerOptions {
  readonly auxiliary: AuxiliaryConnection;
  /** The listening connection. */
  readonly listener: Link;
  /** The name of the channel that the nodes of a schema share. */
  readonly channel: string;
  readonly clock: Clock;
  readonly log: EventLog;
}

/**
 * Sends signals between nodes as notifications. They are hints, so they are sent outside of the transactions of
 * changes: a transaction that notifies takes a lock for which all such transactions of the cluster wait. Equal pending
 * signals are sent once.
 *
 * The listening connection has no other purpose. Periodically the node notifies itself to check that it still receives:
 * a connection that a proxy has dropped, or that a pooler has given to another client, seems open but receives nothing.
 */
export class PostgresSignaller implements Signaller {
  readonly type = 'postgres';
  readonly #options: SignallerOptions;
  readonly #failures: LogOnChange;
  readonly #node = randomBytes(6).toString('base64url');
  readonly #topics: Topics<JsonValue>;
  /** Topics and messages as JSON, without duplicates. */
  #pending = new Set<string>();
  /** Resolves when all pending signals are sent; null: there are none. */
  #sending: Promise<void> | null = null;
  readonly #gathering: Pause;
  #probe = 0;
  #receivedProbe = 0;
  #cancelProbe: CancelTimer | null = null;
  #stopped = false;

  constructor(options: SignallerOptions) {
    this.#options = options;
    this.#topics = new Topics(options.log);
    this.#gathering = new Pause(options.clock);
    this.#failures = new LogOnChange({
      failed: (err) => options.log.info({ err }, 'signals to other nodes are lost'),
      worksAgain: () => options.log.info({}, 'signals to other nodes are sent again'),
    });
  }

  start(): void {
    this.#probeAfter(PROBE_EVERY_MS);
  }

  /** Stops accepting signals, and sends the pending ones if PostgreSQL replies soon. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#gathering.end();
    this.#cancelProbe?.();
    const timeout = Promise.withResolvers<void>();
    const cancel = this.#options.clock.after(FINAL_SEND_MS, timeout.resolve);
    await Promise.race([this.#sending, timeout.promise]);
    cancel();
  }

  publish(topic: string, message: JsonValue): void {
    this.#topics.deliverSoon(topic, message);
    if (this.#pending.size >= MAX_PENDING || this.#stopped) return;
    const signal = JSON.stringify([topic, message]);
    const bytes = Buffer.byteLength(signal);
    if (bytes >= PAYLOAD_BYTES) {
      this.#options.log.warn({ topic, bytes }, 'a signal is too long for a notification');
      return;
    }
    this.#pending.add(signal);
    this.#sending ??= this.#sendPending();
  }

  subscribe(topic: string, listener: Listener<JsonValue>): () => void {
    return this.#topics.subscribe(topic, listener);
  }

  /** Handles a notification that arrived on the listening connection. */
  receive(payload: string): void {
    const parsed = readPayload(payload);
    if (parsed === null)
      this.#options.log.warn(
        { channel: this.#options.channel },
        'a notification from another program was ignored',
      );
    else if (parsed.from === this.#node) this.#receivedProbe = Math.max(this.#receivedProbe, parsed.probe);
    else for (const [topic, message] of parsed.signals) this.#topics.deliver(topic, message);
  }

  async #sendPending(): Promise<void> {
    // After the current turn of the event loop, so that its further signals are included.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#pending.size > 0) {
      await this.#send();
      if (!this.#stopped) await this.#gathering.wait(GATHER_MS);
    }
    this.#sending = null;
  }

  async #send(): Promise<void> {
    const pending = this.#pending;
    this.#pending = new Set();
    try {
      await Promise.all(partsOf(pending).map((signals) => this.#notify(signals)));
      this.#failures.worked();
    } catch (error) {
      this.#failures.failed(error);
    }
  }

  /** @param signals as JSON */
  async #notify(signals: readonly string[], probe = 0): Promise<void> {
    const { auxiliary, channel } = this.#options;
    const payload = `{"from":"${this.#node}","probe":${probe},"signals":[${signals.join(',')}]}`;
    await auxiliary.query({ statement: NOTIFY, values: [channel, payload] });
  }

  #probeAfter(delayMs: number): void {
    this.#cancelProbe = this.#options.clock.after(delayMs, () => this.#sendProbe());
  }

  #sendProbe(): void {
    const { listener, clock } = this.#options;
    const { connection } = listener;
    const probe = ++this.#probe;
    // If it cannot be sent, the sending connection is down, and nothing is known about the listening one.
    const sent = this.#notify([], probe).then(
      () => true,
      () => false,
    );
    this.#cancelProbe = clock.after(PROBE_TIMEOUT_MS, () => {
      this.#probeAfter(PROBE_EVERY_MS);
      void sent.then((wasSent) => {
        if (
          wasSent &&
          this.#receivedProbe < probe &&
          connection !== null &&
          listener.connection === connection
        ) {
          listener.drop('it receives no notifications');
        }
      });
    });
  }
}

/** Divides signals, as JSON, among as few notifications as possible. */
function partsOf(pending: ReadonlySet<string>): string[][] {
  const parts: string[][] = [];
  let left = 0;
  for (const signal of pending) {
    const bytes = Buffer.byteLength(signal) + 1;
    if (bytes > left) {
      parts.push([]);
      left = PAYLOAD_BYTES;
    }
    left -= bytes;
    parts.at(-1)?.push(signal);
  }
  return parts;
}

/** Null if no node sent this: any user of the database may notify the channel. */
function readPayload(text: string): Payload | null {
  try {
    const payload = JSON.parse(text) as Payload | null;
    const areSignals = payload?.signals.every(
      (signal) => Array.isArray(signal) && typeof signal[0] === 'string',
    );
    return areSignals === true ? payload : null;
  } catch {
    return null;
  }
}
