import type { BrowsedElement, ExchangeDeclaration, ExchangeTrial } from '../../model/records.ts';
import { ApiError, call, get, path, type QueueNamed } from '../api.ts';
import { listElements } from './elements.ts';

const PAYLOADS = { json: 'JSON', text: 'text', bytes: 'bytes' } as const;

/** What selectors see as the payload of an element, and why: `bytes (application/json, gzip)`. */
export function seenPayload({ payload, content_type, content_encoding }: ExchangeTrial['saw']): string {
  const reasons = [
    content_type || 'no content type',
    ...(content_encoding === null ? [] : [content_encoding]),
  ];
  return `${PAYLOADS[payload]} (${reasons.join(', ')})`;
}

/** @returns what was done, with the server's note if it sent one */
export async function saveExchange(
  id: string,
  declared: ExchangeDeclaration,
  { version, done }: { readonly version: string | null; readonly done: string },
): Promise<string> {
  const headers = version === null ? {} : { 'if-match': `"${version}"` };
  return withNote(done, await call(path('x', id), { method: 'PUT', json: declared, headers }));
}

/** @returns as `saveExchange` */
export async function changeExchange(
  id: string,
  verb: 'start' | 'stop' | 'delete',
  done: string,
): Promise<string> {
  const response =
    verb === 'delete'
      ? await call(path('x', id), { method: 'DELETE' })
      : await call(path('x', id, verb), { method: 'POST' });
  return withNote(done, response);
}

/** A response has a note if a restart restores the declaration of the configuration file. */
function withNote(done: string, { headers }: Response): string {
  const note = headers.get('x-ks-note');
  return note === null ? done : `${done}. Note: ${note}.`;
}

/** An element of the source, and the result of a dry run. */
export interface TriedElement {
  readonly id: string;
  readonly result: ExchangeTrial;
}

/** Where an element of the source goes by the stored and by the changed declaration. */
export interface ComparedElement {
  readonly id: string;
  readonly before: readonly string[];
  readonly after: readonly string[];
  /** `changed`: its copies go to the same destinations with other content. */
  readonly difference: 'elsewhere' | 'changed' | 'same';
}

/** A mistake in a selector. Line and column count from 1. */
export interface SelectorProblem {
  readonly message: string;
  readonly line: number;
  readonly column: number | null;
}

export interface SelectorMistake extends SelectorProblem {
  readonly destination: number;
}

/** Reads the first elements of a source that have a text body that the user may see. */
export async function samplesOf(src: QueueNamed, max: number): Promise<readonly BrowsedElement[]> {
  const { elements } = await listElements(
    src,
    { state: null, group: null, search: '' },
    { after: null, hidesBodies: false },
  );
  return elements.filter(({ text, truncated }) => text !== undefined && !truncated).slice(0, max);
}

/** Tests a declaration with elements, one at a time: a user may run only two tests at once. */
export async function tryOn(
  id: string,
  declaration: ExchangeDeclaration,
  samples: readonly BrowsedElement[],
): Promise<readonly TriedElement[]> {
  const tried: TriedElement[] = [];
  for (const sample of samples) tried.push({ id: sample.id, result: await dryRun(id, declaration, sample) });
  return tried;
}

/** Compares the stored and a changed declaration with elements of the source, until `signal` is aborted. */
export async function compareOn(
  id: string,
  changed: ExchangeDeclaration,
  samples: readonly BrowsedElement[],
  signal: AbortSignal,
): Promise<readonly ComparedElement[]> {
  const compared: ComparedElement[] = [];
  for (const sample of samples) {
    signal.throwIfAborted();
    const before = await dryRun(id, null, sample);
    const after = await dryRun(id, changed, sample);
    compared.push({
      id: sample.id,
      before: placesOf(before),
      after: placesOf(after),
      difference: differenceOf(before, after),
    });
  }
  return compared;
}

/** Returns the destinations of an element, or the queue for unroutable elements. */
function placesOf({ dst, strays_to, overrun }: ExchangeTrial): readonly string[] {
  if (overrun !== null) return [`nowhere: ${overrun}`];
  const accepting = dst.filter(({ accepted }) => accepted).map(({ ns, q }) => `${q} of ${ns}`);
  return accepting.length === 0 && strays_to !== null ? [strays_to] : accepting;
}

function differenceOf(before: ExchangeTrial, after: ExchangeTrial): ComparedElement['difference'] {
  const sorted = (result: ExchangeTrial): string => JSON.stringify([...placesOf(result)].sort());
  if (sorted(before) !== sorted(after)) return 'elsewhere';
  return copiesOf(before) === copiesOf(after) ? 'same' : 'changed';
}

function copiesOf({ dst }: ExchangeTrial): string {
  return JSON.stringify(
    dst
      .filter(({ accepted }) => accepted)
      .map(({ ns, q, delay, tries, hdrs, payload }) => [ns, q, delay, tries, hdrs, payload])
      .map((copy) => JSON.stringify(copy))
      .sort(),
  );
}

/** Lets the server check a selector. Other mistakes are ignored: the rest of the form may be unfinished. */
export async function selectorMistake(
  { src, dst }: ExchangeDeclaration,
  destination: number,
  signal: AbortSignal,
): Promise<SelectorMistake | null> {
  const { ns, selector } = dst[destination] ?? { ns: src.ns };
  if (!selector?.trim()) return null;
  // Use placeholder names: the queues of the form may have no name yet.
  const declaration = {
    src: { ns: src.ns, queue: 'source' },
    dst: [{ ns, queue: 'to', selector }],
    consumer: {},
  };
  try {
    await get(path('x', 'checked', 'test'), { method: 'POST', json: { declaration, msg: {} }, signal });
    return null;
  } catch (error) {
    const found = mistakeIn(error);
    return found === null ? null : { ...found, destination };
  }
}

/** Returns the selector mistake that an error reports; null if it reports none. */
export function mistakeIn(error: unknown): SelectorMistake | null {
  if (!(error instanceof ApiError)) return null;
  const { parameter, line, column } = error.details;
  const at = /dst\[(\d+)\]\.selector$/.exec(String(parameter))?.[1];
  if (at === undefined || typeof line !== 'number') return null;
  return {
    destination: Number(at),
    message: withoutPlace(error.message),
    line,
    column: typeof column === 'number' ? column : null,
  };
}

/** The editor shows the place itself, and the check while typing names a destination that the form does not have. */
function withoutPlace(message: string): string {
  return message.replace(/^\S+, line \d+, column \d+: | \(line \d+, column \d+\)$/, '');
}

/** Returns the first mistake of each destination's selector in the results. */
export function mistakesIn(tried: readonly TriedElement[]): readonly SelectorMistake[] {
  const found = new Map<number, SelectorMistake>();
  for (const { id, result } of tried) {
    for (const [destination, { error, line, column }] of result.dst.entries()) {
      if (error === null || line === null || found.has(destination)) continue;
      const message = `${withoutPlace(error)} (element ${id})`;
      found.set(destination, { destination, message, line, column });
    }
  }
  return [...found.values()];
}

/** @param declaration null: the stored one */
function dryRun(
  id: string,
  declaration: ExchangeDeclaration | null,
  { id: of, text = '', contentType, headers, tries }: BrowsedElement,
): Promise<ExchangeTrial> {
  return get<ExchangeTrial>(path('x', id, 'test'), {
    method: 'POST',
    json: {
      ...(declaration !== null && { declaration }),
      // A string is sent as the body, unchanged.
      msg: { id: of, payload: text, hdrs: headers, tries },
      content_type: contentType ?? '',
    },
  });
}
