import { readFile, stat } from 'node:fs/promises';
import { createSecureContext } from 'node:tls';
import type { Config } from '../config/options.ts';
import { ConfigError } from '../config/problem.ts';
import type { TlsMaterial } from '../util/log.ts';
import type { SourceOf } from './users.ts';

/** Groups of options that are a listener's each. */
export type ListenerGroup = 'http' | 'stomp' | 'amqp';

export interface LoadedTls {
  readonly material: TlsMaterial | null;
  readonly warnings: readonly string[];
}

/**
 * Reads the certificate of a listener and its key, and tries them, so that one that cannot be used is reported before
 * anything is replaced by it.
 * @throws ConfigError
 */
export async function loadTls(config: Config, group: ListenerGroup, sourceOf: SourceOf): Promise<LoadedTls> {
  const { tls } = config[group];
  if (tls === undefined) return { material: null, warnings: [] };
  const [cert, key] = await Promise.all([
    readPem([group, 'tls', 'cert'], tls.cert, sourceOf),
    readPem([group, 'tls', 'key'], tls.key, sourceOf),
  ]);
  try {
    createSecureContext({ cert, key });
  } catch (fault) {
    const why = fault instanceof Error ? fault.message : String(fault);
    throw refusal([group, 'tls', 'key'], `does not serve with ${tls.cert}: ${why}`, sourceOf);
  }
  const exposed = process.platform !== 'win32' && ((await stat(tls.key)).mode & 0o007) !== 0;
  const warnings = exposed ? [`everybody on this machine may read ${tls.key}; run chmod 600 on it`] : [];
  return { material: { cert, key }, warnings };
}

async function readPem(path: readonly string[], file: string, sourceOf: SourceOf): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (fault) {
    throw refusal(path, `${file} cannot be read (${(fault as NodeJS.ErrnoException).code})`, sourceOf);
  }
}

function refusal(path: readonly string[], problem: string, sourceOf: SourceOf): ConfigError {
  const remedy = 'Name PEM files that belong together and that this user may read';
  return new ConfigError([{ source: sourceOf(path), path: path.join('.'), problem, remedy }]);
}
