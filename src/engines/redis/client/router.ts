import type { Clock } from '../../../model/clock.ts';
import type { Library } from '../library.ts';
import type { Settings } from '../settings.ts';
import type { ServerFacts } from './greeting.ts';
import type { Node } from './node.ts';

/** Knows which server has which slot. */
export interface Router {
  /** Whether queues may lie on different servers, so that no call may touch two of them. */
  readonly isCluster: boolean;
  /** Resolves when every slot can be served. @throws Error that names the store and the remedy */
  start(): Promise<void>;
  stop(): void;
  /** Null where nobody is known to have it. */
  nodeFor(slot: number): Node | null;
  /** The servers that are known now. */
  nodes(): readonly Node[];
  /** The server at this address, which a reply named. */
  nodeAt(address: string): Node;
  /** A reply said that this slot is there now. */
  moved(slot: number, address: string): void;
  /** Something does not fit what we know: look anew, soon. */
  doubt(): void;
  /** Calls `listener` whenever slots may have gone elsewhere, or a server came back. */
  onChange(listener: () => void): void;
}

export interface RouterParts {
  readonly clock: Clock;
  readonly library: Library;
  readonly settings: Settings;
  /** Called at every connection that becomes ready. */
  readonly onFacts: (facts: ServerFacts) => void;
  readonly onDown: (server: string, reason: Error) => void;
}
