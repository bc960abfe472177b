import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describeExit, EXIT, optionsText } from './app/command-line.ts';
import type { ServeIo } from './app/serve.ts';
import type { CommandIo } from './cli/context.ts';
import { printAll } from './cli/output.ts';
import { runProgram } from './cli/program.ts';
import type { ServerCommand } from './cli/server-commands.ts';
import { showConfig } from './config/declared.ts';
import { loadConfig } from './config/load.ts';

/** As in `engines` of package.json, for which npm only prints a warning. */
const OLDEST_NODE = '24.15.0';

/** The parts of the process that the program uses. Tests run many programs in their own process. */
export interface ProgramIo extends CommandIo {
  cwd(): string;
  /** Subscribes to signals. */
  on(signal: 'SIGHUP' | 'SIGTERM' | 'SIGINT', listener: () => void): unknown;
  /** What a server uses in addition; defaults to the process. */
  readonly serving?: Pick<ServeIo, 'events' | 'createLog'>;
  /** Ends the process immediately. */
  exit(code: number): void;
}

/** Runs the command that the arguments name. Returns the exit code. */
export async function main(args: readonly string[], io: ProgramIo): Promise<number> {
  // Ignore disconnected readers of the output.
  io.stdout.on('error', () => {});
  io.stderr.on('error', () => {});
  if (!isNodeRecent(process.versions.node)) {
    io.stderr.write(
      `quayside: needs Node ${OLDEST_NODE} or later; ${process.execPath} is ${process.version}.\n`,
    );
    return EXIT.failed;
  }
  try {
    const version = ownVersion();
    return await runProgram(args, io, {
      version,
      optionsText,
      run: (command) => run(command, io, version),
    });
  } catch (error) {
    const { text, code } = describeExit(error);
    io.stderr.write(text);
    return code;
  }
}

/** Each command imports only what it needs, so that configuration errors are reported before the server is loaded. */
async function run(command: ServerCommand, io: ProgramIo, version: string): Promise<number> {
  const load = () => loadConfig({ file: command.configFile, env: io.env, cwd: io.cwd() });
  const passwords = { input: io.stdin, ask: io.stderr };
  // Resolves after the text is written: text still buffered at exit would be lost on a pipe.
  const print = (text: string): Promise<number> => printAll(io, text);
  switch (command.command) {
    case 'print-config':
      return print(await showConfig((await load()).config));
    case 'hash-password': {
      const { hashPasswordCommand } = await import('./app/ask-password.ts');
      return hashPasswordCommand(passwords, io.stdout);
    }
    case 'reset-admin': {
      const { resetAdministrator } = await import('./app/user-commands.ts');
      return print(await resetAdministrator(await load()));
    }
    case 'user': {
      const { changeUser } = await import('./app/user-commands.ts');
      return print(await changeUser(command, command.configFile, load, passwords));
    }
    case 'user-list': {
      const { listUsers } = await import('./app/user-commands.ts');
      const isHuman = io.stdout.isTTY === true && !command.json;
      return print(await listUsers(command.configFile, await load(), isHuman));
    }
    case 'backup': {
      const { backUpCommand } = await import('./app/backup-commands.ts');
      const folder = resolve(io.cwd(), command.folder);
      return print(await backUpCommand({ ...command, folder }, await load(), passwords, version));
    }
    case 'restore': {
      const { restoreCommand } = await import('./app/backup-commands.ts');
      const folder = resolve(io.cwd(), command.folder);
      return print(restoreCommand({ ...command, folder }, (await load()).config));
    }
    case 'doctor': {
      const { doctorCommand } = await import('./app/doctor.ts');
      const isHuman = io.stdout.isTTY === true && !command.json;
      const { text, hasErrors } = await doctorCommand(command.url, await load(), isHuman);
      const code = await print(text);
      return hasErrors ? EXIT.failed : code;
    }
    case 'serve': {
      // Handle SIGHUP before the server does and after it has stopped: otherwise it would end the process, which
      // systemd counts as a success.
      let isReloadRequested = false;
      io.on('SIGHUP', () => {
        isReloadRequested = true;
      });
      const loaded = await load();
      const { serve } = await import('./app/serve.ts');
      // After the server has stopped, further signals must not change the exit code.
      for (const signal of ['SIGTERM', 'SIGINT'] as const) io.on(signal, () => {});
      return serve({
        loaded,
        load,
        isReloadRequested: () => isReloadRequested,
        version,
        output: io.stdout,
        exitNow: (code) => io.exit(code),
        ...io.serving,
      });
    }
  }
}

function ownVersion(): string {
  const text = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

function isNodeRecent(version: string): boolean {
  const oldest = OLDEST_NODE.split('.').map(Number);
  const actual = version.split('.').map((part) => Number.parseInt(part, 10));
  const at = oldest.findIndex((part, i) => part !== actual[i]);
  return at < 0 || (actual[at] ?? 0) > (oldest[at] ?? 0);
}
