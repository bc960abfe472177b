import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { before, describe, it } from 'node:test';
import { optionsTable } from '../../scripts/options-table.ts';
import { DEFAULT_COST } from '../../src/access/password.ts';
import { describeOptions } from '../../src/config/declared.ts';
import { loadConfig } from '../../src/config/load.ts';
import { HTTP_ERRORS } from '../../src/http/errors.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { RIGHTS } from '../../src/model/rights.ts';

describe('docs/reference/configuration.md', () => {
  let text: string;
  before(async () => {
    text = await pageOf('reference/configuration.md');
  });

  it('has a row for every option, and no other', () => {
    const [, table = ''] = text.split('## Every option\n');
    assert.deepEqual(rows(table), rows(optionsTable()), 'run npm run docs:reference');
  });

  it('shows environment variables that the server reads', async () => {
    const shown = [...text.matchAll(/^\| `(QUAYSIDE_[^=`]+)=([^`]*)`/gm)];
    assert.ok(shown.length >= 5);
    for (const [, variable = '', value = ''] of shown) {
      if (variable.endsWith('_FILE')) continue;
      await loadConfig({ file: null, env: { [variable]: value }, cwd: '/' });
    }
  });
});

describe('docs/operate/security.md', () => {
  let text: string;
  before(async () => {
    text = await pageOf('operate/security.md');
  });

  it('lists all rights and no other', () => {
    const [, after = ''] = text.split('| right | allows |\n|---|---|\n');
    const listed = [...(after.split('\n\n')[0] ?? '').matchAll(/^\| `(\w+)`/gm)].map(([, right]) => right);
    assert.deepEqual(listed, [...RIGHTS]);
    const help = describeOptions().find(({ path }) => path.endsWith('.rights'))?.help ?? '';
    for (const right of RIGHTS) assert.ok(help.includes(`\`${right}\``), right);
  });

  it('names the parameters of the hashes that are created', () => {
    assert.ok(text.includes(`m=${DEFAULT_COST.memoryKiB},t=${DEFAULT_COST.passes},p=1`));
  });
});

describe('docs/operate/limits.md', () => {
  it('names options with their defaults', async () => {
    const defaults = new Map(describeOptions().map((option) => [option.path, option.default]));
    const limits = rows(await pageOf('operate/limits.md')).flatMap((row) => {
      const [, , limit = '', option = ''] = row.split('|').map((cell) => cell.trim());
      return option.startsWith('`') ? [{ limit, option: option.replaceAll('`', '') }] : [];
    });
    assert.ok(limits.length >= 20);
    for (const { limit, option } of limits)
      assert.equal(limit, defaults.get(option)?.replace(/^$/, 'none'), option);
  });

  it('names errors with their HTTP statuses', async () => {
    let named = 0;
    for (const row of rows(await pageOf('operate/limits.md'))) {
      for (const [, status, code = ''] of row.matchAll(/`([45]\d\d)`(?: `([a-z-]+)`)?/g)) {
        assert.equal(status, String(HTTP_ERRORS[code as keyof typeof HTTP_ERRORS]?.status), row);
        named += 1;
      }
    }
    assert.ok(named >= 10);
  });

  it('names the fixed limits with the values of the code', async () => {
    const page = await pageOf('operate/limits.md');
    for (const [name, value] of [
      ['name of a namespace, queue, exchange or tid', LIMITS.nameBytes],
      ['name of a consumer group', LIMITS.groupLength],
      ['consumer groups of one element', LIMITS.groups],
      ['content type, content encoding', LIMITS.contentTypeLength],
      ['elements of a take of many', LIMITS.takeCount],
      ['bodies of a take of many', LIMITS.takeBytes],
      ['queues of a take from several', LIMITS.takeQueues],
      ['reason of a failed try', LIMITS.reasonBytes],
    ])
      assert.match(page, new RegExp(`^\\| ${name} \\| ${value}\\b`, 'm'));
    assert.match(page, new RegExp(`${LIMITS.headerCount}, of ${LIMITS.headerBytes} bytes`));
  });
});

describe('Every option', () => {
  it('has a help text and a unique environment variable', () => {
    const options = describeOptions();
    assert.ok(options.length > 30);
    for (const { path, help } of options) assert.match(help, /^[`\w].{10,}[^.]$/, path);
    assert.equal(new Set(options.map(({ variable }) => variable)).size, options.length);
  });
});

function pageOf(path: string): Promise<string> {
  return readFile(new URL(`../../docs/${path}`, import.meta.url), 'utf8');
}

function rows(table: string): string[] {
  return table.split('\n').filter((line) => line.startsWith('|'));
}
