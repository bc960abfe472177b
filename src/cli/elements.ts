import { isUtf8 } from 'node:buffer';
import {
  type Codec,
  type Element,
  type ElementState,
  type Name,
  QuaysideError,
  type SelectorFailure,
} from '../client/index.ts';
import { pathOf } from '../client/quayside.ts';
import { quote } from '../util/quote.ts';
import { type CommandContext, CommandUsageError, printable, tableOf } from './context.ts';
import { EXIT_CODES } from './output.ts';

/** Elements inserted concurrently. */
const MAX_CONCURRENT_INSERTS = 1_000;

interface PutFlags {
  readonly type?: string;
  readonly delay?: number;
  readonly ttl?: number;
  readonly header?: readonly string[];
  readonly key?: string;
  readonly groups?: string;
  readonly lines?: boolean;
}

/** Inserts one element per argument; without arguments, standard input as one element or one element per line. */
export async function put(
  context: CommandContext,
  name: Name,
  data: readonly string[],
  flags: PutFlags,
): Promise<number> {
  const { delay, ttl, key, groups, header = [] } = flags;
  if (flags.lines && data.length > 0) {
    throw new CommandUsageError(
      '--lines reads elements from standard input. Leave it out, or the arguments.',
    );
  }
  if (flags.type === '')
    throw new CommandUsageError('--type "" is not a content type. Give one, or leave the option out.');
  const options = {
    headers: readHeaders(header),
    ...(delay !== undefined && { delayMs: delay * 1000 }),
    ...(ttl !== undefined && { ttlMs: ttl * 1000 }),
    groups: groups?.split(',').map((group) => group.trim()),
  };
  const isOne = flags.lines !== true && data.length <= 1;
  let insertedCount = 0;
  for await (const batch of batchesOf(context, data, flags)) {
    if (key !== undefined && batch.length > 1) {
      throw new CommandUsageError('--key names one element, and there are more. Insert them one by one.');
    }
    const outcomes = await Promise.allSettled(
      batch.map(async (body) => {
        const queue = context.client.queue(name, { codec: plainCodec(flags.type ?? typeOf(body)) });
        return queue.insert(body, key === undefined ? options : { ...options, idempotencyKey: key });
      }),
    );
    // Print the ids of stored elements even if others failed.
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected') continue;
      context.hasChanged = true;
      const { id } = outcome.value;
      await context.print({ id }, () => id);
    }
    for (const [i, outcome] of outcomes.entries()) {
      if (outcome.status === 'fulfilled') continue;
      throw isOne ? outcome.reason : withElementNumber(outcome.reason, insertedCount + i + 1);
    }
    insertedCount += batch.length;
  }
  return EXIT_CODES.done;
}

/** Adds the element's number to an error that concerns only this element. */
function withElementNumber(error: unknown, number: number): unknown {
  if (!(error instanceof QuaysideError) || error.details.line === undefined) return error;
  return Object.assign(error, { message: `Element ${number}: ${error.message}` });
}

/** The bodies to insert, in batches. Lines come as soon as they have arrived, since the input may be an open pipe. */
async function* batchesOf(
  context: CommandContext,
  data: readonly string[],
  { lines, key }: PutFlags,
): AsyncGenerator<readonly (string | Uint8Array)[], void, void> {
  if (!lines) {
    yield* batched<string | Uint8Array>(data.length > 0 ? data : [await context.input()]);
    return;
  }
  /** With a key, nothing may be inserted if there is a second line. */
  let keyed: string[] = [];
  for await (const arrived of context.lines()) {
    const bodies = arrived.map((line) => line.replace(/\r$/, '')).filter((line) => line !== '');
    if (key === undefined) yield* batched(bodies);
    else keyed = keyed.concat(bodies);
    if (keyed.length > 1) break;
  }
  yield* batched(keyed);
}

function* batched<T>(items: readonly T[]): Generator<readonly T[], void, void> {
  for (let at = 0; at < items.length; at += MAX_CONCURRENT_INSERTS) {
    yield items.slice(at, at + MAX_CONCURRENT_INSERTS);
  }
}

function plainCodec(contentType: string): Codec<string | Uint8Array> {
  return { contentType, encode: (data) => data, decode: (body) => body };
}

function typeOf(body: string | Uint8Array): string {
  if (typeof body !== 'string') return 'application/octet-stream';
  try {
    JSON.parse(body);
    return 'application/json';
  } catch {
    return 'text/plain; charset=utf-8';
  }
}

/** Names that differ only in case are rejected by the server. */
function readHeaders(texts: readonly string[]): Record<string, string> {
  const headers = new Map<string, string>();
  for (const text of texts) {
    const at = text.indexOf('=');
    if (at <= 0) throw new CommandUsageError(`--header ${quote(text)} is not NAME=VALUE.`);
    const name = text.slice(0, at);
    if (headers.has(name))
      throw new CommandUsageError(`--header ${quote(name)} is given twice. Give it once.`);
    headers.set(name, text.slice(at + 1));
  }
  return Object.fromEntries(headers);
}

interface TakeFlags {
  readonly wait?: number;
  readonly group?: string;
  readonly lease?: number;
}

/** Pops the next element. */
export async function get(
  context: CommandContext,
  name: Name,
  { wait = 0, group }: TakeFlags,
): Promise<number> {
  const element = await context.client.queue(name).pop({ waitMs: wait * 1000, group });
  if (element === undefined) return nothing(context, name);
  context.hasChanged = true;
  await context.printJson(
    () => jsonOf(element),
    () => printableBody(element),
  );
  return EXIT_CODES.done;
}

/** Prints a message for people; scripts read the exit code. */
function nothing(context: CommandContext, name: Name): number {
  if (context.isHuman) context.warn(`There is no element to take in ${name}.`);
  return EXIT_CODES.nothing;
}

/** Reserves the next element and leaves it reserved, to be finished with `commit`. */
export async function reserve(
  context: CommandContext,
  name: Name,
  { wait = 0, group, lease }: TakeFlags,
): Promise<number> {
  const options = { waitMs: wait * 1000, group, ...(lease !== undefined && { leaseMs: lease * 1000 }) };
  const job = await context.client.queue(name).reserve(options);
  if (job === undefined) return nothing(context, name);
  context.hasChanged = true;
  const { token, leaseUntil } = job;
  const groupFlag = group === undefined ? [] : ['--group', group];
  const words = ['quayside', 'commit', name, job.id, '--token', token, ...groupFlag];
  await context.printJson(
    () => jsonOf(job, { token, leaseUntil }),
    () =>
      `${printableBody(job)}\nid ${job.id}, token ${token}, until ${leaseUntil.toISOString()}\n` +
      words.map(shellWord).join(' '),
  );
  return EXIT_CODES.done;
}

export async function commit(
  context: CommandContext,
  name: Name,
  id: string,
  { token, group }: { token?: string; group?: string },
): Promise<number> {
  // An empty value must reach the server, which rejects it: without the token, the commit might finish the element of
  // another worker.
  const query = new URLSearchParams({
    ...(token !== undefined && { token }),
    ...(group !== undefined && { group }),
  });
  const path = `${pathOf(name)}/commit/${encodeURIComponent(id)}?${query}`;
  await context.json('POST', path, { contentType: 'text/plain' });
  context.hasChanged = true;
  await context.print({ id, committed: true }, () => `committed ${id}`);
  return EXIT_CODES.done;
}

interface BrowseFlags {
  readonly state?: ElementState;
  readonly where?: string;
  readonly group?: string;
  readonly limit?: number;
}

/** Maximum number of elements that `browse` shows without `--limit`. */
const BROWSE_LIMIT = 50;

/** Shows elements without taking them. */
export async function browse(
  context: CommandContext,
  name: Name,
  { limit, ...flags }: BrowseFlags,
): Promise<number> {
  const rows: Record<string, unknown>[] = [];
  let shown = 0;
  const onSelectorError = ({ failed, error }: SelectorFailure): void =>
    context.warn(`${failed} left out, since the selector threw, first for ${error.id}: ${error.message}`);
  for await (const element of context.client.queue(name).browse({ ...flags, onSelectorError })) {
    if (limit === undefined && shown === BROWSE_LIMIT) {
      context.warn(`Only the first ${BROWSE_LIMIT} elements are shown. --limit COUNT shows more.`);
      break;
    }
    const { id, state, tries, mature, insertedAt, reason, holder } = element;
    if (context.isHuman)
      rows.push({ id, state, tries, mature: mature.toISOString(), reason, data: dataOf(element)?.text });
    else
      await context.printJson(
        () => jsonOf(element, { state, insertedAt, reason, holder }),
        () => '',
      );
    shown += 1;
    if (shown === limit) break;
  }
  if (context.isHuman) await context.write(rows.length === 0 ? 'no elements\n' : tableOf(rows));
  return EXIT_CODES.done;
}

export function placeOf(name: string): { ns: string; queue: string } {
  const at = name.indexOf('/');
  if (at > 0 && at < name.length - 1) return { ns: name.slice(0, at), queue: name.slice(at + 1) };
  throw new CommandUsageError(`${quote(name)} does not name a queue. Allowed: namespace/queue.`);
}

/** An element as JSON, with `data` if the body is UTF-8, otherwise `base64`. */
function jsonOf(element: Element<unknown>, more: Readonly<Record<string, unknown>> = {}): string {
  const { id, tries, mature, contentType, headers } = element;
  const members = JSON.stringify({ id, tries, mature, contentType, headers, ...more });
  const data = dataOf(element);
  const body =
    data === null
      ? `"base64":"${Buffer.from(element.body).toString('base64')}"`
      : `"data":${data.isJson ? data.text : JSON.stringify(data.text)}`;
  return `${members.slice(0, -1)},${body}}`;
}

/**
 * The body as text, exactly as it was written, if it is UTF-8, whatever its type: curl and standard input give types of
 * bytes. Otherwise, and if the user may not see it, null. Parsing JSON would round long numbers.
 */
function dataOf(element: Element<unknown>): { readonly text: string; readonly isJson: boolean } | null {
  const { body } = element;
  if (!isUtf8(body)) return null;
  const text = Buffer.from(body).toString('utf8');
  try {
    const { data } = element;
    if (data instanceof Uint8Array || data === text) return { text, isJson: false };
    // In JSON, these characters are only white space between values; strings contain them escaped.
    return { text: text.trim().replaceAll(/[\t\r\n]/g, ' '), isJson: true };
  } catch (error) {
    // A body that is not what its type says is text.
    return (error as QuaysideError).code === 'body-hidden' ? null : { text, isJson: false };
  }
}

/** Quotes text for a shell if necessary. */
function shellWord(text: string): string {
  return /^[\w./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function printableBody(element: Element<unknown>): string {
  return printable(Buffer.from(element.body).toString('utf8'));
}
