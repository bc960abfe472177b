import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { Connection } from './client/connection.ts';
import type { Node } from './client/node.ts';
import type { Router } from './client/router.ts';
import { slotOf } from './client/slots.ts';

type Listener = (text: string) => void;

interface Wanted {
  /** On a cluster: told only to the servers of the channel's slot. */
  readonly sharded: boolean;
  readonly listeners: Set<Listener>;
}

const OPEN_MS = 2_000;
const AGAIN_MS = 250;
const PING_MS = 5_000;

/**
 * Channels that this engine listens to, over one connection per server that has any of them. Follows slots
 * when they move, and connects again when a server was away; what was published meanwhile is lost, and
 * `onGap` says so.
 */
export class Subscriptions {
  readonly #router: Router;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #wanted = new Map<string, Wanted>();
  readonly #ears = new Map<Node, Ear>();
  /** Channels that were heard once: when they are heard again, there was a gap. */
  readonly #heard = new Set<string>();
  readonly #onGap: ((channel: string) => void)[] = [];
  #working: Promise<void> | null = null;
  #again = false;
  #cancelTimer: CancelTimer | null = null;
  #started = false;
  #stopped = false;

  constructor({ router, clock, log }: { router: Router; clock: Clock; log: EngineLog }) {
    this.#router = router;
    this.#clock = clock;
    this.#log = log;
    router.onChange(() => this.#work());
  }

  /** Resolves when all channels that are wanted by now are heard. @throws Error why one is not */
  async start(): Promise<void> {
    this.#started = true;
    await this.#oneByOne();
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    for (const ear of this.#ears.values()) ear.close();
    this.#ears.clear();
  }

  /** Hears a channel from about now on. Answers a function that ends it. */
  subscribe(channel: string, sharded: boolean, listener: Listener): () => void {
    const wanted = this.#wanted.get(channel) ?? { sharded, listeners: new Set() };
    this.#wanted.set(channel, wanted);
    const own: Listener = (text) => listener(text);
    wanted.listeners.add(own);
    this.#work();
    return () => {
      wanted.listeners.delete(own);
      if (wanted.listeners.size > 0 || this.#wanted.get(channel) !== wanted) return;
      this.#wanted.delete(channel);
      this.#heard.delete(channel);
      this.#work();
    };
  }

  /** Calls `listener` when a channel is heard again after it was not: messages may have been missed. */
  onGap(listener: (channel: string) => void): void {
    this.#onGap.push(listener);
  }

  /** Brings what is heard in line with what is wanted, now or after the work under way. */
  #work(): void {
    if (!this.#started || this.#stopped) return;
    if (this.#working !== null) {
      this.#again = true;
      return;
    }
    this.#oneByOne().catch(() => this.#later());
  }

  /** `connectAll`, of which one runs at a time: two would connect to the same server twice. */
  #oneByOne(): Promise<void> {
    const working = this.#connectAll().finally(() => {
      this.#working = null;
      if (!this.#again) return;
      this.#again = false;
      this.#work();
    });
    this.#working = working;
    return working;
  }

  #later(): void {
    this.#cancelTimer?.();
    if (this.#stopped) return;
    this.#cancelTimer = this.#clock.after(AGAIN_MS, () => {
      this.#cancelTimer = null;
      this.#work();
    });
  }

  async #connectAll(): Promise<void> {
    const byNode = new Map<Node, Map<string, boolean>>();
    for (const [channel, { sharded }] of this.#wanted) {
      const node = this.#router.nodeFor(slotOf(channel));
      if (node === null) throw new Error('a slot has no server');
      const channels = byNode.get(node) ?? new Map<string, boolean>();
      byNode.set(node, channels.set(channel, sharded && this.#router.isCluster));
    }
    for (const [node, ear] of this.#ears) if (!byNode.has(node)) this.#drop(node, ear);
    await Promise.all([...byNode].map(([node, channels]) => this.#listen(node, channels)));
  }

  async #listen(node: Node, channels: ReadonlyMap<string, boolean>): Promise<void> {
    const ear = this.#ears.get(node) ?? (await this.#connect(node));
    const fresh = await ear.listenTo(channels);
    for (const channel of fresh) {
      if (this.#heard.has(channel)) for (const listener of this.#onGap) listener(channel);
      this.#heard.add(channel);
    }
  }

  async #connect(node: Node): Promise<Ear> {
    const connection = await node.connect(OPEN_MS);
    const ear = new Ear(connection, this.#clock, {
      hear: (channel, text) => this.#hear(channel, text),
      moved: () => this.#router.doubt(),
      lost: () => {
        if (this.#ears.get(node) === ear) this.#drop(node, ear);
        this.#later();
      },
    });
    if (this.#stopped) ear.close();
    else this.#ears.set(node, ear);
    return ear;
  }

  #drop(node: Node, ear: Ear): void {
    this.#ears.delete(node);
    ear.close();
  }

  #hear(channel: string, text: string): void {
    for (const listener of [...(this.#wanted.get(channel)?.listeners ?? [])]) {
      try {
        listener(text);
      } catch (error) {
        this.#log.warn({ channel, err: error }, 'a listener of a channel failed');
      }
    }
  }
}

interface EarListeners {
  hear(channel: string, text: string): void;
  moved(): void;
  lost(): void;
}

/** One connection that only listens. */
class Ear {
  readonly #connection: Connection;
  readonly #clock: Clock;
  readonly #channels = new Map<string, boolean>();
  #cancelPing: CancelTimer | null = null;

  constructor(connection: Connection, clock: Clock, { hear, moved, lost }: EarListeners) {
    this.#connection = connection;
    this.#clock = clock;
    connection.onMessage(hear, () => {
      moved();
      this.close();
    });
    connection.onEnd(() => {
      this.#cancelPing?.();
      lost();
    });
    this.#pingLater();
  }

  /** Subscribes to what is new, unsubscribes from what is not wanted. Answers what is new. */
  async listenTo(channels: ReadonlyMap<string, boolean>): Promise<string[]> {
    const fresh = [...channels].filter(([channel]) => !this.#channels.has(channel));
    const stale = [...this.#channels].filter(([channel]) => !channels.has(channel));
    try {
      await Promise.all([
        ...fresh.map(([channel, sharded]) => this.#connection.subscribe(channel, sharded)),
        ...stale.map(([channel, sharded]) => this.#connection.unsubscribe(channel, sharded)),
      ]);
    } catch (error) {
      this.close();
      throw error;
    }
    for (const [channel, sharded] of fresh) this.#channels.set(channel, sharded);
    for (const [channel] of stale) this.#channels.delete(channel);
    return fresh.map(([channel]) => channel);
  }

  close(): void {
    this.#cancelPing?.();
    this.#connection.close();
  }

  /** A server that is gone without a word is noticed by its silence. */
  #pingLater(): void {
    this.#cancelPing = this.#clock.after(PING_MS, () => {
      this.#connection.send('PING', []).catch(() => {});
      this.#pingLater();
    });
  }
}
