import { randomBytes } from 'node:crypto';
import { isUnknownOutcome } from '../../engine/calls.ts';
import {
  DEFINITION_KINDS,
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  DefinitionWatchers,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { type Arg, asString, type Reply } from './client/connection.ts';
import type { Executor } from './client/executor.ts';
import type { Keys } from './keys.ts';
import type { Library } from './library.ts';
import type { Subscriptions } from './subscriptions.ts';

interface DefinitionsParts {
  readonly executor: Executor;
  readonly keys: Keys;
  readonly library: Library;
  readonly subscriptions: Subscriptions;
  readonly log: EngineLog;
}

/**
 * The Definitions port: a hash per kind, compared and set in one function, which publishes to a channel per kind. This
 * node's own changes reach its watchers without the channel.
 */
export class RedisDefinitions implements Definitions {
  readonly #parts: DefinitionsParts;
  readonly #origin = randomBytes(8).toString('hex');
  readonly #watchers: DefinitionWatchers;

  constructor(parts: DefinitionsParts) {
    this.#parts = parts;
    this.#watchers = new DefinitionWatchers(parts.log);
    for (const kind of DEFINITION_KINDS) {
      const channel = parts.keys.definitionChannel(kind);
      parts.subscriptions.subscribe(channel, false, (message) => this.#onMessage(kind, message));
      parts.subscriptions.onGap((lost) => {
        if (lost === channel) this.#watchers.notify({ kind, key: null });
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
    const flat = await this.#parts.executor.read(hash, 'HGETALL', [hash]);
    if (!Array.isArray(flat)) return [];
    const found: Definition[] = [];
    for (let i = 0; i < flat.length; i += 2)
      found.push(readDefinition(asString(flat[i]), asString(flat[i + 1])));
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
    this.#watchers.notify({ kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const { keys, library } = this.#parts;
    const args = [library.deleteDefinition, 1, keys.definitions(kind), key, conditionOf(expected)];
    const deleted = await this.#change(kind, key, 'writeOnce', args);
    if (deleted === 0) throw definitionConflict(kind, key);
    if (deleted === 1) this.#watchers.notify({ kind, key });
    return deleted === 1;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }

  /** Calls a function, which publishes what it changes. */
  async #change(
    kind: DefinitionKind,
    key: string,
    how: 'write' | 'writeOnce',
    args: readonly Arg[],
  ): Promise<Reply> {
    const { executor, keys } = this.#parts;
    const publication = [keys.definitionChannel(kind), JSON.stringify([this.#origin, key])];
    try {
      return await executor[how](keys.definitions(kind), 'FCALL', [...args, ...publication]);
    } catch (error) {
      // It may have been made: then it was published, and this node has to read it as well.
      if (isUnknownOutcome(error)) this.#watchers.notify({ kind, key });
      throw error;
    }
  }

  #onMessage(kind: DefinitionKind, message: string): void {
    const [origin, key] = JSON.parse(message) as [string, string];
    if (origin !== this.#origin) this.#watchers.notify({ kind, key });
  }
}

function conditionOf(expected: string | 'any'): string {
  return expected === 'any' ? 'any' : `=${expected}`;
}

function readDefinition(key: string, stored: string): Definition {
  const space = stored.indexOf(' ');
  return { key, version: stored.slice(0, space), value: JSON.parse(stored.slice(space + 1)) as JsonValue };
}
