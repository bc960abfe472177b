import { type Timeline, UnfitServer } from './connection.ts';

/**
 * The newest primary that the connections of a node have used. A standby that is promoted begins a new timeline. If the
 * old primary still runs, or comes back, it is a second primary on the older timeline: what it acknowledges is lost
 * when it is made a standby. So no connection uses a timeline that is older than that of any other one, now or before.
 */
export class Primary {
  #newest: Timeline | null = null;
  readonly #onNewer: (() => void)[] = [];

  /** @param onNewer called when a connection has found a newer primary */
  follow(onNewer: () => void): void {
    this.#onNewer.push(onNewer);
  }

  /** Whether another primary has replaced the one on this timeline; null: the server does not tell its timeline. */
  hasReplaced(timeline: Timeline | null): boolean {
    const newest = this.#newest;
    return newest !== null && timeline?.system === newest.system && timeline.number < newest.number;
  }

  /** @throws UnfitServer if another primary has replaced this one */
  admit(timeline: Timeline | null): void {
    if (this.hasReplaced(timeline)) {
      throw new UnfitServer(
        `it is an old primary: its timeline ${timeline?.number} is older than ${this.#newest?.number}; make it a standby of the new one, or, if you restored it from a backup, restart this node`,
      );
    }
    if (
      timeline === null ||
      (this.#newest?.system === timeline.system && this.#newest.number === timeline.number)
    ) {
      return;
    }
    this.#newest = timeline;
    for (const onNewer of this.#onNewer) onNewer();
  }
}
