import assert from 'node:assert/strict';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';

/** Ids and tokens of stored elements, which a later version must accept. */
export interface KeptContent {
  readonly ready: string;
  readonly scheduled: string;
  readonly reserved: string;
  readonly token: string;
}

const TEN_YEARS_S = 315_360_000;
/** In the year 2100, seconds since 1970. */
const FAR = 4_102_444_800;
const BODY = Buffer.from([0, 1, 2, 0xfe, 0xff]);
const CONTENT_TYPE = 'application/x-kept';
const HEADERS = { 'x-ks-hdr-trace': 'Grüße, 0.1.0' };
const OPTIONS = { lease: 77, maxElements: 9 };

/** The configuration of the server that stores the data and of the one that reads it. */
export function keptConfig(url: string): Readonly<Record<string, unknown>> {
  return {
    http: { users: { test1: 'test1' } },
    namespaces: {
      N: { url, lease: TEN_YEARS_S, deadLetter: { maxTries: 1 } },
      S: { url, variant: 'stream', groups: ['a', 'b'] },
    },
  };
}

/** Stores one of everything that an engine stores. */
export async function storeContent(client: QueueClient): Promise<KeptContent> {
  const insert = async (queue: string, options = {}): Promise<string> =>
    jsonOf<{ id: string }>(done(await client.insert('N', queue, BODY, options))).id;
  const kept = { contentType: CONTENT_TYPE, headers: HEADERS };
  await insert('taken', kept);
  const reservation = done(await client.reserve('N', 'taken', { to: 0 }));
  const reserved = String(headerOf(reservation, 'x-ks-id'));
  const token = String(headerOf(reservation, 'x-ks-lease'));
  const ready = await insert('orders', kept);
  const scheduled = await insert('orders', { ...kept, mature: FAR });
  const failing = await insert('failing', kept);
  done(await client.reserve('N', 'failing', { to: 0 }));
  done(await client.rollback('N', 'failing', failing, { query: { reason: 'kept reason' } }));
  await insert('paused', kept);
  done(await client.pause('N', 'paused'));
  await insert('tuned', kept);
  done(await client.setOptions('N', 'tuned', OPTIONS));
  done(await client.insert('S', 'fan', BODY, kept));
  done(await client.get('S', 'fan', { to: 0, group: 'a' }));
  const exchange = { src: { ns: 'N', queue: 'source' }, dst: [{ ns: 'N', queue: 'copies' }], consumer: {} };
  const headers = { 'content-type': 'application/json' };
  done(await client.request('PUT', '/x/kept', { headers, body: JSON.stringify(exchange) }));
  return { ready, scheduled, reserved, token };
}

/** Reads and uses everything that `storeContent` stored, on a server of the current version. */
export async function checkContent(client: QueueClient, kept: KeptContent): Promise<void> {
  const listed = await client.request('GET', '/q/N/orders/elements');
  const states = listed.body.toString().match(/"state":"\w+"/g);
  assert.deepEqual(states, ['"state":"ready"', '"state":"scheduled"']);
  const ready = done(await client.get('N', 'orders', { to: 0 }));
  assert.equal(headerOf(ready, 'x-ks-id'), kept.ready);
  assertContent(ready);
  done(await client.remove('N', 'orders', kept.scheduled));
  const commit = { token: kept.token };
  assert.equal((await client.commit('N', 'taken', kept.reserved, { token: 'A'.repeat(22) })).status, 409);
  done(await client.commit('N', 'taken', kept.reserved, commit));
  const dead = await client.request('GET', '/q/N/__deadletter__/elements');
  assert.match(dead.body.toString(), /"kept reason"/);
  assertContent(done(await client.get('N', '__deadletter__', { to: 0 })));
  assert.equal(jsonOf(await client.paused('N', 'paused')), true);
  done(await client.resume('N', 'paused'));
  assertContent(done(await client.get('N', 'paused', { to: 0 })));
  assert.deepEqual(jsonOf<{ stored: object }>(await client.options('N', 'tuned')).stored, OPTIONS);
  assertContent(done(await client.get('N', 'tuned', { to: 0 })));
  assert.notEqual((await client.get('S', 'fan', { to: 0, group: 'a' })).status, 200);
  assertContent(done(await client.get('S', 'fan', { to: 0, group: 'b' })));
  done(await client.insert('N', 'source', BODY, { contentType: CONTENT_TYPE, headers: HEADERS }));
  assertContent(done(await client.get('N', 'copies', { to: 20_000 })));
  const { stats } = jsonOf<{ stats: { put: number; get: number } }>(await client.status('N', 'orders'));
  assert.deepEqual([stats.put, stats.get], [2, 1]);
}

function assertContent(answer: Answer): void {
  assert.ok(answer.body.equals(BODY));
  assert.equal(headerOf(answer, 'content-type'), CONTENT_TYPE);
  const header = String(headerOf(answer, 'x-ks-hdr-trace'));
  assert.equal(header, HEADERS['x-ks-hdr-trace']);
}

function done(answer: Answer): Answer {
  assert.ok(answer.status < 300, `${answer.status} ${answer.body}`);
  return answer;
}
