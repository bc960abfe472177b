import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { text } from 'node:stream/consumers';

/** Where spans are sent to. */
export interface CollectorAddress {
  readonly url: URL;
  /** Sent with each request, such as a token. */
  readonly headers: Readonly<Record<string, string>>;
}

/** A response that is not a success. */
export class CollectorError extends Error {
  readonly status: number;
  /** After how long the request may be repeated; null if the collector does not say. */
  readonly retryAfterMs: number | null;

  constructor({ statusCode = 0, headers }: IncomingMessage) {
    super(`the collector answered with status ${statusCode}`);
    this.status = statusCode;
    const seconds = Number(headers['retry-after'] ?? Number.NaN);
    this.retryAfterMs = seconds >= 0 ? seconds * 1000 : null;
  }
}

/** Sends requests to a collector of OTLP over HTTP, all on one connection. */
export class Collector {
  readonly #address: CollectorAddress;
  readonly #agent: HttpAgent;

  constructor(address: CollectorAddress) {
    this.#address = address;
    const options = { keepAlive: true, maxSockets: 1 };
    this.#agent = address.url.protocol === 'https:' ? new HttpsAgent(options) : new HttpAgent(options);
  }

  /** Returns the body of the response. @throws CollectorError, and Error if there is no response */
  async post(body: string, signal: AbortSignal): Promise<string> {
    const { url, headers } = this.#address;
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const send = url.protocol === 'https:' ? httpsRequest : httpRequest;
    const bytes = Buffer.from(body);
    send(
      url,
      {
        method: 'POST',
        agent: this.#agent,
        signal,
        headers: { ...headers, 'content-type': 'application/json', 'content-length': bytes.length },
      },
      resolve,
    )
      .on('error', reject)
      .end(bytes);
    const response = await promise;
    const answer = await text(response);
    if (response.statusCode !== 200) throw new CollectorError(response);
    return answer;
  }

  close(): void {
    this.#agent.destroy();
  }
}
