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
  const names = commands.map(({ name }) => name).join(' ');
  if (shell === 'fish') {
    return [
      `complete -c quayside -f -n __fish_use_subcommand -a '${names}'`,
      ...commands.flatMap(({ name, words }) =>
        words.map((word) => {
          const completed = word.startsWith('--') ? `-l ${word.slice(2)}` : `-f -a ${word}`;
          return `complete -c quayside -n '__fish_seen_subcommand_from ${name}' ${completed}`;
        }),
      ),
      '',
    ].join('\n');
  }
  if (!SHELLS.includes(shell)) return null;
  const cases = commands.map(({ name, words }) => `    ${name}) words="${words.join(' ')}" ;;`);
  const script = [
    '_quayside() {',
    `  local words="${[names, ...wordsOfOptions(program)].join(' ')}"`,
    `  if [ "$COMP_CWORD" -gt 1 ]; then case "\${COMP_WORDS[1]}" in`,
    ...cases,
    '    *) words="" ;;',
    '  esac; fi',
    `  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))`,
    '}',
    'complete -o default -F _quayside quayside',
    '',
  ];
  return [...(shell === 'zsh' ? ['autoload -U +X bashcompinit && bashcompinit'] : []), ...script].join('\n');
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
