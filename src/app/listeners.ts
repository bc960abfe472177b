import { X509Certificate } from 'node:crypto';
import { lstatSync, rmSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { type AddressInfo, connect } from 'node:net';
import { createSecureContext } from 'node:tls';
import { NETWORK_HINT, NetworkError, Networks } from '../access/networks.ts';
import type { User } from '../access/user.ts';
import type { ErrorAt } from '../config/errors.ts';
import type { Config } from '../config/options.ts';
import type { SessionDependencies, SessionOptions, SessionServer } from '../session/server.ts';
import { messageOf } from '../util/message-of.ts';
import type { Service } from '../util/service.ts';
import type { TlsMaterial } from '../util/sockets.ts';
import type { UpgradeHandler } from '../util/upgrade.ts';
import { certificatesIn } from './checks.ts';
import { CommandFailed } from './command-line.ts';

/** URL schemes of each front end, without and with TLS. The keys are also groups of options in the configuration. */
const SCHEMES = {
  http: ['http', 'https'],
  stomp: ['stomp', 'stomp+ssl'],
  amqp: ['amqp', 'amqps'],
} as const;

type ListenerName = keyof typeof SCHEMES;

export const FRONT_ENDS = ['http', 'stomp', 'amqp'] as const satisfies readonly ListenerName[];

/** The options that all front ends share, with TLS files already read. */
type ListenerSettings = Omit<SessionOptions, 'loginTimeoutMs'>;

/**
 * Reads the options of a front end and validates its certificate. Null if it has no port, which disables it.
 * @param warn called with warnings for the operator
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
 * Reads and validates the certificate and key of a front end, so that invalid files are reported before they replace
 * anything. Null if the front end has no TLS.
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
    const text = await readFile(file, 'utf8').catch(({ code }: NodeJS.ErrnoException) => {
      throw errorAt([name, 'tls', option], `${file} cannot be read (${code})`, hint);
    });
    // Node's TLS takes an empty text for none, and would then complete no handshake.
    if (text === '') throw errorAt([name, 'tls', option], `${file} is empty`, hint);
    return text;
  };
  // Sequential, so that the same file is reported every time if both are missing.
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

/** Validates `clientCa`: Node's TLS ignores unreadable certificates, and would then accept no client. */
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

/** The server of a front end. */
interface FrontEndServer extends Service {
  /** @throws Error before `start` has resolved */
  readonly address: AddressInfo;
  /** Replaces the certificate for new connections. */
  reloadTls(tls: TlsMaterial): void;
  /**
   * Called after users were reloaded or API tokens have ended. Closes sessions and blocked calls whose user was removed
   * or has lost the right to them.
   * @param of check only these users; null: all users
   */
  renewUsers(of: ReadonlySet<User> | null): void;
}

/**
 * A front end at its configured address. If it cannot listen there, `start` throws a ConfigError, or a CommandFailed if
 * a later start may succeed.
 */
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

  /** URL for clients; `unix:` and a path for a Unix socket. @throws Error before `start` has resolved */
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
    const hint = ADDRESS_HINTS[reason] ?? 'Choose another';
    const error = this.#errorAt(
      [this.name, option],
      `cannot listen on ${host}, port ${port} (${reason})`,
      hint,
    );
    return MAY_PASS.has(reason) ? new CommandFailed(error.message) : error;
  }
}

const ADDRESS_HINTS: Readonly<Record<string, string>> = {
  EADDRINUSE: 'End the program that uses it, or choose another port',
  EADDRNOTAVAIL: 'This machine does not have the address now; choose one that it has',
  ENOTFOUND: 'This name has no address; choose another',
  EAI_AGAIN: 'The address of this name is not known now; choose an address, or check the name server',
};

/** Errors that may be over at a later start: when a machine boots, its addresses and its name server may come late. */
const MAY_PASS: ReadonlySet<string> = new Set(['EADDRNOTAVAIL', 'EAI_AGAIN']);

/** Loads STOMP or AMQP. They are imported only if enabled, because they take a fifth of the startup time. */
export async function loadSessionServer(
  name: 'stomp' | 'amqp',
  { stomp, amqp }: Config,
  settings: ListenerSettings,
  parts: Omit<SessionDependencies, 'options'>,
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

/** Allowance of a WebSocket message for headers around the largest body, or for many small frames. */
const MESSAGE_BYTES = 131_072;

/** Loads WebSocket for STOMP or AMQP, which is imported only if enabled. */
export async function loadWebSocket(server: SessionServer): Promise<UpgradeHandler> {
  const { webSocketUpgrades } = await import('../session/websocket.ts');
  return webSocketUpgrades(server, server.options.bodyLimit + MESSAGE_BYTES);
}

/** The proxies that a front end trusts. @throws ConfigError for an invalid entry */
export function readProxies(config: Config, name: ListenerName, errorAt: ErrorAt): Networks {
  try {
    return new Networks(config[name].trustedProxies);
  } catch (error) {
    if (!(error instanceof NetworkError)) throw error;
    throw errorAt([name, 'trustedProxies', String(error.index)], error.message, NETWORK_HINT);
  }
}

/** Results in mode 0660: the owner and the group may connect, such as a proxy in the server's group. */
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
 * Listens on a Unix socket with mode 0660. Removes a stale socket that a crash left behind, but not a live one.
 * @param listen binds before it returns its promise
 * @throws Error with a system code: EADDRINUSE for a live socket, EEXIST for a file that is not a socket
 */
async function listenOnSocket(path: string, listen: () => Promise<void>): Promise<void> {
  await removeStaleSocket(path);
  // Set the mode by umask: others could connect between `listen` and a later chmod.
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

/** The error code of a connection attempt; null if a server listens. */
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
