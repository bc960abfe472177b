import type { Command } from 'commander';
import { EXCHANGE_VERBS } from './exchanges.ts';

const SHELLS = ['bash', 'zsh', 'fish'];

/**
 * A completion script for commands and options, for `eval` in a shell's startup file; null for an unsupported shell.
 */
export function completionScript(shell: string, program: Command): string | null {
  const commands = program.commands.map((command) => ({
    name: command.name(),
    words: [...new Set([command, ...command.commands].flatMap(wordsAfter))],
  }));
  const first = [...commands.map(({ name }) => name), ...wordsOfOptions(program)];
  if (shell === 'fish') {
    return [
      ...fishLines('__fish_use_subcommand', first),
      ...commands.flatMap(({ name, words }) => fishLines(`__fish_seen_subcommand_from ${name}`, words)),
      '',
    ].join('\n');
  }
  if (!SHELLS.includes(shell)) return null;
  const cases = commands.map(({ name, words }) => `    ${name}) words="${words.join(' ')}" ;;`);
  const script = [
    '_quayside() {',
    `  local words="${first.join(' ')}"`,
    `  if [ "$COMP_CWORD" -gt 1 ]; then case "\${COMP_WORDS[1]}" in`,
    ...cases,
    '    *) words="" ;;',
    '  esac; fi',
    `  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))`,
    '}',
    'complete -o default -F _quayside quayside',
    '',
  ];
  return [...(shell === 'zsh' ? ZSH_SETUP : []), ...script].join('\n');
}

/** Makes the functions for bash available in zsh. They need `compdef`, which zsh does not load by itself. */
const ZSH_SETUP = [
  'whence compdef > /dev/null || { autoload -U compinit && compinit; }',
  'autoload -U +X bashcompinit && bashcompinit',
];

function fishLines(condition: string, words: readonly string[]): string[] {
  return words.map((word) => {
    const completed = word.startsWith('--') ? `-l ${word.slice(2)}` : `-f -a ${word}`;
    return `complete -c quayside -n '${condition}' ${completed}`;
  });
}

/** Arguments of commands that are one of a few words. */
const ARGUMENTS: ReadonlyMap<string, readonly string[]> = new Map([
  ['exchange', EXCHANGE_VERBS],
  ['completion', SHELLS],
]);

/** The words that may follow a command: its subcommands, arguments and options. */
function wordsAfter(command: Command): string[] {
  return [
    ...command.commands.map((one) => one.name()),
    ...(ARGUMENTS.get(command.name()) ?? []),
    ...wordsOfOptions(command),
  ];
}

function wordsOfOptions({ options }: Command): string[] {
  return options.flatMap(({ long }) => (long == null ? [] : [long]));
}
