import type { ElementId } from '../model/element.ts';

/** Overruns after which an element is not asked about again. */
const MAX_OF_ELEMENT = 3;
/** Different elements in a row that overran for their selectors before the exchange is stopped. */
const STRIKES = 3;
/** Elements remembered; of more, those that overran longest ago start at zero again. */
const MAX_ELEMENTS = 10_000;

/** Counts the elements of an exchange that use more of the sandbox than they may, on this node. */
export class Overruns {
  /** By element, the one that overran last at the end. */
  readonly #byElement = new Map<ElementId, number>();
  readonly #inARow = new Set<ElementId>();

  clear(): void {
    this.#byElement.clear();
    this.#inARow.clear();
  }

  passed(id: ElementId): void {
    this.#inARow.clear();
    if (this.#byElement.size > 0) this.#byElement.delete(id);
  }

  /**
   * An element overran: whether that was its last try, and whether it completes the strikes against the selectors.
   * @param inPayload its payload is to blame, and not a selector
   */
  failed(id: ElementId, inPayload: boolean): { readonly isLast: boolean; readonly isStrike: boolean } {
    const count = (this.#byElement.get(id) ?? 0) + 1;
    const isLast = count >= MAX_OF_ELEMENT;
    this.#byElement.delete(id);
    if (!isLast) this.#byElement.set(id, count);
    const [oldest] = this.#byElement.keys();
    if (this.#byElement.size > MAX_ELEMENTS && oldest !== undefined) this.#byElement.delete(oldest);
    if (inPayload || this.#inARow.has(id)) return { isLast, isStrike: false };
    this.#inARow.add(id);
    return { isLast, isStrike: this.#inARow.size === STRIKES };
  }
}
