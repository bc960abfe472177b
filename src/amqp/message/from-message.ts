import type { NewElement } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import { checkContentHeader, checkHeaders } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { groupsOf, milliseconds, moment, textOf, whole } from '../../session/values.ts';
import { quoteBytes } from '../../util/quote.ts';
import type { SimpleType, SimpleValue } from '../core/reader.ts';
import {
  ANNOTATION_PREFIX,
  BODY_HEADER,
  DELIVERY_DELAY_ANNOTATION,
  DELIVERY_TIME_ANNOTATION,
  DELTA_T_PROPERTY,
  GROUPS_PROPERTY,
  HEADER_FIELDS,
  NEXT_T_PROPERTY,
  OWN_PREFIX,
  PROPERTY_PREFIX,
  SHOWN_ANNOTATIONS,
  TYPES_HEADER,
} from './names.ts';
import { FIELD_AT, type Message, type NamedValue, PROPERTY_FIELDS, readMessage } from './sections.ts';

/** The element that a message describes; groups as given, null if none were. */
type SentElement = Omit<NewElement, 'groups' | 'dedupKey' | 'expiresAt'> & {
  readonly groups: readonly string[] | null;
  /** The message expires so long after it came; null: not given. */
  readonly ttlMs: number | null;
  /** When it expires, by its sender's clock; null: not given. */
  readonly expiresAt: number | null;
  /** The property `to`; null: not given. */
  readonly to: string | null;
};

/**
 * An encoded message as an element (decisions, "AMQP 1.0"; docs/protocols/amqp.md, "Messages").
 * @throws QuaysideError `malformed-request`, `not-supported`, `invalid-header`, `invalid-parameter`
 */
export function elementOf(bytes: Buffer): SentElement {
  const message = readMessage(bytes);
  const { properties, deliveryCount, ttlMs } = message;
  const draft = new HeaderDraft();
  const given: MeantValues = { time: null, delay: null, groups: null, nextT: null, deltaT: null };
  addAnnotations(message, draft, given);
  addFields(message, draft);
  addApplicationProperties(message, draft, given);
  if (message.form !== 'data') draft.add(BODY_HEADER, { type: 'string', text: message.form });
  const contentType = properties[FIELD_AT.contentType]?.text ?? null;
  const contentEncoding = properties[FIELD_AT.contentEncoding]?.text ?? null;
  return {
    body: message.body,
    contentType: checkContentHeader('content-type', contentType),
    contentEncoding: checkContentHeader('content-encoding', contentEncoding),
    headers: checkHeaders(draft.finish()),
    matureAt:
      given.time === null
        ? moment(NEXT_T_PROPERTY, given.nextT)
        : moment(DELIVERY_TIME_ANNOTATION, given.time),
    delayMs:
      given.delay === null
        ? milliseconds(DELTA_T_PROPERTY, given.deltaT, 0, 0)
        : milliseconds(DELIVERY_DELAY_ANNOTATION, given.delay, 0, 0),
    tries: deliveryCount === 0 ? 0 : triesOf(deliveryCount),
    // Clients that have no limit send 0, or a moment that is further away than any maturity.
    ttlMs: ttlMs === 0 ? null : ttlMs,
    expiresAt: expiryOf(properties[FIELD_AT.absoluteExpiryTime]),
    to: addressIn(properties[FIELD_AT.to]),
    groups: groupsOf(GROUPS_PROPERTY, given.groups),
  };
}

/** Annotations and application properties with a meaning; null: not given. */
interface MeantValues {
  time: string | null;
  delay: string | null;
  groups: string | null;
  nextT: string | null;
  deltaT: string | null;
}

/** The types of fields by default. */
const FIELD_TYPES: Readonly<Record<string, SimpleType>> = {
  'absolute-expiry-time': 'timestamp',
  'creation-time': 'timestamp',
  'group-sequence': 'uint',
};

/** Gathers element headers, and the spelling and types of what they stand for. */
class HeaderDraft {
  readonly #flat: string[] = [];
  readonly #types: string[] = [];

  /** @throws QuaysideError `invalid-header` if the name is taken */
  add(name: string, { type, text }: SimpleValue, usual: SimpleType = 'string'): void {
    const lower = name.toLowerCase();
    if (this.#has(lower)) {
      const message = `The message has ${quoteBytes(lower)} twice; names of headers differ in more than the case of letters.`;
      throw new QuaysideError('invalid-header', message, { parameter: lower });
    }
    this.#flat.push(lower, text);
    if (type !== usual) this.#types.push(`${name}=${type}`);
    else if (name !== lower) this.#types.push(name);
  }

  finish(): readonly string[] {
    if (this.#types.length > 0) this.#flat.push(TYPES_HEADER, this.#types.join(', '));
    return this.#flat;
  }

  /** A message has few of them, mostly none. */
  #has(lower: string): boolean {
    for (let at = 0; at < this.#flat.length; at += 2) if (this.#flat[at] === lower) return true;
    return false;
  }
}

function addAnnotations({ annotations }: Message, draft: HeaderDraft, given: MeantValues): void {
  for (const { name, value } of annotations) {
    if (name === DELIVERY_TIME_ANNOTATION) given.time = value.text;
    else if (name === DELIVERY_DELAY_ANNOTATION) given.delay = value.text;
    else if (!SHOWN_ANNOTATIONS.has(name)) draft.add(ANNOTATION_PREFIX + name, value);
  }
}

function addFields({ properties }: Message, draft: HeaderDraft): void {
  for (let at = 0; at < properties.length; at++) {
    const value = properties[at] ?? null;
    const field = PROPERTY_FIELDS[at] ?? '';
    if (value === null || !HEADER_FIELDS.has(field)) continue;
    draft.add(field, field === 'user-id' ? shownUser(value) : value, FIELD_TYPES[field]);
  }
}

function addApplicationProperties(
  { applicationProperties }: Message,
  draft: HeaderDraft,
  given: MeantValues,
): void {
  for (const { name, value } of applicationProperties) {
    if (name === GROUPS_PROPERTY) given.groups = value.text;
    else if (name === NEXT_T_PROPERTY) given.nextT = value.text;
    else if (name === DELTA_T_PROPERTY) given.deltaT = value.text;
    else draft.add(isTaken(name) ? PROPERTY_PREFIX + name : name, value);
  }
}

function isTaken(name: NamedValue['name']): boolean {
  const lower = name.toLowerCase();
  return HEADER_FIELDS.has(lower) || lower.startsWith(OWN_PREFIX);
}

function triesOf(deliveryCount: number): number {
  return whole('delivery-count', String(deliveryCount), { to: LIMITS.tries, unit: 'a count' }, 0);
}

function expiryOf(value: SimpleValue | null | undefined): number | null {
  const at = value?.type === 'timestamp' ? Number(value.text) : Number.NaN;
  return at <= LIMITS.matureAt ? Math.max(0, at) : null;
}

function addressIn(value: SimpleValue | null | undefined): string | null {
  return value?.type === 'string' ? textOf('to', value.text) : null;
}

const PLAIN = /^[!-~](?:[ -~]*[!-~])?$/;

/** A user id is binary; if its bytes are plain text they are kept as that. */
function shownUser(value: SimpleValue): SimpleValue {
  if (value.type !== 'binary') return value;
  const text = Buffer.from(value.text, 'base64').toString('latin1');
  return PLAIN.test(text) ? { type: 'string', text } : value;
}
