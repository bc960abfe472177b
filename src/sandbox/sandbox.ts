import type { Delivery, ElementHeaders } from '../model/element.ts';
import type { Service } from '../util/service.ts';
import type { Payer } from './line.ts';
import type { LogLine, OverrunCause, Place } from './protocol.ts';

/**
 * Asks the selectors of exchanges, in a place that they cannot leave, harm or keep busy for others
 * (reliability, section 1). The thread behind it starts with `start`, or when the first selector is checked or asked.
 */
export interface SelectorSandbox extends Service {
  /**
   * Checks selectors before their exchange is made: syntax, size, nothing that could not run, and that the
   * VM compiles them within its time.
   * @param payer whose time it takes
   * @throws QuaysideError `invalid-body`; `details.parameter` is the selector's `path`, `details.extra` has
   * `line` and `column` (from 1) where there is a place to point at. `shutting-down` after `stop`.
   */
  check(selectors: readonly SelectorSource[], payer: Payer): Promise<void>;

  /**
   * Makes the destinations of one exchange ready to be asked, in their order: a selector's source, or null
   * for a destination that always takes. Costs no thread and no VM until the first `select`. A selector that
   * cannot be compiled any more is an error of its destination, at each element.
   */
  open(selectors: readonly (string | null)[], options?: ProgramOptions): SelectorProgram;
}

export interface ProgramOptions {
  /** Whose time it takes; the node's own if not given. */
  readonly payer?: Payer;
  /** Whether answers tell what selectors wrote to their console; false if not given. */
  readonly logs?: boolean;
}

export interface SelectorSource {
  readonly source: string;
  /** Where it stood in what the client sent: `dst[0].selector`. */
  readonly path: string;
}

/** The selectors of one exchange. Its VM is nobody else's. */
export interface SelectorProgram {
  /**
   * Asks all destinations for each element. Answers in the order of the elements. Batches of any size are
   * cut to what fits into one call; calls may overlap, and those of other programs come in between.
   * @throws QuaysideError `shutting-down` after `stop`, `internal` where the thread cannot be started
   */
  select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]>;
  /** Lets go of the VM. A `select` after it opens it again. */
  close(): void;
}

/** What a selector may know of an element. */
export type SelectorInput = Pick<
  Delivery,
  'id' | 'tries' | 'matureAt' | 'headers' | 'body' | 'contentType' | 'contentEncoding'
>;

/**
 * What became of one element.
 * - `asked`: one verdict per destination.
 * - `overrun`: one of the selectors used more time or memory than it may, or the payload took too long to be read for
 *   them (`inPayload`). No destination has a verdict.
 * - `unasked`: three elements before it overran, one after the other. It goes back without blame.
 */
export type SelectorAnswer =
  | {
      readonly outcome: 'asked';
      readonly verdicts: readonly SelectorVerdict[];
      readonly logs: readonly LogLine[];
    }
  | {
      readonly outcome: 'overrun';
      readonly cause: OverrunCause;
      readonly error: string;
      readonly inPayload: boolean;
      readonly logs?: readonly LogLine[];
    }
  | { readonly outcome: 'unasked' };

export interface SelectorVerdict {
  /** Whether this destination takes the element. */
  readonly accepted: boolean;
  /**
   * What the selector threw, at most 200 characters, and its place: `accepted` is then false and its changes are undone.
   */
  readonly error: string | null;
  /** The place in the selector that it names; null if there is none. */
  readonly place: Place | null;
  /** Ms since 1970; null where the selector named none. */
  readonly matureAt: number | null;
  /** Null where the selector named none, or a maturity. */
  readonly delayMs: number | null;
  /** Null where the selector named none. */
  readonly tries: number | null;
  /** What this destination would store, checked as at an insert, its hop aside; null: as the element has them. */
  readonly headers: ElementHeaders | null;
  /** The same for the body. */
  readonly body: Uint8Array | null;
}
