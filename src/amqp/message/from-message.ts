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
import { type Message, type NamedValue, readMessage } from './sections.ts';

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
  const { body, properties, deliveryCount, ttlMs } = message;
  const draft = new HeaderDraft();
  const given = new Map<string, string>();
  addAnnotations(message, draft, given);
  for (const [field, value] of properties) {
    if (HEADER_FIELDS.has(field))
      draft.add(field, field === 'user-id' ? shownUser(value) : value, FIELD_TYPES[field]);
  }
  addApplicationProperties(message, draft, given);
  if (message.form !== 'data') draft.add(BODY_HEADER, { type: 'string', text: message.form });
  const timeOf = (annotation: string, property: string): [string, string | null] =>
    given.has(annotation)
      ? [annotation, given.get(annotation) ?? null]
      : [property, given.get(property) ?? null];
  return {
    body,
    contentType: checkContentHeader('content-type', properties.get('content-type')?.text ?? null),
    contentEncoding: checkContentHeader('content-encoding', properties.get('content-encoding')?.text ?? null),
    headers: checkHeaders(draft.finish()),
    matureAt: moment(...timeOf(DELIVERY_TIME_ANNOTATION, NEXT_T_PROPERTY)),
    delayMs: delayOf(...timeOf(DELIVERY_DELAY_ANNOTATION, DELTA_T_PROPERTY)),
    tries: whole('delivery-count', String(deliveryCount), { to: LIMITS.tries, unit: 'a count' }, 0),
    // Clients that have no limit send 0, or a moment that is further away than any maturity.
    ttlMs: ttlMs === 0 ? null : ttlMs,
    expiresAt: expiryOf(properties.get('absolute-expiry-time')),
    to: addressIn(properties.get('to')),
    groups: groupsOf(GROUPS_PROPERTY, given.get(GROUPS_PROPERTY) ?? null),
  };
}

/** The types of fields by default. */
const FIELD_TYPES: Readonly<Record<string, SimpleType>> = {
  'absolute-expiry-time': 'timestamp',
  'creation-time': 'timestamp',
  'group-sequence': 'uint',
};

const MEANT_ANNOTATIONS: ReadonlySet<string> = new Set([DELIVERY_TIME_ANNOTATION, DELIVERY_DELAY_ANNOTATION]);
const MEANT_PROPERTIES: ReadonlySet<string> = new Set([GROUPS_PROPERTY, NEXT_T_PROPERTY, DELTA_T_PROPERTY]);

/** Gathers element headers, and the spelling and types of what they stand for. */
class HeaderDraft {
  readonly #flat: string[] = [];
  readonly #types: string[] = [];
  readonly #names = new Set<string>();

  /** @throws QuaysideError `invalid-header` if the name is taken */
  add(name: string, { type, text }: SimpleValue, usual: SimpleType = 'string'): void {
    const lower = name.toLowerCase();
    if (this.#names.has(lower)) {
      const message = `The message has ${quoteBytes(lower)} twice; names of headers differ in more than the case of letters.`;
      throw new QuaysideError('invalid-header', message, { parameter: lower });
    }
    this.#names.add(lower);
    this.#flat.push(lower, text);
    if (type !== usual) this.#types.push(`${name}=${type}`);
    else if (name !== lower) this.#types.push(name);
  }

  finish(): readonly string[] {
    if (this.#types.length > 0) this.#flat.push(TYPES_HEADER, this.#types.join(', '));
    return this.#flat;
  }
}

function addAnnotations({ annotations }: Message, draft: HeaderDraft, given: Map<string, string>): void {
  for (const { name, value } of annotations) {
    if (MEANT_ANNOTATIONS.has(name)) given.set(name, value.text);
    else if (!SHOWN_ANNOTATIONS.has(name)) draft.add(ANNOTATION_PREFIX + name, value);
  }
}

function addApplicationProperties(
  { applicationProperties }: Message,
  draft: HeaderDraft,
  given: Map<string, string>,
): void {
  for (const { name, value } of applicationProperties) {
    if (MEANT_PROPERTIES.has(name)) given.set(name, value.text);
    else draft.add(isTaken(name) ? PROPERTY_PREFIX + name : name, value);
  }
}

function isTaken(name: NamedValue['name']): boolean {
  const lower = name.toLowerCase();
  return HEADER_FIELDS.has(lower) || lower.startsWith(OWN_PREFIX);
}

function delayOf(name: string, value: string | null): number {
  return milliseconds(name, value, 0, 0);
}

function expiryOf(value: SimpleValue | undefined): number | null {
  const at = value?.type === 'timestamp' ? Number(value.text) : Number.NaN;
  return at <= LIMITS.matureAt ? Math.max(0, at) : null;
}

function addressIn(value: SimpleValue | undefined): string | null {
  return value?.type === 'string' ? textOf('to', value.text) : null;
}

const PLAIN = /^[!-~](?:[ -~]*[!-~])?$/;

/** A user id is binary; if its bytes are plain text they are kept as that. */
function shownUser(value: SimpleValue): SimpleValue {
  if (value.type !== 'binary') return value;
  const text = Buffer.from(value.text, 'base64').toString('latin1');
  return PLAIN.test(text) ? { type: 'string', text } : value;
}
