import type { EventContext, link as RheaLink, Session } from 'rhea';
import type { Broker } from '../broker/broker.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Destinations } from '../session/destinations.ts';
import type { InsertBatcher } from '../session/insert-batcher.ts';
import type { ConsumerSession } from '../session/push-consumer.ts';
import type { SettleBatcher } from '../session/settle-batcher.ts';
import { quote } from '../util/quote.ts';
import { wireError } from './errors.ts';
import type { Guard } from './guard/guard.ts';
import { forgetLink } from './rhea.ts';
import type { HeldTicket, SentTicket } from './tickets.ts';

/** The connection as its links see it. */
export interface LinkHost extends ConsumerSession {
  readonly broker: Broker;
  readonly guard: Guard;
  readonly bodyLimit: number;
  readonly storing: InsertBatcher<SentTicket>;
  readonly settling: SettleBatcher<HeldTicket>;
  /** Of the user, as they are now. */
  readonly destinations: Destinations;
  /** What was gathered is asked of the engine at the end of this turn. */
  planTurn(): void;
  /** The links of this session, which share its room, may take more: they are asked at the end of this turn. */
  roomIn(session: Session): void;
  /** This link is not open any more. */
  over(link: Link): void;
  /** The node stops: every link would end for the same reason. */
  end(reason: QuaysideError): void;
  /** A listener that never throws into rhea: a fault of ours ends the connection. */
  heard(listener: (context: EventContext) => void): (context: EventContext) => void;
  /** What the client may know of anything that was thrown. What an operator should know is logged. */
  shown(thrown: unknown): QuaysideError;
}

/** What links in both directions share: how they end. */
export abstract class Link {
  protected readonly host: LinkHost;
  readonly #rheaLink: RheaLink;
  #isOver = false;

  constructor(host: LinkHost, rheaLink: RheaLink) {
    this.host = host;
    this.#rheaLink = rheaLink;
    host.counts.links += 1;
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  get session(): Session {
    return this.#rheaLink.session;
  }

  /** Asks once more for the right that it was attached by. @throws QuaysideError where it is gone */
  abstract checkRight(): void;

  /** Takes or grants more, if there is room for it. */
  abstract fill(): void;

  /** Lets go of what it holds. Called once. */
  protected abstract letGo(countSeen: boolean): void;

  /** The peer ended it, or the whole connection ends. Harmless when repeated. */
  stop(countSeen: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.host.counts.links -= 1;
    this.host.over(this);
    this.letGo(countSeen);
    forgetLink(this.#rheaLink);
  }

  /** Ends it from this side, with an error. Harmless where it is over. */
  fail(thrown: unknown): void {
    if (this.#isOver) return;
    const error = this.host.shown(thrown);
    this.stop(true);
    if (error.code === 'shutting-down') this.host.end(error);
    else this.#rheaLink.close(wireError(error));
  }
}

/** Answers an `attach` that cannot be: the link opens without a terminus, and ends with the error. */
export function refuseAttach(rheaLink: RheaLink, thrown: unknown, host: LinkHost): void {
  rheaLink.close(wireError(host.shown(thrown)));
}

/** @throws QuaysideError `not-supported`, `invalid-name` if a source or target names no queue by itself */
export function addressOf(
  terminus: { readonly address?: unknown; readonly dynamic?: unknown } | null | undefined,
): string {
  if (terminus?.dynamic === true) {
    throw new QuaysideError(
      'not-supported',
      'dynamic is true, but queues are not created for a link. Name one.',
      {
        parameter: 'dynamic',
      },
    );
  }
  const address = terminus?.address;
  if (typeof address === 'string' && address !== '') return address;
  const given =
    address === '' || address === null || address === undefined
      ? 'no address'
      : `the address ${quote(address)}`;
  throw new QuaysideError(
    'invalid-name',
    `The link has ${given}. Give that of a queue: <namespace>/<queue>.`,
    {
      parameter: 'address',
    },
  );
}
