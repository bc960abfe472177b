import type { JsonValue } from '../engine/definitions.ts';
import { invalidParameter } from '../model/errors.ts';
import { checkName } from '../model/names.ts';

/** An exchange as it was asked for (spec 4.2, Create payload). */
export interface Declaration {
  readonly src: QueueName;
  readonly dst: readonly Destination[];
  /** As given: the record shows it unchanged, `{}` when nothing was given. */
  readonly consumer: ConsumerOptions;
}

export interface QueueName {
  readonly ns: string;
  readonly queue: string;
}

export interface Destination extends QueueName {
  readonly selector?: string;
}

export interface ConsumerOptions {
  /** Loops that take side by side, 1 to 16. */
  readonly parallel?: number;
  /** Elements on their way at once, 1 to 65,536. */
  readonly wsize?: number;
  /** Reserve and commit, or pop. Where all queues share an engine that can reserve, elements are always reserved. */
  readonly reserve?: boolean;
}

export const CONSUMER_DEFAULTS = { parallel: 1, wsize: 1000, reserve: false } as const;
const MOST_PARALLEL = 16;
const LARGEST_WINDOW = 65_536;
/** More destinations than this are a mistake, or an attack: each element is copied to every one. */
const MOST_DESTINATIONS = 256;

type Fields = Readonly<Record<string, unknown>>;

/**
 * Reads a create payload. Unknown members of the payload, of `src` and of `dst` are ignored, as clients of
 * the interface send more; unknown consumer options are refused, since they would silently do nothing.
 * @param within the member of the body that it is; '' where it is the body
 * @throws QuaysideError `invalid-parameter` with the path of the field
 */
export function parseDeclaration(payload: unknown, within = ''): Declaration {
  const fields = record(payload, within);
  const { src, dst, consumer } = fields;
  const at = (path: string): string => pathWithin(within, path);
  if (!Array.isArray(dst) || dst.length === 0 || dst.length > MOST_DESTINATIONS) {
    throw invalidParameter(
      at('dst'),
      `${at('dst')} must be an array of 1 to ${MOST_DESTINATIONS} destinations.`,
    );
  }
  return {
    src: queueName(record(src, at('src')), at('src')),
    dst: dst.map((destination, i) => parseDestination(destination, at(`dst[${i}]`))),
    consumer: parseConsumer(record(consumer, at('consumer')), at('consumer')),
  };
}

function parseDestination(value: unknown, path: string): Destination {
  const fields = record(value, path);
  const { selector } = fields;
  const name = queueName(fields, path);
  if (selector === undefined || selector === null) return name;
  if (typeof selector !== 'string') {
    throw invalidParameter(`${path}.selector`, `${path}.selector must be a string, or be left out.`);
  }
  return { ...name, selector };
}

function parseConsumer(fields: Fields, path: string): ConsumerOptions {
  const { parallel, wsize, reserve, ...unknown } = fields;
  const [stranger] = Object.keys(unknown);
  if (stranger !== undefined) {
    throw invalidParameter(
      `${path}.${stranger}`,
      `${path}.${stranger} is not an option; there are parallel, wsize and reserve.`,
    );
  }
  if (reserve !== undefined && typeof reserve !== 'boolean') {
    throw invalidParameter(`${path}.reserve`, `${path}.reserve must be true or false.`);
  }
  return {
    ...(parallel !== undefined && { parallel: whole(parallel, `${path}.parallel`, MOST_PARALLEL) }),
    ...(wsize !== undefined && { wsize: whole(wsize, `${path}.wsize`, LARGEST_WINDOW) }),
    ...(reserve !== undefined && { reserve }),
  };
}

function queueName(fields: Fields, path: string): QueueName {
  return { ns: name(fields.ns, `${path}.ns`), queue: name(fields.queue, `${path}.queue`) };
}

function name(value: unknown, path: string): string {
  if (typeof value !== 'string') throw invalidParameter(path, `${path} must be a string.`);
  return checkName(path, value);
}

function whole(value: unknown, path: string, most: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 1 || value > most) {
    throw invalidParameter(path, `${path} must be a whole number from 1 to ${most}.`);
  }
  return value;
}

function record(value: unknown, path: string): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw invalidParameter(path, `${path === '' ? 'The body' : path} must be a JSON object.`);
  }
  return value as Fields;
}

/** The path of a declaration's field, in a body of which the declaration is a member, or the whole (''). */
export function pathWithin(within: string, path: string): string {
  return within === '' ? path : `${within}.${path}`;
}

/** Whether two declarations ask for the same: field by field, options as given. */
export function sameDeclaration(a: Declaration, b: Declaration): boolean {
  return JSON.stringify(canonical(a)) === JSON.stringify(canonical(b));
}

/** The declaration with its members in one order, as it is stored. */
export function canonical({ src, dst, consumer }: Declaration): JsonValue {
  const { parallel, wsize, reserve } = consumer;
  return {
    src: { ns: src.ns, queue: src.queue },
    dst: dst.map(({ ns, queue, selector }) => ({ ns, queue, ...(selector !== undefined && { selector }) })),
    consumer: {
      ...(parallel !== undefined && { parallel }),
      ...(wsize !== undefined && { wsize }),
      ...(reserve !== undefined && { reserve }),
    },
  };
}
