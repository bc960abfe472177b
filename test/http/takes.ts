import assert from 'node:assert/strict';
import { type Answer, type QueueClient, queuePath } from '../support/http-client.ts';

/** A parsed line of the response to a batch take. */
export interface TakenLine {
  readonly ns?: string;
  readonly queue?: string;
  readonly id: string;
  readonly tries: number;
  readonly mature: string;
  readonly contentType: string | null;
  readonly contentEncoding: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly text?: string;
  readonly base64?: string;
  readonly json?: unknown;
  readonly lease: string | null;
  readonly leaseUntil: string | null;
}

/** A batch take with its options as a JSON body. */
export function takeMany(
  client: QueueClient,
  queue: string,
  options: object = {},
  ns = 'N',
): Promise<Answer> {
  return client.request('POST', `${queuePath(ns, queue)}/take`, { body: JSON.stringify(options) });
}

/** A take from several queues. */
export function takeFrom(client: QueueClient, options: object): Promise<Answer> {
  return client.request('POST', '/take', { body: JSON.stringify(options) });
}

/** The elements of a response. Asserts status 200, because an error would also be a line of JSON. */
export function linesOf({ status, body }: Answer): TakenLine[] {
  assert.equal(status, 200, body.toString('utf8'));
  return body
    .toString('utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as TakenLine);
}

/** The text bodies of a response; undefined for others. */
export function textsOf(answer: Answer): (string | undefined)[] {
  return linesOf(answer).map(({ text }) => text);
}
