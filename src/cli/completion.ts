import type { Command } from 'commander';

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
  if (shell !== 'bash' && shell !== 'zsh') return null;
  const cases = commands.map(({ name, words }) => `    ${name}) words="${words.join(' ')}" ;;`);
  const script = [
    '_quayside() {',
    `  local words="${names}"`,
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

/** The words that may follow a command: its subcommands and options. */
function wordsAfter({ commands, options }: Command): string[] {
  return [
    ...commands.map((command) => command.name()),
    ...options.flatMap(({ long }) => (long == null ? [] : [long])),
  ];
}
