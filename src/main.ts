import { readFile } from 'node:fs/promises';
import type { BackupIo } from './app/backup.ts';
import { type CommandLine, parseCommandLine } from './app/command-line.ts';
import { EXIT, faultText } from './app/fault-text.ts';
import { type LoadedConfig, loadConfig } from './config/load.ts';
import { showConfig } from './config/show.ts';

/** The process edge: the only file that may end the process. */
process.exit(await main(process.argv.slice(2)));

async function main(args: readonly string[]): Promise<number> {
  // Who reads our output may go away; that is their business.
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {});
  try {
    return await run(parseCommandLine(args));
  } catch (fault) {
    const { text, code } = faultText(fault);
    process.stderr.write(text);
    return code;
  }
}

/** Each command loads what it needs: a configuration with an error is reported before the server is loaded. */
async function run(line: CommandLine): Promise<number> {
  const { command, configFile } = line;
  const load = () => loadConfig({ file: configFile, env: process.env, cwd: process.cwd() });
  switch (command) {
    case 'help':
      return say((await import('./app/help.ts')).helpText());
    case 'version':
      return say(`${await version()}\n`);
    case 'print-config':
      return say(showConfig((await load()).config));
    case 'hash-password': {
      const { hashPasswordCommand } = await import('./app/hash-password.ts');
      return hashPasswordCommand({ input: process.stdin, ask: process.stderr, output: process.stdout });
    }
    case 'reset-admin': {
      const { resetAdministrator } = await import('./app/reset-admin.ts');
      return say(await resetAdministrator(await load()));
    }
    case 'backup':
    case 'restore': {
      const { backUpCommand, restoreCommand } = await import('./app/backup.ts');
      const io = await backupIo(load);
      return say(command === 'backup' ? await backUpCommand(line, io) : restoreCommand(line, io));
    }
    case 'serve': {
      const loaded = await load();
      const { serve } = await import('./app/serve.ts');
      return serve({
        loaded,
        load,
        version: await version(),
        output: process.stdout,
        exitNow: (code) => process.exit(code),
      });
    }
  }
}

async function backupIo(load: () => Promise<LoadedConfig>): Promise<BackupIo> {
  return { input: process.stdin, ask: process.stderr, loaded: await load(), version: await version() };
}

/** Answers once the text is written: a pipe's reader would miss what is still buffered at the exit. */
function say(text: string): Promise<number> {
  const { promise, resolve } = Promise.withResolvers<number>();
  process.stdout.write(text, () => resolve(EXIT.done));
  return promise;
}

async function version(): Promise<string> {
  const text = await readFile(new URL('../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}
