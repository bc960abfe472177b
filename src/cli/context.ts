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
import { EXIT_CODES } from './exit-codes.ts';
import { write } from './output.ts';

/** The parts of a process that a command uses. */
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

/** A command line that has no meaning. */
export class CommandUsageError extends Error {}

/** What a command works with: a client, and where its output goes. */
export class CommandContext {
  readonly client: Quayside;
  readonly io: CommandIo;
  /** For people; else each line is JSON. */
  readonly isHuman: boolean;
  /** Whether the command has changed something: what fails afterwards leaves it half done. */
  hasChanged = false;

  constructor(flags: ConnectionFlags, io: CommandIo) {
    const { url, user, password, token } = connectionOf(flags, io.env);
    this.io = io;
    this.isHuman = io.stdout.isTTY === true && flags.json !== true;
    this.client = new Quayside({
      url: url ?? 'http://127.0.0.1:3444',
      // Two attempts: who waits at a terminal would rather know.
      retry: { attempts: 2 },
      ...(token !== undefined
        ? { auth: { token } }
        : user !== undefined && { auth: { user, password: password ?? '' } }),
    });
  }

  /**
   * The object or array that a request is answered with.
   * @throws QuaysideError `unexpected-response` for anything else: something between here and the server may answer 200
   * as well
   */
  async json<T>(method: RequestMethod, path: string, options: RequestOptions = {}): Promise<T> {
    const { text } = await this.client.request(method, path, options);
    return this.#valueOf(text);
  }

  /** The same of a request that may take as long as it needs. One attempt. */
  async slowJson<T>(method: RequestMethod, path: string): Promise<T> {
    const response = await this.client.stream(method, path);
    return this.#valueOf(await response.text());
  }

  #valueOf<T>(text: string): T {
    try {
      const value = JSON.parse(text);
      if (typeof value === 'object' && value !== null) return value;
    } catch {
      // It is quoted below.
    }
    throw unexpectedResponse(text);
  }

  /** A request that is answered without a body. @throws as `json` */
  async call(method: RequestMethod, path: string, options: RequestOptions = {}): Promise<void> {
    const { text } = await this.client.request(method, path, options);
    if (text !== '') throw unexpectedResponse(text);
  }

  /** One value: as JSON, or as `text` for people. */
  async print(value: unknown, text: () => string): Promise<void> {
    await this.printJson(() => JSON.stringify(value), text);
  }

  /** The same of a value that is JSON already, in one line. */
  async printJson(json: () => string, text: () => string): Promise<void> {
    await this.write(`${this.isHuman ? printableLines(text()) : printableJson(json())}\n`);
  }

  /** A table for people; else one line of JSON for each row. */
  async printRows(rows: readonly Readonly<Record<string, unknown>>[], empty: string): Promise<void> {
    if (!this.isHuman) for (const row of rows) await this.write(`${jsonText(row)}\n`);
    else await this.write(rows.length === 0 ? `${empty}\n` : tableOf(rows));
  }

  /** Resolves when the reader has room for more. */
  write(chunk: string | Uint8Array): Promise<void> {
    return write(this.io.stdout, chunk);
  }

  /** How far something long is, on one line of a terminal. */
  progress(text: string): void {
    if (this.io.stderr.isTTY) this.io.stderr.write(`\r\x1b[2K${text}`);
  }

  /** What the output does not say, such as what is missing in it. */
  warn(text: string): void {
    this.io.stderr.write(`quayside: ${printable(text)}\n`);
  }

  endProgress(): void {
    this.progress('');
  }

  /** The whole of standard input. */
  async input(): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for await (const chunk of this.io.stdin) chunks.push(Buffer.from(chunk as Uint8Array));
    return Buffer.concat(chunks);
  }
}

interface ServerAccess {
  readonly url?: string | undefined;
  readonly user?: string | undefined;
  readonly password?: string | undefined;
  readonly token?: string | undefined;
}

/**
 * Flags go before the environment, and that before the file, whose password and token are for its own user and server.
 * A token counts before the user of the same place.
 */
function connectionOf(flags: ConnectionFlags, env: CommandIo['env']): ServerAccess {
  const file = fileConnection(env);
  const givenUrl = flags.url ?? (env.QUAYSIDE_URL || undefined);
  const url = givenUrl ?? file.url;
  // A URL may name the user itself.
  const isUserInUrl = givenUrl !== undefined && (URL.parse(givenUrl)?.username ?? '') !== '';
  // Then the client reads both there, as the SDKs do.
  if (isUserInUrl && flags.user === undefined) return { url: givenUrl };
  const user = flags.user ?? (env.QUAYSIDE_USER || file.user);
  const isOfFile = url === file.url && user === file.user;
  const password = env.QUAYSIDE_PASSWORD || (isOfFile ? file.password : undefined);
  const ofFile = isOfFile && !env.QUAYSIDE_USER ? file.token : undefined;
  const token = flags.user === undefined ? env.QUAYSIDE_TOKEN || ofFile : undefined;
  return { url, user, password, token };
}

function fileConnection(env: CommandIo['env']): ServerAccess {
  const path = join(env.XDG_CONFIG_HOME || join(homedir(), '.config'), 'quayside', 'client.json');
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return {};
    throw new CommandUsageError(`${path} cannot be read (${code}).`);
  }
  const content = parsedFile(path, text);
  const isRight = isRecord(content) && FILE_MEMBERS.every((name) => isText(content[name]));
  if (isRight) return content;
  throw new CommandUsageError(`${path} must be an object with the strings ${FILE_MEMBERS.join(', ')}.`);
}

const FILE_MEMBERS = ['url', 'user', 'password', 'token'] as const;

function isText(value: unknown): boolean {
  return value === undefined || typeof value === 'string';
}

function parsedFile(path: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The error's message has a part of the text, which may be one of the password.
    throw new CommandUsageError(`${path} is not JSON.`);
  }
}

/** Columns as wide as their longest value. */
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

function cell(value: unknown): string {
  const text =
    value === null || value === undefined
      ? '-'
      : typeof value === 'object'
        ? JSON.stringify(value)
        : String(value);
  return printable(text.length > 60 ? `${text.slice(0, 59)}…` : text);
}

/** Controls would move the cursor of the terminal, or worse; direction marks make text look like other text. */
const ACTING = /[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/gu;

export function printable(text: string): string {
  return text.replaceAll(ACTING, (character) => (character === '\n' || character === '\t' ? ' ' : '\ufffd'));
}

function printableLines(text: string): string {
  return text.split('\n').map(printable).join('\n');
}

/** Escapes in text that is JSON what `JSON.stringify` leaves as it is and a terminal acts on. Lines stay lines. */
export function printableJson(json: string): string {
  return json.replaceAll(ACTING, (character) =>
    character === '\n' ? character : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

function jsonText(value: unknown): string {
  return printableJson(JSON.stringify(value));
}

const NOT_ALLOWED = new Set(['unauthorized', 'token-expired', 'forbidden', 'too-many-attempts']);
const UNAVAILABLE = new Set(['overloaded', 'shutting-down', 'storage-unavailable', 'too-many-consumers']);

/**
 * The exit code for what a command threw.
 * @param hasChanged whether it had changed something by then, so that a server which cannot be reached does not mean
 * that nothing was
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
