import { type Right, refusal, type User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { Queue } from '../broker/queue.ts';

/** A queue that a user reached by its destination. */
export interface Destination {
  readonly namespace: Namespace;
  readonly queue: Queue;
}

/** Reads the names in a destination. @throws QuaysideError `invalid-name` */
export type ParseDestination = (text: string) => { readonly ns: string; readonly name: string };

/** The cache is cleared when it holds this many destinations. */
const REMEMBERED = 100;

/** Finds queues by their destinations, and checks one user's right each time. */
export class Destinations {
  readonly #broker: Broker;
  readonly #user: User;
  readonly #parse: ParseDestination;
  readonly #found = new Map<string, Destination>();

  constructor(broker: Broker, user: User, parse: ParseDestination) {
    this.#broker = broker;
    this.#user = user;
    this.#parse = parse;
  }

  /** @throws QuaysideError `invalid-name`, `namespace-not-found`, `forbidden`, `too-many-queues` */
  find(text: string, right: Right): Destination {
    const known = this.#found.get(text);
    if (known !== undefined) {
      this.#check(right, known.namespace.name);
      return known;
    }
    const { ns, name } = this.#parse(text);
    const namespace = this.#broker.namespace(ns);
    this.#check(right, ns);
    const destination = { namespace, queue: namespace.queue(name) };
    if (this.#found.size >= REMEMBERED) this.#found.clear();
    this.#found.set(text, destination);
    return destination;
  }

  /** Whether the user is shown bodies when browsing there; see `User.maySeeBodies`. */
  maySeeBodies(ns: string): boolean {
    return this.#user.maySeeBodies(ns);
  }

  #check(right: Right, ns: string): void {
    const reason = refusal(this.#user, right, ns);
    if (reason !== null) throw reason;
  }
}
