import type { Delivery } from '../model/element.ts';
import { payloadName } from '../sandbox/kinds.ts';
import type { Clock } from '../util/clock.ts';

/** How selectors saw an element. */
export interface Sighting {
  readonly id: string;
  readonly at: string;
  readonly payload: 'json' | 'text' | 'bytes';
  readonly content_type: string;
  readonly content_encoding: string | null;
}

/** The last element that selectors were asked about, and the last one that none of them accepted. */
export interface LastSeen {
  readonly last: Sighting | null;
  readonly last_no_route: Sighting | null;
}

type Seen = Pick<Delivery, 'id' | 'contentType' | 'contentEncoding'> & { readonly at: number };

/** Remembers how selectors saw elements lately: with another content type than expected, none accepts. */
export class Sightings {
  readonly #clock: Clock;
  #last: Seen | null = null;
  #lastNoRoute: Seen | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(plans: readonly { readonly delivery: Delivery; readonly unroutable: string | null }[]): void {
    const last = plans.at(-1);
    if (last === undefined) return;
    this.#last = this.#seen(last.delivery);
    const noRoute = plans.findLast(({ unroutable }) => unroutable === 'no-route');
    if (noRoute !== undefined) this.#lastNoRoute = this.#seen(noRoute.delivery);
  }

  show(): LastSeen {
    return {
      last: this.#last === null ? null : shown(this.#last),
      last_no_route: this.#lastNoRoute === null ? null : shown(this.#lastNoRoute),
    };
  }

  /** Without the body, which is not to be kept alive. */
  #seen({ id, contentType, contentEncoding }: Delivery): Seen {
    return { id, contentType, contentEncoding, at: this.#clock.now() };
  }
}

function shown({ id, at, contentType, contentEncoding }: Seen): Sighting {
  return {
    id,
    at: new Date(at).toISOString(),
    payload: payloadName(contentType, contentEncoding),
    content_type: contentType ?? 'application/octet-stream',
    content_encoding: contentEncoding,
  };
}
