import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import rhea from 'rhea';
import { AMQP_CONDITIONS, outcomeOf } from '../../src/amqp/errors.ts';
import { AMQP_LIMITS, REJECT_DELAY } from '../../src/amqp/limits.ts';
import * as names from '../../src/amqp/message.ts';
import { PROPERTY_FIELDS } from '../../src/amqp/message.ts';
import { AMQP_DEFAULTS } from '../../src/amqp/options.ts';
import { ERROR_CODES } from '../../src/model/errors.ts';
import { STALL_TIMEOUT_MS } from '../../src/session/socket-writer.ts';
import { pageTable } from '../support/page-table.ts';
import { LIBRARIES } from './foreign/driven.ts';
import { AmqpNode } from './node.ts';

const ROOT = new URL('../../', import.meta.url);
const PAGE = readFileSync(new URL('docs/protocols/amqp.md', ROOT), 'utf8');

/** The rows of the table whose first column has this title. */
function table(firstColumn: string): string[][] {
  const rows = pageTable(PAGE, firstColumn);
  assert.ok(rows.length > 0, `docs/protocols/amqp.md has a table of ${firstColumn}`);
  return rows;
}

const bare = (cell = ''): string => cell.replaceAll('`', '');

describe('docs/protocols/amqp.md and the code', () => {
  it('list the same errors, with their conditions and their effect on the message', () => {
    const listed = table('code').map(([code, condition, message]) => [bare(code), bare(condition), message]);
    const [, sentence = ''] = /never come: ([\s\S]*?)\. A consumer/.exec(PAGE) ?? [];
    const never = [...sentence.matchAll(/`([a-z-]+)`/g)].map(([, code]) => code);
    const built = ERROR_CODES.map((code) => [code, AMQP_CONDITIONS[code], outcomeOf(code)]);
    assert.deepEqual(
      listed,
      built.filter(([code]) => !never.includes(code)),
    );
    assert.equal(listed.length + never.length, built.length);
  });

  it('name the same tested clients', () => {
    const [, sentence = ''] = /through one suite:([\s\S]*?)\n\n/.exec(PAGE) ?? [];
    const named = [...sentence.matchAll(/`([^`]+)`/g)].map(([, name]) => name);
    assert.deepEqual(
      named,
      LIBRARIES.map(({ name }) => name),
    );
  });

  it('list the same limits', () => {
    assert.deepEqual(
      table('limit').map(([name, value = '']) => [bare(name), Number.parseInt(value, 10)]),
      Object.entries(AMQP_LIMITS),
    );
    const { loginTimeoutMs, idleTimeoutMs } = AMQP_DEFAULTS;
    for (const ms of [loginTimeoutMs, idleTimeoutMs, STALL_TIMEOUT_MS])
      assert.ok(PAGE.includes(`${ms / 1000} s`), String(ms));
    const { c2, c1, c0 } = REJECT_DELAY;
    assert.ok(PAGE.includes(`\`tries² · ${c2} + tries · ${c1} + ${c0}\` seconds`));
  });

  it('list the same reserved names', () => {
    const meant = Object.entries(names)
      .filter(([name]) => /_(ANNOTATION|PROPERTY)$/.test(name))
      .map(([, value]) => String(value));
    assert.deepEqual(
      table('name')
        .map(([name]) => bare(name))
        .sort(),
      meant.sort(),
    );
    for (const own of [names.TYPES_HEADER, names.BODY_HEADER]) assert.ok(PAGE.includes(`\`${own}\``), own);
    for (const prefix of [names.ANNOTATION_PREFIX, names.PROPERTY_PREFIX]) {
      assert.ok(PAGE.includes(`\`${prefix}<name>\``), prefix);
    }
  });

  it('describe the handling of every field of the properties', () => {
    const parts = table('part of a message').map(([part]) => bare(part));
    const named = PROPERTY_FIELDS.filter((field) =>
      parts.some((part) => part.includes(`properties.${field}`)),
    );
    assert.deepEqual(
      [...named, ...names.HEADER_FIELDS.keys()].sort(),
      [...PROPERTY_FIELDS].sort(),
      'all other parts of a message are headers',
    );
  });

  it('cite an existing test in each row of the tables of supported and unsupported features', () => {
    const folders = ['test/amqp/', 'test/system/'];
    const tests = new Set(
      folders.flatMap((folder) =>
        readdirSync(new URL(folder, ROOT))
          .filter((name) => name.endsWith('.test.ts'))
          .flatMap((file) => {
            const source = readFileSync(new URL(folder + file, ROOT), 'utf8');
            // The title of a test, or the key of a table from which tests are generated.
            const named = /(?:\bit\(\s*|^\s+\[?)'([^']+)'[,:]/gm;
            return [...source.matchAll(named)].map(([, name]) => name);
          }),
      ),
    );
    const parts = ['types (part 1)', 'transport (part 2)', 'messaging (part 3)', 'security (part 5)'];
    for (const [, name] of parts.flatMap(table)) assert.ok(tests.has(name), `There is no test "${name}".`);
    for (const [, , name] of table('not served')) assert.ok(tests.has(name), `There is no test "${name}".`);
  });

  it('have a working example that prints the documented output', async () => {
    const [, example = ''] = /```js\n([\s\S]*?)```/.exec(PAGE) ?? [];
    const node = await AmqpNode.start();
    const AsyncFunction = (async () => {}).constructor as new (
      ...parts: string[]
    ) => (...given: unknown[]) => Promise<unknown>;
    const program = example.replace(/^import .*\n/, '').replace('port: 5672', `port: ${node.port}`);
    const printed: unknown[] = [];
    const run = new AsyncFunction('rhea', 'process', 'console', program);
    await run(
      rhea.create_container(),
      { env: { QUAYSIDE_USER: 'test', QUAYSIDE_PASSWORD: 'test' } },
      { log: (...values: unknown[]) => printed.push(values.join(' ')) },
    );
    const [, prints = ''] = /It prints `([^`]+)`/.exec(PAGE) ?? [];
    assert.deepEqual(printed, [prints]);
    while (node.server.counts.sessions > 0) await new Promise(setImmediate);
    assert.deepEqual(await node.sizes('orders'), { ready: 0, scheduled: 0, reserved: 0 });
    await node.stop();
  });
});
