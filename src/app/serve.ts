import type { LoadedConfig } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import { systemClock } from '../util/clock.ts';
import { ownCommand } from '../util/own-command.ts';
import { EXIT } from './command-line.ts';
import { createLog, type Log, logLibraryOutput } from './log.ts';
import { type PidFile, writePidFile } from './pid-file.ts';
import { Server } from './server.ts';
import { hasConfiguredUsers, type NewAdministrator, usersFileOf } from './users.ts';

/** The process's resources for {@link serve}. */
export interface ServeIo {
  readonly loaded: LoadedConfig;
  /** Reloads the configuration. */
  readonly load: () => Promise<LoadedConfig>;
  /** Whether SIGHUP arrived while `loaded` was being read, which may be outdated; defaults to false. */
  readonly isReloadRequested?: () => boolean;
  readonly version: string;
  readonly output: NodeJS.WritableStream;
  /** Ends the process immediately. */
  readonly exitNow: (code: number) => void;
  /** Emits signals and `uncaughtException`; defaults to the process, whose library output is then logged as well. */
  readonly events?: Pick<NodeJS.EventEmitter, 'on' | 'off'>;
  /** Defaults to a log on standard error. */
  readonly createLog?: typeof createLog;
}

/** Time for closing the engines after the shutdown deadline; then the process exits in any case. */
const CLOSING_MS = 5_000;

/**
 * Runs the server until a signal or a failure stops it. Returns the exit code.
 * @throws ConfigError, or another error that prevented the start
 */
export async function serve(io: ServeIo): Promise<number> {
  const { config, errorAt, warnings } = io.loaded;
  const log = (io.createLog ?? createLog)(config.log);
  for (const warning of warnings) log.logger.warn({}, warning);
  const server = new Server(config, { log: log.logger, version: io.version, errorAt });
  const { promise: ending, resolve: end } = Promise.withResolvers<number>();
  let pidFile: PidFile | null = null;
  const start = async (): Promise<void> => {
    await server.start();
    pidFile = tryPidFile(config, log);
    io.output.write(startText(server, config, io.version, pidFile));
  };
  // Runs the start and the reloads one at a time: of two concurrent reloads, the older could overwrite the newer one.
  let changes = Promise.resolve();
  const onReload = (): void => {
    changes = changes.then(() => reload(server, log, io), ignore);
  };
  const unfollow = followProcess(server, log, io, { end, onReload });
  const starting = start();
  changes = starting;
  if (io.isReloadRequested?.()) onReload();
  const [ended] = await Promise.allSettled([Promise.race([starting, ending]).then(() => ending)]);
  const isStopped = await stopInTime(server, config, log, io);
  removePidFile(pidFile, log);
  unfollow();
  await log.flush();
  if (ended.status === 'rejected') throw ended.reason;
  return isStopped ? ended.value : EXIT.failed;
}

function ignore(): void {}

/**
 * Under `npm start`, one Ctrl-C arrives twice: from the terminal, which signals the process group, and from npm, which
 * forwards it. Only a signal after this interval counts as a second one.
 */
const SAME_PRESS_MS = 300;

/**
 * Subscribes to signals and failures. Returns a function that unsubscribes.
 * @param end stops the server and ends the process with this code
 */
function followProcess(
  server: Server,
  log: Log,
  io: ServeIo,
  { end, onReload }: { readonly end: (code: number) => void; readonly onReload: () => void },
): () => void {
  const { logger } = log;
  const onUncaught = (err: unknown): void => {
    logger.fatal({ event: 'fault', err }, 'uncaught error: the server stops');
    end(EXIT.failed);
  };
  void server.failed.then((err) => {
    logger.fatal({ event: 'engine-failed', err }, 'an engine has failed: the server stops');
    end(EXIT.failed);
  });
  let stopAt: number | null = null;
  const onStop = (signal: string): void => {
    const now = systemClock.monotonic();
    stopAt ??= now;
    if (now === stopAt) {
      logger.info({ event: 'stop', signal }, 'stopping');
      end(EXIT.done);
    } else if (now - stopAt >= SAME_PRESS_MS) {
      logger.warn({ event: 'stop', signal }, 'exiting immediately');
      cutOff(log, io);
    }
  };
  const { events = process } = io;
  events.on('uncaughtException', onUncaught);
  events.on('SIGTERM', onStop).on('SIGINT', onStop).on('SIGHUP', onReload);
  const restoreOutput = events === process ? logLibraryOutput(logger) : () => {};
  return () => {
    events.off('SIGTERM', onStop).off('SIGINT', onStop).off('SIGHUP', onReload);
    restoreOutput();
    events.off('uncaughtException', onUncaught);
  };
}

/** Applies the new configuration. If it is invalid, logs the error and retains the old one. */
async function reload(server: Server, { logger }: Log, io: ServeIo): Promise<void> {
  try {
    const { config, warnings } = await io.load();
    for (const warning of warnings) logger.warn({}, warning);
    await server.reload(config);
  } catch (err) {
    logger.error({ event: 'reload', err }, 'the configuration could not be reloaded; nothing was changed');
  }
}

/** Returns whether all parts were stopped. Never rejects: an error here must not hide the reason for the stop. */
async function stopInTime(server: Server, config: Config, log: Log, io: ServeIo): Promise<boolean> {
  const cancel = systemClock.after(config.shutdown.deadline * 1000 + CLOSING_MS, () => {
    log.logger.error({ event: 'stop' }, 'the stop took too long and was aborted');
    cutOff(log, io);
  });
  try {
    await server.stop();
    log.logger.info({ event: 'stop' }, 'stopped');
    return true;
  } catch (err) {
    log.logger.error({ event: 'stop', err }, 'a part of the server could not be stopped');
    return false;
  } finally {
    cancel();
  }
}

/** Exits after flushing the log, which has a short time limit. */
function cutOff(log: Log, io: ServeIo): void {
  void log.flush().then(() => io.exitNow(EXIT.failed));
}

/** Tolerates failures: without a pid file, operators can still use the process id that startup prints. */
function tryPidFile({ dataDir }: Config, { logger }: Log): PidFile | null {
  try {
    return writePidFile(dataDir, (warning) => logger.warn({ event: 'start' }, warning));
  } catch (err) {
    logger.warn({ event: 'start', err }, `the process id cannot be written to ${dataDir}`);
    return null;
  }
}

function removePidFile(file: PidFile | null, { logger }: Log): void {
  try {
    file?.remove();
  } catch (err) {
    logger.warn({ event: 'stop', err }, `${file?.path} cannot be removed`);
  }
}

/** The text on standard output after startup, for people; programs read the log. */
function startText(server: Server, config: Config, version: string, pidFile: PidFile | null): string {
  const { url, otherUrls, newAdministrator } = server;
  const urls = [url, ...Object.values(otherUrls)].join(' and ');
  const first = `Quayside ${version} listens on ${urls}\n${pidText(pidFile)}`;
  if (newAdministrator !== null) return `${first}\n${firstStart(url, config, newAdministrator)}`;
  if (hasConfiguredUsers(config)) return first;
  return `${first}The administrator's password was shown at the first start; ${ownCommand('reset-admin')} generates a new one.\n`;
}

/** Shows the server's process id, because npm does not forward SIGHUP. */
function pidText(pidFile: PidFile | null): string {
  const { pid } = process;
  const location = pidFile === null ? '' : ` (stored in ${pidFile.path})`;
  return `Its process is ${pid}${location}; kill -HUP ${pid} reloads users and certificates.\n`;
}

function firstStart(url: string, config: Config, { definition, password }: NewAdministrator): string {
  // A browser cannot open a Unix socket.
  const hasConsole = config.console.enabled && !url.startsWith('unix:');
  const [namespace = ''] = Object.keys(config.namespaces);
  return `This is the first start. An administrator was created:

  address   ${url}
${hasConsole ? `  console   ${callable(url)}/console/\n` : ''}  user      ${definition.name}
  password  ${password}

The password is shown only once; its hash is in ${usersFileOf(config).path}.
To try it, paste these lines into a shell:

${tryLines(url, namespace, `${definition.name}:${password}`).join('\n')}

They insert an element, get it (waiting up to ten seconds), reserve another and commit it with its token. Q is the
address of the server, as in README.md.
`;
}

/** A shell filter that turns response headers into `ID?token=TOKEN`, the end of a commit URL. */
const ID_AND_TOKEN = `awk 'tolower($1) == "x-ks-id:" { id = $2 } tolower($1) == "x-ks-lease:" { token = $2 } END { print id "?token=" token }'`;

/** Example commands for any POSIX shell. */
function tryLines(url: string, firstNamespace: string, credentials: string): string[] {
  const [, socket] = /^unix:(.*)$/.exec(url) ?? [];
  const address = socket === undefined ? callable(url) : 'http://localhost';
  const to = socket === undefined ? '' : ` --unix-socket '${socket.replaceAll("'", "'\\''")}'`;
  const namespace = encodeURIComponent(firstNamespace).replaceAll('!', '%21');
  return [
    `export U='${credentials}' Q='${address}'`,
    `curl${to} -u "$U" -X PUT "$Q/q/${namespace}/first" -H 'content-type: application/json' -d '{"hello": "world"}'`,
    `curl${to} -u "$U" -i "$Q/q/${namespace}/first?to=10000"`,
    `curl${to} -u "$U" -X PUT "$Q/q/${namespace}/first" -H 'content-type: text/plain' -d 'another'`,
    `JOB=$(curl${to} -u "$U" -s -o /dev/null -D - "$Q/q/${namespace}/first?reserve=true&to=10000" | tr -d '\\r' | ${ID_AND_TOKEN})`,
    `curl${to} -u "$U" -X PATCH "$Q/q/${namespace}/first/commit/$JOB"`,
  ];
}

/** Replaces wildcard addresses, which clients cannot connect to on every system. */
function callable(url: string): string {
  return url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:');
}
