import type { BrowsedElement, ExchangeDeclaration, ExchangeTrial } from '../../model/records.ts';
import { ApiError, get, path } from '../api.ts';
import { listElements } from './elements.ts';
import type { QueueNamed } from './live.ts';

/** An element of the source, and the result of a dry run. */
export interface TriedElement {
  readonly id: string;
  readonly result: ExchangeTrial;
}

/** The results for one element, with the stored and with the edited declaration. */
export interface ComparedElement {
  readonly id: string;
  readonly before: ExchangeTrial;
  readonly after: ExchangeTrial;
}

export interface SelectorMistake {
  readonly destination: number;
  readonly message: string;
  readonly line: number;
  readonly column: number | null;
}

/** Reads the first elements of a source that have a text body that the user may see. */
export async function samplesOf(src: QueueNamed, max: number): Promise<readonly BrowsedElement[]> {
  const { elements } = await listElements(
    src,
    { state: null, group: null, search: '' },
    { after: null, hidesBodies: false, signal: new AbortController().signal },
  );
  return elements.filter(({ text, truncated }) => text !== undefined && !truncated).slice(0, max);
}

/** Tests a declaration with elements; null: the stored one. One at a time: a user may run only two tests at once. */
export async function tryOn(
  id: string,
  declaration: ExchangeDeclaration | null,
  samples: readonly BrowsedElement[],
): Promise<readonly TriedElement[]> {
  const tried: TriedElement[] = [];
  for (const sample of samples) tried.push({ id: sample.id, result: await dryRun(id, declaration, sample) });
  return tried;
}

/** Compares the stored and a changed declaration with elements of the source. */
export async function compareOn(
  id: string,
  changed: ExchangeDeclaration,
  samples: readonly BrowsedElement[],
): Promise<readonly ComparedElement[]> {
  const before = await tryOn(id, null, samples);
  const after = await tryOn(id, changed, samples);
  return before.flatMap(({ id: of, result }, i) => {
    const matching = after[i];
    return matching === undefined ? [] : [{ id: of, before: result, after: matching.result }];
  });
}

/** Returns the destinations of an element, or the queue for unroutable elements. */
export function placesOf({ dst, strays_to, overrun }: ExchangeTrial): readonly string[] {
  if (overrun !== null) return [`nowhere: ${overrun}`];
  const accepting = dst.filter(({ accepted }) => accepted).map(({ ns, q }) => `${q} of ${ns}`);
  return accepting.length === 0 && strays_to !== null ? [strays_to] : accepting;
}

/** Whether a change sends an element elsewhere, changes the copies in the same destinations, or has no effect. */
export function differenceOf({ before, after }: ComparedElement): 'elsewhere' | 'changed' | 'same' {
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
