import type { Clock } from '../model/clock.ts';
import { Retries } from '../model/retries.ts';
import { CATCH_UP_AGAIN_MS, DefinitionWatchers } from './definition-watchers.ts';
import type { DefinitionChange, DefinitionKind } from './definitions.ts';
import type { EngineLog } from './engine.ts';
import type { Signaller } from './signaller.ts';
import { isUnknownOutcome } from './store-failures.ts';

/** A document's version, and what to say where it is another than before. */
export interface SeenVersion {
  readonly kind: DefinitionKind;
  readonly key: string;
  readonly version: string;
}

interface FollowerParts {
  readonly signaller: Signaller;
  readonly clock: Clock;
  readonly log: EngineLog;
  /** The versions of all documents, as the engine has them now. */
  readonly versions: () => Promise<readonly SeenVersion[]>;
}

/** The topic that changes travel under; no front end's topic begins with a dot. */
const TOPIC = '.definitions';

/**
 * Lets nodes hear of each other's changes to definitions by signals. As signals may be lost while nobody listens,
 * what changed meanwhile is looked up by `catchUp`, which the engine calls when it hears again.
 */
export class DefinitionFollower {
  readonly #parts: FollowerParts;
  readonly #watchers: DefinitionWatchers;
  readonly #reads: Retries;
  /** The versions last told to those who watch; null while nobody does. */
  #told: ReadonlyMap<string, SeenVersion> | null = null;
  #unsubscribe: (() => void) | null = null;

  constructor(parts: FollowerParts) {
    this.#parts = parts;
    this.#watchers = new DefinitionWatchers(parts.log);
    this.#reads = new Retries({
      clock: parts.clock,
      delayMs: CATCH_UP_AGAIN_MS,
      failed: (_, error) =>
        parts.log.info({ err: error }, 'definitions could not be compared; that is tried until it works'),
    });
  }

  /** Tells all nodes, this one included, of a change that the engine has. */
  changed(kind: DefinitionKind, key: string): void {
    this.#parts.signaller.publish(TOPIC, { kind, key });
  }

  /** A change failed. Where it may have been made all the same, all nodes look. */
  failed(kind: DefinitionKind, key: string, error: unknown): void {
    if (isUnknownOutcome(error)) this.changed(kind, key);
  }

  /** As `Definitions.watch`. */
  watch(listener: (change: DefinitionChange) => void): () => void {
    const end = this.#watchers.add(listener);
    this.#unsubscribe ??= this.#parts.signaller.subscribe(TOPIC, (message) =>
      this.#watchers.tell(message as unknown as DefinitionChange),
    );
    if (this.#told === null) void this.catchUp();
    return () => {
      end();
      if (!this.#watchers.isEmpty) return;
      this.#unsubscribe?.();
      this.#unsubscribe = null;
      this.#told = null;
    };
  }

  /** Tells of what changed since the last look; if that fails, later. Never throws. */
  catchUp(): Promise<void> {
    return this.#reads.do('versions', () => this.#compare());
  }

  /** Nothing is tried again any more. */
  stop(): void {
    this.#reads.stop();
  }

  async #compare(): Promise<void> {
    if (this.#watchers.isEmpty) return;
    const before = this.#told;
    const versions = await this.#parts.versions();
    const now = new Map(versions.map((seen) => [`${seen.kind} ${seen.key}`, seen]));
    if (this.#watchers.isEmpty) return;
    this.#told = now;
    if (before === null) return;
    for (const [name, seen] of now) {
      if (before.get(name)?.version !== seen.version) this.#watchers.tell(seen);
    }
    for (const [name, seen] of before) if (!now.has(name)) this.#watchers.tell(seen);
  }
}
