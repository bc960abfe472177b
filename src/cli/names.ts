/** The commands that call a server. What is not here is a command of the server itself. */
export const CLIENT_COMMANDS = [
  'put',
  'get',
  'reserve',
  'commit',
  'browse',
  'status',
  'top',
  'dead',
  'redrive',
  'move',
  'purge',
  'export',
  'import',
  'exchange',
  'operations',
  'nodes',
  'bench',
  'completion',
  'man',
] as const;

export type ClientCommand = (typeof CLIENT_COMMANDS)[number];

export function isClientCommand(word: string | undefined): boolean {
  return (CLIENT_COMMANDS as readonly (string | undefined)[]).includes(word);
}
