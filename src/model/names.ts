import { quote } from '../util/quote.ts';
import { refined, type Schema, Type } from '../util/schema.ts';
import type { GroupName } from './element.ts';
import { invalidParameter, QuaysideError } from './errors.ts';
import { LIMITS } from './limits.ts';

/** A queue's full name. The broker creates one object per queue, but compare by fields. */
export interface QueueKey {
  readonly ns: string;
  readonly name: string;
}

/** The dead-letter queue, if the options name no other. */
export const DEAD_LETTER_QUEUE = '__deadletter__';

/** C0 controls, DEL and C1 controls, which do not belong in a name, a path, a log line or a header. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: refusing them is the purpose
export const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;
// A lone surrogate has no UTF-8 form; storing one would change the name.
const encoder = new TextEncoder();

/**
 * Checks a queue, namespace, exchange or tid name after percent-decoding: 1 to 255 bytes of UTF-8, no control
 * characters.
 * @param parameter the client's name for it, for the error; defaults to `kind`
 * @throws QuaysideError `invalid-name`
 */
export function checkName(kind: string, name: string, parameter = kind): string {
  if (problemWith(name) === null) return name;
  throw invalidName(kind, name, parameter);
}

function invalidName(kind: string, name: string, parameter: string): QuaysideError {
  const message = `The ${kind} name ${quote(name)} ${problemWith(name)}.`;
  return new QuaysideError('invalid-name', message, { parameter });
}

/** The schema of a name that `checkName` accepts. @param kind what it names, for the error; not given: its path */
export function nameSchema(kind?: string): Schema<string> {
  return refined(
    Type.String({
      minLength: 1,
      description: `1 to ${LIMITS.nameBytes} bytes of UTF-8 without control characters`,
    }),
    {
      fits: (name) => problemWith(name) === null,
      error: (path, name) => invalidName(kind ?? path, name, path),
    },
  );
}

export const Name = nameSchema();

/** What is wrong with a name and how to fix it, to continue a sentence; null if it is valid. */
function problemWith(name: string): string | null {
  if (name === '') return 'is empty. Use 1 to 255 bytes of UTF-8';
  if (CONTROL.test(name)) return 'contains a control character. Remove it';
  if (!name.isWellFormed()) return 'is not well-formed Unicode. Send UTF-8';
  // A UTF-16 code unit is at most 3 bytes of UTF-8, so a short name need not be encoded.
  const isTooLong = name.length * 3 > LIMITS.nameBytes && encoder.encode(name).length > LIMITS.nameBytes;
  return isTooLong ? `is longer than ${LIMITS.nameBytes} bytes. Shorten it` : null;
}

/** Whether a string is a valid consumer group name. */
export function isGroup(group: string): boolean {
  if (group === '' || group.length > LIMITS.groupLength) return false;
  // Lists of groups are trimmed when they are parsed, so a name with a space at an end could not be given in one.
  if (group.includes(',') || group.trim() !== group) return false;
  // Engines store UTF-8, in which a lone surrogate would become another name after a restart.
  return !CONTROL.test(group) && group.isWellFormed();
}

/**
 * Checks one consumer group name: 1 to 64 characters of well-formed Unicode, no comma (it separates groups), no control
 * character, no space at an end.
 * @throws QuaysideError `invalid-parameter` naming `parameter`
 */
export function checkGroup(parameter: string, group: string): string {
  if (!isGroup(group)) throw invalidGroup(parameter, group);
  return group;
}

function invalidGroup(parameter: string, group: string): QuaysideError {
  return invalidParameter(
    parameter,
    `${quote(group)} is not a valid consumer group name: a name has 1 to ${LIMITS.groupLength} characters of well-formed Unicode, no comma, no control character and no space at an end.`,
  );
}

/** A name that `checkGroup` accepts when it is trimmed: readers of the value trim it, as in a query or a header. */
export const Group: Schema<string> = refined(Type.String({ minLength: 1, maxLength: LIMITS.groupLength }), {
  allowed: 'a string',
  fits: (group) => isGroup(group.trim()),
  error: (path, group) => invalidGroup(path, group.trim()),
});

/**
 * Checks the consumer group names of an element: trims each and removes duplicates.
 * @throws QuaysideError `invalid-parameter` naming `parameter`
 */
export function checkGroups(parameter: string, names: readonly string[]): readonly GroupName[] {
  const groups = new Set(names.map((name) => checkGroup(parameter, name.trim())));
  if (groups.size <= LIMITS.groups) return [...groups];
  throw invalidParameter(
    parameter,
    `${groups.size} consumer groups are too many. An element has at most ${LIMITS.groups}.`,
  );
}
