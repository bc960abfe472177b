import { X509Certificate } from 'node:crypto';
import { lstatSync, rmSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { type AddressInfo, connect } from 'node:net';
import { createSecureContext } from 'node:tls';
import { NETWORK_HINT, NetworkError, Networks } from '../access/networks.ts';
import type { Authenticator, RenewUser, User } from '../access/user.ts';
import type { Broker } from '../broker/broker.ts';
import type { ErrorAt } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import type { SessionServer } from '../session/server.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import { messageOf } from '../util/message-of.ts';
import type { Service } from '../util/service.ts';
import type { TlsMaterial } from '../util/sockets.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';
import { certificatesIn } from './checks.ts';

/** The scheme of each front end's URL, without and with TLS. The configuration has a group of options by each name. */
const SCHEMES = {
  http: ['http', 'https'],
  stomp: ['stomp', 'stomp+ssl'],
  amqp: ['amqp', 'amqps'],
} as const;

type ListenerName = keyof typeof SCHEMES;

export const FRONT_ENDS = ['http', 'stomp', 'amqp'] as const satisfies readonly ListenerName[];

/** The options that every front end has, with the contents of the files that they name. */
export interface ListenerSettings {
  readonly host: string;
  readonly port: number;
  readonly bodyLimit: number;
  readonly maxSockets: number;
  readonly trustedProxies: Networks;
  readonly tls: TlsMaterial | null;
  readonly logsAccess: boolean;
  readonly drainMs: number;
}

/**
 * Reads the options of a front end, and tries its certificate. Null if it has no port, and so is off.
 * @param warn is called with what an operator should know
 * @throws ConfigError
 */
export async function readListener(
  config: Config,
  name: ListenerName,
  errorAt: ErrorAt,
  warn: (message: string) => void,
): Promise<ListenerSettings | null> {
  const { host, port, bodyLimit, maxSockets } = config[name];
  if (port === undefined) return null;
  return {
    host,
    port,
    bodyLimit,
    maxSockets,
    trustedProxies: readProxies(config, name, errorAt),
    tls: await readCertificate(config, name, errorAt, warn),
    logsAccess: config.log.access,
    drainMs: config.shutdown.deadline * 1000,
  };
}

/**
 * Reads the certificate of a front end and its key, and tries them, so that one that cannot be used is reported before
 * it replaces anything. Null if the front end has none.
 * @throws ConfigError
 */
export async function readCertificate(
  config: Config,
  name: ListenerName,
  errorAt: ErrorAt,
  warn: (message: string) => void,
): Promise<TlsMaterial | null> {
  const tls: { readonly cert: string; readonly key: string; readonly clientCa?: string } | undefined =
    config[name].tls;
  if (tls === undefined) return null;
  const hint = 'Name PEM files that belong together and that this user may read';
  const read = async (option: 'cert' | 'key' | 'clientCa', file: string): Promise<string> => {
    try {
      return await readFile(file, 'utf8');
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw errorAt([name, 'tls', option], `${file} cannot be read (${code})`, hint);
    }
  };
  // One after the other, so that it is always the same one that is reported if both are missing.
  const cert = await read('cert', tls.cert);
  const key = await read('key', tls.key);
  try {
    createSecureContext({ cert, key });
  } catch (error) {
    throw errorAt([name, 'tls', 'key'], `does not serve with ${tls.cert}: ${messageOf(error)}`, hint);
  }
  if (process.platform !== 'win32' && ((await stat(tls.key)).mode & 0o007) !== 0) {
    warn(`everybody on this machine may read ${tls.key}; run chmod 600 on it`);
  }
  if (tls.clientCa === undefined) return { cert, key };
  const clientCa = await read('clientCa', tls.clientCa);
  checkAuthorities(clientCa, (problem) =>
    errorAt([name, 'tls', 'clientCa'], `${tls.clientCa} ${problem}`, 'Name a PEM file of certificates'),
  );
  return { cert, key, clientCa };
}

/** TLS itself would pass over what it cannot read, and then accept no client. */
function checkAuthorities(pem: string, error: (problem: string) => Error): void {
  const certificates = certificatesIn(pem);
  if (certificates.length === 0) throw error('has no certificate in it');
  for (const [i, certificate] of certificates.entries()) {
    try {
      new X509Certificate(certificate);
    } catch {
      throw error(`cannot be used: its certificate ${i + 1} is damaged`);
    }
  }
}

/** A front end's server. */
interface FrontEndServer extends Service {
  /** @throws Error before `start` has resolved */
  readonly address: AddressInfo;
  /** Uses another certificate for connections from now on. */
  reloadTls(tls: TlsMaterial): void;
  /**
   * Users were reloaded, or API tokens have ended: what lasts ends if its user is gone, or may not do it any more.
   * @param of only what lasts of these users; null: of all
   */
  renewUsers(renew: RenewUser, of: ReadonlySet<User> | null): void;
}

/** A front end at the address that the configuration gives it. An address that cannot be had is a ConfigError. */
export class FrontEnd<S extends FrontEndServer = FrontEndServer> implements Service {
  readonly name: ListenerName;
  readonly server: S;
  readonly #config: Config;
  readonly #errorAt: ErrorAt;

  constructor(name: ListenerName, server: S, config: Config, errorAt: ErrorAt) {
    this.name = name;
    this.server = server;
    this.#config = config;
    this.#errorAt = errorAt;
  }

  /** As clients write it; `unix:` and a path for a Unix socket. @throws Error before `start` has resolved */
  get url(): string {
    const { host, tls } = this.#config[this.name];
    if (isSocketPath(host)) return `unix:${host}`;
    const { address, family, port } = this.server.address;
    const scheme = SCHEMES[this.name][tls === undefined ? 0 : 1];
    return `${scheme}://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
  }

  async start(): Promise<void> {
    const { host } = this.#config[this.name];
    try {
      if (isSocketPath(host)) await listenOnSocket(host, () => this.server.start());
      else await this.server.start();
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      throw this.#addressError(code ?? message);
    }
  }

  stop(): Promise<void> {
    return this.server.stop();
  }

  #addressError(reason: string): Error {
    const { host, port } = this.#config[this.name];
    if (isSocketPath(host)) {
      const hint = SOCKET_HINTS[reason] ?? 'Choose another path';
      return this.#errorAt([this.name, 'host'], `cannot listen on ${host} (${reason})`, hint);
    }
    const option = reason === 'EADDRINUSE' || reason === 'EACCES' ? 'port' : 'host';
    const hint =
      reason === 'EADDRINUSE' ? 'End the program that uses it, or choose another port' : 'Choose another';
    return this.#errorAt([this.name, option], `cannot listen on ${host}, port ${port} (${reason})`, hint);
  }
}

/** What the front ends whose clients keep a session stand on. */
export interface SessionFrontEndParts {
  readonly broker: Broker;
  readonly authenticator: Authenticator;
  readonly log: FrontEndLog;
  readonly clock: Clock;
  readonly version: string;
}

/** Loads STOMP or AMQP: imported only if it is on, since the two are a fifth of the time of a start. */
export async function loadSessionServer(
  name: 'stomp' | 'amqp',
  { stomp, amqp }: Config,
  settings: ListenerSettings,
  parts: SessionFrontEndParts,
): Promise<SessionServer> {
  if (name === 'stomp') {
    const { StompServer } = await import('../stomp/session.ts');
    const { STOMP_DEFAULTS } = await import('../stomp/options.ts');
    const { trailingNewline } = stomp;
    return new StompServer({ ...parts, options: { ...STOMP_DEFAULTS, ...settings, trailingNewline } });
  }
  const { AmqpServer } = await import('../amqp/connection.ts');
  const { AMQP_DEFAULTS } = await import('../amqp/options.ts');
  const { anonymousUser = null } = amqp;
  return new AmqpServer({ ...parts, options: { ...AMQP_DEFAULTS, ...settings, anonymousUser } });
}

/** Room of a WebSocket message for what surrounds the largest body, or for many small frames. */
const MESSAGE_BYTES = 131_072;

/** Loads what serves STOMP or AMQP over WebSocket: imported only if it is on. */
export async function loadWebSocket(
  name: 'stomp' | 'amqp',
  server: SessionServer,
  { bodyLimit }: ListenerSettings,
): Promise<UpgradeHandler> {
  const { WebSocketListener } = await import('../session/websocket.ts');
  const protocol =
    name === 'stomp'
      ? (await import('../stomp/options.ts')).STOMP_WEB_SOCKET
      : (await import('../amqp/options.ts')).AMQP_WEB_SOCKET;
  return new WebSocketListener(server, { ...protocol, maxMessageBytes: bodyLimit + MESSAGE_BYTES });
}

/** The proxies that a front end trusts. @throws ConfigError that names the entry that is no network */
export function readProxies(config: Config, name: ListenerName, errorAt: ErrorAt): Networks {
  return networksAt([name, 'trustedProxies'], config[name].trustedProxies, errorAt);
}

function networksAt(path: readonly string[], entries: readonly string[], errorAt: ErrorAt): Networks {
  try {
    return new Networks(entries);
  } catch (error) {
    if (!(error instanceof NetworkError)) throw error;
    throw errorAt([...path, String(error.index)], error.message, NETWORK_HINT);
  }
}

/** Owner and group may connect: mode 0660, for a proxy in the group of the server. */
const SOCKET_UMASK = 0o117;

const SOCKET_HINTS: Readonly<Record<string, string>> = {
  EADDRINUSE: 'A server listens there: end it, or choose another path',
  EEXIST: 'There is a file that is no socket: choose another path',
  EACCES: 'Name a folder that exists and that this user may write to',
};

function isSocketPath(host: string): boolean {
  return host.startsWith('/');
}

/**
 * Listens on a Unix socket with mode 0660. One that a crash left is removed; one on which a server listens is not.
 * @param listen binds before it returns its promise
 * @throws Error with a code of the system: EADDRINUSE for a live socket, EEXIST for a file that is no socket
 */
async function listenOnSocket(path: string, listen: () => Promise<void>): Promise<void> {
  await removeStaleSocket(path);
  // The mode must be right from the first moment: others could connect before a chmod.
  const umask = process.umask(SOCKET_UMASK);
  let listening: Promise<void>;
  try {
    listening = listen();
  } finally {
    process.umask(umask);
  }
  await listening;
}

async function removeStaleSocket(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw systemError('EEXIST');
  const code = await connectError(path);
  if (code === null) throw systemError('EADDRINUSE');
  if (code !== 'ECONNREFUSED' && code !== 'ENOENT') throw systemError(code);
  rmSync(path, { force: true });
}

/** Why nothing can connect; null if a server listens. */
function connectError(path: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const socket = connect(path, () => {
    socket.destroy();
    resolve(null);
  });
  socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message));
  return promise;
}

function systemError(code: string): NodeJS.ErrnoException {
  return Object.assign(new Error(code), { code });
}
