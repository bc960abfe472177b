import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { type Listener, type Signaller, Topics } from '../../engine/signaller.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import type { AuxiliaryConnection, Link } from './link.ts';
import type { Statement } from './statement.ts';

/** The content of one notification. */
interface Payload {
  /** The sending node, which has already delivered the signals to its own subscribers. */
  readonly from: string;
  readonly signals: readonly (readonly [topic: string, message: JsonValue])[];
  /** The number of a probe, by which the sender checks that it receives its own notifications. */
  readonly probe?: number;
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
  readonly log: EngineLog;
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
  /** By topic and message as JSON, which removes duplicates. */
  #pending = new Map<string, readonly [string, JsonValue]>();
  #isSending = false;
  #cancelSend: CancelTimer | null = null;
  #sentAt = Number.NEGATIVE_INFINITY;
  #probe = 0;
  #receivedProbe = 0;
  #cancelProbe: CancelTimer | null = null;
  #stopped = false;

  constructor(options: SignallerOptions) {
    this.#options = options;
    this.#topics = new Topics(options.log);
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
    this.#cancelSend?.();
    this.#cancelProbe?.();
    const timeout = Promise.withResolvers<void>();
    const cancel = this.#options.clock.after(FINAL_SEND_MS, timeout.resolve);
    await Promise.race([this.#send(), timeout.promise]);
    cancel();
  }

  publish(topic: string, message: JsonValue): void {
    this.#topics.deliverSoon(topic, message);
    if (this.#pending.size >= MAX_PENDING || this.#stopped) return;
    this.#pending.set(JSON.stringify([topic, message]), [topic, message]);
    this.#scheduleSend();
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
    else if (parsed.from === this.#node)
      this.#receivedProbe = Math.max(this.#receivedProbe, parsed.probe ?? 0);
    else for (const [topic, message] of parsed.signals) this.#topics.deliver(topic, message);
  }

  #scheduleSend(): void {
    if (this.#isSending || this.#cancelSend !== null) return;
    const { clock } = this.#options;
    const waitMs = this.#sentAt + GATHER_MS - clock.monotonic();
    if (waitMs <= 0) {
      // After the current turn of the event loop, so that its further signals are included.
      this.#isSending = true;
      setImmediate(() => void this.#send());
      return;
    }
    this.#cancelSend = clock.after(waitMs, () => {
      this.#cancelSend = null;
      this.#isSending = true;
      void this.#send();
    });
  }

  async #send(): Promise<void> {
    const pending = this.#pending;
    this.#pending = new Map();
    this.#sentAt = this.#options.clock.monotonic();
    const payloads = this.#payloads(pending);
    try {
      await Promise.all(payloads.map((payload) => this.#notify(payload)));
      if (payloads.length > 0) this.#failures.worked();
    } catch (error) {
      this.#failures.failed(error);
    }
    this.#isSending = false;
    if (this.#pending.size > 0 && !this.#stopped) this.#scheduleSend();
  }

  /** Packs signals into as few notifications as possible. A signal that is too long for one is omitted. */
  #payloads(pending: ReadonlyMap<string, readonly [string, JsonValue]>): Payload[] {
    const payloads: Payload[] = [];
    let signals: (readonly [string, JsonValue])[] = [];
    let bytes = 0;
    for (const [json, signal] of pending) {
      const length = Buffer.byteLength(json) + 1;
      if (length > PAYLOAD_BYTES) {
        this.#options.log.warn(
          { topic: signal[0], bytes: length },
          'a signal is too long for a notification',
        );
        continue;
      }
      if (bytes + length > PAYLOAD_BYTES) {
        payloads.push({ from: this.#node, signals });
        signals = [];
        bytes = 0;
      }
      signals.push(signal);
      bytes += length;
    }
    if (signals.length > 0) payloads.push({ from: this.#node, signals });
    return payloads;
  }

  async #notify(payload: Payload): Promise<void> {
    await this.#options.auxiliary.query({
      statement: NOTIFY,
      values: [this.#options.channel, JSON.stringify(payload)],
    });
  }

  #probeAfter(delayMs: number): void {
    this.#cancelProbe = this.#options.clock.after(delayMs, () => this.#sendProbe());
  }

  #sendProbe(): void {
    const { listener, clock } = this.#options;
    const { connection } = listener;
    const probe = ++this.#probe;
    // If it cannot be sent, the sending connection is down, and nothing is known about the listening one.
    const sent = this.#notify({ from: this.#node, signals: [], probe }).then(
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
