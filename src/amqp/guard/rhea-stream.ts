import { EventEmitter } from 'node:events';

/** What rhea does with its connection's stream. */
export interface RheaSide {
  /** One whole frame, or the protocol header. */
  write(bytes: Buffer): void;
  /** rhea has nothing more to say. */
  end(): void;
  /** rhea wants the connection cut. */
  destroy(): void;
}

/**
 * The part of a socket that rhea's `Connection.accept` uses. A full `Duplex` would queue and pace what the
 * guard has checked and paced already; here `data` reaches rhea within the call that checked it.
 */
export class RheaStream extends EventEmitter {
  readonly #side: RheaSide;

  constructor(side: RheaSide) {
    super();
    this.#side = side;
  }

  write(bytes: Buffer): boolean {
    this.#side.write(bytes);
    return true;
  }

  end(): void {
    this.#side.end();
  }

  destroy(): void {
    this.#side.destroy();
  }

  /** For rhea's debug log. */
  get_id_string(): string {
    return 'guarded';
  }
}
