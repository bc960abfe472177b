#!/usr/bin/env -S node --max-semi-space-size=8 --no-allocation-site-pretenuring
import { readFileSync } from 'node:fs';
import { describeExit, EXIT, optionsText } from './app/command-line.ts';
import { printAll } from './cli/output.ts';
import { runProgram } from './cli/program.ts';
import type { ServerCommand } from './cli/server-commands.ts';
import { showConfig } from './config/declared.ts';
import { loadConfig } from './config/load.ts';

/** As in `engines` of package.json, for which npm only prints a warning. */
const OLDEST_NODE = '24.15.0';

/** The entry point, and the only file that may end the process. */
process.exit(await main(process.argv.slice(2)));

async function main(args: readonly string[]): Promise<number> {
  // Ignore disconnected readers of the output.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  if (!isNodeRecent(process.versions.node)) {
    process.stderr.write(
      `quayside: needs Node ${OLDEST_NODE} or later; ${process.execPath} is ${process.version}.\n`,
    );
    return EXIT.failed;
  }
  try {
    const version = ownVersion();
    return await runProgram(args, process, { version, optionsText, run: (command) => run(command, version) });
  } catch (error) {
    const { text, code } = describeExit(error);
    process.stderr.write(text);
    return code;
  }
}

/** Each command imports only what it needs, so that configuration errors are reported before the server is loaded. */
async function run(command: ServerCommand, version: string): Promise<number> {
  const load = () => loadConfig({ file: command.configFile, env: process.env, cwd: process.cwd() });
  const passwords = { input: process.stdin, ask: process.stderr };
  switch (command.command) {
    case 'print-config':
      return print(await showConfig((await load()).config));
    case 'hash-password': {
      const { hashPasswordCommand } = await import('./app/ask-password.ts');
      return hashPasswordCommand(passwords, process.stdout);
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
      const isHuman = process.stdout.isTTY && !command.json;
      return print(await listUsers(command.configFile, await load(), isHuman));
    }
    case 'backup': {
      const { backUpCommand } = await import('./app/backup-commands.ts');
      return print(await backUpCommand(command, await load(), passwords, version));
    }
    case 'restore': {
      const { restoreCommand } = await import('./app/backup-commands.ts');
      return print(restoreCommand(command, (await load()).config));
    }
    case 'doctor': {
      const { doctorCommand } = await import('./app/doctor.ts');
      const isHuman = process.stdout.isTTY && !command.json;
      const { text, hasErrors } = await doctorCommand(command.url, await load(), isHuman);
      const code = await print(text);
      return hasErrors ? EXIT.failed : code;
    }
    case 'serve': {
      // Handle SIGHUP before the server does and after it has stopped: otherwise it would end the process, which
      // systemd counts as a success.
      let isReloadRequested = false;
      process.on('SIGHUP', () => {
        isReloadRequested = true;
      });
      const loaded = await load();
      const { serve } = await import('./app/serve.ts');
      // After the server has stopped, further signals must not change the exit code.
      for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => {});
      return serve({
        loaded,
        load,
        isReloadRequested: () => isReloadRequested,
        version,
        output: process.stdout,
        exitNow: (code) => process.exit(code),
      });
    }
  }
}

/** Resolves after the text is written: text still buffered at exit would be lost on a pipe. */
function print(text: string): Promise<number> {
  return printAll(process, text);
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
