import { randomBytes } from 'node:crypto';
import { CATCH_UP_AGAIN_MS, DefinitionWatchers } from '../../engine/definition-watchers.ts';
import {
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { isUnknownOutcome } from '../../engine/store-failures.ts';
import type { Clock } from '../../model/clock.ts';
import { Retries } from '../../model/retries.ts';
import { type Arg, asString, type Reply } from './client/connection.ts';
import type { Executor } from './client/executor.ts';
import type { Keys } from './keys.ts';
import type { Library } from './library.ts';
import type { Subscriptions } from './subscriptions.ts';

const KINDS: readonly DefinitionKind[] = ['queue', 'exchange', 'namespace'];

interface DefinitionsParts {
  readonly executor: Executor;
  readonly keys: Keys;
  readonly library: Library;
  readonly subscriptions: Subscriptions;
  readonly clock: Clock;
  readonly log: EngineLog;
}

/**
 * The Definitions port: a hash per kind, compared and set in one function, and a channel per kind that tells
 * other nodes. This node's own changes reach its watchers without the channel.
 */
export class RedisDefinitions implements Definitions {
  readonly #parts: DefinitionsParts;
  readonly #origin = randomBytes(8).toString('hex');
  readonly #watchers: DefinitionWatchers;
  readonly #reads: Retries;
  /**
   * Keys that this node knows, by the moment at which they were told last: those that a list does not find any more
   * have changed as well, and nobody may have heard of it.
   */
  readonly #seen = new Map<DefinitionKind, Map<string, number>>(KINDS.map((kind) => [kind, new Map()]));
  #moment = 0;

  constructor(parts: DefinitionsParts) {
    this.#parts = parts;
    this.#watchers = new DefinitionWatchers(parts.log);
    this.#reads = new Retries({
      clock: parts.clock,
      delayMs: CATCH_UP_AGAIN_MS,
      failed: (kind, error) =>
        parts.log.warn({ kind, err: error }, 'definitions could not be read after a lost connection yet'),
    });
    for (const kind of KINDS) {
      const channel = parts.keys.definitionChannel(kind);
      parts.subscriptions.subscribe(channel, false, (message) => this.#hear(kind, message));
      parts.subscriptions.onGap((lost) => {
        if (lost === channel) void this.#reads.do(kind, () => this.#tellAll(kind));
      });
    }
  }

  async get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const hash = this.#parts.keys.definitions(kind);
    const stored = await this.#parts.executor.read(hash, 'HGET', [hash, key]);
    return Buffer.isBuffer(stored) ? readDefinition(key, stored.toString()) : null;
  }

  async list(kind: DefinitionKind): Promise<Definition[]> {
    const hash = this.#parts.keys.definitions(kind);
    const before = this.#moment;
    const flat = await this.#parts.executor.read(hash, 'HGETALL', [hash]);
    if (!Array.isArray(flat)) return [];
    const found: Definition[] = [];
    for (let i = 0; i < flat.length; i += 2)
      found.push(readDefinition(asString(flat[i]), asString(flat[i + 1])));
    this.#note(kind, new Set(found.map(({ key }) => key)), before);
    return found.sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: JsonValue,
    expected: string | null | 'any',
  ): Promise<string> {
    const { keys, library } = this.#parts;
    const hash = keys.definitions(kind);
    const version = randomBytes(9).toString('base64url');
    const condition = expected === null ? '-' : conditionOf(expected);
    const args = [library.putDefinition, 1, hash, key, version, JSON.stringify(value), condition];
    const stored = await this.#change(kind, key, 'write', args);
    if (stored !== 1) throw definitionConflict(kind, key);
    this.#tell({ kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const { keys, library } = this.#parts;
    const args = [library.deleteDefinition, 1, keys.definitions(kind), key, conditionOf(expected)];
    const before = this.#moment;
    const deleted = await this.#change(kind, key, 'writeOnce', args);
    if (deleted === 0) throw definitionConflict(kind, key);
    this.#forget(kind, key, before);
    if (deleted === 1) this.#watchers.tell({ kind, key });
    return deleted === 1;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }

  /** What was missed is not read any more. */
  stop(): void {
    this.#reads.stop();
  }

  /** Calls a function, which tells the other nodes where it changes something. */
  async #change(
    kind: DefinitionKind,
    key: string,
    how: 'write' | 'writeOnce',
    args: readonly Arg[],
  ): Promise<Reply> {
    const { executor, keys } = this.#parts;
    const told = [keys.definitionChannel(kind), JSON.stringify([this.#origin, key])];
    try {
      return await executor[how](keys.definitions(kind), 'FCALL', [...args, ...told]);
    } catch (error) {
      // It may have been made: then the others have heard of it, and this node looks as well.
      if (isUnknownOutcome(error)) this.#tell({ kind, key });
      throw error;
    }
  }

  #hear(kind: DefinitionKind, message: string): void {
    const [origin, key] = JSON.parse(message) as [string, string];
    if (origin !== this.#origin) this.#tell({ kind, key });
  }

  /** Messages may have been missed: whoever watches looks at everything anew. */
  async #tellAll(kind: DefinitionKind): Promise<void> {
    for (const { key } of await this.list(kind)) this.#tell({ kind, key });
  }

  #tell(change: DefinitionChange): void {
    this.#moment += 1;
    this.#seen.get(change.kind)?.set(change.key, this.#moment);
    this.#watchers.tell(change);
  }

  /** What a list found that was asked after `before`. */
  #note(kind: DefinitionKind, found: ReadonlySet<string>, before: number): void {
    const seen = this.#seen.get(kind);
    for (const key of found) if (!seen?.has(key)) seen?.set(key, before);
    for (const key of [...(seen?.keys() ?? [])]) {
      if (!found.has(key) && this.#forget(kind, key, before)) this.#watchers.tell({ kind, key });
    }
  }

  /** Not where it was told since: somebody may have put it meanwhile. */
  #forget(kind: DefinitionKind, key: string, before: number): boolean {
    const seen = this.#seen.get(kind);
    return (seen?.get(key) ?? Number.POSITIVE_INFINITY) <= before && seen?.delete(key) === true;
  }
}

function conditionOf(expected: string | 'any'): string {
  return expected === 'any' ? 'any' : `=${expected}`;
}

function readDefinition(key: string, stored: string): Definition {
  const space = stored.indexOf(' ');
  return { key, version: stored.slice(0, space), value: JSON.parse(stored.slice(space + 1)) as JsonValue };
}
