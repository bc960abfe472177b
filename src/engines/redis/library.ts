import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

/**
 * In the order in which they are loaded: a file uses what those before it define. Each is a block, see
 * `library/shared.lua`.
 */
const FILES = [
  'queue',
  'groups',
  'deliveries',
  'insert',
  'outbox',
  'take',
  'settle',
  'read',
  'list',
  'session',
  'sweep',
  'functions',
] as const;

/**
 * The functions that run inside Redis (`library/*.lua`), as one library. Its name contains a digest of the source, so
 * each version has its own functions. The formats of their records may differ: nodes of two versions must not serve at
 * the same time (`docs/engines/redis.md`, Upgrading).
 *
 * It is a library instead of scripts, because a script creates all its Lua functions at every call, which takes about
 * 15 µs here, and a library only when it is loaded.
 */
export interface Library {
  readonly name: string;
  readonly source: string;
  /** The commands of Redis that the functions use. */
  readonly commands: readonly string[];
}

const COMMAND = /\b(?:db|spreadCall)\('([A-Z]+)'/g;

export function readLibrary(): Library {
  const read = (name: string): string =>
    readFileSync(new URL(`./library/${name}.lua`, import.meta.url), 'utf8');
  const text = [read('shared'), ...FILES.map((name) => `do\n${read(name)}\nend`)].join('\n');
  const name = `quayside_${createHash('sha256').update(text).digest('hex').slice(0, 16)}`;
  const commands = [...new Set(Array.from(text.matchAll(COMMAND), ([, command = '']) => command))].sort();
  return { name, source: `#!lua name=${name}\n${text.replaceAll('@RUN@', name)}`, commands };
}
