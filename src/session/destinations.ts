import { checkRight, type User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Queue } from '../broker/queue.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkName, type QueueKey } from '../model/names.ts';
import type { Right } from '../model/rights.ts';
import { ownString } from '../util/own-bytes.ts';
import { quote } from '../util/quote.ts';

/** Parses a destination. @throws QuaysideError `invalid-name` */
export type ParseDestination = (text: string) => QueueKey;

/** The cache is cleared when it holds this many destinations. */
const MAX_CACHED = 100;

/** Looks up queues by destination, with a cache, and checks the user's right each time. */
export class Destinations {
  readonly user: User;
  readonly #broker: Broker;
  readonly #parse: ParseDestination;
  readonly #cache = new Map<string, Queue>();

  constructor(broker: Broker, user: User, parse: ParseDestination) {
    this.#broker = broker;
    this.user = user;
    this.#parse = parse;
  }

  /** @throws QuaysideError `invalid-name`, `namespace-not-found`, `forbidden`, `too-many-queues` */
  find(destination: string, right: Right): Queue {
    const cached = this.#cache.get(destination);
    if (cached !== undefined) {
      const { namespace, key } = cached;
      checkRight(this.user, right, key.ns);
      // If the queue was dropped since, it counts against the limit of queues again.
      if (right !== 'browse' && !namespace.knownNames.has(key.name)) namespace.queue(key.name);
      return cached;
    }
    const { ns, name } = this.#parse(destination);
    const namespace = this.#broker.namespace(ns);
    checkRight(this.user, right, ns);
    // Browsing creates no queue, so the limit of queues does not apply.
    if (right === 'browse') return namespace.visit(name);
    const queue = namespace.queue(name);
    if (this.#cache.size >= MAX_CACHED) this.#cache.clear();
    this.#cache.set(ownString(destination), queue);
    return queue;
  }
}

/**
 * Decodes the names in a destination.
 * @param parameter how the protocol calls it
 * @throws QuaysideError `invalid-name`
 */
export function decodeNames(ns: string, name: string, parameter: string): QueueKey {
  return {
    ns: checkName('namespace', decodePart(ns, parameter), parameter),
    name: checkName('queue', decodePart(name, parameter), parameter),
  };
}

/** Decodes a part of a destination. @throws QuaysideError `invalid-name` */
export function decodePart(part: string, parameter: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    const message = `${quote(part)} in the ${parameter} is not percent-encoded UTF-8. Write % as %25.`;
    throw invalidDestination(message, parameter);
  }
}

export function invalidDestination(message: string, parameter: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter });
}
