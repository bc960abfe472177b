import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { nearestName } from '../util/did-you-mean.ts';
import { ownString } from '../util/own-bytes.ts';
import { malformed } from './codec.ts';
import { STOMP_LIMITS } from './options.ts';

/**
 * Headers that have a meaning in SEND or MESSAGE. STOMP requires that receivers of the message get every other header
 * of a SEND: each is stored as an element header, and MESSAGE has it with and without the prefix.
 */
export const PROTOCOL_HEADERS: ReadonlySet<string> = new Set([
  'destination',
  'content-type',
  'content-length',
  'content-encoding',
  'receipt',
  'transaction',
  'subscription',
  'message-id',
  'ack',
  'x-ks-groups',
  'x-ks-group',
  'x-ks-ttl',
  'x-next-t',
  'x-delta-t',
  'x-tries',
  'x-mature',
]);

/** Other protocols and older documentation write the same header with or without `ks-`. */
const PREFIX = /^x-(?:ks-)?/;
/** Shorter names are not compared: too many of them differ in one character only. */
const MIN_LENGTH = 4;
const EXTENSION = /^x-/i;

/** Rejects headers of one command that are probably misspelt, since they would have no effect. */
export class HeaderSpelling {
  readonly #exact: ReadonlySet<string>;
  /** The known `x-` headers, by name without prefix. */
  readonly #bare: ReadonlyMap<string, string>;
  readonly #plain: readonly string[];

  /**
   * @param known `x-` headers that the command reads; only names that start with `x-` are compared with these, since
   * clients choose other names for their own headers
   * @param ignored headers that the command ignores on purpose
   * @param plain headers without `x-` that do harm if they are misspelt
   */
  constructor(known: readonly string[], ignored: Iterable<string> = [], plain: readonly string[] = []) {
    this.#exact = new Set([...known, ...ignored, ...plain]);
    this.#bare = new Map(known.map((name) => [name.replace(PREFIX, ''), name]));
    this.#plain = plain;
  }

  /** @throws QuaysideError `invalid-parameter` if a known header was probably meant */
  check(name: string): void {
    if (this.#exact.has(name)) return;
    const meant = EXTENSION.test(name) ? this.#extensionMeant(name) : nearestName(name, this.#plain);
    if (meant === null) return;
    throw invalidParameter(name, `Unknown header ${quoteBytes(name)}. Did you mean "${meant}"?`);
  }

  #extensionMeant(name: string): string | null {
    const bare = name.toLowerCase().replace(PREFIX, '');
    const nearest = nearestName(bare, this.#bare.keys(), MIN_LENGTH);
    return nearest === null ? null : (this.#bare.get(nearest) ?? null);
  }
}

/** How many existing ids an error message lists. */
const MAX_LISTED = 8;

/** The error message for an unknown id; it lists the existing ones. */
export function unknownIdMessage(kind: string, id: string, existing: Iterable<string>): string {
  const ids = [...existing];
  const listed = ids.slice(0, MAX_LISTED).map(quoteBytes).join(', ');
  const more = ids.length > MAX_LISTED ? `, and ${ids.length - MAX_LISTED} more` : '';
  return `There is no ${kind} ${quoteBytes(id)} in this session. ${ids.length === 0 ? 'It has none.' : `It has ${listed}${more}.`}`;
}

/** The value of a required header. @throws QuaysideError `malformed-request` if it is missing or empty */
export function requireHeader(command: string, name: string, value: string | null): string {
  if (value !== null && value !== '') return value;
  const wrong = value === null ? 'is missing' : 'is empty';
  throw malformed(`The header ${name} of ${command} ${wrong}.`, name);
}

/**
 * A copy of the id that a client gives to a subscription or transaction, to keep it in memory.
 * @throws QuaysideError `headers-too-large`
 */
export function storedId(name: string, id: string): string {
  const { idBytes } = STOMP_LIMITS;
  if (id.length <= idBytes) return ownString(id);
  const message = `The ${name} has ${id.length} bytes. Allowed: at most ${idBytes}.`;
  throw new QuaysideError('headers-too-large', message, { parameter: name });
}
