import { MongoClient, type MongoClientOptions, type WriteConcernSettings } from 'mongodb';
import type { EngineOptions } from '../../engine/engine.ts';
import { maskUrl } from '../../model/mask.ts';

/** Gives the time instead of the server's clock. For tests. */
export class GivenTime {
  readonly now: () => number;

  constructor(now: () => number) {
    this.now = now;
  }
}

/** The engine's URL and own settings, checked and with their defaults (`docs/engines/mongodb.md`). */
export interface Settings {
  /** Not connected yet. */
  readonly client: MongoClient;
  readonly database: string;
  /** How much an answer waits for. */
  readonly writeConcern: WriteConcernSettings;
  readonly isEncrypted: boolean;
  readonly isLocal: boolean;
  /** The address without user and password, for messages. */
  readonly shown: string;
  readonly givenTime: GivenTime | null;
}

/** The server ends an operation by itself after this long. */
export const MAX_TIME_MS = 3000;

/** What the engine's promise of an answer within 5 s stands on; a URL cannot change it. */
const DEADLINES: MongoClientOptions = {
  serverSelectionTimeoutMS: 2000,
  connectTimeoutMS: 2500,
  socketTimeoutMS: 4000,
  waitQueueTimeoutMS: 2000,
  heartbeatFrequencyMS: 1000,
};

/** Each of them would take a promise back that the ports make. */
const REFUSED_PARAMETERS = ['readpreference', 'readpreferencetags', 'maxstalenessseconds', 'retrywrites'];
const DEFAULT_DATABASE = 'quayside';
const DATABASE_NAME = /^[A-Za-z0-9_-]{1,38}$/;
const URL_FORM = /^mongodb(?:\+srv)?:\/\/(?:[^/?#]*@)?([^@/?#]+)(?:\/([^?#]*))?(?:\?([^#]*))?$/;
const WRITE_FORM = 'write mongodb://user:password@host:27017/database, and percent-encode the rest';

/**
 * The driver reads the URL; what it does not know of our promises is checked here.
 * @throws Error naming what is wrong and what would be right, without user and password
 */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const [, hosts, path = '', query = ''] = URL_FORM.exec(url) ?? [];
  // An `@` after the hosts may end a password with a raw `/` or `?`: nothing of the URL may be shown then.
  if (hosts === undefined || path.includes('@') || query.includes('@')) {
    throw new Error(`this is no MongoDB URL; ${WRITE_FORM}`);
  }
  const scheme = url.slice(0, url.indexOf(':'));
  const database = path === '' ? DEFAULT_DATABASE : path;
  const shown = `${scheme}://${hosts}/${database}`;
  const { givenTime, ...others } = settings;
  for (const [name, value] of Object.entries(others)) {
    if (value !== undefined) throw new Error(`${shown}: unknown setting "${name}"; all stand in the URL`);
  }
  if (!DATABASE_NAME.test(database)) {
    throw new Error(
      `${shown}: the database is no plain name; use up to 38 letters, digits, hyphens and underscores`,
    );
  }
  checkParameters(query, shown);
  const client = makeClient(url, shown, new Set(parameterNames(query)));
  return {
    client,
    database,
    writeConcern: readWriteConcern(client, shown),
    isEncrypted: client.options.tls === true,
    isLocal: client.options.hosts.every(({ host, socketPath }) => isLocal(host ?? socketPath ?? '')),
    shown,
    givenTime: givenTime instanceof GivenTime ? givenTime : null,
  };
}

function parameterNames(query: string): string[] {
  return [...new URLSearchParams(query).keys()].map((name) => name.toLowerCase());
}

function checkParameters(query: string, shown: string): void {
  for (const name of parameterNames(query)) {
    if (!REFUSED_PARAMETERS.includes(name)) continue;
    throw new Error(
      `${shown}: ${name} cannot be chosen, as every call goes to the primary once; leave it out`,
    );
  }
}

function makeClient(url: string, shown: string, given: ReadonlySet<string>): MongoClient {
  const defaults: MongoClientOptions = {
    ...(!given.has('appname') && { appName: 'quayside' }),
    ...(!given.has('maxpoolsize') && { maxPoolSize: 20 }),
  };
  try {
    return new MongoClient(url, { ...defaults, ...DEADLINES, retryWrites: true });
  } catch (fault) {
    // The driver's messages may hold what stands in the URL.
    const text = (fault instanceof Error ? fault.message : String(fault)).replaceAll(url, maskUrl(url));
    const safe = text.includes('@') ? 'it cannot be read' : text.replace(/[;.]+\s*$/, '');
    throw new Error(`${shown}: the driver refuses the URL, ${safe.replaceAll(';', ',')}; ${WRITE_FORM}`);
  }
}

/** Where the URL does not say otherwise, an answer means that most members have the change in their journals. */
function readWriteConcern({ options }: MongoClient, shown: string): WriteConcernSettings {
  const given = options.writeConcern;
  const w = given?.w ?? 'majority';
  if (w === 0)
    throw new Error(`${shown}: w=0 asks for no answers; use w=1, a number of members, or majority`);
  return { w, journal: given?.journal ?? true, wtimeoutMS: MAX_TIME_MS };
}

function isLocal(host: string): boolean {
  return host.startsWith('/') || host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}
