import type { ServerCommands } from '../../src/cli/server-commands.ts';

/** For commands that call a server: those of the server itself run in processes of their own, in test/system. */
export const NO_SERVER: ServerCommands = {
  version: '0.0.0',
  optionsText: () => '',
  run: () => Promise.reject(new Error('This test runs no command of the server.')),
};
