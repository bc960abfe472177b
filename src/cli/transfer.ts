import { unexpectedResponse } from '../client/errors.ts';
import { ConnectionError, type Name, QuaysideError } from '../client/index.ts';
import { pathOf } from '../client/quayside.ts';
import type { Imported } from '../model/records.ts';
import { type CommandContext, exitCodeOf, printableJson } from './context.ts';
import { EXIT_CODES } from './output.ts';

const NDJSON = 'application/x-ndjson';
/** Maximum lines and bytes of one import request, which must arrive within a minute. */
const MAX_REQUEST_LINES = 5_000;
const MAX_REQUEST_BYTES = 4_194_304;

/** Writes all elements of a queue to standard output, one line of JSON each. */
export async function exportQueue(
  context: CommandContext,
  name: Name,
  { group }: { group?: string },
): Promise<number> {
  const query = group === undefined ? '' : `?group=${encodeURIComponent(group)}`;
  const response = await context.client.stream('GET', `${pathOf(name)}/export${query}`);
  if (response.headers.get('content-type') !== NDJSON) throw unexpectedResponse(await response.text());
  const chunks = wholeBody(response);
  if (context.io.stdout.isTTY) await writePrintable(context, chunks);
  else for await (const chunk of chunks) await context.write(chunk);
  return EXIT_CODES.done;
}

/** @throws ConnectionError if the connection ends before the body */
async function* wholeBody({ body }: Response): AsyncGenerator<Uint8Array, void, void> {
  try {
    if (body !== null) yield* body as AsyncIterable<Uint8Array>;
  } catch (cause) {
    const message = 'The connection ended before the whole export had arrived. The output is incomplete.';
    throw new ConnectionError(message, { cause });
  }
}

/** Writes to a terminal, with control characters escaped. */
async function writePrintable(context: CommandContext, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const decoder = new TextDecoder();
  for await (const chunk of chunks)
    await context.write(printableJson(decoder.decode(chunk, { stream: true })));
  // If the last character is incomplete, this writes a replacement character.
  await context.write(printableJson(decoder.decode()));
}

/**
 * Stores the lines of an export. The server skips elements that it has already stored, so a failed import can be
 * repeated from its start.
 */
export async function importQueue(context: CommandContext, name: Name): Promise<number> {
  const sum: Imported = { imported: 0, repeated: 0 };
  let [lines, size, before]: [string[], number, number] = [[], 0, 0];
  const send = async (): Promise<void> => {
    try {
      const { imported, repeated } = await context.json<Imported>('POST', `${pathOf(name)}/import`, {
        body: lines.join('\n'),
        contentType: NDJSON,
        isRepeatable: true,
      });
      sum.imported += imported;
      sum.repeated += repeated;
      context.hasChanged ||= imported > 0;
    } catch (error) {
      // The import began. If the last attempt stored nothing, an earlier one may have.
      context.hasChanged ||= error instanceof QuaysideError && 'imported' in error.details;
      throw withProgress(error, before, sum, context.hasChanged);
    }
    context.progress(`${sum.imported} elements imported`);
    [lines, size, before] = [[], 0, before + lines.length];
  };
  try {
    for await (const arrived of context.lines()) {
      for (const line of arrived) {
        lines.push(line);
        size += line.length;
        if (lines.length >= MAX_REQUEST_LINES || size >= MAX_REQUEST_BYTES) await send();
      }
    }
    if (lines.length > 0) await send();
  } finally {
    context.endProgress();
  }
  await context.print(sum, () => `${sum.imported} elements imported, ${sum.repeated} existed already`);
  return EXIT_CODES.done;
}

/**
 * Converts the line number in an error from one request to the line of the whole input, and adds how many elements were
 * stored at least: an attempt without a response may have stored more.
 */
function withProgress(error: unknown, linesBefore: number, before: Imported, hasChanged: boolean): unknown {
  if (!(error instanceof QuaysideError)) return error;
  const [line, imported, repeated] = ['line', 'imported', 'repeated'].map((name) => {
    const value = error.details[name];
    return typeof value === 'number' ? value : 0;
  }) as [number, number, number];
  const where = error.message.replace(/^Line \d+/, `Line ${linesBefore + line}`);
  const count = before.imported + before.repeated + imported + repeated;
  if (count === 0 && exitCodeOf(error, hasChanged) !== EXIT_CODES.outcomeUnknown) {
    return Object.assign(error, { message: where });
  }
  const stored = count === 0 ? 'Elements may have been stored' : `At least ${count} elements were stored`;
  const sentence = where.endsWith('.') ? where : `${where}.`;
  return Object.assign(error, { message: `${sentence} ${stored}; the whole input can be imported again.` });
}
