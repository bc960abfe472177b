import { isDeepStrictEqual } from 'node:util';
import type { Config } from '../config/options.ts';
import { type Path, pathText } from '../config/problem.ts';

/** Options that a reload does not take and whose values differ, by their paths, in the order of the first. */
export function changedOptions(before: Config, after: Config): string[] {
  return differences(unloadable(before), unloadable(after)).map(pathText);
}

/** What a reload does not take. Of a certificate that is whether there is one. */
function unloadable({ http: { users, tls, ...http }, stomp, amqp, ...config }: Config): object {
  return {
    ...config,
    http: { ...http, tls: tls !== undefined },
    stomp: { ...stomp, tls: stomp.tls !== undefined },
    amqp: { ...amqp, tls: amqp.tls !== undefined },
  };
}

function differences(before: unknown, after: unknown, path: Path = []): Path[] {
  if (isDeepStrictEqual(before, after)) return [];
  if (!isGroup(before) || !isGroup(after)) return [path];
  const keys = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...keys].flatMap((key) => differences(before[key], after[key], [...path, key]));
}

function isGroup(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
