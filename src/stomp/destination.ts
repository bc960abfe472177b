import type { Right, User } from '../access/user.ts';
import { type Broker, namespaceNotFound } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';
import { textOfBytes } from '../model/byte-text.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkName } from '../model/names.ts';

/** A queue that a user reached by its destination. */
export interface Destination {
  readonly namespace: Namespace;
  readonly queue: Queue;
}

const FORM = /^\/(?:q|queue)\/([^/]+)\/([^/]+)$/;

/** The names of `/q/<namespace>/<queue>`, each percent-decoded. @throws QuaysideError `invalid-name` */
export function parseDestination(bytes: string): { ns: string; name: string } {
  const [, ns, name] = FORM.exec(bytes) ?? [];
  if (ns === undefined || name === undefined) {
    throw invalid('A destination is /q/<namespace>/<queue>; write a / within a name as %2F.');
  }
  return { ns: checkName('namespace', decoded(ns)), name: checkName('queue', decoded(name)) };
}

/** Longer lists of remembered destinations begin anew. */
const REMEMBERED = 100;

/** Finds queues for one user, and asks for the right each time that it finds one. */
export class Destinations {
  readonly #broker: Broker;
  readonly #user: User;
  readonly #found = new Map<string, Destination>();

  constructor(broker: Broker, user: User) {
    this.#broker = broker;
    this.#user = user;
  }

  /** @throws QuaysideError `invalid-name`, `namespace-not-found`, `forbidden`, `too-many-queues` */
  find(bytes: string, right: Right): Destination {
    const known = this.#found.get(bytes);
    if (known !== undefined) {
      this.#check(right, known.namespace.name);
      return known;
    }
    const { ns, name } = parseDestination(bytes);
    const namespace = this.#broker.namespace(ns);
    this.#check(right, ns);
    const destination = { namespace, queue: namespace.queue(name) };
    if (this.#found.size >= REMEMBERED) this.#found.clear();
    this.#found.set(bytes, destination);
    return destination;
  }

  #check(right: Right, ns: string): void {
    if (this.#user.may(right, ns)) return;
    if (!this.#user.maySee(ns)) throw namespaceNotFound(ns);
    throw new QuaysideError('forbidden', `This needs the right ${right} in namespace ${ns}.`);
  }
}

function decoded(part: string): string {
  const text = textOfBytes(part);
  try {
    if (text !== null) return decodeURIComponent(text);
  } catch {
    // Said below, as for bytes that are not UTF-8.
  }
  throw invalid('The destination is not well percent-encoded UTF-8.');
}

function invalid(message: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter: 'destination' });
}
