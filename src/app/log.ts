import { write } from 'node:fs';
import { format, promisify } from 'node:util';
import { MessageChannel } from 'node:worker_threads';
import pino, { type DestinationStream, type Logger } from 'pino';
import { type Clock, systemClock } from '../util/clock.ts';
import { maskDeep } from '../util/mask.ts';

export interface Log {
  readonly logger: Logger;
  /** Writes the buffered lines, with a short time limit. To be called before the process ends. */
  flush(): Promise<void>;
}

/**
 * Characters that JSON does not escape but terminals and editors interpret: DEL, C1 controls, line separators, and
 * bidirectional marks.
 */
const TERMINAL_CONTROL = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const STANDARD_ERROR = 2;
const MAX_CAUSES = 5;
/** Time limit of `flush`, so that a full disk or a stalled reader cannot prevent the process from ending. */
const FLUSH_MS = 500;

interface LogOptions {
  readonly level: string;
  /** `auto`: text on a terminal, JSON otherwise. */
  readonly format: 'auto' | 'json' | 'text';
}

/** Creates a log that writes to standard error, with secrets masked (docs/operate/log-events.md). */
export function createLog({ level, format }: LogOptions): Log {
  // Accessing the stream makes Node set a pipe at standard error to non-blocking. A blocking write would occupy a
  // thread that must finish before the process can end.
  process.stderr.on('error', () => {});
  const sink = new LogSink(STANDARD_ERROR, systemClock, (lines) => {
    logger.warn({ event: 'log', lines }, 'log lines were dropped here: their reader was too slow');
  });
  const isText = format === 'text' || (format === 'auto' && process.stderr.isTTY);
  const logger = makeLogger(level, sink, isText ? textLine : undefined);
  return { logger, flush: () => sink.flush(FLUSH_MS) };
}

/**
 * Creates a logger of JSON lines with UTC times.
 * @param destination receives one event at a time
 * @param form formats an event, given its line of JSON
 */
export function makeLogger(
  level: string,
  destination: DestinationStream,
  form: (line: string) => string = (line) => line,
): Logger {
  return pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      // `safeFields` describes errors; pino's own serializer would include properties that drivers attach.
      serializers: { err: (described: unknown) => described, msg: (message: unknown) => maskDeep(message) },
      formatters: { level: (label) => ({ level: label }), log: safeFields },
    },
    // Secrets are masked before serialization: masking the line could split an escape sequence.
    { write: (line) => destination.write(escaped(form(line), TERMINAL_CONTROL)) },
  );
}

/** Describes errors and masks secrets. */
function safeFields(fields: Record<string, unknown>): Record<string, unknown> {
  const described = Object.entries(fields).map(([name, value]) => [
    name,
    value instanceof Error ? describeError(value) : value,
  ]);
  return maskDeep(Object.fromEntries(described)) as Record<string, unknown>;
}

/**
 * Only name, code, message and stack of an error and its causes: drivers attach the failed command, which contains the
 * element's body.
 */
function describeError(error: Error, depth = 0): object {
  const { name, message, stack, cause } = error;
  const code = 'code' in error ? String(error.code) : undefined;
  const causes = error instanceof AggregateError ? error.errors : cause === undefined ? [] : [cause];
  const shown = causes
    .filter((one) => one instanceof Error && depth < MAX_CAUSES)
    .map((one) => describeError(one, depth + 1));
  return { type: name, code, message, stack, ...(shown.length > 0 && { causes: shown }) };
}

/** A log event, parsed from its line of JSON. */
interface LogEvent {
  readonly level: string;
  /** ISO 8601, UTC. */
  readonly time: string;
  readonly msg?: string;
  readonly [field: string]: unknown;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not reach a terminal
const CONTROL = /[\u0000-\u001f]/g;

/**
 * Formats a line of JSON for people: `12:34:56.789 WARN  a login failed  user=ann address=192.0.2.1`, followed by error
 * stacks on separate lines. Values are escaped, so that clients cannot inject lines. Invalid JSON is written as it is,
 * because logging must never stop the server.
 */
export function textLine(json: string): string {
  try {
    return eventText(JSON.parse(json) as LogEvent);
  } catch {
    return `${escaped(json.trimEnd())}\n`;
  }
}

function eventText({ level, time, msg = '', ...fields }: LogEvent): string {
  const stacks: string[] = [];
  const shown = Object.entries(fields).map(([name, value]) => {
    if (isError(value)) stacks.push(stackText(value));
    return `${escaped(name)}=${valueText(isError(value) ? value.message : value)}`;
  });
  const at = time.slice(time.indexOf('T') + 1, -1);
  const head = [`${at} ${level.toUpperCase().padEnd(5)} ${escaped(msg)}`, ...shown].join('  ');
  return [head, ...stacks].map((text) => `${text}\n`).join('');
}

interface DescribedError {
  readonly message: string;
  readonly stack?: string;
  readonly causes?: readonly unknown[];
}

function isError(value: unknown): value is DescribedError {
  return typeof value === 'object' && value !== null && 'message' in value && 'stack' in value;
}

function stackText({ stack = '', causes = [] }: DescribedError): string {
  const stackLines = stack.split('\n').map((line) => `    ${escaped(line)}`);
  const causeLines = causes.filter(isError).map((cause) => `    caused by:\n${stackText(cause)}`);
  return [...stackLines, ...causeLines].join('\n');
}

/** Plain words are unquoted; other values are JSON, so that their end is visible. */
function valueText(value: unknown): string {
  if (typeof value === 'string' && /^[^\s"'=]+$/.test(value)) return escaped(value);
  return escaped(JSON.stringify(value) ?? '');
}

function escaped(text: string, characters = CONTROL): string {
  return text.replace(characters, (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

const LEVELS = { debug: 'debug', log: 'info', info: 'info', warn: 'warn', error: 'error' } as const;
type ConsoleMethod = keyof typeof LEVELS;

/** Maximum distinct lines remembered, so that a line that a driver prints for every connection is logged once. */
const MAX_REMEMBERED = 100;

/**
 * Redirects console output of libraries and Node's warnings into the log, because they are not JSON and may contain
 * secrets. Returns a function that undoes it.
 */
export function logLibraryOutput(logger: Logger): () => void {
  const originalConsole = { ...console };
  const printed = new Set<string>();
  for (const [name, level] of Object.entries(LEVELS)) {
    console[name as ConsoleMethod] = (...values: unknown[]) => {
      const text = format(...values.map(printable));
      if (printed.has(text)) return;
      if (printed.size < MAX_REMEMBERED) printed.add(text);
      logger[level]({ event: 'library' }, text);
    };
  }
  const listeners = process.listeners('warning');
  const onWarning = (err: Error): void => logger.warn({ event: 'library', err }, 'warning from Node');
  // Without a listener, warnings are disabled by `--no-warnings`.
  if (listeners.length > 0) process.removeAllListeners('warning').on('warning', onWarning);
  return () => {
    for (const name of Object.keys(LEVELS) as ConsoleMethod[]) console[name] = originalConsole[name];
    process.off('warning', onWarning);
    if (listeners.length === 0) return;
    for (const listener of listeners) process.on('warning', listener);
  };
}

/** Drops the properties that drivers attach to errors. */
function printable(value: unknown): unknown {
  return value instanceof Error ? `${value.name}: ${value.message}` : maskDeep(value);
}

/** Maximum characters buffered for a slow reader or a full disk; further lines are dropped. */
const MAX_BUFFERED = 4 * 1024 * 1024;
const MAX_CHUNK = 64 * 1024;
/** Delay before writing to a full pipe again. */
const RETRY_MS = 100;

const writeTo = promisify(write);

/**
 * Writes lines to a file descriptor without ever blocking. If the reader is slow, lines are buffered up to a limit, and
 * then dropped and counted. After a failed write, the remainder is retried with the next line.
 */
export class LogSink {
  readonly #fd: number;
  readonly #clock: Clock;
  readonly #onDropped: (lines: number) => void;
  #lines: string[] = [];
  #buffered = 0;
  #dropped = 0;
  /** The unwritten remainder of the current chunk. */
  #unwritten: Buffer = Buffer.alloc(0);
  #writing: Promise<void> | null = null;

  /** @param onDropped called with the number of dropped lines, once lines are written again */
  constructor(fd: number, clock: Clock, onDropped: (lines: number) => void) {
    this.#fd = fd;
    this.#clock = clock;
    this.#onDropped = onDropped;
  }

  write(line: string): void {
    if (this.#buffered + line.length > MAX_BUFFERED) this.#dropped += 1;
    else {
      this.#buffered += line.length;
      this.#lines.push(line);
    }
    this.#startWriting();
  }

  /** Resolves when all lines are written, when a write fails, or after `ms`. Never rejects. */
  async flush(ms: number): Promise<void> {
    this.#startWriting();
    const { promise: timeout, resolve } = Promise.withResolvers<void>();
    const cancel = this.#clock.after(ms, resolve);
    // Keep the process alive: timers do not, and while a pipe is full, nothing else might.
    const { port1: keepAlive } = new MessageChannel();
    keepAlive.on('message', () => {});
    await Promise.race([this.#writing, timeout]);
    keepAlive.close();
    cancel();
  }

  #startWriting(): void {
    if (this.#lines.length === 0 && this.#unwritten.length === 0) return;
    this.#writing ??= this.#writeAll();
  }

  async #writeAll(): Promise<void> {
    // `#writing` must be set before `onDropped` runs, because it writes a line itself.
    await null;
    for (;;) {
      if (this.#unwritten.length === 0) {
        if (this.#lines.length === 0) {
          // Reset synchronously, not in a later `finally`: a line added in between would not be written until the next
          // one.
          this.#writing = null;
          return;
        }
        this.#unwritten = Buffer.from(this.#nextChunk());
      }
      try {
        const { bytesWritten } = await writeTo(this.#fd, this.#unwritten);
        this.#unwritten = this.#unwritten.subarray(bytesWritten);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') {
          this.#writing = null;
          return;
        }
        await new Promise<void>((resolve) => this.#clock.after(RETRY_MS, resolve));
      }
    }
  }

  #nextChunk(): string {
    let length = 0;
    const count = this.#lines.findIndex((line) => {
      length += line.length;
      return length > MAX_CHUNK;
    });
    const chunk = this.#lines.splice(0, count === -1 ? this.#lines.length : Math.max(1, count)).join('');
    this.#buffered -= chunk.length;
    const dropped = this.#dropped;
    this.#dropped = 0;
    if (dropped > 0) this.#onDropped(dropped);
    return chunk;
  }
}
