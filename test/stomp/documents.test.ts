import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { ERROR_CODES, isRetryable } from '../../src/model/errors.ts';
import { COMMANDS } from '../../src/stomp/commands.ts';
import { PROTOCOL_HEADERS } from '../../src/stomp/headers.ts';
import { STOMP_DEFAULTS, STOMP_LIMITS } from '../../src/stomp/options.ts';
import { ACK_MODES } from '../../src/stomp/subscriptions.ts';
import { pageTable } from '../support/page-table.ts';
import { type ServerFrame, StompClient, show } from './client.ts';
import { LIBRARIES } from './foreign/libraries.ts';
import { StompNode } from './node.ts';

const ROOT = new URL('../../', import.meta.url);
const PAGE = readFileSync(new URL('docs/protocols/stomp.md', ROOT), 'utf8');

/** The rows of the table whose first column has this title. */
function table(firstColumn: string): string[][] {
  const rows = pageTable(PAGE, firstColumn);
  assert.ok(rows.length > 0, `docs/protocols/stomp.md has a table of ${firstColumn}`);
  return rows;
}

/** The names in backquotes in the first column of the table. */
function names(firstColumn: string): string[] {
  return table(firstColumn).flatMap(([cell = '']) =>
    [...cell.matchAll(/`([^`]+)`/g)].map(([, name]) => name ?? ''),
  );
}

/** Header names in a source file: those that match the patterns. */
function inSource(file: string, ...patterns: readonly RegExp[]): Set<string> {
  return inText(readFileSync(new URL(`src/stomp/${file}`, ROOT), 'utf8'), patterns);
}

function inText(source: string, patterns: readonly RegExp[]): Set<string> {
  return new Set(patterns.flatMap((pattern) => [...source.matchAll(pattern)].map(([, name]) => name ?? '')));
}

/** The source text of SEND, and that of ACK and NACK. */
const [OF_SEND = '', OF_ACK = ''] = readFileSync(new URL('src/stomp/commands.ts', ROOT), 'utf8').split(
  'const SETTLE_SPELLING',
);

const sorted = (values: Iterable<string>): string[] => [...new Set(values)].sort();

describe('docs/protocols/stomp.md and the code', () => {
  it('list the same commands, with the version that introduced each', () => {
    assert.deepEqual(
      table('command').map(([name, since]) => [name, since]),
      Object.entries(COMMANDS).map(([name, { since }]) => [`\`${name}\``, since]),
    );
  });

  it('list the same headers of SEND', () => {
    const read = inText(OF_SEND, [/headerOf\(headers, '([a-z-]+)'\)/g]);
    assert.deepEqual(sorted(names('header of SEND')), sorted([...read, 'x-ks-hdr-*']));
  });

  it('list the same headers of SUBSCRIBE, ack modes and default window', () => {
    const read = inSource('subscriptions.ts', /\bget\('([a-z-]+)'\)/g, /\? '([a-z-]+)' : 'x-wsize'/g);
    // The code recognizes `browser` by a regular expression.
    assert.deepEqual(sorted(names('header of SUBSCRIBE')), sorted([...read, 'browser']));
    const rows = new Map(
      table('header of SUBSCRIBE').map(([name, usual, meaning]) => [name, { usual, meaning }]),
    );
    assert.equal(rows.get('`x-wsize`')?.usual, `\`${STOMP_LIMITS.defaultWindow}\``);
    for (const mode of ACK_MODES) assert.ok(rows.get('`ack`')?.meaning?.includes(`\`${mode}\`:`), mode);
  });

  it('list the same headers of UNSUBSCRIBE, ACK and NACK', () => {
    const unsubscribe = inSource('subscriptions.ts', /headerOf\(headers, '([a-z-]+)'\)/g);
    assert.deepEqual(sorted(names('header of UNSUBSCRIBE')), sorted(unsubscribe));
    const settle = inText(OF_ACK, [
      /headerOf\(headers, '([a-z-]+)'\)/g,
      /acksByHeader \? '([a-z-]+)' :/g,
      /acksByHeader \? 'id' : '([a-z-]+)'/g,
    ]);
    assert.deepEqual(sorted(names('header of ACK and NACK')), sorted(settle));
  });

  it('list the same headers of MESSAGE', () => {
    const written = inSource(
      'subscriptions.ts',
      /headerLine\(rules, '([a-z-]+)'/g,
      /(?:\\n|`|\})([a-z-]+):\$\{/g,
    );
    assert.deepEqual(sorted(names('header of MESSAGE')), sorted([...written, 'browser', 'x-ks-hdr-*']));
  });

  it('list the same headers of CONNECT and CONNECTED', () => {
    const read = inSource('session.ts', /headerOf\(headers, '([a-z-]+)'\)/g);
    assert.deepEqual(sorted(names('header of CONNECT')), sorted([...read, 'host']));
    const beats = table('header of CONNECTED').find(([name]) => name === '`heart-beat`');
    const { sendBeatMs, wantBeatMs } = STOMP_DEFAULTS;
    assert.ok(beats?.[1]?.startsWith(`\`${sendBeatMs},${wantBeatMs}\``));
  });

  it('name the clients that are tested', () => {
    const [, sentence = ''] = /through one suite,([\s\S]*?)\n\n/.exec(PAGE) ?? [];
    const named = [...sentence.matchAll(/`([^`]+)`/g)].map(([, name]) => name);
    assert.deepEqual(
      named,
      LIBRARIES.map(({ name }) => name),
    );
  });

  it('name the same headers of SEND that are never stored', () => {
    const sentence = /8 KiB in all[\s\S]*?are never stored/.exec(PAGE)?.[0] ?? '';
    const never = [...sentence.matchAll(/`([^`]+)`/g)].map(([, name]) => name ?? '');
    assert.deepEqual(
      sorted(
        [...never, ...names('header of SEND')].filter((name) => !['x-ks-hdr-*', 'expires'].includes(name)),
      ),
      sorted(PROTOCOL_HEADERS),
    );
  });

  it('list the same headers of ERROR', () => {
    const written = inSource(
      'errors.ts',
      /(?:\[|push\()'([a-z-]+)',/g,
      /'([a-z-]+)', String\(canRetry\)/g,
      /'(content-length)'/g,
    );
    assert.deepEqual(sorted(names('header of ERROR')), sorted(written));
  });

  it('list the same errors, and whether a retry can succeed', () => {
    const listed = table('code').map(([code = '', retry]) => [code.replaceAll('`', ''), retry]);
    const [, sentence = ''] = /never come: ([\s\S]*?)\.\n/.exec(PAGE) ?? [];
    const never = [...sentence.matchAll(/`([a-z-]+)`/g)].map(([, code]) => code);
    const built = ERROR_CODES.map((code) => [code, String(isRetryable(code))]);
    assert.deepEqual(
      listed,
      built.filter(([code]) => !never.includes(code)),
    );
    assert.equal(listed.length + never.length, built.length);
  });

  it('list the same limits', () => {
    assert.deepEqual(
      table('limit').map(([name, value = '']) => [name, Number.parseInt(value, 10)]),
      Object.entries(STOMP_LIMITS).map(([name, value]) => [`\`${name}\``, value]),
    );
  });

  it('name an existing test for each MUST of the STOMP 1.2 specification', () => {
    const files = readdirSync(new URL('test/stomp/', ROOT)).filter((name) => name.endsWith('.test.ts'));
    const tests = new Set(
      files.flatMap((file) => {
        const source = readFileSync(new URL(`test/stomp/${file}`, ROOT), 'utf8');
        return [...source.matchAll(/\bit\(\s*'([^']+)'/g)].map(([, name]) => name);
      }),
    );
    const rows = table('the text, in short');
    assert.equal(rows.length, 32);
    for (const [, name] of rows) assert.ok(tests.has(name), `there is no test: ${name}`);
  });

  it('agree on the example', async () => {
    const [, example = ''] = /```stomp\n([\s\S]*?)```/.exec(PAGE) ?? [];
    const node = await StompNode.start();
    const client = await StompClient.open(node.port);
    for (const { isClient, text } of exchanges(example)) {
      if (isClient) client.write(text);
      else sameFrame(await client.next(), text);
    }
    assert.equal(await client.nextOrEnd(), null);
    client.socket.destroy();
    await node.stop();
  });
});

/** The frames of the example, in their order. */
function exchanges(example: string): { isClient: boolean; text: string }[] {
  const frames: { isClient: boolean; text: string }[] = [];
  for (const part of example.split('^@\n').filter((one) => one !== '')) {
    const lines = part.split('\n');
    const text = lines.map((line) => line.slice(2)).join('\n');
    frames.push({ isClient: part.startsWith('>'), text: part.startsWith('>') ? `${text}\0` : text });
  }
  return frames;
}

function sameFrame(frame: ServerFrame, text: string): void {
  const [head = '', body = ''] = text.split('\n\n');
  const [command, ...lines] = head.split('\n');
  assert.equal(frame.command, command, show(frame));
  assert.equal(frame.body.toString(), body);
  const expected = lines.map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1)]);
  assert.deepEqual(
    [...frame.headers].sort(),
    expected.map(([name = '', value]) => [name, value === '*' ? frame.headers.get(name) : value]).sort(),
  );
}
