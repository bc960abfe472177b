import type { Name } from '../client/index.ts';
import type { CommandContext } from './context.ts';
import { queuePath } from './elements.ts';
import { EXIT_CODES } from './exit-codes.ts';

/** Lines of one import request; a request has a minute to arrive. */
const LINES_AT_ONCE = 5_000;
const BYTES_AT_ONCE = 4_194_304;

/** Writes all elements of a queue to standard output, one line of JSON each. */
export async function exportQueue(
  context: CommandContext,
  name: Name,
  { group }: { group?: string },
): Promise<number> {
  const query = group === undefined ? '' : `?group=${encodeURIComponent(group)}`;
  const response = await context.client.stream('GET', `${queuePath(name)}/export${query}`);
  for await (const chunk of response.body ?? []) await context.write(chunk as Uint8Array);
  return EXIT_CODES.done;
}

/** Stores the lines of an export. What is stored already is left out, so an import that failed is repeated from its start. */
export async function importQueue(context: CommandContext, name: Name): Promise<number> {
  const sum = { imported: 0, repeated: 0 };
  const send = async (body: string): Promise<void> => {
    const { text } = await context.client.request('POST', `${queuePath(name)}/import`, {
      body,
      contentType: 'application/x-ndjson',
      isRepeatable: true,
    });
    const { imported, repeated } = JSON.parse(text) as typeof sum;
    sum.imported += imported;
    sum.repeated += repeated;
    context.progress(`${sum.imported} elements imported`);
  };
  let lines: string[] = [];
  let size = 0;
  for await (const line of linesOf(context)) {
    lines.push(line);
    size += line.length;
    if (lines.length < LINES_AT_ONCE && size < BYTES_AT_ONCE) continue;
    await send(lines.join('\n'));
    [lines, size] = [[], 0];
  }
  if (lines.length > 0) await send(lines.join('\n'));
  context.endProgress();
  await context.print(sum, () => `${sum.imported} elements imported, ${sum.repeated} were there already`);
  return EXIT_CODES.done;
}

async function* linesOf({ io }: CommandContext): AsyncGenerator<string, void, void> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of io.stdin) {
    const lines = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split('\n');
    rest = lines.pop() ?? '';
    yield* lines.filter((line) => line !== '');
  }
  rest += decoder.decode();
  if (rest !== '') yield rest;
}
