import { randomBytes } from 'node:crypto';
import type { JsonValue } from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { type Listener, type Signaller, Topics } from '../../engine/signaller.ts';
import type { CancelTimer, Clock } from '../../util/clock.ts';
import { LogOnChange } from '../../util/log-on-change.ts';
import type { Link, Side } from './link.ts';
import type { Statement } from './statement.ts';

/** What travels as one notification. */
interface Payload {
  /** The node that sent it, which has delivered the signals to itself already. */
  readonly from: string;
  readonly signals: readonly (readonly [topic: string, message: JsonValue])[];
  /** A probe: the sender checks that it receives its own notifications. */
  readonly probe?: number;
}

const NOTIFY: Statement = { name: 'notify', text: 'SELECT pg_notify($1, $2)' };

/** PostgreSQL takes less than 8000 bytes. */
const PAYLOAD_BYTES = 7800;
/** Signals are gathered this long after a notification, so that a busy node sends at most 200 a second. */
const GAP_MS = 5;
/** While PostgreSQL is away, more hints than these are not worth keeping. */
const MAX_WAITING = 10_000;
/** How long the last signals, such as that a node stops, may delay `stop`. */
const LAST_SEND_MS = 1000;
const PROBE_EVERY_MS = 15_000;
const PROBE_TIMEOUT_MS = 5000;

interface SignallerHost {
  readonly side: Side;
  /** The listening connection. */
  readonly listener: Link;
  /** The name of the channel that the nodes of a schema share. */
  readonly channel: string;
  readonly clock: Clock;
  readonly log: EngineLog;
}

/**
 * Signals between nodes as notifications. They are hints, so they are sent outside of any change's
 * transaction: a transaction that notifies holds a lock that all such transactions of the cluster wait for
 * in turn. Equal signals that wait at the same time are sent once.
 *
 * The listening connection does nothing else. From time to time a notification to oneself checks that it still
 * receives: a connection that a proxy has dropped, or that a pooler has given to another client, looks
 * open and receives nothing.
 */
export class PostgresSignaller implements Signaller {
  readonly type = 'postgres';
  readonly #host: SignallerHost;
  readonly #failures: LogOnChange;
  readonly #node = randomBytes(6).toString('base64url');
  readonly #topics: Topics<JsonValue>;
  /** By topic and message as JSON, so that equal ones are one. */
  #waiting = new Map<string, readonly [string, JsonValue]>();
  #isSending = false;
  #cancelSend: CancelTimer | null = null;
  #sentAt = Number.NEGATIVE_INFINITY;
  #probe = 0;
  #receivedProbe = 0;
  #cancelProbe: CancelTimer | null = null;
  #stopped = false;

  constructor(host: SignallerHost) {
    this.#host = host;
    this.#topics = new Topics(host.log);
    this.#failures = new LogOnChange({
      failed: (err) => host.log.info({ err }, 'signals to other nodes are lost'),
      worksAgain: () => host.log.info({}, 'signals to other nodes are sent again'),
    });
  }

  start(): void {
    this.#probeAfter(PROBE_EVERY_MS);
  }

  /** Takes nothing more, and sends what waits as far as PostgreSQL answers soon. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#cancelSend?.();
    this.#cancelProbe?.();
    const late = Promise.withResolvers<void>();
    const cancel = this.#host.clock.after(LAST_SEND_MS, late.resolve);
    await Promise.race([this.#send(), late.promise]);
    cancel();
  }

  publish(topic: string, message: JsonValue): void {
    this.#topics.deliverSoon(topic, message);
    if (this.#waiting.size >= MAX_WAITING || this.#stopped) return;
    this.#waiting.set(JSON.stringify([topic, message]), [topic, message]);
    this.#scheduleSend();
  }

  subscribe(topic: string, listener: Listener<JsonValue>): () => void {
    return this.#topics.subscribe(topic, listener);
  }

  /** A notification arrived on the listening connection. */
  notified(payload: string): void {
    const parsed = readPayload(payload);
    if (parsed === null)
      this.#host.log.warn({ channel: this.#host.channel }, 'a notification that is none of ours was ignored');
    else if (parsed.from === this.#node)
      this.#receivedProbe = Math.max(this.#receivedProbe, parsed.probe ?? 0);
    else for (const [topic, message] of parsed.signals) this.#topics.deliver(topic, message);
  }

  #scheduleSend(): void {
    if (this.#isSending || this.#cancelSend !== null) return;
    const { clock } = this.#host;
    const waitMs = this.#sentAt + GAP_MS - clock.monotonic();
    if (waitMs <= 0) {
      // After the current turn: what else it signals goes along.
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
    const waiting = this.#waiting;
    this.#waiting = new Map();
    this.#sentAt = this.#host.clock.monotonic();
    const payloads = this.#payloads(waiting);
    try {
      await Promise.all(payloads.map((payload) => this.#notify(payload)));
      if (payloads.length > 0) this.#failures.worked();
    } catch (error) {
      this.#failures.failed(error);
    }
    this.#isSending = false;
    if (this.#waiting.size > 0 && !this.#stopped) this.#scheduleSend();
  }

  /** Signals in as few notifications as hold them. One that is too long by itself is left out. */
  #payloads(waiting: ReadonlyMap<string, readonly [string, JsonValue]>): Payload[] {
    const payloads: Payload[] = [];
    let signals: (readonly [string, JsonValue])[] = [];
    let bytes = 0;
    for (const [json, signal] of waiting) {
      const length = Buffer.byteLength(json) + 1;
      if (length > PAYLOAD_BYTES) {
        this.#host.log.warn({ topic: signal[0], bytes: length }, 'a signal is too long for a notification');
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
    await this.#host.side.ask({ statement: NOTIFY, values: [this.#host.channel, JSON.stringify(payload)] });
  }

  #probeAfter(delayMs: number): void {
    this.#cancelProbe = this.#host.clock.after(delayMs, () => this.#sendProbe());
  }

  #sendProbe(): void {
    const { listener, clock } = this.#host;
    const { connection } = listener;
    const probe = ++this.#probe;
    // Where it cannot be sent, the other connection is away and nothing is known about this one.
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

/** Null if no node sent it: any user of the database may notify a channel. */
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
