import { randomBytes } from 'node:crypto';
import {
  DEFINITION_KINDS,
  type DefinitionKind,
  type DefinitionStore,
  type StoredDefinition,
  StoredDefinitions,
} from '../../engine/definitions.ts';
import type { RedisSignaller } from './channels.ts';
import { type Arg, asString, type Reply } from './client/connection.ts';
import type { RedisContext } from './context.ts';

/**
 * Definitions in a hash per kind. One function compares, sets and publishes to a channel per kind. This engine's own
 * changes reach its watchers without the channel.
 */
export function openDefinitions(context: RedisContext, signaller: RedisSignaller): StoredDefinitions {
  const definitions = new StoredDefinitions(new RedisDefinitions(context, signaller), context.log);
  for (const kind of DEFINITION_KINDS) {
    const notify = (key: string | null): void => definitions.notify({ kind, key });
    const channel = context.keys.definitionChannel(kind);
    const options = { sharded: false, onGap: () => notify(null) };
    signaller.listen(channel, options, (key) => notify(String(key)));
  }
  return definitions;
}

class RedisDefinitions implements DefinitionStore {
  readonly #context: RedisContext;
  readonly #signaller: RedisSignaller;

  constructor(context: RedisContext, signaller: RedisSignaller) {
    this.#context = context;
    this.#signaller = signaller;
  }

  async get(kind: DefinitionKind, key: string): Promise<StoredDefinition | null> {
    const hash = this.#context.keys.definitions(kind);
    const stored = await this.#context.executor.read(hash, 'HGET', [hash, key]);
    return Buffer.isBuffer(stored) ? readStored(key, stored.toString()) : null;
  }

  async list(kind: DefinitionKind): Promise<StoredDefinition[]> {
    const hash = this.#context.keys.definitions(kind);
    const flat = await this.#context.executor.read(hash, 'HGETALL', [hash]);
    if (!Array.isArray(flat)) return [];
    const found: StoredDefinition[] = [];
    for (let i = 0; i < flat.length; i += 2) found.push(readStored(asString(flat[i]), asString(flat[i + 1])));
    return found;
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: string,
    expected: string | null,
  ): Promise<string | null> {
    const version = randomBytes(9).toString('base64url');
    const condition = expected === null ? '-' : conditionOf(expected);
    return (await this.#change('put', kind, key, [version, value, condition])) === 1 ? version : null;
  }

  async delete(kind: DefinitionKind, key: string, expected: string): Promise<boolean | null> {
    const deleted = await this.#change('delete', kind, key, [conditionOf(expected)]);
    return deleted === 0 ? null : deleted === 1;
  }

  /** Calls a function that also publishes the change. A `delete` is not repeatable: it would find nothing. */
  #change(name: 'put' | 'delete', kind: DefinitionKind, key: string, args: readonly Arg[]): Promise<Reply> {
    const { executor, keys } = this.#context;
    const publication = [keys.definitionChannel(kind), this.#signaller.encode(key)];
    const options = { repeatable: name === 'put' };
    return executor.call(name, [keys.definitions(kind)], [key, ...args, ...publication], options);
  }
}

function conditionOf(expected: string): string {
  return expected === 'any' ? 'any' : `=${expected}`;
}

function readStored(key: string, stored: string): StoredDefinition {
  const space = stored.indexOf(' ');
  return [key, stored.slice(space + 1), stored.slice(0, space)];
}
