import type { MessageReader, MessageWriter } from '../../message.ts';
import type { DefinitionRow } from '../definitions.ts';
import type { Store } from '../store.ts';

/** kind, key -> document or null */
export function definitionGet(store: Store, call: MessageReader, reply: MessageWriter): void {
  const row = store.definitions.get(call.text(), call.text());
  if (row === null) reply.value(null);
  else writeDefinition(row, reply);
}

/** kind -> count, documents */
export function definitionList(store: Store, call: MessageReader, reply: MessageWriter): void {
  const rows = store.definitions.list(call.text());
  reply.value(rows.length);
  for (const row of rows) writeDefinition(row, reply);
}

/** kind, key, value, whether to compare, expected version or null -> new version, or null for a conflict */
export function definitionPut(store: Store, call: MessageReader, reply: MessageWriter): void {
  const kind = call.text();
  const key = call.text();
  const value = call.text();
  if (!fits(store, kind, key, call)) {
    reply.value(null);
    return;
  }
  const version = store.ids.next();
  store.definitions.put(kind, key, value, version);
  reply.value(String(version));
}

/** kind, key, whether to compare, expected version -> whether it fits, whether one was there */
export function definitionDelete(store: Store, call: MessageReader, reply: MessageWriter): void {
  const kind = call.text();
  const key = call.text();
  const fitting = fits(store, kind, key, call);
  reply.flag(fitting);
  reply.flag(fitting && store.definitions.delete(kind, key));
}

function fits(store: Store, kind: string, key: string, call: MessageReader): boolean {
  const compare = call.flag();
  const expected = call.textOrNull();
  if (!compare) return true;
  const stored = store.definitions.get(kind, key);
  return (stored === null ? null : String(stored.version)) === expected;
}

function writeDefinition(row: DefinitionRow, reply: MessageWriter): void {
  reply.value(row.key);
  reply.value(row.value);
  reply.value(String(row.version));
}
