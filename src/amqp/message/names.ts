import { FIELD_AT, PROPERTY_FIELDS } from './sections.ts';

// How the parts of a message are named among an element's headers. Fields of its properties keep their names,
// and so do application properties, so that every protocol reads them; what only AMQP knows begins with `x-amqp-`.

/** The exact spelling and type of names and values that are not lower-case strings. */
export const TYPES_HEADER = 'x-amqp-types';
/** The form of a body that was not written as data. */
export const BODY_HEADER = 'x-amqp-body';
/** Message annotations. */
export const ANNOTATION_PREFIX = 'x-amqp-annotation-';
/** Application properties whose names are taken already. */
export const PROPERTY_PREFIX = 'x-amqp-property-';
/** Everything that only AMQP knows. */
export const OWN_PREFIX = 'x-amqp-';

/** Annotations of what is sent, which the element's headers do not contain. */
export const ID_ANNOTATION = 'x-opt-ks-id';
export const MATURE_ANNOTATION = 'x-opt-ks-mature';
export const GROUP_ANNOTATION = 'x-opt-ks-group';
export const SHOWN_ANNOTATIONS: ReadonlySet<string> = new Set([
  ID_ANNOTATION,
  MATURE_ANNOTATION,
  GROUP_ANNOTATION,
]);

/** Annotations of a message that is sent here, with a meaning. */
export const DELIVERY_TIME_ANNOTATION = 'x-opt-delivery-time';
export const DELIVERY_DELAY_ANNOTATION = 'x-opt-delivery-delay';

/** Application properties with a meaning, as STOMP has them for headers. */
export const GROUPS_PROPERTY = 'x-ks-groups';
export const NEXT_T_PROPERTY = 'x-next-t';
export const DELTA_T_PROPERTY = 'x-delta-t';

/** Fields that are kept as element headers of their own names, and their places; an element has the other two in addition. */
export const HEADER_FIELDS: ReadonlyMap<string, number> = new Map(
  PROPERTY_FIELDS.map((field, at): [string, number] => [field, at]).filter(
    ([, at]) => at !== FIELD_AT.contentType && at !== FIELD_AT.contentEncoding,
  ),
);
