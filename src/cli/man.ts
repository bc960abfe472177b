import type { Command, Option } from 'commander';

/** Sections about exit codes, files and variables, which no command describes. */
const SECTIONS: readonly (readonly [
  title: string,
  rows: readonly (readonly [term: string, text: string])[],
])[] = [
  [
    'ENVIRONMENT',
    [
      ['QUAYSIDE_URL', 'address of the server'],
      ['QUAYSIDE_USER', 'name of the user'],
      ['QUAYSIDE_PASSWORD', 'the password of that user'],
      ['QUAYSIDE_TOKEN', 'an API token, in place of user and password'],
    ],
  ],
  [
    'FILES',
    [
      [
        '~/.config/quayside/client.json',
        'url, user and password, or token; used for what the environment does not set',
      ],
    ],
  ],
  [
    'EXIT STATUS',
    [
      ['0', 'done'],
      [
        '1',
        'failed, for a reason without an exit code of its own; or some elements of a bulk operation failed',
      ],
      ['2', 'the command line, or the data that was sent, is invalid'],
      ['3', 'the named object does not exist, or no element arrived'],
      ['4', 'not allowed: no credentials, wrong ones, or a right is missing'],
      ['5', 'the server cannot be reached, or is unavailable; nothing was changed'],
      [
        '6',
        'the outcome is unknown: the connection ended before the response; or the server or its engine became unavailable when a part was done, or may have been; or a signal ended the wait for an operation',
      ],
    ],
  ],
];

/** The man page (section 1), generated from the tree of commands. */
export function manPage(program: Command): string {
  const lines = [
    '.TH QUAYSIDE 1',
    '.SH NAME',
    'quayside \\- queues and exchanges over HTTP, STOMP and AMQP 1.0',
    '.SH SYNOPSIS',
    '.B quayside',
    '.I command',
    `[${roman('options')}]`,
    '.SH DESCRIPTION',
    roman(
      'Without a command, the server runs. Commands with --config are those of the server; the others call one.',
    ),
    roman(
      'On a terminal they print text; elsewhere, or with --json, JSON. Options of the configuration: quayside --help.',
    ),
    '.SH COMMANDS',
    ...program.commands.flatMap((command) => commandLines(command)),
    ...SECTIONS.flatMap(([title, rows]) => [
      `.SH ${title}`,
      ...rows.flatMap(([term, text]) => ['.TP', `.B ${roman(term)}`, roman(text)]),
    ]),
  ];
  return `${lines.join('\n')}\n`;
}

function commandLines(command: Command, before = ''): string[] {
  const name = `${before}${command.name()}`;
  if (command.commands.length > 0) return command.commands.flatMap((each) => commandLines(each, `${name} `));
  const operands = command.registeredArguments.map((argument) => {
    const name = argument.variadic ? `${argument.name()}...` : argument.name();
    return argument.required ? name : `[${name}]`;
  });
  return [
    `.SS ${roman([name, ...operands].join(' '))}`,
    roman(command.description()),
    ...command.registeredArguments.flatMap((argument) => [
      '.TP',
      `.I ${roman(argument.name())}`,
      roman(argument.description),
    ]),
    ...command.options.flatMap((option) => ['.TP', `.B ${roman(option.flags)}`, roman(optionText(option))]),
  ];
}

/** What an option does, with its default, for the man page and documentation. */
export function optionText({ description, defaultValue }: Option): string {
  return defaultValue === undefined ? description : `${description}; defaults to ${defaultValue}`;
}

/** Escapes text for roff, so that hyphens can be copied and no line is interpreted as a request. */
function roman(text: string): string {
  return text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replace(/^(?=[.'])/, '\\&');
}
