import type { Command } from 'commander';

/** A script that completes commands and their options, for `eval` in the start-up file of a shell; null for another shell. */
export function completionScript(shell: string, program: Command): string | null {
  const commands = program.commands.map((command) => ({
    name: command.name(),
    description: command.description(),
    options: command.options.flatMap(({ long }) => (long == null ? [] : [long])),
  }));
  const names = commands.map(({ name }) => name).join(' ');
  if (shell === 'fish') {
    return [
      `complete -c quayside -f -n __fish_use_subcommand -a '${names}'`,
      ...commands.flatMap(({ name, options }) =>
        options.map(
          (option) => `complete -c quayside -n '__fish_seen_subcommand_from ${name}' -l ${option.slice(2)}`,
        ),
      ),
      '',
    ].join('\n');
  }
  if (shell !== 'bash' && shell !== 'zsh') return null;
  const cases = commands.map(({ name, options }) => `    ${name}) words="${options.join(' ')}" ;;`);
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
