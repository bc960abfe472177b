// Names of the parts of messages, and of the element headers that store them (docs/protocols/amqp.md, "Messages").

/** The fields of the properties section, in the order of the standard (messaging, 3.2.4). */
export const PROPERTY_FIELDS = [
  'message-id',
  'user-id',
  'to',
  'subject',
  'reply-to',
  'correlation-id',
  'content-type',
  'content-encoding',
  'absolute-expiry-time',
  'creation-time',
  'group-id',
  'group-sequence',
  'reply-to-group-id',
] as const;

/**
 * How the body was encoded in the message. An element has only bytes, so a form other than `data` is stored in a
 * header. For `value` (an `amqp-value` of any other type) and `sequence` (the lists of `amqp-sequence` sections), the
 * element's bytes are the AMQP encoding.
 */
export type BodyForm = 'data' | 'string' | 'binary' | 'null' | 'value' | 'sequence';

/** Numeric descriptors of the sections of a message (messaging, 3.2). */
export const SECTION = {
  header: 0x70,
  deliveryAnnotations: 0x71,
  messageAnnotations: 0x72,
  properties: 0x73,
  applicationProperties: 0x74,
  data: 0x75,
  sequence: 0x76,
  value: 0x77,
  footer: 0x78,
} as const;

/** More sections than any client writes. */
export const MAX_SECTIONS = 4096;

// Names of the element headers that store the parts of a message. Fields of its properties and application properties
// keep their names, so that every protocol can read them; names of parts specific to AMQP start with `x-amqp-`.

/** The original spelling of names that are not lower case, and the types of values that do not have the usual type. */
export const TYPES_HEADER = 'x-amqp-types';
/** The {@link BodyForm} of a body that was not encoded as data. */
export const BODY_HEADER = 'x-amqp-body';
/** Message annotations. */
export const ANNOTATION_PREFIX = 'x-amqp-annotation-';
/** Application properties whose names are taken already. */
export const PROPERTY_PREFIX = 'x-amqp-property-';
/** The prefix of all of these names. */
export const AMQP_PREFIX = 'x-amqp-';

/** Annotations of sent messages that do not come from the element's headers. */
export const ID_ANNOTATION = 'x-opt-ks-id';
export const MATURE_ANNOTATION = 'x-opt-ks-mature';
export const GROUP_ANNOTATION = 'x-opt-ks-group';
export const SENT_ANNOTATIONS: ReadonlySet<string> = new Set([
  ID_ANNOTATION,
  MATURE_ANNOTATION,
  GROUP_ANNOTATION,
]);

/** Annotations that have a meaning in a client's message. */
export const DELIVERY_TIME_ANNOTATION = 'x-opt-delivery-time';
export const DELIVERY_DELAY_ANNOTATION = 'x-opt-delivery-delay';

/** Application properties that have a meaning in a client's message, as the headers of these names have in STOMP. */
export const GROUPS_PROPERTY = 'x-ks-groups';
export const NEXT_T_PROPERTY = 'x-next-t';
export const DELTA_T_PROPERTY = 'x-delta-t';

/**
 * Fields that are stored as element headers of the same names, with their indexes. The other two, content type and
 * encoding, are fields of an element.
 */
export const HEADER_FIELDS: ReadonlyMap<string, number> = new Map(
  PROPERTY_FIELDS.map((field, at): [string, number] => [field, at]).filter(
    ([field]) => field !== 'content-type' && field !== 'content-encoding',
  ),
);

/** Whether the name of an application property is that of another part of a message, so that it needs a prefix. */
export function isReserved(name: string): boolean {
  const lower = name.toLowerCase();
  return HEADER_FIELDS.has(lower) || lower.startsWith(AMQP_PREFIX);
}
