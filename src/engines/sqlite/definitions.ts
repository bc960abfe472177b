import { DefinitionWatchers } from '../../engine/definition-watchers.ts';
import {
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import type { Client } from './client.ts';
import type { MessageReader, MessageWriter } from './message.ts';

/** The Definitions port over the worker. The file has one owner, so watching is a call in this process. */
export class SqliteDefinitions implements Definitions {
  readonly #client: Client;
  readonly #watchers: DefinitionWatchers;

  constructor(client: Client, log: EngineLog) {
    this.#client = client;
    this.#watchers = new DefinitionWatchers(log);
  }

  get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const call = this.#client.begin('definitionGet');
    call.value(kind);
    call.value(key);
    return this.#client.end('definitionGet', (reply) => {
      const stored = reply.textOrNull();
      return stored === null ? null : readDefinition(reply, stored);
    });
  }

  list(kind: DefinitionKind): Promise<Definition[]> {
    this.#client.begin('definitionList').value(kind);
    return this.#client.end('definitionList', (reply) => {
      const found = Array.from({ length: reply.number() }, () => readDefinition(reply, reply.text()));
      return found.sort((a, b) => (a.key < b.key ? -1 : 1));
    });
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: JsonValue,
    expected: string | null | 'any',
  ): Promise<string> {
    const call = this.#client.begin('definitionPut');
    call.value(kind);
    call.value(key);
    call.value(JSON.stringify(value));
    writeExpected(call, expected);
    const version = await this.#client.end('definitionPut', (reply) => reply.textOrNull());
    if (version === null) throw definitionConflict(kind, key);
    this.#watchers.notify({ kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const call = this.#client.begin('definitionDelete');
    call.value(kind);
    call.value(key);
    writeExpected(call, expected);
    const { fits, found } = await this.#client.end('definitionDelete', (reply) => ({
      fits: reply.flag(),
      found: reply.flag(),
    }));
    if (!fits) throw definitionConflict(kind, key);
    if (found) this.#watchers.notify({ kind, key });
    return found;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }
}

function writeExpected(call: MessageWriter, expected: string | null | 'any'): void {
  call.flag(expected !== 'any');
  call.value(expected);
}

function readDefinition(reply: MessageReader, key: string): Definition {
  return { key, value: JSON.parse(reply.text()) as JsonValue, version: reply.text() };
}
