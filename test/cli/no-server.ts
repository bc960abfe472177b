import type { ServerCommands } from '../../src/cli/server-commands.ts';

/** For tests of client commands. Commands that run a server are tested as separate processes in test/system. */
export const NO_SERVER: ServerCommands = {
  version: '0.0.0',
  optionsText: () => '',
  run: () => Promise.reject(new Error('This test runs no command of the server.')),
};
