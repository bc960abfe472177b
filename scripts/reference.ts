/**
 * `npm run docs:reference` generates from the code the pages `routes.md`, `errors.md` and `commands.md` of
 * `docs/reference`, and the table of options in `configuration.md`. A test compares them with the code.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import type { Command } from 'commander';
import { AMQP_CONDITIONS, outcomeOf } from '../src/amqp/errors.ts';
import { optionText } from '../src/cli/man.ts';
import { commandTree } from '../src/cli/program.ts';
import { HTTP_ERRORS } from '../src/http/errors.ts';
import { HTTP_DEFAULTS } from '../src/http/options.ts';
import { parametersOf, routeTable } from '../src/http/routes/table.ts';
import { type ErrorCode, isRetryable } from '../src/model/errors.ts';
import { optionsTable } from './options-table.ts';

const PAGES = new URL('../docs/reference/', import.meta.url);
const CONFIGURATION = 'configuration.md';
const HTTP_PAGE = new URL('../docs/protocols/http.md', import.meta.url);

/** The content of each generated page by its file name. */
export function referencePages(): Map<string, string> {
  const configuration = readFileSync(new URL(CONFIGURATION, PAGES), 'utf8');
  const [before = ''] = configuration.split('## Every option\n');
  return new Map([
    ['commands.md', commandsPage()],
    ['errors.md', errorsPage()],
    ['routes.md', routesPage()],
    [CONFIGURATION, `${before}## Every option\n\n${optionsTable()}\n`],
  ]);
}

function routesPage(): string {
  const routes = routeTable({ options: HTTP_DEFAULTS, version: '' }).filter(({ isPage }) => !isPage);
  const rows = routes
    .toSorted((one, other) => one.path.localeCompare(other.path))
    .map((route) => {
      const parameters = parametersOf(route).map(([name]) => `\`${name}\``);
      return [
        `\`${route.path}\` ${route.methods.join(', ')}`,
        `[\`${route.id}\`](../protocols/http.md#${route.id.toLowerCase()})`,
        route.access,
        `${sentence(route.summary)}${parameters.length === 0 ? '' : ` Parameters: ${parameters.join(', ')}.`}`,
      ];
    });
  return page('Routes', [
    'Every path of the HTTP interface, except those of the console. [HTTP](../protocols/http.md) says what each does, and what each parameter',
    'means; `GET /openapi.json` describes them to programs. *needs* is the [right](../operate/security.md#users-and-rights) in the namespace of the path, or `user`, `member`, `administrator`, `open`.',
    '',
    ...table(['request', 'operation', 'needs', 'what it does'], rows),
  ]);
}

function errorsPage(): string {
  const meanings = new Map(
    [...readFileSync(HTTP_PAGE, 'utf8').matchAll(/^\| `([a-z-]+)` \| \d{3} \| (.*) \|$/gm)].map(
      ([, code = '', meaning = '']) => [code, meaning],
    ),
  );
  const rows = (Object.keys(HTTP_ERRORS) as ErrorCode[])
    .toSorted()
    .map((code) => [
      `\`${code}\``,
      String(HTTP_ERRORS[code].status),
      isRetryable(code) ? 'yes' : 'no',
      `\`${AMQP_CONDITIONS[code]}\``,
      outcomeOf(code),
      meanings.get(code) ?? '',
    ]);
  return page('Errors', [
    'Every error code, and how each protocol reports it. The code is stable: over HTTP it is the member `code` of the problem, over STOMP the header `message` of the',
    'ERROR, over AMQP `code` in the `info` of the error. What to do is in [Troubleshooting](../operate/troubleshooting.md).',
    '',
    ...table(
      ['code', 'HTTP', 'STOMP: repeat?', 'AMQP condition', 'outcome of an AMQP message', 'meaning'],
      rows,
    ),
  ]);
}

function commandsPage(): string {
  const { commands } = commandTree(process);
  return page('Commands', [
    'Every command of `quayside`, as `quayside COMMAND --help` describes it. [Command line](../cli.md) says how to use them, and what their exit codes mean.',
    ...commands.flatMap((command) => commandSection(command, '')),
  ]);
}

function commandSection(command: Command, parent: string): string[] {
  const name = `${parent}${command.name()}`;
  const operands = command.registeredArguments.map((argument) => {
    const text = argument.variadic ? `${argument.name()}…` : argument.name();
    return argument.required ? `<${text}>` : `[${text}]`;
  });
  const { options } = command;
  return [
    '',
    `## ${name}`,
    '',
    `\`quayside ${[name, ...operands].join(' ')}\``,
    '',
    sentence(command.description()),
    ...(operands.length === 0
      ? []
      : [
          '',
          ...table(
            ['argument', 'meaning'],
            command.registeredArguments.map((one) => [`\`${one.name()}\``, one.description]),
          ),
        ]),
    ...(options.length === 0
      ? []
      : [
          '',
          ...table(
            ['option', 'what it does'],
            options.map((one) => [`\`${one.flags}\``, optionText(one)]),
          ),
        ]),
    ...command.commands.flatMap((one) => commandSection(one, `${name} `)),
  ];
}

function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function page(title: string, lines: readonly string[]): string {
  const note = 'This page is made from the code by `npm run docs:reference`.';
  return `# ${title}\n\n${note}\n\n${lines.join('\n').trim()}\n`;
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((cell) => cell.replaceAll(/(?<!\\)\|/g, '\\|')).join(' | ')} |`;
  return [line(head), `|${head.map(() => '---').join('|')}|`, ...rows.map(line)];
}

if (import.meta.main) {
  for (const [file, text] of referencePages()) writeFileSync(new URL(file, PAGES), text);
}
