import { createHash } from 'node:crypto';
import type { JsonValue } from '../engine/definitions.ts';
import { invalidParameter } from '../model/errors.ts';
import { type Members, membersOf, wrongMember } from '../model/members.ts';
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

/**
 * Parses a create payload. Unknown members are rejected: a misspelt `selector` would copy everything.
 * @param within the member of the body that it is; '' where it is the body
 * @throws QuaysideError `invalid-parameter` with the path of the field
 */
export function parseDeclaration(payload: unknown, within = ''): Declaration {
  const { src, dst, consumer } = membersOf(payload, within, ['src', 'dst', 'consumer']);
  const at = (path: string): string => pathWithin(within, path);
  if (!Array.isArray(dst)) throw wrongMember(at('dst'), dst, 'an array of destinations');
  if (dst.length === 0 || dst.length > MOST_DESTINATIONS) {
    throw invalidParameter(
      at('dst'),
      `${at('dst')} must have 1 to ${MOST_DESTINATIONS} destinations, not ${dst.length}.`,
    );
  }
  return {
    src: queueName(membersOf(src, at('src'), ['ns', 'queue']), at('src')),
    dst: dst.map((destination, i) => parseDestination(destination, at(`dst[${i}]`))),
    consumer: parseConsumer(consumer, at('consumer')),
  };
}

function parseDestination(value: unknown, path: string): Destination {
  const members = membersOf(value, path, ['ns', 'queue', 'selector']);
  const { selector } = members;
  const name = queueName(members, path);
  if (selector === undefined || selector === null) return name;
  if (typeof selector !== 'string') throw wrongMember(`${path}.selector`, selector, 'a string, or left out');
  return { ...name, selector };
}

function parseConsumer(value: unknown, path: string): ConsumerOptions {
  const { parallel, wsize, reserve } = membersOf(value, path, ['parallel', 'wsize', 'reserve']);
  if (reserve !== undefined && typeof reserve !== 'boolean') {
    throw wrongMember(`${path}.reserve`, reserve, 'true or false');
  }
  return {
    ...(parallel !== undefined && { parallel: whole(parallel, `${path}.parallel`, MOST_PARALLEL) }),
    ...(wsize !== undefined && { wsize: whole(wsize, `${path}.wsize`, LARGEST_WINDOW) }),
    ...(reserve !== undefined && { reserve }),
  };
}

function queueName({ ns, queue }: Members, path: string): QueueName {
  return { ns: name(ns, `${path}.ns`), queue: name(queue, `${path}.queue`) };
}

function name(value: unknown, path: string): string {
  if (typeof value !== 'string') throw wrongMember(path, value, 'a string');
  return checkName(path, value);
}

function whole(value: unknown, path: string, max: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw wrongMember(path, value, `a whole number from 1 to ${max}`);
}

/** The path of a declaration's field, in a body of which the declaration is a member, or the whole (''). */
export function pathWithin(within: string, path: string): string {
  return within === '' ? path : `${within}.${path}`;
}

/** Whether two declarations ask for the same: field by field, options as given. */
export function sameDeclaration(a: Declaration, b: Declaration): boolean {
  return JSON.stringify(canonical(a)) === JSON.stringify(canonical(b));
}

/** A short name of what is declared: the same for the same declaration, on every node. */
export function versionOf(declaration: Declaration): string {
  const text = JSON.stringify(canonical(declaration));
  return createHash('sha256').update(text).digest('base64url').slice(0, 22);
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
