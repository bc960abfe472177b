import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import type { Harness } from './harness.ts';

/** The exchange record as a client reads it (spec 2.4). */
export interface ExchangeRecord {
  readonly src: object;
  readonly dst: object[];
  readonly opts: object;
  readonly cid: string;
  readonly pending_acks: object;
  readonly pending_tids: Record<string, string>;
  readonly wsize: number;
  readonly stopped: boolean | null;
  readonly lastError: string | null;
  readonly version: string;
  readonly stats: {
    readonly no_route: number;
    readonly too_many_hops: number;
    readonly dst: { readonly matched: number }[];
  };
  readonly errors: {
    readonly destination: number;
    readonly count: number;
    readonly message: string;
    readonly line: number | null;
    readonly column: number | null;
  }[];
  readonly saw: Record<
    'last' | 'last_no_route',
    { readonly id: string; readonly payload: string; readonly content_type: string } | null
  >;
  readonly loops: string[][];
}

let made = 0;

/** An exchange with an id and queues that no other test uses. */
export class TestExchange {
  readonly client: QueueClient;
  readonly id: string;
  readonly src: string;
  readonly dst: string;

  constructor(harness: Harness) {
    made += 1;
    this.client = harness.client();
    this.id = `x${made}`;
    this.src = `src${made}`;
    this.dst = `dst${made}`;
  }

  declaration(change: Record<string, unknown> = {}): object {
    return {
      src: { ns: 'N', queue: this.src },
      dst: [{ ns: 'M', queue: this.dst, selector: 'env => true' }],
      consumer: {},
      ...change,
    };
  }

  create(change: Record<string, unknown> = {}, method = 'PUT', client = this.client): Promise<Answer> {
    return client.request(method, `/x/${this.id}`, { body: JSON.stringify(this.declaration(change)) });
  }

  async record(): Promise<ExchangeRecord> {
    return jsonOf(await this.client.request('GET', `/x/${this.id}`));
  }
}

/** The `code` of a response with problem details. */
export function codeOf(answer: Answer): string {
  return jsonOf<{ code: string }>(answer).code;
}
