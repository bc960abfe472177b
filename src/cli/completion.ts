import type { Command } from 'commander';
import { EXCHANGE_VERBS } from './exchanges.ts';

const SHELLS = ['bash', 'zsh', 'fish'];

/**
 * A completion script for commands and options, for `eval` in a shell's startup file; null for an unsupported shell.
 */
export function completionScript(shell: string, program: Command): string | null {
  const names = program.commands.map((command) => command.name());
  const commands = program.commands.map((command) => ({
    name: command.name(),
    words: [
      ...new Set([
        ...[command, ...command.commands].flatMap(wordsAfter),
        ...(command.name() === 'help' ? names : []),
      ]),
    ],
  }));
  const first = [...names, ...wordsOfOptions(program)];
  const all = [program, ...program.commands, ...program.commands.flatMap((one) => one.commands)];
  /** Options that take a value: those of a command, and those that may precede it. */
  const valued = valuedOptions(...all);
  const valuedFirst = valuedOptions(program);
  if (shell === 'fish') {
    return [
      ...fishCommand(valuedFirst),
      ...fishLines('', first, valued),
      ...commands.flatMap(({ name, words }) => fishLines(name, words, valued)),
      '',
    ].join('\n');
  }
  if (!SHELLS.includes(shell)) return null;
  const cases = commands.map(({ name, words }) => `      ${name}) words="${words.join(' ')}"; break ;;`);
  const script = [
    '_quayside() {',
    `  local words="${first.join(' ')}" i=1`,
    '  while [ "$i" -lt "$COMP_CWORD" ]; do',
    `    case "\${COMP_WORDS[i]}" in`,
    // Bash makes three words of --config=FILE, zsh one.
    `      ${valuedFirst.join('|')}) i=$((i + 1)); if [ "\${COMP_WORDS[i]}" = "=" ]; then i=$((i + 1)); fi ;;`,
    '      -*) ;;',
    ...cases,
    '      *) words=""; break ;;',
    '    esac',
    '    i=$((i + 1))',
    '  done',
    // The value of an option: the shell completes the names of files.
    `  case "\${COMP_WORDS[COMP_CWORD - 1]}" in ${valued.join('|')}|=) words="" ;; esac`,
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

/** A function that succeeds if the line has this command; with an empty name, if it has none yet. */
function fishCommand(valuedFirst: readonly string[]): string[] {
  return [
    'function __quayside_command_is',
    '  set -l words (commandline -opc)',
    '  set -e words[1]',
    '  while set -q words[1]; and string match -q -- "-*" $words[1]',
    `    if contains -- $words[1] ${valuedFirst.join(' ')}; set -e words[1]; end`,
    '    set -e words[1]',
    '  end',
    '  test "$argv[1]" = "$words[1]"',
    'end',
  ];
}

function fishLines(command: string, words: readonly string[], valued: readonly string[]): string[] {
  return words.map((word) => {
    const option = `-l ${word.slice(2)}${valued.includes(word) ? ' -r' : ''}`;
    const completed = word.startsWith('--') ? option : `-f -a ${word}`;
    return `complete -c quayside -n '__quayside_command_is "${command}"' ${completed}`;
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

/** The options of these commands that take a value. */
function valuedOptions(...commands: readonly Command[]): string[] {
  const options = commands.flatMap((command) => command.options).filter(({ required }) => required);
  return [...new Set(options.flatMap(({ long }) => (long == null ? [] : [long])))];
}
