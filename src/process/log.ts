import pino, { type DestinationStream, type Logger } from 'pino';
import { maskDeep, maskText } from '../model/mask.ts';

export interface Log {
  readonly logger: Logger;
  /** Writes what is still buffered; to be called before the process ends. */
  flush(): void;
}

/**
 * What JSON leaves as it is but a terminal or an editor acts on: DEL, C1 controls, line separators, and the
 * marks that turn the direction of text.
 */
const ACTING = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const STANDARD_ERROR = 2;
const CAUSES_MOST = 5;

/** JSON lines on standard error, times in UTC, secrets masked (reliability, S12 and S19). */
export function createLog(level: string): Log {
  const destination = pino.destination({ dest: STANDARD_ERROR, sync: false });
  // Nobody reads the log any more: that is no reason to stop.
  destination.on('error', () => {});
  return { logger: makeLogger(level, destination), flush: () => flush(destination) };
}

/** @param destination gets one line at a time */
export function makeLogger(level: string, destination: DestinationStream): Logger {
  return pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      // Errors are described below; pino's own description of them would show what drivers attach.
      serializers: { err: (described: unknown) => described },
      formatters: { level: (label) => ({ level: label }), log: safeFields },
    },
    { write: (line) => destination.write(safeLine(line)) },
  );
}

function safeFields(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [
      name,
      value instanceof Error ? describeError(value) : (maskDeep({ [name]: value }) as typeof fields)[name],
    ]),
  );
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

function safeLine(line: string): string {
  return maskText(line).replace(ACTING, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

function flush(destination: { flushSync(): void }): void {
  try {
    destination.flushSync();
  } catch {
    // It may not be open any more.
  }
}
