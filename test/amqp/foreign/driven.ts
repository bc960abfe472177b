import { type ChildProcess, execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { Mailbox } from '../../stomp/foreign/client.ts';
import { type ClientIdentity, writeCertificate } from '../../support/certificate.ts';
import { needDebian } from '../../support/debian.ts';
import { spawnOwned } from '../../support/owned-process.ts';

// Each library runs inside a driver, in a process of its own. Each line to the driver is a verb and its words; each
// line back is `ok` or `error`, and words. Bodies are in hexadecimal; `-` stands for an absent word.
//   open <url> <user> <password> <silence, ms>            silence: how long the server may be silent; 0: forever
//   close
//   lost                                                  -> once the library has noticed that its connection is lost
//   send <address> <body> <content type> <name=value>…    -> the outcome
//   receive <address> <credit> settled|unsettled|copy <group>
//   next                                                  -> <body> <content type> <delivery count> <name=value>…
//   settle accepted|rejected|released|modified            the message that `next` returned last
//   send-value <address> text|number|flag|list|map        a body of that type -> the outcome
//   next-value                                            -> the type of the body, if it equals the one sent
//   drain <address> <credit>                              -> the number of messages received, all accepted

/** Kills a driver that a failed test left behind. */
const LEFT_BEHIND_MS = 240_000;

export interface ForeignMessage {
  readonly body: Buffer;
  readonly contentType: string | null;
  readonly deliveryCount: number;
  readonly properties: Readonly<Record<string, string>>;
}

export interface ForeignLibrary {
  readonly name: string;
  /** Whether the library lets its user choose link names. */
  readonly namesLinks: boolean;
  /** Whether its driver can browse. */
  readonly browses: boolean;
  /** Whether the library notices a silent server, and sends heart-beats only while a command runs. */
  readonly beatsWhenAsked: boolean;
  /** Whether the library can send messages larger than a frame. */
  readonly sendsManyFrames: boolean;
  /** Whether the library connects over TLS only. */
  readonly isOverTls: boolean;
  /** Whether its outcome `modified` can set `delivery-failed`. */
  readonly failsByModifying: boolean;
  /** Whether its driver sends bodies that are AMQP values. */
  readonly sendsValues: boolean;
  /** Whether the library can drain links and reports the end of a drain. */
  readonly drains: boolean;
  start(): DrivenClient;
}

/** Types of bodies other than bytes. */
export const VALUE_KINDS = ['text', 'number', 'flag', 'list', 'map'] as const;
export type ValueKind = (typeof VALUE_KINDS)[number];

/** Debian's Python binding, the C library below it with a driver compiled here, and others. */
export const LIBRARIES: readonly ForeignLibrary[] = [
  {
    name: 'python3-qpid-proton',
    namesLinks: true,
    browses: true,
    beatsWhenAsked: true,
    sendsManyFrames: true,
    isOverTls: false,
    failsByModifying: true,
    sendsValues: true,
    drains: false,
    start() {
      needDebian('python3-qpid-proton', 'libsasl2-modules');
      // Debian's modules need Debian's Python; another one may come first in PATH.
      return new DrivenClient('/usr/bin/python3', [file('./proton-driver.py')]);
    },
  },
  {
    name: 'libqpid-proton (C)',
    namesLinks: false,
    browses: false,
    beatsWhenAsked: true,
    sendsManyFrames: true,
    isOverTls: false,
    failsByModifying: true,
    sendsValues: false,
    drains: false,
    start() {
      needDebian('gcc', 'libc6-dev', 'libqpid-proton11-dev', 'libsasl2-modules');
      compiledC ??= compile('gcc', 'proton-driver.c', '-O1', '-lqpid-proton');
      return new DrivenClient(compiledC, []);
    },
  },
  {
    name: 'libqpid-proton-cpp',
    namesLinks: false,
    browses: true,
    beatsWhenAsked: false,
    sendsManyFrames: true,
    isOverTls: false,
    failsByModifying: false,
    sendsValues: true,
    drains: true,
    start() {
      needDebian('g++', 'libqpid-proton-cpp12-dev', 'libsasl2-modules');
      compiledCpp ??= compile('g++', 'proton-driver.cpp', '-std=c++11', '-lqpid-proton-cpp', '-pthread');
      return new DrivenClient(compiledCpp, []);
    },
  },
  {
    name: 'rhea-promise',
    namesLinks: false,
    browses: false,
    beatsWhenAsked: false,
    sendsManyFrames: true,
    isOverTls: false,
    failsByModifying: true,
    sendsValues: true,
    drains: false,
    start: () => new DrivenClient(process.execPath, [file('./rhea-promise-driver.ts')]),
  },
  {
    name: 'amqp10',
    namesLinks: false,
    browses: false,
    beatsWhenAsked: false,
    sendsManyFrames: true,
    isOverTls: false,
    failsByModifying: true,
    sendsValues: true,
    drains: false,
    start: () => new DrivenClient(process.execPath, [file('./amqp10-driver.ts')]),
  },
  {
    name: 'python3-uamqp',
    namesLinks: false,
    browses: false,
    beatsWhenAsked: false,
    sendsManyFrames: false,
    isOverTls: true,
    failsByModifying: true,
    sendsValues: false,
    drains: false,
    start() {
      needDebian('python3-uamqp');
      return new DrivenClient('/usr/bin/python3', [file('./uamqp-driver.py')], { DRIVER_CA: CERTIFICATE });
    },
  },
];

const FOLDER = mkdtempSync(join(tmpdir(), 'quayside-foreign-'));
process.on('exit', () => rmSync(FOLDER, { recursive: true, force: true }));
const CERTIFICATE = join(FOLDER, 'cert.pem');

/** Creates the certificate that libraries connecting over TLS trust. */
export function makeListenerTls(): { cert: string; key: string } {
  const files = { cert: CERTIFICATE, key: join(FOLDER, 'key.pem') };
  writeCertificate(files);
  return { cert: readFileSync(files.cert, 'utf8'), key: readFileSync(files.key, 'utf8') };
}

/** Debian's Python binding, logging in with a client certificate instead of a password. */
export function startWithCertificate({ cert, key }: ClientIdentity): DrivenClient {
  needDebian('python3-qpid-proton', 'libsasl2-modules');
  const folder = mkdtempSync(join(FOLDER, 'client-'));
  const files = { DRIVER_CERT: join(folder, 'cert.pem'), DRIVER_KEY: join(folder, 'key.pem') };
  writeFileSync(files.DRIVER_CERT, cert);
  writeFileSync(files.DRIVER_KEY, key);
  return new DrivenClient('/usr/bin/python3', [file('./proton-driver.py')], {
    DRIVER_CA: CERTIFICATE,
    ...files,
  });
}

let compiledC: string | null = null;
let compiledCpp: string | null = null;

/** @returns the path of the program */
function compile(compiler: string, source: string, ...options: readonly string[]): string {
  const program = join(FOLDER, source.replace('.', '-'));
  execFileSync(compiler, ['-Wall', '-o', program, file(`./${source}`), ...options], { stdio: 'inherit' });
  return program;
}

function file(path: string): string {
  return fileURLToPath(new URL(path, import.meta.url));
}

export class DrivenClient {
  readonly #process: ChildProcess;
  readonly #answers = new Mailbox<string>();
  readonly #exited: Promise<void>;

  constructor(program: string, words: readonly string[], more: Readonly<Record<string, string>> = {}) {
    const child = spawnOwned(program, words, {
      stdio: ['pipe', 'pipe', 'inherit'],
      timeout: LEFT_BEHIND_MS,
      env: { ...process.env, ...more },
    });
    this.#process = child;
    this.#exited = new Promise((resolve) => child.on('close', () => resolve()));
    void this.#exited.then(() => this.#answers.put('error the driver has ended'));
    createInterface({ input: child.stdout }).on('line', (line) => this.#answers.put(line));
  }

  /** Returns the words after `ok`. @throws Error with the words after `error` */
  async ask(...words: readonly string[]): Promise<string[]> {
    this.#process.stdin?.write(`${words.join(' ')}\n`);
    const [result, ...answer] = (await this.#answers.take()).split(' ');
    if (result !== 'ok') throw new Error(answer.join(' '));
    return answer;
  }

  async open(
    port: number,
    { scheme = 'amqp', user = 'test', password = 'test', silenceMs = 0 } = {},
  ): Promise<void> {
    // The certificate is valid for both `localhost` and this address.
    const host = scheme === 'amqp' ? '127.0.0.1' : 'localhost';
    await this.ask('open', `${scheme}://${host}:${port}`, user, password, String(silenceMs));
  }

  /** Resolves when the library has noticed the lost connection; then another may be opened. */
  async lost(): Promise<void> {
    await this.ask('lost');
  }

  /** Returns the outcome. */
  async send(address: string, body: Buffer, contentType = '-', properties: object = {}): Promise<string> {
    const pairs = Object.entries(properties).map(([name, value]) => `${name}=${value}`);
    const [outcome = ''] = await this.ask(
      'send',
      address,
      body.toString('hex') || '-',
      contentType,
      ...pairs,
    );
    return outcome;
  }

  async receive(address: string, credit: number, mode = 'unsettled', group = '-'): Promise<void> {
    await this.ask('receive', address, String(credit), mode, group);
  }

  async next(): Promise<ForeignMessage> {
    const [body = '', contentType = '', deliveryCount, ...pairs] = await this.ask('next');
    return {
      body: Buffer.from(body === '-' ? '' : body, 'hex'),
      contentType: contentType === '-' ? null : contentType,
      deliveryCount: Number(deliveryCount),
      properties: Object.fromEntries(pairs.map((pair) => pair.split('=') as [string, string])),
    };
  }

  /** Sends a body of this type and returns the outcome. */
  async sendValue(address: string, kind: ValueKind): Promise<string | undefined> {
    return (await this.ask('send-value', address, kind))[0];
  }

  /** The type of the next message's body, if the body equals the one that `sendValue` sends. */
  async nextValue(): Promise<string> {
    return (await this.ask('next-value')).join(' ');
  }

  /** Drains a new link with this much credit and returns the number of messages received. */
  async drain(address: string, credit: number): Promise<number> {
    return Number((await this.ask('drain', address, String(credit)))[0]);
  }

  async settle(outcome: 'accepted' | 'rejected' | 'released' | 'modified'): Promise<void> {
    await this.ask('settle', outcome);
  }

  async close(): Promise<void> {
    await this.ask('close');
    await this.end();
  }

  /** Ends the driver, connected or not. */
  async end(): Promise<void> {
    this.#process.stdin?.end();
    this.#process.kill();
    await this.#exited;
  }
}
