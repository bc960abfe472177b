import { readFileSync } from 'node:fs';
import type { ConnectionOptions } from 'node:tls';
import { trustSystemAuthorities } from '../../files/authorities.ts';
import type { Host, Target } from './url.ts';

export type TlsOptions = Pick<
  ConnectionOptions,
  'ca' | 'cert' | 'key' | 'rejectUnauthorized' | 'checkServerIdentity' | 'minVersion'
>;

const MODES = ['disable', 'require', 'verify-ca', 'verify-full'] as const;

/**
 * TLS as the URL's `sslmode` asks for. Where it says nothing, a server on this machine is spoken to in
 * plain, and any other one must show a valid certificate for its name (`verify-full`). `allow` and `prefer`
 * are refused: they fall back to plain text, password included, whenever somebody in between says so.
 * @throws Error naming the parameter or the file
 */
export function readTls({ hosts, parameters, shown }: Target): TlsOptions | false {
  const mode = parameters.get('sslmode') ?? (hosts.every(isLocal) ? 'disable' : 'verify-full');
  if (!MODES.some((known) => known === mode)) {
    throw new Error(`${shown}: sslmode ${mode} is not served; use one of ${MODES.join(', ')}`);
  }
  if (mode === 'disable') return false;
  const ca = readFile(parameters, 'sslrootcert', shown);
  if (ca === undefined && mode !== 'require') trustSystemAuthorities();
  const cert = readFile(parameters, 'sslcert', shown);
  const key = readFile(parameters, 'sslkey', shown);
  return {
    minVersion: 'TLSv1.2',
    // As with libpq, `require` encrypts without looking at whom it talks to.
    rejectUnauthorized: mode !== 'require',
    ...(ca !== undefined && { ca }),
    ...(cert !== undefined && { cert }),
    ...(key !== undefined && { key }),
    ...(mode === 'verify-ca' && { checkServerIdentity: () => undefined }),
  };
}

function isLocal({ host }: Host): boolean {
  return host.startsWith('/') || host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

function readFile(parameters: ReadonlyMap<string, string>, name: string, shown: string): Buffer | undefined {
  const path = parameters.get(name);
  if (path === undefined) return undefined;
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new Error(`${shown}: ${name} names a file that cannot be read, ${path}; name one in PEM`, {
      cause,
    });
  }
}
