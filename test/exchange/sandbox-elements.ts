import type { SelectorInput, SelectorProgram, SelectorVerdict } from '../../src/exchange/sandbox/sandbox.ts';

/** An element as selectors see it, with what a test says of it. */
export function element(
  own: Partial<Omit<SelectorInput, 'body'>> & { body?: Uint8Array | string } = {},
): SelectorInput {
  const { body = '', ...rest } = own;
  return {
    id: 'e1',
    tries: 0,
    matureAt: 1_700_000_000_000,
    headers: [],
    contentType: null,
    contentEncoding: null,
    ...rest,
    body: typeof body === 'string' ? Buffer.from(body) : body,
  };
}

export function json(value: unknown, headers: readonly string[] = []): SelectorInput {
  return element({ headers, body: JSON.stringify(value), contentType: 'application/json' });
}

/** Asks for one element and expects verdicts. */
export async function verdictsOf(
  program: SelectorProgram,
  input: SelectorInput,
): Promise<readonly SelectorVerdict[]> {
  const [answer] = await program.select([input]);
  if (answer?.outcome !== 'asked') throw new Error(`not asked: ${JSON.stringify(answer)}`);
  return answer.verdicts;
}

/** Text of a body that a selector wrote; null where it wrote none. */
export function textOf(body: Uint8Array | null | undefined): string | null {
  return body === null || body === undefined ? null : Buffer.from(body).toString();
}
