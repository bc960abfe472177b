import { didYouMean } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import { allowedText, checkSchema, refined, type Schema, Type, type Violation } from '../util/schema.ts';
import { invalidParameter, QuaysideError } from './errors.ts';

/**
 * Returns a JSON value that a client sent, after checking that it has the form of a schema.
 * @param path of the value in the body; '' for the body itself
 * @throws QuaysideError `invalid-parameter` with the path, which the message contains, for the first violation; other
 * codes if refinements of the schema have them, such as `invalid-name`
 */
export function parse<T>(schema: Schema<T>, value: unknown, path = ''): T {
  checkSchema(schema, value, (violation) => {
    throw violationError(violation, path);
  });
  return value as T;
}

function violationError({ path, rule, schema, value, error }: Violation, within: string): Error {
  const at = path.reduce<string>(
    (before, key) => (typeof key === 'number' ? `${before}[${key}]` : memberPath(before, key)),
    within,
  );
  if (error !== undefined) return error(at, value as never);
  if (rule === 'unknown') return unknownMember(at, String(path.at(-1)), Object.keys(schema.properties ?? {}));
  const allowed = allowedText(schema);
  if (rule === 'length') {
    const { length } = typeof value === 'string' ? value : Object.keys(value as object);
    if (length > 0) return invalidParameter(at, `${at} must be ${allowed}, not of ${length}.`);
  }
  // Do not quote a password, whatever its type.
  return wrongMember(at, schema.format === 'password' && value !== undefined ? typeof value : value, allowed);
}

/** A misspelt member would silently do nothing. */
function unknownMember(path: string, name: string, known: readonly string[]): QuaysideError {
  const allowed = didYouMean(name, known) || ` Allowed: ${known.join(', ')}.`;
  return invalidParameter(path, `Unknown member ${path}.${allowed}`);
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

/** A string that has a UTF-8 form: something else in place of a lone surrogate would change it. */
export const WellFormed: Schema<string> = refined(Type.String(), {
  fits: (text) => text.isWellFormed(),
  error: (path, text) => wrongMember(path, text, 'well-formed Unicode'),
});
