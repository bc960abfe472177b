import { readFile } from 'node:fs/promises';
import { type LoadedConfig, loadConfig } from './config/load.ts';
import { showConfig } from './config/show.ts';
import { type BackupIo, backUpCommand, restoreCommand } from './process/backup.ts';
import { type CommandLine, parseCommandLine } from './process/command-line.ts';
import { EXIT, faultText } from './process/fault-text.ts';
import { hashPasswordCommand } from './process/hash-password.ts';
import { helpText } from './process/help.ts';
import { resetAdministrator } from './process/reset-admin.ts';
import { serve } from './process/serve.ts';

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

async function run(line: CommandLine): Promise<number> {
  const { command, configFile } = line;
  const load = () => loadConfig({ file: configFile, env: process.env, cwd: process.cwd() });
  switch (command) {
    case 'help':
      return say(helpText());
    case 'version':
      return say(`${await version()}\n`);
    case 'print-config':
      return say(showConfig((await load()).config));
    case 'hash-password':
      return hashPasswordCommand({ input: process.stdin, ask: process.stderr, output: process.stdout });
    case 'reset-admin':
      return say(await resetAdministrator(await load()));
    case 'backup':
      return say(await backUpCommand(line, await backupIo(load)));
    case 'restore':
      return say(restoreCommand(line, await backupIo(load)));
    case 'serve':
      return serve({
        load,
        version: await version(),
        output: process.stdout,
        exitNow: (code) => process.exit(code),
      });
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
