import type { Delivery } from 'rhea';
import type { WriteObserver } from '../session/outstanding.ts';
import { forgetBytes } from './rhea.ts';

/** An element on its way to the client, as rhea's delivery: it hears its fate once, whoever knows it first. */
export class Carried implements WriteObserver {
  #delivery: Delivery | null = null;
  #cargo: WriteObserver | null = null;

  /** What it is, known only when rhea has given it a number. */
  ride(delivery: Delivery, cargo: WriteObserver): void {
    this.#delivery = delivery;
    this.#cargo = cargo;
  }

  written(): void {
    if (this.#delivery !== null) forgetBytes(this.#delivery);
    this.#cargo?.written();
    this.#cargo = null;
  }

  lost(): void {
    this.#cargo?.lost();
    this.#cargo = null;
  }
}
