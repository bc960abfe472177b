import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Harness, statusOf } from '../http/harness.ts';
import { AUTHORIZATION, type RawAnswer, RawConnection, rawRequest } from '../http/raw.ts';
import { freshSeed, type Random, seededRandom } from '../support/random.ts';

/** Connections per run; `npm run test:fuzz` opens 10,000. */
const CONNECTIONS = Number(process.env.FUZZ_CONNECTIONS ?? 400);
const SEED = Number(process.env.SEED ?? freshSeed());
/** Connections that are open at once. */
const CONCURRENCY = 30;
const MAX_REQUESTS = 40;
/** Requests in one turn before a login; one more ends the connection. */
const MAX_BEFORE_LOGIN = 10;

interface Request {
  readonly bytes: Buffer;
  /** Of the response. */
  readonly status: number;
  readonly isInsert: boolean;
}

/** Numbers of inserts of this run. */
class Inserts {
  sent = 0;
  confirmed = 0;
}

function anyRequest(random: Random): Request {
  const head = (method: string, path: string, ...headers: string[]) => [
    `${method} ${path} HTTP/1.1`,
    'Host: test',
    ...(random.chance(0.9) ? [AUTHORIZATION] : []),
    ...headers,
  ];
  const statusFor = (lines: readonly string[]): number => (lines.includes(AUTHORIZATION) ? 200 : 401);
  if (random.chance(0.4)) {
    const lines = head('GET', '/q/N/stored/status');
    return { bytes: rawRequest(lines), status: statusFor(lines), isInsert: false };
  }
  const size = random.chance(0.1) ? random.between(0, 100_000) : random.between(0, 300);
  const body = 'x'.repeat(size);
  if (random.chance(0.5)) {
    const lines = head('PUT', '/q/N/stored', `Content-Length: ${size}`);
    return { bytes: rawRequest(lines, body), status: statusFor(lines), isInsert: true };
  }
  const chunks: string[] = [];
  for (let at = 0; at < size; ) {
    const chunk = body.slice(at, at + random.between(1, Math.max(1, Math.ceil(size / 50))));
    chunks.push(`${chunk.length.toString(16)}\r\n${chunk}\r\n`);
    at += chunk.length;
  }
  const lines = head('PUT', '/q/N/stored', 'Transfer-Encoding: chunked');
  const bytes = rawRequest(lines, `${chunks.join('')}0\r\n\r\n`);
  return { bytes, status: statusFor(lines), isInsert: true };
}

/** What a client sends last, after which the server or the client closes the connection. */
const ENDS: readonly Buffer[] = [
  Buffer.from('this is not a request\r\n\r\n'),
  rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', 'Transfer-Encoding: chunked'], '1\r\na\r\n'.repeat(3000)),
  rawRequest(
    ['GET /none HTTP/1.1', 'Host: test', 'Connection: Upgrade', 'Upgrade: websocket'],
    'more'.repeat(9),
  ),
  rawRequest([
    'PUT /q/N/q HTTP/1.1',
    'Host: test',
    AUTHORIZATION,
    'Expect: 100-continue',
    'Content-Length: 9',
  ]),
  rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, 'Content-Length: 99999'], 'a part'),
  rawRequest(['CONNECT test:1 HTTP/1.1', 'Host: test', AUTHORIZATION]),
];

/** Sends bytes in pieces, a turn of the event loop between them. */
async function sendInPieces(random: Random, connection: RawConnection, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length && !connection.socket.destroyed; ) {
    const end = at + random.between(1, random.chance(0.2) ? 200 : 100_000);
    connection.send(bytes.subarray(at, end));
    at = end;
    if (random.chance(0.5)) await turn();
  }
}

async function useConnection(random: Random, port: number, inserts: Inserts): Promise<void> {
  const connection = await RawConnection.open(port);
  const requests: Request[] = [];
  /** How many requests were sent before the first response. */
  let sentFirst = 0;
  /**
   * Whether the connection is still open: too many requests in one turn before a login end it. Among those that were
   * sent first, the login of a GET is read only when the responses before it were sent.
   */
  const check = (received: readonly RawAnswer[]): boolean => {
    const statuses = received.slice(0, requests.length).map(({ status }) => status);
    const place = statuses.length - 1;
    const isBeforeLogin = requests[place]?.status === 401 || place < sentFirst;
    const isEnded = statuses.at(-1) === 503 && place >= MAX_BEFORE_LOGIN && isBeforeLogin;
    const answered = isEnded ? requests.slice(0, statuses.length - 1) : requests;
    assert.deepEqual(statuses, [...answered.map(({ status }) => status), ...(isEnded ? [503] : [])]);
    return !isEnded;
  };
  const confirmed = (): number =>
    requests.filter(({ status, isInsert }) => isInsert && status === 200).length;
  for (let i = random.between(1, 4); i > 0; i -= 1) {
    const added = Array.from({ length: random.between(1, MAX_REQUESTS) }, () => anyRequest(random));
    const before = confirmed();
    if (requests.length === 0) sentFirst = added.length;
    requests.push(...added);
    inserts.sent += confirmed() - before;
    const bytes = Buffer.concat(added.map((request) => request.bytes));
    if (i === 1 && random.chance(0.2)) {
      await sendInPieces(random, connection, bytes.subarray(0, random.between(0, bytes.length)));
      connection.socket.resetAndDestroy();
      return;
    }
    await sendInPieces(random, connection, bytes);
    const isHalfClosed = i === 1 && random.chance(0.2);
    if (isHalfClosed) connection.socket.end();
    const answers = isHalfClosed ? connection.untilClosed() : connection.answers(requests.length);
    if (!check(await answers)) return;
    inserts.confirmed += confirmed() - before;
    if (isHalfClosed) return;
  }
  await sendInPieces(random, connection, random.pick(ENDS));
  for (let i = random.between(0, 5); i > 0; i -= 1) await turn();
  if (random.chance(0.5)) connection.socket.resetAndDestroy();
  else connection.socket.end();
  await connection.untilClosed();
}

it(`serves each client in order while others make it read in parts, and nothing that a client does ends it (seed ${SEED})`, async () => {
  const random = seededRandom(SEED);
  const inserts = new Inserts();
  const harness = await Harness.start({ maxElements: 1_000_000 });
  // Time passes by what clients send: sometimes a turn is used up, sometimes the server has been calm for long.
  let nowMs = 0;
  harness.opened.clock.monotonic = () => {
    nowMs += random.chance(0.001) ? 10_000 : random.next();
    return nowMs;
  };
  let left = CONNECTIONS;
  const use = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await useConnection(random, harness.port, inserts);
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, use));
  const { size } = await statusOf(harness, 'stored');
  assert.ok(size >= inserts.confirmed && size <= inserts.sent, `${size} of ${JSON.stringify(inserts)}`);
  await harness.close();
});
