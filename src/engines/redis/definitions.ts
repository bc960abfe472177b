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
import type { Channels } from './channels.ts';
import { type Arg, asString, type Reply } from './client/connection.ts';
import type { RedisContext } from './context.ts';

/**
 * The Definitions port: a hash per kind, compared and set in one function, which publishes to a channel per kind. This
 * node's own changes reach its watchers without the channel.
 */
export class RedisDefinitions implements Definitions {
  readonly #context: RedisContext;
  readonly #channels: Channels;
  readonly #watchers: DefinitionWatchers;

  constructor(context: RedisContext, channels: Channels) {
    this.#context = context;
    this.#channels = channels;
    this.#watchers = new DefinitionWatchers(context.log);
    for (const kind of DEFINITION_KINDS) {
      const notify = (key: string | null): void => this.#watchers.notify({ kind, key });
      const channel = context.keys.definitionChannel(kind);
      const options = { sharded: false, onGap: () => notify(null) };
      channels.subscribe(channel, options, (key) => notify(String(key)));
    }
  }

  async get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const hash = this.#context.keys.definitions(kind);
    const stored = await this.#context.executor.read(hash, 'HGET', [hash, key]);
    return Buffer.isBuffer(stored) ? readDefinition(key, stored.toString()) : null;
  }

  async list(kind: DefinitionKind): Promise<Definition[]> {
    const hash = this.#context.keys.definitions(kind);
    const flat = await this.#context.executor.read(hash, 'HGETALL', [hash]);
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
    const version = randomBytes(9).toString('base64url');
    const condition = expected === null ? '-' : conditionOf(expected);
    const args = [version, JSON.stringify(value), condition];
    const stored = await this.#change('put', kind, key, args);
    if (stored !== 1) throw definitionConflict(kind, key);
    this.#watchers.notify({ kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const deleted = await this.#change('delete', kind, key, [conditionOf(expected)]);
    if (deleted === 0) throw definitionConflict(kind, key);
    if (deleted === 1) this.#watchers.notify({ kind, key });
    return deleted === 1;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }

  /** Calls a function, which publishes what it changes. Repeated, a `delete` would find nothing. */
  async #change(
    name: 'put' | 'delete',
    kind: DefinitionKind,
    key: string,
    args: readonly Arg[],
  ): Promise<Reply> {
    const { executor, keys } = this.#context;
    const publication = [keys.definitionChannel(kind), this.#channels.textOf(key)];
    const options = { repeatable: name === 'put' };
    try {
      return await executor.call(name, [keys.definitions(kind)], [key, ...args, ...publication], options);
    } catch (error) {
      // It may have been made: then it was published, and this node has to read it as well.
      if (isUnknownOutcome(error)) this.#watchers.notify({ kind, key });
      throw error;
    }
  }
}

function conditionOf(expected: string | 'any'): string {
  return expected === 'any' ? 'any' : `=${expected}`;
}

function readDefinition(key: string, stored: string): Definition {
  const space = stored.indexOf(' ');
  return { key, version: stored.slice(0, space), value: JSON.parse(stored.slice(space + 1)) as JsonValue };
}
