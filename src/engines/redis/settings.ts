import { readFileSync } from 'node:fs';
import type { ConnectionOptions } from 'node:tls';
import type { EngineOptions } from '../../engine/engine.ts';
import { trustSystemAuthorities } from '../../files/authorities.ts';
import { maskUrl } from '../../model/mask.ts';
import type { Tls } from './tls.ts';
import { parseUrl } from './url.ts';

export interface Address {
  readonly host: string;
  readonly port: number;
}

export interface Login {
  readonly username: string | null;
  readonly password: string | null;
  readonly db: number;
  /** Null: plain TCP. */
  readonly tls: Tls | null;
}

/** Gives the time to the server's functions instead of the server's clock. For tests. */
export class GivenTime {
  readonly now: () => number;

  constructor(now: () => number) {
    this.now = now;
  }
}

export interface Settings {
  /** The URL without credentials, for messages. */
  readonly shown: string;
  readonly addresses: readonly Address[];
  readonly login: Login;
  /** What the server must be; null: as it says itself. */
  readonly cluster: boolean | null;
  /** The name of the master that Sentinels at `addresses` watch; null: no Sentinel. */
  readonly sentinel: { readonly master: string; readonly login: Login } | null;
  readonly prefix: string;
  /** Replicas that must have a change before it is answered; null: one where the server has any. */
  readonly wait: number | null;
  readonly variant: Variant;
  readonly givenTime: GivenTime | null;
}

/** Plain and stream queues have one storage; lists have their own. */
type Variant = (typeof VARIANTS)[number];
const VARIANTS = ['simple', 'stream', 'list'] as const;

const NAMES = [
  'cluster',
  'sentinel',
  'sentinelUsername',
  'sentinelPassword',
  'username',
  'password',
  'db',
  'prefix',
  'wait',
  'variant',
  'ca',
  'cert',
  'key',
  'servername',
  'givenTime',
] as const;
type Name = (typeof NAMES)[number];

/**
 * The URL's query and the engine's settings as one; settings win.
 * @throws Error that names the setting and the remedy
 */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const shown = maskUrl(url).replace(/\?.*$/s, '');
  const parsed = parseUrl(url, shown);
  const given = new Given({ ...Object.fromEntries(parsed.query), ...withoutUnset(settings) }, shown);
  const hosts = parsed.addresses.map(({ host }) => host);
  const tls = parsed.secure ? { options: tlsOptions(given), hosts } : null;
  const login: Login = {
    username: given.text('username') ?? parsed.username,
    password: given.text('password') ?? parsed.password,
    db: given.whole('db') ?? parsed.db,
    tls,
  };
  const cluster = given.flag('cluster');
  const master = given.text('sentinel');
  if (cluster === true && master !== null)
    throw given.wrong('sentinel', 'is not for a cluster; leave one out');
  if (cluster === true && login.db !== 0) throw given.wrong('db', 'must be 0 on a cluster');
  const prefix = given.text('prefix') ?? 'quayside';
  if (!/^[^{}\s]+$/.test(prefix)) throw given.wrong('prefix', 'has a brace or a space; leave it out');
  return {
    shown,
    addresses: parsed.addresses,
    login,
    cluster,
    sentinel: master === null ? null : { master, login: sentinelLogin(given, tls) },
    prefix,
    wait: given.whole('wait'),
    variant: variantOf(given),
    givenTime: given.givenTime(),
  };
}

/** A setting that is named without a value does not hide the query's. */
function withoutUnset(settings: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== undefined));
}

function sentinelLogin(given: Given, tls: Tls | null): Login {
  return { username: given.text('sentinelUsername'), password: given.text('sentinelPassword'), db: 0, tls };
}

function variantOf(given: Given): Variant {
  const text = given.text('variant') ?? 'simple';
  const variant = VARIANTS.find((known) => known === text);
  if (variant === undefined) throw given.wrong('variant', `must be one of ${VARIANTS.join(', ')}`);
  return variant;
}

/** `rediss:` checks the server's certificate, always; an authority that this system does not know is named by `ca`. */
function tlsOptions(given: Given): ConnectionOptions {
  if (given.text('ca') === null) trustSystemAuthorities();
  const servername = given.text('servername');
  return {
    ...(servername === null ? {} : { servername }),
    ...given.file('ca'),
    ...given.file('cert'),
    ...given.file('key'),
  };
}

/** Settings by name, from text or from plain values. */
class Given {
  readonly #values: ReadonlyMap<string, unknown>;
  readonly #shown: string;

  constructor(values: Readonly<Record<string, unknown>>, shown: string) {
    this.#values = new Map(Object.entries(values));
    this.#shown = shown;
    for (const name of this.#values.keys()) {
      if (!(NAMES as readonly string[]).includes(name)) {
        throw new Error(`${shown}: unknown setting "${name}"; known are ${NAMES.slice(0, -1).join(', ')}`);
      }
    }
  }

  text(name: Name): string | null {
    const value = this.#values.get(name) ?? null;
    if (value === null || typeof value === 'string') return value;
    throw this.wrong(name, 'must be text');
  }

  whole(name: Name): number | null {
    const value = this.#values.get(name) ?? null;
    if (value === null) return null;
    const number = typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value;
    if (typeof number === 'number' && Number.isSafeInteger(number) && number >= 0) return number;
    throw this.wrong(name, 'must be a whole number from 0');
  }

  flag(name: Name): boolean | null {
    const value = this.#values.get(name) ?? null;
    if (value === null || typeof value === 'boolean') return value;
    if (value === 'true' || value === '1') return true;
    if (value === 'false' || value === '0') return false;
    throw this.wrong(name, 'must be true or false');
  }

  /** The contents of the file that the setting names, under the same name. */
  file(name: 'ca' | 'cert' | 'key'): ConnectionOptions {
    const path = this.text(name);
    if (path === null) return {};
    try {
      return { [name]: readFileSync(path) };
    } catch (error) {
      throw this.wrong(name, `cannot be read: ${(error as Error).message}`);
    }
  }

  givenTime(): GivenTime | null {
    const value = this.#values.get('givenTime') ?? null;
    if (value === null || value instanceof GivenTime) return value;
    throw this.wrong('givenTime', 'is for tests');
  }

  wrong(name: Name, why: string): Error {
    return new Error(`${this.#shown}: setting "${name}" ${why}`);
  }
}
