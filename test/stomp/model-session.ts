import assert from 'node:assert/strict';
import type { ModelDelivery } from '../contract/model.ts';
import { type Headers, type ServerFrame, StompClient, type StompVersion, show } from './client.ts';

export type AckMode = 'auto' | 'client' | 'client-individual';

/** A delivery that a client holds, as the model knows it. */
export interface HeldInModel {
  /** The header value by which ACK and NACK name it. */
  readonly key: string;
  readonly delivery: ModelDelivery;
  readonly id: string;
  readonly token: string;
  /** The number of its MESSAGE in the session, in whose order a cumulative ACK applies. */
  readonly arrival: number;
  isClaimed: boolean;
}

/** A subscription as the model knows it. */
export interface SubscriptionInModel {
  readonly id: string;
  readonly queue: { readonly ns: string; readonly name: string };
  readonly group: string;
  readonly mode: AckMode;
  readonly window: number;
  /** Null: the session renews its leases as long as it lives. */
  readonly leaseMs: number | null;
  /** In the order of delivery. */
  held: HeldInModel[];
}

/** One client of the model's world: its subscriptions, and a reader that dispatches received frames. */
export class ModelSession {
  readonly version: StompVersion;
  readonly subscriptions: SubscriptionInModel[] = [];
  /** MESSAGEs that were not compared with the model yet. */
  inbox: ServerFrame[] = [];
  /** The ERROR that ended it. */
  error: ServerFrame | null = null;
  isOver = false;
  readonly #client: StompClient;
  readonly #receipts = new Map<string, () => void>();
  readonly #arrivals = new WeakMap<ServerFrame, number>();
  #messageCount = 0;
  #receiptCount = 0;

  private constructor(client: StompClient) {
    this.#client = client;
    this.version = client.version;
    void this.#read();
  }

  static async open(port: number, version: StompVersion): Promise<ModelSession> {
    return new ModelSession(await StompClient.login(port, version));
  }

  /** Sends a frame; returns the code of the ERROR that ended the session, or null after its RECEIPT. */
  async ask(command: string, headers: Headers, body: string | Uint8Array = ''): Promise<string | null> {
    this.#receiptCount += 1;
    const receipt = `r${this.#receiptCount}`;
    await new Promise<void>((resolve) => {
      this.#receipts.set(receipt, resolve);
      this.#client.send(command, { ...headers, receipt }, body);
    });
    return this.error?.headers.get('message') ?? null;
  }

  /** The headers by which ACK and NACK name a message in this session's version. */
  idHeaders(subscription: SubscriptionInModel, { key }: HeldInModel): Headers {
    return this.version === '1.2' ? { id: key } : { 'message-id': key, subscription: subscription.id };
  }

  keyOf({ headers }: ServerFrame): string {
    return headers.get(this.version === '1.2' ? 'ack' : 'message-id') ?? '';
  }

  arrivalOf(frame: ServerFrame): number {
    return this.#arrivals.get(frame) ?? 0;
  }

  async vanish(): Promise<void> {
    this.#client.socket.resetAndDestroy();
    this.isOver = true;
  }

  close(): void {
    this.#client.socket.destroy();
  }

  async #read(): Promise<void> {
    for (let frame = await this.#client.nextOrEnd(); frame !== null; frame = await this.#client.nextOrEnd()) {
      this.#dispatch(frame);
    }
    this.isOver = true;
    for (const resolve of this.#receipts.values()) resolve();
  }

  #dispatch(frame: ServerFrame): void {
    switch (frame.command) {
      case 'MESSAGE':
        this.#messageCount += 1;
        this.#arrivals.set(frame, this.#messageCount);
        this.inbox.push(frame);
        return;
      case 'RECEIPT': {
        const id = frame.headers.get('receipt-id') ?? '';
        this.#receipts.get(id)?.();
        this.#receipts.delete(id);
        return;
      }
      case 'ERROR':
        this.error = frame;
        return;
      default:
        assert.fail(show(frame));
    }
  }
}
