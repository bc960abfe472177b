import { invalidParameter } from '../model/errors.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';

/** What a filter may compare of a queue. Ages are in seconds, rates per second. */
export const MEASURES = ['ready', 'scheduled', 'reserved', 'depth', 'age', 'in', 'out'] as const;

export type QueueMeasure = (typeof MEASURES)[number];

export interface FilteredQueue {
  readonly ns: string;
  readonly queue: string;
  readonly paused: boolean;
  /** Called for what is compared alone: the rates of 10,000 queues take a tenth of a second. */
  measure(name: QueueMeasure): number;
}

export type QueueFilter = (queue: FilteredQueue) => boolean;

/** A filter is short: each word is tried on each queue. */
const MAX_WORDS = 16;
const COMPARISON = /^(>=|<=|>|<|=)?(\d{1,15}(?:\.\d{1,9})?)$/;
const QUALIFIED = /^([a-z]+):(.*)$/is;

/**
 * What a filter says: words of names, `ns:N`, `depth:>1000`, `paused`, `running`, `queue:word` for a word that is one of these.
 * All must hold. Letter case does not matter.
 * @throws QuaysideError `invalid-parameter`
 */
export function readQueueFilter(name: string, text: string): QueueFilter {
  const words = text.split(/\s+/).filter((word) => word !== '');
  if (words.length > MAX_WORDS) {
    throw invalidParameter(name, `${name} has ${words.length} words. Allowed: up to ${MAX_WORDS}.`);
  }
  const filters = words.map((word) => filterOf(name, word));
  return (queue) => filters.every((filter) => filter(queue));
}

function filterOf(name: string, word: string): QueueFilter {
  const lower = word.toLowerCase();
  if (lower === 'paused') return ({ paused }) => paused;
  if (lower === 'running') return ({ paused }) => !paused;
  const [, qualifier, value = ''] = QUALIFIED.exec(lower) ?? [];
  if (qualifier === undefined) return namesLike(lower);
  if (qualifier === 'ns') return ({ ns }) => ns.toLowerCase() === value;
  if (qualifier === 'queue') return namesLike(value);
  const measure = MEASURES.find((one) => one === qualifier);
  if (measure === undefined) {
    const known = [...MEASURES, 'ns', 'queue'];
    const hint =
      didYouMean(qualifier, known) ||
      ` Allowed: ${known.join(', ')}; queue:${quote(word)} searches for the text.`;
    throw invalidParameter(
      name,
      `${name} has ${quote(word)}, and nothing is called ${quote(qualifier)}.${hint}`,
    );
  }
  const [, sign = '=', digits] = COMPARISON.exec(value) ?? [];
  if (digits === undefined) {
    throw invalidParameter(
      name,
      `${name} has ${quote(word)}. After ${measure}: comes a number, or one of > >= < <= = and a number.`,
    );
  }
  const bound = Number(digits);
  return (queue) => compare(queue.measure(measure), sign, bound);
}

function namesLike(part: string): QueueFilter {
  return ({ queue }) => queue.toLowerCase().includes(part);
}

function compare(value: number, sign: string, bound: number): boolean {
  if (sign === '>') return value > bound;
  if (sign === '<') return value < bound;
  if (sign === '>=') return value >= bound;
  return sign === '<=' ? value <= bound : value === bound;
}
