import { format } from 'node:util';
import pino, { type DestinationStream, type Logger } from 'pino';
import { systemClock } from '../util/clock.ts';
import { maskDeep } from '../util/mask.ts';
import { LogSink } from './log-sink.ts';

export interface Log {
  readonly logger: Logger;
  /** Writes the lines that are still buffered, as far as their reader takes them soon; to be called before the process ends. */
  flush(): Promise<void>;
}

/**
 * What JSON leaves as it is but a terminal or an editor acts on: DEL, C1 controls, line separators, and the
 * marks that turn the direction of text.
 */
const TERMINAL_CONTROL = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const STANDARD_ERROR = 2;
const MAX_CAUSES = 5;
/** For a disk that is full and a reader that stands still: neither may keep the process from ending. */
const FLUSH_MS = 500;

export interface LogOptions {
  readonly level: string;
  /** `auto` is text on a terminal, and JSON otherwise. */
  readonly format: 'auto' | 'json' | 'text';
}

/** Lines on standard error, secrets masked (reliability, S12 and S19). */
export function createLog({ level, format }: LogOptions): Log {
  // Node makes a pipe at standard error one that does not block when it is first asked for its stream. A write that
  // blocked would hold a thread that the end of the process waits for.
  process.stderr.on('error', () => {});
  const sink = new LogSink(STANDARD_ERROR, systemClock, (lines) => {
    logger.warn({ event: 'log', lines }, 'log lines are missing here: nobody took them');
  });
  const isText = format === 'text' || (format === 'auto' && process.stderr.isTTY);
  const logger = makeLogger(level, sink, isText ? textLine : undefined);
  return { logger, flush: () => sink.flush(FLUSH_MS) };
}

/**
 * Writes JSON lines, times in UTC.
 * @param destination gets one event at a time
 * @param form how an event is written, given its line of JSON
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
      // Errors are described below; pino's own description of them would show what drivers attach.
      serializers: { err: (described: unknown) => described, msg: (message: unknown) => maskDeep(message) },
      formatters: { level: (label) => ({ level: label }), log: safeFields },
    },
    // Secrets are masked before they are serialised: an edit of the line could cut an escape sequence in two.
    { write: (line) => destination.write(escaped(form(line), TERMINAL_CONTROL)) },
  );
}

/** With errors described, and secrets masked. */
function safeFields(fields: Record<string, unknown>): Record<string, unknown> {
  const described = Object.entries(fields).map(([name, value]) => [
    name,
    value instanceof Error ? describeError(value) : value,
  ]);
  return maskDeep(Object.fromEntries(described)) as Record<string, unknown>;
}

/**
 * Name, code, message and stack of an error and its causes, and nothing else: drivers attach the command
 * that failed, with the element's body in it.
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

/** An event of the log, parsed from its line of JSON. */
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
 * A line of JSON as a person reads it: `12:34:56.789 WARN  a login failed  user=ann address=192.0.2.1`, and the stacks
 * of errors on lines of their own. Values of clients are escaped, so that none can make a line of its own. A line that
 * is no event in JSON is written as it is: the log must never be what stops the server.
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
  const own = stack.split('\n').map((line) => `    ${escaped(line)}`);
  const inner = causes.filter(isError).map((cause) => `    caused by:\n${stackText(cause)}`);
  return [...own, ...inner].join('\n');
}

/** Words stand as they are; whatever else is JSON, so that its end can be seen. */
function valueText(value: unknown): string {
  if (typeof value === 'string' && /^[^\s"'=]+$/.test(value)) return escaped(value);
  return escaped(JSON.stringify(value) ?? '');
}

function escaped(text: string, characters = CONTROL): string {
  return text.replace(characters, (control) => `\\u${control.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

const LEVELS = { debug: 'debug', log: 'info', info: 'info', warn: 'warn', error: 'error' } as const;
type Name = keyof typeof LEVELS;

/** A driver prints the same line at every connection; one in the log is enough. */
const MAX_REMEMBERED = 100;

/**
 * Redirects what libraries print by the console, and Node's warnings, into the log: unchanged they would be no
 * JSON, and might show secrets. Returns a function that undoes it.
 */
export function logLibraryOutput(logger: Logger): () => void {
  const own = { ...console };
  const printed = new Set<string>();
  for (const [name, level] of Object.entries(LEVELS)) {
    console[name as Name] = (...values: unknown[]) => {
      const text = format(...values.map(printable));
      if (printed.has(text)) return;
      if (printed.size < MAX_REMEMBERED) printed.add(text);
      logger[level]({ event: 'library' }, text);
    };
  }
  const listeners = process.listeners('warning');
  const onWarning = (err: Error): void => logger.warn({ event: 'library', err }, 'node warns');
  // Without one they are turned off, by `--no-warnings`.
  if (listeners.length > 0) process.removeAllListeners('warning').on('warning', onWarning);
  return () => {
    for (const name of Object.keys(LEVELS) as Name[]) console[name] = own[name];
    process.off('warning', onWarning);
    if (listeners.length === 0) return;
    for (const listener of listeners) process.on('warning', listener);
  };
}

/** Without what drivers attach to their errors. */
function printable(value: unknown): unknown {
  return value instanceof Error ? `${value.name}: ${value.message}` : maskDeep(value);
}
