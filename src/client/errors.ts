/** Whether a failed call may have had an effect. */
export type CallOutcome = 'nothing-changed' | 'unknown';

export interface QuaysideErrorOptions extends ErrorOptions {
  readonly status?: number | undefined;
  readonly requestId?: string | undefined;
  readonly retryAfterMs?: number | undefined;
  readonly outcome?: CallOutcome;
  /** Members of the server's problem document. */
  readonly details?: Readonly<Record<string, unknown>>;
}

/** An error of the server or the client. Only `code` is stable; do not compare messages. */
export class QuaysideError extends Error {
  // `declare` makes browsers load less code: only the constructor sets these members.
  declare readonly code: string;
  /** The HTTP status, if there was a response. */
  declare readonly status: number | undefined;
  /** The request id, to find the failure in the server's log. */
  declare readonly requestId: string | undefined;
  /** How long the server asks to wait before the next attempt. */
  declare readonly retryAfterMs: number | undefined;
  /** Whether the call may have had an effect. */
  declare readonly outcome: CallOutcome;
  /** Members of the server's problem document. */
  declare readonly details: Readonly<Record<string, unknown>>;

  override readonly name: string = 'QuaysideError';

  constructor(code: string, message: string, { cause, ...options }: QuaysideErrorOptions = {}) {
    super(message, cause === undefined ? cause : { cause });
    Object.assign(this, { outcome: 'nothing-changed', details: {}, ...options, code });
  }
}

/** The server could not be reached, or the connection ended before the whole response had arrived. */
export class ConnectionError extends QuaysideError {
  override readonly name: string = 'ConnectionError';

  constructor(message: string, options?: QuaysideErrorOptions) {
    super('connection-failed', message, options);
  }
}

/** A call or a handler timed out. */
export class TimeoutError extends QuaysideError {
  override readonly name: string = 'TimeoutError';

  constructor(message: string, options?: QuaysideErrorOptions) {
    super('timeout', message, options);
  }
}

/** The reservation is no longer valid: its lease ended, or the element was settled elsewhere. */
export class LeaseLostError extends QuaysideError {
  override readonly name: string = 'LeaseLostError';

  constructor(message: string, options?: QuaysideErrorOptions) {
    super('lease-lost', message, options);
  }
}

/** The client was closed, or the worker was stopped. */
export class StoppedError extends QuaysideError {
  override readonly name: string = 'StoppedError';

  constructor(message: string, options?: QuaysideErrorOptions) {
    super('stopped', message, options);
  }
}

/** An issue that a schema found, as in Standard Schema. */
export interface ValidationIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** An invalid argument, data that do not match the schema, or a body that cannot be decoded. */
export class ValidationError extends QuaysideError {
  override readonly name: string = 'ValidationError';
  readonly issues: readonly ValidationIssue[];

  constructor(message: string, issues: readonly ValidationIssue[], options?: QuaysideErrorOptions) {
    super('invalid-data', message, options);
    this.issues = issues;
  }
}

export function invalid(message: string, cause?: unknown): ValidationError {
  return new ValidationError(message, [{ message }], { cause });
}

/** The server's limit: ten years. */
const MAX_MS = 315_360_000_000;

/**
 * Checks milliseconds against the server's limits. This is done before sending because the server rejects a request
 * with the calls of others as a whole, and because NaN becomes null in JSON, which means "not given".
 * @throws ValidationError
 */
export function checkedMs(name: string, ms: number, min = 0): number {
  if (typeof ms === 'number' && ms >= min && ms <= MAX_MS) return ms;
  throw invalid(`${name} is ${quoted(ms)}. Allowed: milliseconds from ${min} to ${MAX_MS}.`);
}

/** Like {@link checkedMs}, but rounds to whole milliseconds; undefined stays undefined. @throws ValidationError */
export function roundedMs(name: string, ms: number | undefined, min = 0): number | undefined {
  return ms === undefined ? ms : Math.round(checkedMs(name, ms, min));
}

/**
 * Rejects options that a call does not have. JavaScript callers may misspell one, or give `delay` for `delayMs`: it
 * would be ignored.
 * @throws ValidationError
 */
export function checkNoOthers(options: object): void {
  for (const name of Object.keys(options)) throw invalid(`There is no option ${quoted(name)}.`);
}

/**
 * Parses the JSON of a response that must have a member.
 * @throws QuaysideError `unexpected-response` for anything else: a proxy may answer 200 as well
 */
export function jsonIn<T>(text: string, member: keyof T & string): T {
  try {
    const value = JSON.parse(text);
    if (value?.[member] !== undefined) return value;
  } catch {
    // The error below quotes it.
  }
  throw unexpectedResponse(text);
}

/** The error for a response that does not come from the server. */
export function unexpectedResponse(text: string): QuaysideError {
  const message = `The server, or a proxy in front of it, answered ${quoted(text)}.`;
  return new QuaysideError('unexpected-response', message, { outcome: 'unknown' });
}

/** Converts any thrown value to a string. Never throws. */
export function textOf(error: unknown): string {
  try {
    return String((error instanceof Error && error.message) || error);
  } catch {
    return `a thrown ${typeof error}`;
  }
}

const MAX_QUOTED = 64;

/** Quotes a value for an error message: escaped, and at most 64 characters. JSON has no NaN and no bigint. */
export function quoted(value: unknown): string {
  const text = String(typeof value === 'string' || typeof value === 'object' ? JSON.stringify(value) : value);
  return text.length <= MAX_QUOTED ? text : `${text.slice(0, MAX_QUOTED)}…`;
}
