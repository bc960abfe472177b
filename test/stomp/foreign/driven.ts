import type { ChildProcess } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { needDebian } from '../../support/debian.ts';
import { spawnOwned } from '../../support/owned-process.ts';
import {
  type ForeignClient,
  type ForeignLibrary,
  type ForeignMessage,
  type ForeignOptions,
  Mailbox,
} from './client.ts';

// Libraries in other languages run in a process of their own, called by a driver script. Each line of its input is a
// JSON request, each line of its output the reply.

/** Ends a driver that a failed test left running. */
const DRIVER_TIMEOUT_MS = 240_000;

export interface Driven {
  readonly name: string;
  readonly versions: readonly string[];
  readonly beats: boolean;
  /** Debian packages, which are installed if one is missing; if that is impossible, the test fails. */
  readonly debianPackages: readonly string[];
  readonly interpreter: string;
  readonly script: string;
}

export function drivenLibrary(driven: Driven): ForeignLibrary {
  const { name, versions, beats, debianPackages, interpreter, script } = driven;
  let isInstalled = false;
  return {
    name,
    versions,
    beats,
    async open(options) {
      if (!isInstalled) {
        needDebian(...debianPackages);
        isInstalled = true;
      }
      const client = new DrivenClient(interpreter, fileURLToPath(new URL(script, import.meta.url)));
      await client.connect(options);
      return client;
    },
  };
}

type Answer = {
  readonly error?: string;
  readonly message?: { body: string; headers: Record<string, string> };
};

class DrivenClient implements ForeignClient {
  readonly #process: ChildProcess;
  readonly #answers = new Mailbox<Answer>();
  readonly #exited: Promise<void>;

  constructor(interpreter: string, script: string) {
    const process = spawnOwned(interpreter, [script], {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: DRIVER_TIMEOUT_MS,
    });
    this.#process = process;
    this.#exited = new Promise((resolve) => process.on('close', () => resolve()));
    void this.#exited.then(() => this.#answers.put({ error: 'the driver has ended' }));
    createInterface({ input: process.stdout }).on('line', (line) => {
      this.#answers.put(JSON.parse(line) as Answer);
    });
  }

  async connect(options: ForeignOptions): Promise<void> {
    try {
      await this.#ask('connect', { ...options });
    } catch (error) {
      await this.#end();
      throw error;
    }
  }

  async send(destination: string, body: Buffer, headers = {}): Promise<void> {
    await this.#ask('send', { destination, body: body.toString('base64'), headers });
  }

  async subscribe(destination: string, id: string, ack: string, headers = {}): Promise<void> {
    await this.#ask('subscribe', { destination, id, ack, headers });
  }

  async next(): Promise<ForeignMessage> {
    const { message } = await this.#ask('next', {});
    if (message === undefined) throw new Error('the driver answered no message');
    return { headers: message.headers, body: Buffer.from(message.body, 'base64') };
  }

  async ack({ headers }: ForeignMessage, transaction?: string): Promise<void> {
    await this.#ask('ack', { of: headers, transaction: transaction ?? null });
  }

  async nack({ headers: of }: ForeignMessage, headers: object): Promise<void> {
    await this.#ask('nack', { of, headers });
  }

  async begin(transaction: string): Promise<void> {
    await this.#ask('begin', { transaction });
  }

  async commit(transaction: string): Promise<void> {
    await this.#ask('commit', { transaction });
  }

  async abort(transaction: string): Promise<void> {
    await this.#ask('abort', { transaction });
  }

  async recover(): Promise<void> {
    await this.#ask('recover', {});
  }

  async disconnect(): Promise<void> {
    await this.#ask('disconnect', {});
    await this.#end();
  }

  async #ask(verb: string, request: object): Promise<Answer> {
    this.#process.stdin?.write(`${JSON.stringify({ verb, ...request })}\n`);
    const answer = await this.#answers.take();
    if (answer.error !== undefined) throw new Error(answer.error);
    return answer;
  }

  async #end(): Promise<void> {
    this.#process.stdin?.end();
    await this.#exited;
  }
}
