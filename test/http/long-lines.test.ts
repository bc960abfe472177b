import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import type { RequestHead } from '../../src/http/head.ts';
import { elementsReader, readExportedLine } from '../../src/http/sent-elements.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { SHORT_JSON } from '../../src/util/json-scanner.ts';
import { jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';
import { takeMany } from './takes.ts';

const MIB = 1_048_576;
const BODY_LIMIT = 4 * MIB;
/** A value that makes a line too costly for `JSON.parse`. */
const LONG = `[${'0,'.repeat(SHORT_JSON)}0]`;
const NDJSON = 'application/x-ndjson';
const LINES = { contentType: NDJSON, contentEncoding: null, elementHeaders: [] as readonly string[] };

/** JSON texts that `JSON.parse` needs long for, or that are hard to read otherwise. */
const COSTLY = {
  'nested arrays': '['.repeat(MIB / 2) + ']'.repeat(MIB / 2),
  'nested objects': `${'{"a":'.repeat(MIB / 8)}1${'}'.repeat(MIB / 8)}`,
  'many members': `{${Array.from({ length: MIB / 16 }, (_, i) => `"k${i}":${i}`).join(',')}}`,
  'many numbers': `[${'1.50,-0,1e400,'.repeat(MIB / 16)}12345678901234567890]`,
  'many escapes': `"${'\\u00e9\\ud83d\\n\\"'.repeat(MIB / 16)}"`,
  'text that is not ASCII': `["${'é☃😀'.repeat(MIB / 16)}"]`,
  'white space': `[${' '.repeat(MIB)}1${'\t\r'.repeat(MIB / 4)}]`,
};

interface Problem {
  readonly code: string;
  readonly detail: string;
  readonly line: number;
  readonly parameter?: string;
}

const MEMBER_NAMES = [
  'json',
  'j\\u0073on',
  'text',
  'base64',
  'tries',
  'delay',
  'ttl',
  'mature',
  'key',
  'groups',
];
const OTHER_NAMES = [
  'headers',
  'contentType',
  'contentEncoding',
  'jsn',
  '__proto__',
  'constructor',
  'a b',
  '',
];
const VALUES = [
  '1',
  '"a"',
  '"YQ=="',
  'null',
  '["a"]',
  '{"a":"b"}',
  '-1',
  '[1,{"json":2}]',
  '"\\ud83d"',
  '"é"',
  '{}',
];
const BROKEN = ['', '', '', '', '', '', '}', ',', '"', '\\', '1', 'x'];

const space = fc.constantFrom('', ' ', '\t');
const member = fc
  .tuple(fc.constantFrom(...MEMBER_NAMES, ...OTHER_NAMES), fc.constantFrom(...VALUES), space, space)
  .map(([name, value, space1, space2]) => `${space1}"${name}"${space2}:${space1}${value}${space2}`);
/** The rest of a line, behind its first member. */
const rest = fc
  .tuple(fc.array(member, { maxLength: 4 }), fc.constantFrom(...BROKEN), fc.nat())
  .map(([members, broken, place]) => {
    const line = `${members.map((one) => `,${one}`).join('')}}`;
    const at = place % (line.length + 1);
    return line.slice(0, at) + broken + line.slice(at);
  });

/**
 * What the reader makes of a line whose first member is `json`. Only the messages about what is not JSON may differ.
 */
function readLine(json: string, more: string): unknown {
  const { elements } = elementsReader(
    LINES as RequestHead,
    BODY_LIMIT,
  )(Buffer.from(`{"json":${json}${more}`));
  try {
    return Array.from(elements).flatMap((next) => {
      if (next === null) return [];
      const { body, ...element } = next.element;
      const text = `${body}`;
      return [{ ...element, body: text === json ? 'first' : text }];
    });
  } catch (error) {
    assert.ok(error instanceof QuaysideError, `${error}`);
    const message = error.message.replace(/is not JSON: .*/, 'is not JSON');
    return [error.code, error.details.parameter, message];
  }
}

describe('A long line', () => {
  it('of an insert of many is read as a short one is', () => {
    fc.assert(
      fc.property(rest, (more) => {
        assert.deepEqual(readLine(LONG, more), readLine('[0]', more));
      }),
      { numRuns: 200 },
    );
  });

  it('is read in steps, between which other requests are served', async () => {
    for (const what of ['nested arrays', 'nested objects', 'many members', 'many numbers'] as const) {
      const json = COSTLY[what];
      const { elements } = elementsReader(LINES as RequestHead, BODY_LIMIT)(Buffer.from(`{"json":${json}}`));
      const steps = Array.from(elements).filter((next) => next === null).length;
      assert.ok(steps >= Math.floor(json.length / (MIB / 2)), `${what}: ${steps} steps`);
      let turns = 0;
      let isRead = false;
      const onTurn = (): void => {
        turns += 1;
        if (!isRead) setImmediate(onTurn);
      };
      setImmediate(onTurn);
      const rejected = readExportedLine(`{"json":${json}}`, BODY_LIMIT).finally(() => {
        isRead = true;
      });
      await assert.rejects(rejected, /Unknown member json/);
      assert.ok(turns >= steps, `${what}: ${turns} turns`);
    }
  });
});

describe('Long lines over HTTP', () => {
  const harness = sharedHarness({ http: { bodyLimit: BODY_LIMIT } });

  const rejected = async (path: string, line: string): Promise<Problem> => {
    const headers = { 'content-type': NDJSON };
    const answer = await harness()
      .client()
      .request('POST', path, { body: `\n${line}\n`, headers });
    assert.equal(answer.status, 400, answer.body.toString());
    const problem = jsonOf<Problem>(answer);
    assert.equal(problem.line, 2);
    return problem;
  };
  const detailOf = async (line: string): Promise<string> => {
    const { code, detail } = await rejected(`/q/N/${harness().queue()}/elements`, line);
    return `${code} ${detail}`;
  };

  for (const [what, json] of Object.entries(COSTLY)) {
    it(`json is stored exactly as written: ${what}`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      const lines = [`{"json":0,"tries":1, "json" : ${json} ,"headers":{"a":"b"}}`, { text: 'next' }];
      assert.equal((await client.insertLines('N', queue, lines)).status, 200);
      const { body, headers } = await client.get('N', queue);
      assert.ok(body.equals(Buffer.from(json)));
      assert.deepEqual([headers['content-type'], headers['x-ks-hdr-a']], ['application/json', 'b']);
      assert.equal((await client.get('N', queue)).body.toString(), 'next');
    });
  }

  it('a text is stored, and imported from an export', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const text = '"\\\n☃\ud83d\ude00'.repeat(MIB / 16);
    assert.equal((await client.insertLines('N', queue, [{ text, key: 'k' }])).status, 200);
    const { body } = await client.request('GET', `/q/N/${queue}/export`);
    assert.deepEqual(jsonOf(await client.request('POST', '/q/N/long-copy/import', { body })), {
      imported: 1,
      repeated: 0,
    });
    assert.equal((await client.get('N', 'long-copy')).body.toString(), text);
  });

  it('a body that is deeply nested JSON is taken as json', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const json = '['.repeat(100_000) + ']'.repeat(100_000);
    const headers = { 'content-type': 'application/json' };
    for (const body of [json, `${json}]`]) await client.insert('N', queue, body, { headers });
    const { body } = await takeMany(client, queue, { count: 2, as: 'json' });
    const [first, second] = body.toString().trimEnd().split('\n');
    assert.ok(first?.includes(`"json":${json}`));
    assert.ok(second?.includes(`"text":"${json}]"`));
  });

  it('what is not JSON is rejected with its position', async () => {
    const nested = '['.repeat(MIB);
    assert.equal(
      await detailOf(`{"json":${nested}`),
      'invalid-body Line 2: It is not JSON: "Unexpected end of JSON input".',
    );
    assert.equal(
      await detailOf(`{"json":${nested}}`),
      'invalid-body Line 2: It is not JSON: "Unexpected token \'}\' at position 1048584".',
    );
    const position = `{"json":${LONG},"text":"`.length;
    assert.equal(
      await detailOf(`{"json":${LONG},"text":"\u0001"}`),
      `invalid-body Line 2: It is not JSON: "Bad control character in string literal at position ${position}".`,
    );
    assert.match(await detailOf(`{"json":${LONG}}{}`), /Unexpected token '\{' at position \d+"\.$/);
    assert.match(
      await detailOf(`{"text":"a"${' '.repeat(SHORT_JSON)}]`),
      /: "Expected ',' or '}' after property/,
    );
    const { code, detail } = await rejected('/q/N/long-wrong/import', `{"id":"a","text":${nested}]`);
    assert.deepEqual([code, detail.includes('end of JSON')], ['invalid-body', true]);
  });

  it('what is not an object is rejected as such', async () => {
    const array = `[${'1,'.repeat(MIB)}1]`;
    assert.equal(await detailOf(array), 'invalid-body Line 2: It is an array, not a JSON object.');
    assert.match(await detailOf(`"${'x'.repeat(MIB)}"`), /It is "x{64}"…, not a JSON object\.$/);
  });

  it('a wrong member is named', async () => {
    const { nested = '', members = '' } = {
      nested: COSTLY['nested arrays'],
      members: COSTLY['many members'],
    };
    assert.match(await detailOf(`{"jsn":${nested}}`), /^invalid-parameter Line 2: .*Did you mean "json"\?$/);
    assert.match(await detailOf(`{"json":${nested},"tries":-1}`), /^invalid-parameter Line 2: tries must be/);
    assert.match(
      await detailOf(`{"json":${nested},"text":"a"}`),
      /There is more than one body\. Give one of/,
    );
    const headers = `{${Array.from({ length: 10_000 }, (_, i) => `"k${i}":"v"`).join(',')}}`;
    assert.match(await detailOf(`{"json":1,"headers":${headers}}`), /at most 64 members, not of 10000\.$/);
    const tooMany = /^invalid-body Line 2: It has more than 16384 JSON values outside of json\./;
    assert.match(await detailOf(`{"json":1,"headers":${members}}`), tooMany);
    assert.match(await detailOf(`{"groups":${nested},"text":"a"}`), tooMany);
    assert.match(await detailOf(`{"json":1,${members.slice(1)}`), tooMany);
  });

  it('the bound of elements applies to what is stored', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const json = `[${' '.repeat(BODY_LIMIT)}]`;
    const answer = await client.insertLines('N', queue, [`{"json":${json}}`]);
    assert.deepEqual([answer.status, jsonOf<Problem>(answer).code], [413, 'body-too-large']);
    assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 0);
  });
});
