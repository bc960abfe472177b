import type { CancelTimer } from '../../../model/clock.ts';
import type { Address } from '../settings.ts';
import { Connection, type Reply } from './connection.ts';
import { text } from './greeting.ts';
import { Node } from './node.ts';
import type { Router, RouterParts } from './router.ts';
import { SLOTS } from './slots.ts';

/** Looks that follow each other keep this distance, however much doubt there is. */
const LOOK_AGAIN_MS = 200;
/** Without any doubt the map is looked at this often. */
const POLL_MS = 15_000;
const ASK_MS = 1_000;

/** The masters of a cluster and their slots. The map is asked from any server that answers. */
export class ClusterRouter implements Router {
  readonly isCluster = true;
  readonly #parts: RouterParts;
  readonly #nodes = new Map<string, Node>();
  #slots: (string | undefined)[] = [];
  #looking: Promise<void> | null = null;
  #doubted = false;
  #cancelTimer: CancelTimer | null = null;
  #isStarted = false;
  #stopped = false;
  #onChange: () => void = () => {};

  constructor(parts: RouterParts) {
    this.#parts = parts;
  }

  async start(): Promise<void> {
    await this.#look();
    const missing = SLOTS - this.#slots.filter((address) => address !== undefined).length;
    if (missing > 0) throw new Error(`no server has ${missing} of the cluster's slots; assign them first`);
    await Promise.all(this.nodes().map((node) => node.ready()));
    this.#isStarted = true;
  }

  stop(): void {
    this.#stopped = true;
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    for (const node of this.#nodes.values()) node.stop();
    this.#nodes.clear();
  }

  nodeFor(slot: number): Node | null {
    const address = this.#slots[slot];
    return address === undefined ? null : this.nodeAt(address);
  }

  nodes(): readonly Node[] {
    return [...this.#nodes.values()];
  }

  nodeAt(address: string): Node {
    let node = this.#nodes.get(address);
    if (node === undefined) {
      node = this.#newNode(address);
      this.#nodes.set(address, node);
      if (!this.#stopped) node.start();
    }
    return node;
  }

  moved(slot: number, address: string): void {
    this.#slots[slot] = address;
    this.doubt();
  }

  doubt(): void {
    if (this.#doubted || this.#stopped) return;
    this.#doubted = true;
    this.#lookIn(LOOK_AGAIN_MS);
  }

  onChange(listener: () => void): void {
    this.#onChange = listener;
  }

  #newNode(address: string): Node {
    const { clock, library, settings, onFacts, onDown } = this.#parts;
    const at = parseAddress(address);
    return new Node(
      {
        clock,
        library,
        login: settings.login,
        wait: settings.wait,
        givenTime: settings.givenTime,
        isSuccessor: this.#isStarted,
        locate: async () => at,
      },
      {
        onFacts: (facts) => {
          onFacts(facts);
          this.#onChange();
        },
        onDown: (reason) => {
          onDown(address, reason);
          this.doubt();
        },
      },
    );
  }

  #lookIn(ms: number): void {
    this.#cancelTimer?.();
    this.#cancelTimer = this.#parts.clock.after(ms, () => {
      this.#cancelTimer = null;
      this.#doubted = false;
      this.#looking ??= this.#look()
        .catch(() => this.doubt())
        .finally(() => {
          this.#looking = null;
        });
    });
  }

  /** Asks the servers that we know, those of the URL last, until one answers. */
  async #look(): Promise<void> {
    let problem: unknown = new Error('no server is named');
    for (const address of this.#candidates()) {
      try {
        this.#apply(readSlots(await this.#ask(address), address.host));
        if (!this.#doubted && !this.#stopped) this.#lookIn(POLL_MS);
        return;
      } catch (error) {
        problem = error;
      }
    }
    throw problem;
  }

  #candidates(): Address[] {
    return [...[...this.#nodes.keys()].map(parseAddress), ...this.#parts.settings.addresses];
  }

  async #ask(address: Address): Promise<Reply> {
    const { settings, clock } = this.#parts;
    const connection = await Connection.open(address, settings.login, clock, ASK_MS);
    try {
      return await connection.send('CLUSTER', ['SLOTS']);
    } finally {
      connection.close();
    }
  }

  #apply(slots: (string | undefined)[]): void {
    if (this.#stopped) return;
    this.#slots = slots;
    const masters = new Set(slots);
    for (const [address, node] of this.#nodes) {
      if (masters.has(address)) continue;
      this.#nodes.delete(address);
      node.stop();
    }
    for (const address of masters) if (address !== undefined) this.nodeAt(address);
    this.#onChange();
  }
}

/** @param asked the host that answered: a server that does not know its own address means that one */
function readSlots(reply: Reply, asked: string): (string | undefined)[] {
  const slots = new Array<string | undefined>(SLOTS).fill(undefined);
  if (!Array.isArray(reply)) return slots;
  for (const range of reply as Reply[][]) {
    const [from, to, master] = range;
    if (!Array.isArray(master)) continue;
    const host = text(master[0]) || asked;
    slots.fill(`${host}:${text(master[1])}`, Number(from), Number(to) + 1);
  }
  return slots;
}

/** `host:port`, as MOVED has it; the host may be an IPv6 address without brackets. */
export function parseAddress(address: string): Address {
  const colon = address.lastIndexOf(':');
  return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
}
