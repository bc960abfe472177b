import pino, { type DestinationStream, type Logger } from 'pino';
import { systemClock } from '../util/clock.ts';
import { maskDeep } from '../util/mask.ts';
import { LogSink } from './log-sink.ts';
import { textLine } from './log-text.ts';

export interface Log {
  readonly logger: Logger;
  /** Writes what is still kept, as far as somebody takes it soon; to be called before the process ends. */
  flush(): Promise<void>;
}

/**
 * What JSON leaves as it is but a terminal or an editor acts on: DEL, C1 controls, line separators, and the
 * marks that turn the direction of text.
 */
const ACTING = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const STANDARD_ERROR = 2;
const CAUSES_MOST = 5;
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
    { write: (line) => destination.write(withoutActing(form(line))) },
  );
}

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
    .filter((one) => one instanceof Error && depth < CAUSES_MOST)
    .map((one) => describeError(one, depth + 1));
  return { type: name, code, message, stack, ...(shown.length > 0 && { causes: shown }) };
}

function withoutActing(line: string): string {
  return line.replace(ACTING, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
