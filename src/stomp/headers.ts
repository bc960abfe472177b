import { invalidParameter } from '../model/errors.ts';
import { nearestName } from '../util/did-you-mean.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec.ts';

/**
 * Headers that SEND and MESSAGE give a meaning. STOMP asks that every other header of a SEND is passed on to the
 * receivers of the message: each is kept as an element header, and MESSAGE has it under both names.
 */
export const OWN_HEADERS: ReadonlySet<string> = new Set([
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

/** Other protocols and older pages write the same header with or without `ks-`. */
const PREFIX = /^x-(?:ks-)?/;
/** Too many names of extensions differ by one character from a shorter one. */
const MIN_LENGTH = 4;
const EXTENSION = /^x-/i;

/** Finds headers of one command that are probably misspelt: ignored, they would have no effect. */
export class HeaderSpelling {
  readonly #exact: ReadonlySet<string>;
  /** `x-` names without their prefix, with the header that each stands for. */
  readonly #bare: ReadonlyMap<string, string>;
  readonly #plain: readonly string[];

  /**
   * @param known `x-` headers that the command reads; only names that begin with `x-` are compared with these, since
   * clients choose other names for headers of their own
   * @param ignored headers that it passes over on purpose
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

/** How many of those that exist are named. */
const MAX_LISTED = 8;

/** The error message for an id that does not exist; it lists those that do. */
export function unknown(kind: string, id: string, existing: Iterable<string>): string {
  const ids = [...existing];
  const listed = ids.slice(0, MAX_LISTED).map(quoteBytes).join(', ');
  const more = ids.length > MAX_LISTED ? `, and ${ids.length - MAX_LISTED} more` : '';
  return `There is no ${kind} ${quoteBytes(id)} in this session. ${ids.length === 0 ? 'It has none.' : `It has ${listed}${more}.`}`;
}

/** @throws QuaysideError `malformed-request` if it was not sent, or is empty */
export function needed(command: string, name: string, value: string | null): string {
  if (value !== null && value !== '') return value;
  const wrong = value === null ? 'is missing' : 'is empty';
  throw malformed(`The header ${name} of ${command} ${wrong}.`, name);
}
