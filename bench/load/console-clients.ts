/**
 * Simulates the requests of open consoles, in a process of its own: `node console-clients.ts <JSON of
 * ConsoleClientsTarget>`. Communicates through {@link Helper}: a ready message, then one answer per request.
 */
import { request as httpRequest } from 'node:http';
import { createGunzip } from 'node:zlib';
import { QueueClient } from '../../test/support/http-client.ts';

export interface ConsoleClientsTarget {
  readonly url: string;
}

/**
 * - `open`: opens this many consoles; answered once each has its full picture. Every second one shows the overview, the
 *   others a page of the list of queues.
 * - `close`: closes all. Answered with the number of requests and bytes.
 */
export type ConsoleClientsRequest =
  | { readonly what: 'open'; readonly count: number }
  | { readonly what: 'close' };

export interface ConsoleClientsCount {
  readonly requests: number;
  readonly eventBytes: number;
}

const EVENTS = '/events?kinds=queues,exchanges,nodes,operations,alarms';
/** What a page reads when it opens, what it reads again, and how often; must match `console/pages/`. */
const OVERVIEW = {
  first: ['/dead-letters', '/history', '/engines'],
  paths: ['/history', '/engines'],
  everyMs: 15_000,
};
const LIST = { first: [], paths: ['/queues?sort=name&order=asc&limit=100&offset=0'], everyMs: 10_000 };
const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;
const COMPLETE = Buffer.from('event: complete');

const { url }: ConsoleClientsTarget = JSON.parse(process.argv[2] ?? '{}');
const closers: (() => void)[] = [];
let requests = 0;
let eventBytes = 0;

process.on('message', (request: ConsoleClientsRequest) => {
  answerTo(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

async function answerTo(request: ConsoleClientsRequest): Promise<ConsoleClientsCount> {
  if (request.what === 'close') {
    for (const close of closers.splice(0)) close();
    const counted = { requests, eventBytes };
    [requests, eventBytes] = [0, 0];
    return counted;
  }
  const { count } = request;
  for (let i = 0; i < count; i++) await open(i, count);
  return { requests, eventBytes };
}

/** Resolves once its page is complete. Timers start at different times, as consoles are opened at different times. */
async function open(number: number, count: number): Promise<void> {
  const { first, paths, everyMs } = number % 2 === 0 ? OVERVIEW : LIST;
  const client = new QueueClient({ url });
  const read = async (path: string): Promise<void> => {
    requests += 1;
    const { status, body } = await client.request('GET', path);
    if (status !== 200) throw new Error(`${path}: ${status} ${body.toString()}`);
  };
  const readAgain = (): void => {
    for (const path of paths) read(path).catch(fail);
  };
  let timer: NodeJS.Timeout | undefined;
  const start = setTimeout(
    () => {
      readAgain();
      timer = setInterval(readAgain, everyMs);
    },
    (everyMs * number) / count,
  );
  const stream = listen();
  let isClosed = false;
  closers.push(() => {
    isClosed = true;
    clearTimeout(start);
    clearInterval(timer);
    stream.close();
    client.close();
  });
  await Promise.all([stream.complete, ...first.map(read)]);

  function fail(error: unknown): void {
    if (!isClosed) throw error;
  }
}

function listen(): { complete: Promise<void>; close(): void } {
  const { promise: complete, resolve, reject } = Promise.withResolvers<void>();
  let isClosed = false;
  // As browsers do.
  const headers = { authorization: AUTHORIZATION, 'accept-encoding': 'gzip' };
  const request = httpRequest(`${url}${EVENTS}`, { agent: false, headers });
  const fail = (error: Error): void => {
    if (!isClosed) reject(error);
  };
  request.on('error', fail);
  request.on('response', (response) => {
    response.on('data', (chunk: Buffer) => {
      eventBytes += chunk.length;
    });
    const events = response.pipe(createGunzip());
    events.on('error', fail);
    events.on('data', (chunk: Buffer) => {
      if (chunk.includes(COMPLETE)) resolve();
    });
    response.on('close', () => fail(new Error('The server ended a stream.')));
  });
  request.end();
  return {
    complete,
    close: () => {
      isClosed = true;
      request.destroy();
    },
  };
}
