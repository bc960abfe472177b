import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import type { Readable } from 'node:stream';
import { constants, createGunzip } from 'node:zlib';

/** One server-sent event, as a browser would dispatch it. */
export interface ServerEvent {
  readonly event: string;
  readonly data: string;
  /** The id of the latest event that had one. */
  readonly id: string;
}

export interface EventClientOptions {
  readonly url: string;
  /** The query string, without `?`. */
  readonly query?: string;
  readonly credentials?: string;
  readonly lastEventId?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

type Shown = Readonly<Record<string, unknown>>;

/** Subscribes to events, and keeps the latest picture of each thing, as the console does. */
export class EventClient {
  readonly events: ServerEvent[] = [];
  readonly comments: string[] = [];
  /** Pictures by kind, then by the key of the thing. */
  readonly pictures = new Map<string, Map<string, Shown>>();
  readonly opened: Promise<IncomingMessage>;
  lastEventId = '';
  retryMs: number | null = null;
  /** Whether the connection is closed. */
  isClosed = false;
  /** Number of bytes of events received. */
  bytes = 0;
  /** Number of bytes of the response received, perhaps compressed. */
  receivedBytes = 0;
  /** Why the response could not be decompressed to its end; null: it could, or has not ended. */
  decodingError: Error | null = null;
  readonly #request: ClientRequest;
  #text = '';

  constructor({
    url,
    query = '',
    credentials = 'test1:test1',
    lastEventId,
    headers = {},
  }: EventClientOptions) {
    const options = {
      agent: false,
      headers: {
        accept: 'text/event-stream',
        authorization: `Basic ${Buffer.from(credentials).toString('base64')}`,
        ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }),
        ...headers,
      },
    } as const;
    this.#request = request(`${url}/events${query === '' ? '' : `?${query}`}`, options);
    this.#request.on('close', () => {
      this.isClosed = true;
    });
    this.opened = new Promise((resolve, reject) => {
      this.#request.on('error', reject);
      this.#request.on('response', (response) => {
        response.on('data', (chunk: Buffer) => {
          this.receivedBytes += chunk.length;
        });
        const decoded = decodedBody(response, (error) => {
          this.decodingError = error;
        });
        decoded.setEncoding('utf8');
        decoded.on('data', (text: string) => this.#read(text));
        response.on('error', () => {});
        resolve(response);
      });
    });
    this.opened.catch(() => {});
    this.#request.end();
  }

  /** Returns the latest picture of a queue: `queue('N', 'orders')?.size`. */
  queue(ns: string, queue: string): Shown | undefined {
    return this.of('queues').find((one) => one.ns === ns && one.queue === queue);
  }

  of(kind: string): Shown[] {
    return [...(this.pictures.get(kind)?.values() ?? [])];
  }

  count(event: string): number {
    return this.events.filter((one) => one.event === event).length;
  }

  get isComplete(): boolean {
    return this.count('complete') > 0;
  }

  close(): void {
    this.#request.destroy();
  }

  #read(text: string): void {
    this.bytes += Buffer.byteLength(text);
    this.#text += text;
    for (let end = this.#text.indexOf('\n\n'); end !== -1; end = this.#text.indexOf('\n\n')) {
      const block = this.#text.slice(0, end);
      this.#text = this.#text.slice(end + 2);
      this.#readBlock(block.split('\n'));
    }
  }

  #readBlock(lines: readonly string[]): void {
    let event = 'message';
    let data = '';
    for (const line of lines) {
      const colon = line.indexOf(':');
      const [field, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, '')];
      if (field === '') this.comments.push(value);
      else if (field === 'event') event = value;
      else if (field === 'data') data += value;
      else if (field === 'id') this.lastEventId = value;
      else if (field === 'retry') this.retryMs = Number(value);
    }
    if (data === '') return;
    this.events.push({ event, data, id: this.lastEventId });
    this.#keep(event, JSON.parse(data));
  }

  #keep(event: string, data: unknown): void {
    if (event === 'start' && (data as { full: boolean }).full) this.pictures.clear();
    if (!Array.isArray(data)) return;
    const things = this.pictures.get(event) ?? new Map<string, Shown>();
    this.pictures.set(event, things);
    for (const one of data as Shown[]) {
      const name = JSON.stringify([one.id, one.alarm, one.engine, one.ns, one.queue]);
      if (one.gone === true) things.delete(name);
      else things.set(name, one);
    }
  }
}

function decodedBody(response: IncomingMessage, onError: (error: Error) => void): Readable {
  if (response.headers['content-encoding'] !== 'gzip') return response;
  return response.pipe(createGunzip({ flush: constants.Z_SYNC_FLUSH })).on('error', onError);
}
