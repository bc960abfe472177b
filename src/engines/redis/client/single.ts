import type { Address } from '../settings.ts';
import { Node } from './node.ts';
import type { Router, RouterParts } from './router.ts';
import { findMaster } from './sentinel.ts';

/** One server for everything: standalone, or the master that Sentinels name. */
export class SingleRouter implements Router {
  readonly isCluster = false;
  readonly #parts: RouterParts;
  readonly #node: Node;
  #onChange: () => void = () => {};
  #started = false;

  constructor(parts: RouterParts) {
    this.#parts = parts;
    const { clock, library, settings } = parts;
    const { shown } = settings;
    this.#node = new Node(
      {
        clock,
        library,
        login: settings.login,
        wait: settings.wait,
        givenTime: settings.givenTime,
        isSuccessor: false,
        locate: () => this.#locate(),
      },
      {
        onFacts: (facts) => {
          if (facts.isReplica) this.#leave();
          else parts.onFacts(facts);
          this.#onChange();
        },
        onDown: (reason) => parts.onDown(shown, reason),
      },
    );
  }

  async start(): Promise<void> {
    this.#node.start();
    const { isReplica } = await this.#node.ready();
    if (isReplica) throw isNoMaster();
    this.#started = true;
  }

  stop(): void {
    this.#node.stop();
  }

  nodeFor(): Node {
    return this.#node;
  }

  nodes(): readonly Node[] {
    return [this.#node];
  }

  nodeAt(): Node {
    return this.#node;
  }

  moved(): void {}

  doubt(): void {}

  onChange(listener: () => void): void {
    this.#onChange = listener;
  }

  /** A master that came back as a replica: asks where the master is. */
  #leave(): void {
    this.#node.renew();
    if (this.#started) this.#parts.onDown(this.#parts.settings.shown, isNoMaster());
  }

  async #locate(): Promise<Address> {
    const { settings, clock } = this.#parts;
    const [first] = settings.addresses;
    if (first === undefined) throw new Error('no server is named');
    return settings.sentinel === null ? first : findMaster(settings.sentinel, settings.addresses, clock);
  }
}

function isNoMaster(): Error {
  return new Error('it is a replica; name its master, or its Sentinels with ?sentinel=NAME');
}
