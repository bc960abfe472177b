import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { unexpectedResponse } from '../client/errors.ts';
import {
  ConnectionError,
  Quayside,
  QuaysideError,
  type RequestMethod,
  type RequestOptions,
  TimeoutError,
} from '../client/index.ts';
import { isRecord } from '../util/is-record.ts';
import { NOT_UTF8, UTF8 } from '../util/utf8.ts';
import { EXIT_CODES, write } from './output.ts';

/** The parts of the process that a command uses. */
export interface CommandIo {
  readonly stdin: Readable & { readonly isTTY?: boolean; setRawMode?(isRaw: boolean): unknown };
  readonly stdout: Writable & { readonly isTTY?: boolean; readonly rows?: number };
  readonly stderr: Writable & { readonly isTTY?: boolean };
  readonly env: Readonly<Record<string, string | undefined>>;
}

export interface ConnectionFlags {
  readonly url?: string;
  readonly user?: string;
  readonly json?: boolean;
}

/** An invalid command line or configuration of the client. */
export class CommandUsageError extends Error {}

/** A command's client and its output. */
export class CommandContext {
  readonly client: Quayside;
  readonly io: CommandIo;
  /** Whether to print text for people; otherwise each line is JSON. */
  readonly isHuman: boolean;
  /** Whether the command has changed anything; a later failure leaves it half done. */
  hasChanged = false;
  /** What credentials are missing; empty if none are. */
  readonly #credentialsHint: string;
  /** Whether the address of the server is one without TLS. */
  readonly #isPlain: boolean;

  constructor(flags: ConnectionFlags, io: CommandIo) {
    const { url = 'http://127.0.0.1:3444', user, password, token } = connectionOf(flags, io.env);
    const isPasswordMissing = token === undefined && password === undefined && !URL.parse(url)?.username;
    const missing =
      user === undefined ? 'QUAYSIDE_USER and QUAYSIDE_PASSWORD, or QUAYSIDE_TOKEN' : 'QUAYSIDE_PASSWORD';
    this.#credentialsHint = isPasswordMissing ? ` Set ${missing}.` : '';
    this.#isPlain = URL.parse(url)?.protocol === 'http:';
    this.io = io;
    this.isHuman = io.stdout.isTTY === true && flags.json !== true;
    this.client = new Quayside({
      url,
      // Only two attempts, so that a user at a terminal soon sees the error.
      retry: { attempts: 2 },
      ...(token !== undefined
        ? { auth: { token } }
        : user !== undefined && { auth: { user, password: password ?? '' } }),
    });
  }

  /**
   * Returns what to add to the message of an error. Neither the server nor the SDK knows how a command gets its
   * credentials and certificates.
   */
  hintFor(error: unknown): string {
    if (!(error instanceof QuaysideError)) return '';
    if (error.code === 'unauthorized') return this.#credentialsHint;
    const { code, socket } = Object((error.cause as Error | undefined)?.cause) as FetchCause;
    // A server with TLS closes the connection of a client without, and sends nothing.
    if (this.#isPlain && socket?.bytesRead === 0) {
      return '. If the server speaks TLS, give its address with https://.';
    }
    return error.code === 'tls-failed' ? `. ${TLS_HINTS.get(code) ?? CA_HINT}` : '';
  }

  /**
   * Sends a request and returns the object or array of the response.
   * @throws QuaysideError `unexpected-response` for anything else: a proxy may also respond with 200
   */
  async json<T>(method: RequestMethod, path: string, options: RequestOptions = {}): Promise<T> {
    const { text } = await this.client.request(method, path, options);
    return this.#valueOf(text);
  }

  /** As `json`, without a time limit. One attempt. */
  async slowJson<T>(method: RequestMethod, path: string): Promise<T> {
    const response = await this.client.stream(method, path);
    return this.#valueOf(await response.text());
  }

  #valueOf<T>(text: string): T {
    try {
      const value = JSON.parse(text);
      if (typeof value === 'object' && value !== null) return value;
    } catch {
      // The error below quotes the text.
    }
    throw unexpectedResponse(text);
  }

  /** Sends a request whose response has no body, and prints the server's remark if it has one. @throws as `json` */
  async call(method: RequestMethod, path: string, options: RequestOptions = {}): Promise<void> {
    const { text, headers } = await this.client.request(method, path, options);
    if (text !== '') throw unexpectedResponse(text);
    const remark = headers.get('x-ks-note');
    if (remark !== null) this.warn(remark);
  }

  /** Prints one value: as JSON, or as `text` for people. */
  async print(value: unknown, text: () => string): Promise<void> {
    await this.printJson(() => JSON.stringify(value), text);
  }

  /** As `print`, for a value that is already one line of JSON. */
  async printJson(json: () => string, text: () => string): Promise<void> {
    await this.write(`${this.isHuman ? printableLines(text()) : printableJson(json())}\n`);
  }

  /** Prints a table for people, otherwise one line of JSON per row. */
  async printRows(rows: readonly Readonly<Record<string, unknown>>[], empty: string): Promise<void> {
    if (!this.isHuman) for (const row of rows) await this.write(`${printableJson(JSON.stringify(row))}\n`);
    else await this.write(rows.length === 0 ? `${empty}\n` : tableOf(rows));
  }

  /** Prints a table of some facts about each record for people, otherwise one line of JSON per record. */
  async printRecords<R extends Readonly<Record<string, unknown>>>(
    records: readonly R[],
    rowOf: (record: R) => Readonly<Record<string, unknown>>,
    empty: string,
  ): Promise<void> {
    await this.printRows(this.isHuman ? records.map(rowOf) : records, empty);
  }

  /** Resolves when the chunk is written. */
  write(chunk: string | Uint8Array): Promise<void> {
    return write(this.io.stdout, chunk);
  }

  /** Shows the progress of a long command in one line of a terminal. */
  progress(text: string): void {
    if (this.io.stderr.isTTY) this.io.stderr.write(`\r\x1b[2K${text}`);
  }

  /** Prints a remark to standard error, such as what is missing in the output. */
  warn(text: string): void {
    this.io.stderr.write(`quayside: ${printable(text)}\n`);
  }

  endProgress(): void {
    this.progress('');
  }

  /** All of standard input. */
  async input(): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for await (const chunk of this.io.stdin) chunks.push(Buffer.from(chunk as Uint8Array));
    return Buffer.concat(chunks);
  }

  /**
   * The lines of standard input, including empty ones: those that a chunk ends together, as soon as it has arrived.
   * @throws CommandUsageError if they are not UTF-8
   */
  async *lines(): AsyncGenerator<readonly string[], void, void> {
    // Removes a byte order mark.
    const decoder = new TextDecoder('utf-8', { fatal: true });
    /** The line that has not ended yet. An element of 16 MiB arrives in hundreds of chunks. */
    let parts: string[] = [];
    let count = 1;
    const decoded = (chunk?: Uint8Array): string => {
      try {
        return decoder.decode(chunk, { stream: chunk !== undefined });
      } catch {
        throw new CommandUsageError(`Standard input is not UTF-8, in line ${count} or after it.`);
      }
    };
    for await (const chunk of this.io.stdin) {
      const [rest = '', ...lines] = decoded(chunk as Uint8Array).split('\n');
      parts.push(rest);
      const next = lines.pop();
      if (next === undefined) continue;
      yield [parts.join(''), ...lines];
      count += lines.length + 1;
      parts = [next];
    }
    const last = parts.join('') + decoded();
    if (last !== '') yield [last];
  }
}

/** What the cause of an error of Node's `fetch` may have. */
interface FetchCause {
  readonly code?: string;
  readonly socket?: { readonly bytesRead?: number };
}

const CA_HINT =
  'If the certificate is from a CA of your own, set NODE_EXTRA_CA_CERTS to the file of that CA.';

/** What to do about errors of TLS that no CA resolves, by Node's code. */
const TLS_HINTS: ReadonlyMap<string | undefined, string> = new Map([
  ['ERR_SSL_WRONG_VERSION_NUMBER', 'The server does not speak TLS: give its address with http://.'],
  ['CERT_HAS_EXPIRED', 'Renew the certificate of the server, or correct the clock of this machine.'],
  ['CERT_NOT_YET_VALID', 'Correct the clock of this machine or of the one that issued the certificate.'],
  [
    'ERR_TLS_CERT_ALTNAME_INVALID',
    "Give the server's address with a name of its certificate, or have a certificate issued for this one.",
  ],
]);

interface ServerAccess {
  readonly url?: string | undefined;
  readonly user?: string | undefined;
  readonly password?: string | undefined;
  readonly token?: string | undefined;
}

/**
 * Flags override the environment, which overrides the file. The file's password and token are used only for the user
 * and server of the file. If one source gives both a token and a user, the token is used.
 */
function connectionOf(flags: ConnectionFlags, env: CommandIo['env']): ServerAccess {
  const file = fileConnection(env);
  const givenUrl = flags.url ?? (env.QUAYSIDE_URL || undefined);
  const url = givenUrl ?? file.url;
  // A URL may contain the user name.
  const isUserInUrl = givenUrl !== undefined && (URL.parse(givenUrl)?.username ?? '') !== '';
  // The client takes user and password from the URL, as the SDKs do.
  if (isUserInUrl && flags.user === undefined) return { url: givenUrl };
  const user = flags.user ?? (env.QUAYSIDE_USER || file.user);
  const matchesFile = url === file.url && user === file.user;
  const password = env.QUAYSIDE_PASSWORD || (matchesFile ? file.password : undefined);
  const fileToken = matchesFile && !env.QUAYSIDE_USER ? file.token : undefined;
  const token = flags.user === undefined ? env.QUAYSIDE_TOKEN || fileToken : undefined;
  return { url, user, password, token };
}

function fileConnection(env: CommandIo['env']): ServerAccess {
  const path = join(env.XDG_CONFIG_HOME || join(homedir(), '.config'), 'quayside', 'client.json');
  let content: unknown;
  try {
    content = JSON.parse(UTF8.decode(readFileSync(path)));
  } catch (error) {
    // The parser's message quotes a part of the text, which may contain the password.
    if (error instanceof SyntaxError) throw new CommandUsageError(`${path} is not JSON.`);
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return {};
    if (code === NOT_UTF8) throw new CommandUsageError(`${path} is not in UTF-8.`);
    throw new CommandUsageError(`${path} cannot be read (${code}).`);
  }
  if (isRecord(content) && FILE_MEMBERS.every((name) => isText(content[name]))) return content;
  throw new CommandUsageError(`${path} must be an object with the strings ${FILE_MEMBERS.join(', ')}.`);
}

const FILE_MEMBERS = ['url', 'user', 'password', 'token'] as const;

function isText(value: unknown): boolean {
  return value === undefined || typeof value === 'string';
}

const END_SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Calls `run` instead of ending the process when a signal asks for that. Returns a function that undoes it. */
export function onEndSignal(run: () => void): () => void {
  for (const name of END_SIGNALS) process.on(name, run);
  return () => {
    for (const name of END_SIGNALS) process.off(name, run);
  };
}

/** The members of a record that are columns of its table. */
export function pick<R, K extends keyof R>(record: R, ...names: readonly K[]): Pick<R, K> {
  return Object.fromEntries(names.map((name) => [name, record[name]])) as Pick<R, K>;
}

/** Formats a table whose columns are as wide as their longest value. */
export function tableOf(rows: readonly Readonly<Record<string, unknown>>[]): string {
  const names = Object.keys(rows[0] ?? {});
  const cells = [
    names.map((name) => name.toUpperCase()),
    ...rows.map((row) => names.map((name) => cell(row[name]))),
  ];
  const widths = names.map((_, column) =>
    cells.reduce((width, line) => Math.max(width, line[column]?.length ?? 0), 0),
  );
  return cells
    .map(
      (line) =>
        `${line
          .map((text, column) => text.padEnd(widths[column] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('');
}

/** A value as text for people. */
export function textOf(value: unknown): string {
  if (value === null || value === undefined) return '-';
  if (value instanceof Date) return value.toISOString();
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

function cell(value: unknown): string {
  const text = textOf(value);
  return printable(text.length > 60 ? `${text.slice(0, 59)}…` : text);
}

/** Control characters could move the terminal's cursor or worse; bidirectional marks disguise text. */
const UNSAFE_CHARACTERS = /[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/gu;

export function printable(text: string): string {
  return text.replaceAll(UNSAFE_CHARACTERS, (character) =>
    character === '\n' || character === '\t' ? ' ' : '\ufffd',
  );
}

function printableLines(text: string): string {
  return text.split('\n').map(printable).join('\n');
}

/**
 * Escapes in JSON the characters that a terminal interprets but `JSON.stringify` does not escape. Keeps line breaks.
 */
export function printableJson(json: string): string {
  return json.replaceAll(UNSAFE_CHARACTERS, (character) =>
    character === '\n' ? character : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

const NOT_ALLOWED = new Set(['unauthorized', 'token-expired', 'forbidden', 'too-many-attempts']);
const UNAVAILABLE = new Set(['overloaded', 'shutting-down', 'storage-unavailable', 'too-many-consumers']);

/**
 * The exit code for an error that a command threw.
 * @param hasChanged whether the command had changed anything: then "unavailable" must not suggest that nothing changed
 */
export function exitCodeOf(error: unknown, hasChanged: boolean): number {
  if (error instanceof CommandUsageError) return EXIT_CODES.usage;
  if (!(error instanceof QuaysideError)) return EXIT_CODES.failed;
  if (error.outcome === 'unknown') return EXIT_CODES.outcomeUnknown;
  if (error instanceof ConnectionError || error instanceof TimeoutError || UNAVAILABLE.has(error.code)) {
    return hasChanged ? EXIT_CODES.outcomeUnknown : EXIT_CODES.unavailable;
  }
  if (NOT_ALLOWED.has(error.code)) return EXIT_CODES.notAllowed;
  if (error.code.startsWith('invalid-')) return EXIT_CODES.usage;
  return error.code.endsWith('-not-found') ? EXIT_CODES.nothing : EXIT_CODES.failed;
}
