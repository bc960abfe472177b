/** A place in the order of hand-out: maturity, then the element's number. */
export interface Place {
  readonly dueAt: number;
  readonly seq: number;
}

const START: Place = { dueAt: Number.MIN_SAFE_INTEGER, seq: 0 };

/** Takes between two probes, at least: a queue that hardly moves leaves nothing to step over. */
export const TAKEN_BETWEEN_PROBES = 500;
const PROBE_EVERY_MS = 250;
/** A look from the very start may cost this share of the time, so the next one waits as many times its length. */
const FULL_PROBE_PAUSE = 20;
/** Pages that a look from the start may read before a mark is worth its inexactness: about half a millisecond. */
const CHEAP_PAGES = 64;
/**
 * How far a mark stays behind the present: another node's insert may commit a little after a younger one.
 * What comes even later is found by the next look from the start.
 */
const LAG_MS = 300;

/**
 * Where the waiting deliveries of a lane begin, as far as this node knows.
 *
 * Index entries of deliveries that are gone stay at the front of the index until a vacuum removes them, and
 * no vacuum can while some transaction, anywhere in the database, is older than they are. A take
 * that begins at the very front steps over all of them: at a million, a quarter of a second each time. So,
 * where a probe from the front turns out to be slow, takes begin at the first delivery that it found.
 *
 * What can appear before the mark: what this node does itself (inserts with a past maturity, give-backs,
 * leases that end) lowers the mark at once; what another node does is found by the next full probe.
 */
export class Mark {
  #place: Place = START;
  /** Counts lowerings: what a probe saw before one must not raise the mark again. */
  #lowered = 0;
  #taken = 0;
  #probedAt = Number.NEGATIVE_INFINITY;
  #fullProbeAt = Number.NEGATIVE_INFINITY;
  #fullCostMs = 0;

  /** Takes and looks begin here. */
  get place(): Place {
    return this.#place;
  }

  /** While true, another node's give-back may lie before the mark until the next full probe. */
  get isSet(): boolean {
    return this.#place !== START;
  }

  /** Something that matures at `dueAt` begins to wait, or may do so within a moment; -Infinity: at any time. */
  lower(dueAt: number): void {
    this.#lowered += 1;
    if (!this.isSet || dueAt > this.#place.dueAt) return;
    this.#place = dueAt > START.dueAt ? { dueAt, seq: 0 } : START;
  }

  took(count: number): void {
    this.#taken += count;
  }

  /** Where to probe from at `nowMs` (monotonic), or null where it is not worth it yet. */
  probeFrom(nowMs: number): Place | null {
    if (nowMs - this.#probedAt < PROBE_EVERY_MS) return null;
    const isBusy = this.#taken >= TAKEN_BETWEEN_PROBES;
    if (this.#isFullProbeDue(nowMs)) return this.isSet || isBusy ? START : null;
    return this.isSet && isBusy ? this.#place : null;
  }

  /** How long until a full probe will have been made again, ms. */
  fullProbeInMs(nowMs: number): number {
    return Math.max(this.#fullProbeAt + this.#fullCostMs * FULL_PROBE_PAUSE - nowMs, PROBE_EVERY_MS);
  }

  /** Begins a probe; the answered function takes what it found. */
  probing(from: Place, nowMs: number): (found: Probed | null) => void {
    const lowered = this.#lowered;
    const isFull = from === START;
    this.#taken = 0;
    this.#probedAt = nowMs;
    return (probed) => {
      if (isFull) {
        this.#fullProbeAt = nowMs;
        this.#fullCostMs = probed?.costMs ?? Math.max(this.#fullCostMs * 2, PROBE_EVERY_MS);
      }
      if (probed === null || lowered !== this.#lowered) return;
      this.#place = isFull && probed.pages < CHEAP_PAGES ? START : markAt(probed);
    };
  }

  #isFullProbeDue(nowMs: number): boolean {
    return nowMs - this.#fullProbeAt >= this.#fullCostMs * FULL_PROBE_PAUSE;
  }
}

/** What a probe saw. */
export interface Probed {
  /** The first waiting delivery; null where none waits. */
  readonly first: Place | null;
  /** The database's clock. */
  readonly now: number;
  /** What the look cost: time, and pages of table and index, which do not depend on what else runs. */
  readonly costMs: number;
  readonly pages: number;
}

function markAt({ first, now }: Probed): Place {
  const latest = now - LAG_MS;
  return first !== null && first.dueAt < latest ? first : { dueAt: latest, seq: 0 };
}
