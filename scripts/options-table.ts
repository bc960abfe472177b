/**
 * Prints the table of `docs/reference/configuration.md` from the declared options. A test compares the two; after an
 * option changed, run `node scripts/options-table.ts` and put its output in the place of the old table.
 */
import { describeOptions, type OptionDescription } from '../src/config/schema.ts';

const HEAD = '| option | must be | default | what it does |\n|---|---|---|---|';

export function optionsTable(): string {
  return [HEAD, ...describeOptions().map(row)].join('\n');
}

function row({ path, type, default: usual, help }: OptionDescription): string {
  return `| \`${path}\` | ${type} | ${usual === '' ? '' : `\`${usual}\``} | ${help.replaceAll('|', '\\|')} |`;
}

if (import.meta.main) console.log(optionsTable());
