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

/** An error of the server or of the client. `code` is stable; compare nothing else. */
export class QuaysideError extends Error {
  // `declare`: a browser loads no code for these members but that of the constructor.
  declare readonly code: string;
  /** The HTTP status, if the server answered. */
  declare readonly status: number | undefined;
  /** What the server's log has about the failure. */
  declare readonly requestId: string | undefined;
  /** When the server suggests the next attempt. */
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

/** A call, or a handler, took longer than it may. */
export class TimeoutError extends QuaysideError {
  override readonly name: string = 'TimeoutError';

  constructor(message: string, options?: QuaysideErrorOptions) {
    super('timeout', message, options);
  }
}

/** The reservation is over: its lease ended, or the element was settled elsewhere. */
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

/** One thing that a schema found wrong, as Standard Schema reports it. */
export interface ValidationIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** An argument that cannot be sent, data that a schema does not accept, or a body that does not decode. */
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

/** As the server has it: ten years. */
const MAX_MS = 315_360_000_000;

/**
 * Milliseconds that the server accepts. They are checked here because a request carries the calls of others, too, which
 * it rejects as a whole, and because NaN becomes null in JSON, which means that nothing was given.
 * @throws ValidationError
 */
export function checkedMs(name: string, ms: number, min = 0): number {
  if (typeof ms === 'number' && ms >= min && ms <= MAX_MS) return ms;
  throw invalid(`${name} is ${ms}. Allowed: milliseconds from ${min} to ${MAX_MS}.`);
}

/** The same in whole milliseconds; JSON leaves out what is undefined. */
export function roundedMs(name: string, ms: number | undefined, min = 0): number | undefined {
  return ms === undefined ? ms : checkedMs(name, Math.round(ms), min);
}

/**
 * The JSON of a response, which has that member.
 * @throws QuaysideError for anything else: something between client and server may answer 200 as well
 */
export function jsonIn<T>(text: string, member: keyof T & string): T {
  try {
    const value = JSON.parse(text);
    if (value?.[member] !== undefined) return value;
  } catch {
    // It is quoted below.
  }
  throw unexpectedResponse(text);
}

/** The error of a response that the server does not give. */
export function unexpectedResponse(text: string): QuaysideError {
  const message = `The server, or a proxy in front of it, answered ${quoted(text)}.`;
  return new QuaysideError('unexpected-response', message, { outcome: 'unknown' });
}

/** A thrown value as text. Whatever it is, this throws nothing. */
export function textOf(error: unknown): string {
  try {
    return `${(error instanceof Error && error.message) || String(error)}`;
  } catch {
    return `a thrown ${typeof error}`;
  }
}

const MAX_QUOTED = 64;

/** A value as an error message shows it: escaped, and at most 64 characters of it. */
export function quoted(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= MAX_QUOTED ? text : `${text.slice(0, MAX_QUOTED)}…`;
}
