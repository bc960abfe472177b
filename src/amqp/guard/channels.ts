/** A link as far as its frames have to be checked. */
export interface Link {
  readonly handle: number;
  readonly isPeerSender: boolean;
  /** With the prefix of its direction: as rhea knows it. */
  readonly name: string;
  /** Deliveries that the peer may still begin. */
  credit: number;
  /** Of the delivery that has begun and not ended; -1: there is none. */
  begunId: number;
  begunBytes: number;
  /** What the begun delivery costs at most while it waits for its end, in bytes. */
  begunCost: number;
}

/** A session as far as its frames have to be checked. */
export class Channel {
  /** By the peer's handles. */
  readonly links: (Link | undefined)[] = [];
  /** By this side's handles: those that are gone, too, until the handle is used again. */
  readonly ownLinks: (Link | undefined)[] = [];
  readonly #byName = new Map<string, Link>();
  /** The most handles that the peer keeps. */
  readonly peerHandles: number;
  /** Transfers that the peer may still send. */
  window = 0;
  /** Of the peer's next delivery; -1: any will do. */
  nextDeliveryId = -1;
  /** Of the newest delivery that was sent to the peer. */
  newestSent = -1;

  constructor(peerHandles: number) {
    this.peerHandles = peerHandles;
  }

  get linkCount(): number {
    return this.#byName.size;
  }

  byName(name: string): Link | undefined {
    return this.#byName.get(name);
  }

  add(link: Link): void {
    this.links[link.handle] = link;
    this.#byName.set(link.name, link);
  }

  remove(link: Link): void {
    this.links[link.handle] = undefined;
    this.#byName.delete(link.name);
  }
}
