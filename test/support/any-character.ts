import fc from 'fast-check';

const SURROGATES = { first: 0xd800, count: 0x800 };

/**
 * Any code point as a unit of {@link fc.string}, mixed with words that JavaScript may mistake for properties of
 * objects. fast-check's own unit `binary` builds a map of all million code points first, which takes almost two seconds
 * of processor time in each process.
 */
export const anyCharacter: fc.Arbitrary<string> = fc
  .integer({ min: 0, max: 0x10ffff - SURROGATES.count })
  .map(
    (number) => String.fromCodePoint(number < SURROGATES.first ? number : number + SURROGATES.count),
    (text) => {
      const code = typeof text === 'string' ? text.codePointAt(0) : undefined;
      if (code === undefined || text !== String.fromCodePoint(code)) throw new RangeError('No character');
      return code < SURROGATES.first ? code : code - SURROGATES.count;
    },
  );
