import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { jsonOf } from '../support/http-client.ts';
import { TestExchange } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const LEVELS = 8_000;

describe('A dry run of an exchange', () => {
  const harness = sharedHarness({ namespaces: [plain('N'), plain('M')] });

  for (const [open, close] of [
    ['[', ']'],
    ['{"a":', '}'],
  ] as const) {
    it(`is rejected with msg.payload if the payload is nested too deeply: ${open}`, async () => {
      const x = new TestExchange(harness());
      await x.create();
      const body = `{"msg":{"payload":${open.repeat(LEVELS)}1${close.repeat(LEVELS)}}}`;
      const answer = await x.client.request('POST', `/x/${x.id}/test`, { body });
      const { code, parameter } = jsonOf<{ code: string; parameter: string }>(answer);
      assert.deepEqual([answer.status, code, parameter], [400, 'invalid-parameter', 'msg.payload']);
    });
  }

  it('rejects or ignores deep nesting elsewhere, without an internal error', async () => {
    const x = new TestExchange(harness());
    await x.create();
    const deep = '['.repeat(LEVELS) + ']'.repeat(LEVELS);
    for (const body of [
      deep,
      `{"msg":${deep}}`,
      ...['id', 'hdrs', 'tries', 'mature', 'more'].map((name) => `{"msg":{"${name}":${deep}}}`),
      `{"msg":{"hdrs":{"a":${deep}}}}`,
      `{"content_type":${deep}}`,
      `{"declaration":${deep}}`,
      `{"declaration":{"src":${deep}}}`,
      `{"declaration":{"src":{"ns":"N","queue":"a"},"dst":[${deep}],"consumer":{}}}`,
      `{"declaration":{"src":{"ns":"N","queue":"a"},"dst":[{"ns":"M","queue":"b"}],"consumer":{"wsize":${deep}}}}`,
    ]) {
      const { status } = await x.client.request('POST', `/x/${x.id}/test`, { body });
      assert.ok(status === 200 || status === 400, `${status} for ${body.slice(0, 100)}`);
    }
  });
});
