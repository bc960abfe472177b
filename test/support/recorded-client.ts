import type { SampleBody } from './bodies.ts';
import { contentOf, type Handed, type History, type Operation, type Outcome } from './history.ts';
import { type Answer, elementHeadersOf, headerOf, jsonOf, type QueueClient } from './http-client.ts';

/** A queue, and the group to read as (`''` on a plain queue). */
export interface QueueGroup {
  readonly ns: string;
  readonly queue: string;
  readonly group: string;
}

export interface RecordedInsert {
  readonly value: string;
  readonly sample: SampleBody;
  readonly headers: Readonly<Record<string, string>>;
  /** At most one of the two may be given. */
  readonly delayMs?: number;
  readonly matureWallAt?: number;
  /** Groups that must receive it; omitted on a plain queue. */
  readonly groups?: readonly string[];
  readonly idempotencyKey?: string;
}

export interface RollbackRequest {
  readonly handed: Handed;
  readonly delayMs: number;
}

/** The element header that carries the value of an element, so that it can have any body. */
const VALUE_HEADER = 'value';
/** A request that takes this much longer than its timeout has an unknown outcome, ms. */
const PATIENCE_MS = 15_000;

/**
 * A client of the HTTP interface that records everything it does. No method throws for a rejection or a broken
 * connection; they are recorded. A response that does not have the documented shape throws.
 */
export class RecordedClient {
  readonly name: string;
  readonly #http: QueueClient;
  readonly #history: History;

  constructor(name: string, http: QueueClient, history: History) {
    this.name = name;
    this.#http = http;
    this.#history = history;
  }

  /** Returns the outcome, so that a caller may try again with the same idempotency key. */
  async insert(target: QueueGroup, insert: RecordedInsert): Promise<Outcome> {
    const { value, sample, delayMs = 0, matureWallAt, groups, idempotencyKey } = insert;
    const elementHeaders = { ...insert.headers, [VALUE_HEADER]: value };
    const start = this.#start(target);
    const eligibleWallAt = matureWallAt ?? start.invokedWallAt + delayMs;
    const sent = await attempt((signal) =>
      this.#http.insert(target.ns, target.queue, sample.bytes, {
        signal,
        contentType: sample.contentType,
        headers: wireHeaders(elementHeaders, sample.contentEncoding, idempotencyKey),
        ...(delayMs === 0 ? {} : { delay: delayMs / 1000 }),
        ...(matureWallAt === undefined ? {} : { mature: matureWallAt / 1000 }),
        ...(groups === undefined ? {} : { groups: groups.join(',') }),
      }),
    );
    const { contentType, contentEncoding } = sample;
    this.#record({
      ...start,
      ...sent.end,
      kind: 'insert',
      value,
      id: sent.answer === null ? null : jsonOf<{ id: string }>(sent.answer).id,
      eligibleWallAt,
      tries: 0,
      groups: groups ?? [target.group],
      content: contentOf(sample.bytes, contentType, contentEncoding, Object.entries(elementHeaders)),
    });
    return sent.end.outcome;
  }

  /** Waits up to `toMs`. Returns the element; null if there was none. */
  pop(target: QueueGroup, toMs: number): Promise<Handed | null> {
    return this.#take('pop', target, toMs, null);
  }

  reserve(target: QueueGroup, toMs: number, leaseMs: number): Promise<Handed | null> {
    return this.#take('reserve', target, toMs, leaseMs);
  }

  /** Commits a reservation. @param fenced false: by the id only, without the token, as the plain interface allows */
  commit(target: QueueGroup, handed: Handed, fenced = true): Promise<Outcome> {
    return this.#settle('commit', target, { handed, delayMs: 0 }, fenced);
  }

  rollback(target: QueueGroup, request: RollbackRequest, fenced = true): Promise<Outcome> {
    return this.#settle('rollback', target, request, fenced);
  }

  async #take(
    kind: 'pop' | 'reserve',
    target: QueueGroup,
    to: number,
    lease: number | null,
  ): Promise<Handed | null> {
    const start = this.#start(target);
    const { ns, queue, group } = target;
    const options = { to, ...(group === '' ? {} : { group }), ...(lease === null ? {} : { lease }) };
    const sent = await attempt(
      (signal) =>
        kind === 'pop'
          ? this.#http.get(ns, queue, { ...options, signal })
          : this.#http.reserve(ns, queue, { ...options, signal }),
      to,
    );
    const delivery = sent.answer === null ? null : handedOf(sent.answer, kind);
    this.#record({ ...start, ...sent.end, kind, group, delivery });
    return delivery;
  }

  async #settle(
    kind: 'commit' | 'rollback',
    target: QueueGroup,
    { handed, delayMs }: RollbackRequest,
    fenced: boolean,
  ): Promise<Outcome> {
    const start = this.#start(target);
    const { ns, queue, group } = target;
    const token = fenced ? handed.token : null;
    const sent = await attempt((signal) =>
      this.#http[kind](ns, queue, handed.id, {
        signal,
        ...(token === null ? {} : { token }),
        ...(group === '' ? {} : { group }),
        ...(kind === 'commit' ? {} : { delay: delayMs }),
      }),
    );
    const value = handed.value ?? '';
    const eligibleWallAt = start.invokedWallAt + delayMs;
    this.#record({ ...start, ...sent.end, kind, group, value, token, eligibleWallAt });
    return sent.end.outcome;
  }

  #start(target: QueueGroup): {
    client: string;
    seq: number;
    queue: string;
    invokedAt: number;
    invokedWallAt: number;
  } {
    const seq = this.#history.nextSeq(this.name);
    const queue = `${target.ns}/${target.queue}`;
    return { client: this.name, seq, queue, invokedAt: performance.now(), invokedWallAt: Date.now() };
  }

  #record(operation: Operation): void {
    this.#history.record(operation);
  }
}

interface Sent {
  /** The response to a successful request; null otherwise. */
  readonly answer: Answer | null;
  readonly end: Pick<Operation, 'endedAt' | 'endedWallAt' | 'outcome'> & { readonly reply: string };
}

async function attempt(send: (signal: AbortSignal) => Promise<Answer>, waitMs = 0): Promise<Sent> {
  let answer: Answer | null = null;
  let outcome: Outcome;
  let reply: string;
  try {
    answer = await send(AbortSignal.timeout(waitMs + PATIENCE_MS));
    outcome = outcomeOf(answer);
    reply = outcome === 'ok' ? `${answer.status}` : `${answer.status} ${answer.body}`;
  } catch (error) {
    // On a refused connection, no request was sent.
    outcome = error instanceof Error && 'code' in error && error.code === 'ECONNREFUSED' ? 'fail' : 'unknown';
    reply = String(error);
  }
  const end = { endedAt: performance.now(), endedWallAt: Date.now(), outcome, reply };
  return { answer: outcome === 'ok' ? answer : null, end };
}

/** A 503 says whether the request was applied, and a get that timed out took nothing; any other 5xx leaves it open. */
function outcomeOf({ status, body }: Answer): Outcome {
  if (status >= 200 && status < 300) return 'ok';
  if (status === 503 && body.includes('"outcome-unknown"')) return 'unknown';
  if (status < 500 || status === 503 || status === 507) return 'fail';
  return status === 504 && body.includes('"timeout":true') ? 'fail' : 'unknown';
}

function wireHeaders(
  elementHeaders: Readonly<Record<string, string>>,
  contentEncoding: string | null,
  idempotencyKey: string | undefined,
): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(elementHeaders)) headers[`x-ks-hdr-${name}`] = value;
  if (contentEncoding !== null) headers['content-encoding'] = contentEncoding;
  if (idempotencyKey !== undefined) headers['idempotency-key'] = idempotencyKey;
  return headers;
}

function handedOf(answer: Answer, kind: 'pop' | 'reserve'): Handed {
  const headers = elementHeadersOf(answer);
  const { 'content-type': contentType, 'content-encoding': contentEncoding } = answer.headers;
  return {
    value: headers.get(VALUE_HEADER) ?? null,
    id: headerOf(answer, 'x-ks-id'),
    tries: Number(headerOf(answer, 'x-ks-tries')),
    content: contentOf(answer.body, contentType ?? '', contentEncoding ?? null, headers),
    token: kind === 'pop' ? null : headerOf(answer, 'x-ks-lease'),
    leaseUntilWallAt: kind === 'pop' ? null : Date.parse(headerOf(answer, 'x-ks-lease-until')),
  };
}
