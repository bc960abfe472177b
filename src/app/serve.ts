import type { LoadedConfig } from '../config/load.ts';
import type { Config } from '../config/options.ts';
import { systemClock } from '../util/clock.ts';
import { EXIT } from './fault-text.ts';
import { followLibraries } from './library-output.ts';
import { createLog, type Log } from './log.ts';
import { type PidFile, writePidFile } from './pid-file.ts';
import { createServer, type Server } from './server.ts';
import { followSignals } from './signals.ts';
import { startText } from './start-text.ts';
import { hasConfiguredUsers, usersFileOf } from './users.ts';

export interface ServeIo {
  readonly loaded: LoadedConfig;
  /** Reads the configuration again. */
  readonly load: () => Promise<LoadedConfig>;
  readonly version: string;
  readonly output: NodeJS.WritableStream;
  /** Ends the process without waiting for anything. */
  readonly exitNow: (code: number) => void;
}

/** What is left of a stop after its deadline: closing the engines. After this the process ends anyway. */
const CLOSING_MS = 5_000;

/**
 * Serves until a signal or a fault ends it; answers the exit code.
 * @throws ConfigError, or what else kept it from starting
 */
export async function serve(io: ServeIo): Promise<number> {
  const { config, sourceOf, warnings } = io.loaded;
  const log = createLog(config.log);
  for (const warning of warnings) log.logger.warn({}, warning);
  const server = createServer(config, { log: log.logger, version: io.version, sourceOf });
  const { promise: ending, resolve: end } = Promise.withResolvers<number>();
  const unfollow = followProcess({ server, log, io, end });
  let pidFile: PidFile | null = null;
  const started = async (): Promise<void> => {
    await server.start();
    pidFile = tryPidFile(config, log);
    greet(server, config, io, pidFile);
  };
  try {
    await Promise.race([started(), ending]);
    return await ending;
  } finally {
    await stopInTime(server, config, log, io);
    (pidFile as PidFile | null)?.remove();
    unfollow();
    await log.flush();
  }
}

interface Followed {
  readonly server: Server;
  readonly log: Log;
  readonly io: ServeIo;
  readonly end: (code: number) => void;
}

/** Everything that may end the process, or change it while it runs. */
function followProcess({ server, log, io, end }: Followed): () => void {
  const { logger } = log;
  const onFault = (err: unknown): void => {
    logger.fatal({ event: 'fault', err }, 'an error that nobody caught: the server stops');
    end(EXIT.fault);
  };
  void server.failed.then((err) => {
    logger.fatal({ event: 'engine-failed', err }, 'an engine cannot keep its promises: the server stops');
    end(EXIT.fault);
  });
  process.on('uncaughtException', onFault);
  const unfollowLibraries = followLibraries(logger);
  const unfollowSignals = followSignals(systemClock, {
    stop: (signal) => {
      logger.info({ event: 'stop', signal }, 'stopping');
      end(EXIT.done);
    },
    stopNow: (signal) => {
      logger.warn({ event: 'stop', signal }, 'ended at once');
      cutOff(log, io);
    },
    reload: () => void reload(server, log, io),
  });
  return () => {
    unfollowSignals();
    unfollowLibraries();
    process.off('uncaughtException', onFault);
  };
}

/** What is wrong with the new configuration is logged; the old one stays in force. */
async function reload(server: Server, { logger }: Log, io: ServeIo): Promise<void> {
  try {
    const { config, warnings } = await io.load();
    for (const warning of warnings) logger.warn({}, warning);
    await server.reload(config);
  } catch (err) {
    logger.error({ event: 'reload', err }, 'the configuration could not be read again; nothing was changed');
  }
}

/** A server without one can still be signalled by the number that it prints. */
function tryPidFile({ dataDir }: Config, { logger }: Log): PidFile | null {
  try {
    const file = writePidFile(dataDir);
    if (file.warning !== null) logger.warn({ event: 'start' }, file.warning);
    return file;
  } catch (err) {
    logger.warn({ event: 'start', err }, `the process id cannot be written to ${dataDir}`);
    return null;
  }
}

function greet(server: Server, config: Config, { version, output }: ServeIo, pidFile: PidFile | null): void {
  output.write(
    startText({
      version,
      pid: process.pid,
      pidFile: pidFile?.path ?? null,
      url: server.url,
      otherUrls: Object.values(server.otherUrls),
      namespaces: Object.keys(config.namespaces),
      newAdministrator: server.newAdministrator,
      usersFile: hasConfiguredUsers(config) ? null : usersFileOf(config).path,
    }),
  );
}

/** The last lines are to be seen, but nobody waits for them long. */
function cutOff(log: Log, io: ServeIo): void {
  void log.flush().then(() => io.exitNow(EXIT.fault));
}

async function stopInTime(server: Server, config: Config, log: Log, io: ServeIo): Promise<void> {
  const cancel = systemClock.after(config.shutdown.deadline * 1000 + CLOSING_MS, () => {
    log.logger.error({ event: 'stop' }, 'the stop took too long and was cut off');
    cutOff(log, io);
  });
  await server.stop();
  cancel();
  log.logger.info({ event: 'stop' }, 'stopped');
}
