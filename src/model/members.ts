import { toByteString } from '../util/byte-string.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { isRecord } from '../util/is-record.ts';
import { quote } from '../util/quote.ts';
import { invalidParameter, QuaysideError } from './errors.ts';
import { checkName } from './names.ts';

/** The members of a JSON object that a client sent. */
export type Members = Readonly<Record<string, unknown>>;

/**
 * Returns the members of a JSON object, and rejects unknown ones: a misspelt member would silently do nothing.
 * @param path of the object in the body; '' for the body itself
 * @param known null: any member is allowed
 * @throws QuaysideError `invalid-parameter` with the path
 */
export function membersOf(value: unknown, path: string, known: readonly string[] | null): Members {
  if (!isRecord(value)) throw wrongMember(path, value, 'a JSON object');
  const unknownName = known && Object.keys(value).find((name) => !known.includes(name));
  if (known === null || unknownName === undefined || unknownName === null) return value;
  const allowed = didYouMean(unknownName, known) || ` Allowed: ${known.join(', ')}.`;
  const at = memberPath(path, unknownName);
  throw invalidParameter(at, `Unknown member ${at}.${allowed}`);
}

/** The path of a member, such as `dst[0].selector`; a name that is not a plain word is put in brackets. */
export function memberPath(path: string, name: string): string {
  if (!/^\w{1,64}$/.test(name)) return `${path}[${quote(name)}]`;
  return path === '' ? name : `${path}.${name}`;
}

/** The error for a member with an invalid value; `allowed` continues "must be". */
export function wrongMember(path: string, value: unknown, allowed: string): QuaysideError {
  const subject = path === '' ? 'The body' : path;
  if (value === undefined) return invalidParameter(path, `${subject} is missing; it must be ${allowed}.`);
  return invalidParameter(path, `${subject} must be ${allowed}, not ${quote(value)}.`);
}

/**
 * Returns the result of `read`. A QuaysideError that it throws is rethrown with the path of the member, which its own
 * message does not contain.
 * @param prefix start of the message
 */
export function atMember<T>(path: string, read: () => T, prefix = `${path}:`): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof QuaysideError)) throw error;
    throw error.with({ parameter: path, message: `${prefix} ${error.message}` });
  }
}

/**
 * Converts a string to its UTF-8 bytes, one character for each, as headers are stored.
 * @throws QuaysideError `invalid-parameter`
 */
export function bytesMember(path: string, text: string): string {
  if (!text.isWellFormed()) throw wrongMember(path, text, 'well-formed Unicode');
  return toByteString(text);
}

/** Checks a name as `checkName` does. @throws QuaysideError `invalid-parameter`, `invalid-name`, with the path */
export function nameMember(path: string, value: unknown): string {
  if (typeof value !== 'string') throw wrongMember(path, value, 'a string');
  return checkName(path, value);
}

/** @throws QuaysideError `invalid-parameter` with the path */
export function booleanMember(path: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw wrongMember(path, value, 'true or false');
  return value;
}

/**
 * Checks an integer within bounds, both inclusive.
 * @param unit for the message, such as "milliseconds"
 * @throws QuaysideError `invalid-parameter` with the path
 */
export function wholeMember(path: string, value: unknown, min: number, max: number, unit?: string): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max) return value;
  throw wrongMember(
    path,
    value,
    `${unit === undefined ? '' : `${unit}, `}a whole number from ${min} to ${max}`,
  );
}
