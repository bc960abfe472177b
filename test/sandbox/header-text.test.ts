import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { toByteString } from '../../src/util/byte-string.ts';
import { element, patientSandbox, verdictsOf } from './elements.ts';

/** In ISO 8859-1; these bytes are not valid UTF-8. */
const LATIN_1 = 'Z\xfcrich';

describe('Headers in selectors', () => {
  const sandbox = patientSandbox();
  before(() => sandbox.start());
  after(() => sandbox.stop());

  const evaluate = async (selector: string, headers: readonly string[]) =>
    (await verdictsOf(sandbox.open([selector]), element({ headers })))[0];

  it('are decoded as UTF-8, or as ISO 8859-1 if they are not valid UTF-8', async () => {
    const isZurich = 'env.msg.hdrs.city === "Z\\u00fcrich" && env.msg.hdrs.ascii === "a"';
    assert.equal((await evaluate(isZurich, ['ascii', 'a', 'city', toByteString('Zürich')]))?.accepted, true);
    assert.equal((await evaluate(isZurich, ['ascii', 'a', 'city', LATIN_1]))?.accepted, true);
    const isEuro = 'env.msg.hdrs.price === "5 \\u20ac \\ud83d\\ude00"';
    assert.equal((await evaluate(isEuro, ['price', toByteString('5 € 😀')]))?.accepted, true);
  });

  it('are stored in UTF-8 if a selector wrote them, otherwise byte for byte', async () => {
    const writes = 'env => { env.msg.hdrs.price = "5 €"; env.msg.hdrs.other = "Zürich"; return true }';
    const verdict = await evaluate(writes, ['city', LATIN_1, 'town', toByteString('Köln')]);
    assert.deepEqual(verdict?.headers, [
      ...['city', LATIN_1, 'town', toByteString('Köln')],
      ...['price', toByteString('5 €'), 'other', toByteString('Zürich')],
    ]);
    const changes = 'env => { env.msg.hdrs.city += "!"; return true }';
    assert.deepEqual((await evaluate(changes, ['city', LATIN_1]))?.headers, [
      'city',
      toByteString('Zürich!'),
    ]);
  });

  it('are rejected if they are not well-formed Unicode', async () => {
    const verdict = await evaluate('env => { env.msg.hdrs.x = "a\\ud800"; return true }', []);
    assert.equal(verdict?.accepted, false);
    assert.match(verdict?.error ?? '', /^TypeError: header "x" is not well-formed Unicode/);
  });

  it('have at most 8 KiB in UTF-8', async () => {
    const writes = (count: number) => `env => { env.msg.hdrs.x = "€".repeat(${count}); return true }`;
    assert.equal((await evaluate(writes(2700), []))?.accepted, true);
    assert.match((await evaluate(writes(2800), []))?.error ?? '', /with it the headers have 8401 bytes/);
  });
});
