/**
 * The table of options in `docs/reference/configuration.md`, generated from their declarations by `npm run
 * docs:reference`.
 */
import { describeOptions, type OptionDescription } from '../src/config/declared.ts';

const HEAD = '| option | must be | default | what it does |\n|---|---|---|---|';

export function optionsTable(): string {
  return [HEAD, ...describeOptions().map(row)].join('\n');
}

function row({ path, type, default: usual, help }: OptionDescription): string {
  return `| \`${path}\` | ${type} | ${usual === '' ? '' : `\`${usual}\``} | ${help.replaceAll('|', '\\|')} |`;
}
