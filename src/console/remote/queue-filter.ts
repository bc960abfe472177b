import { type QueuePicture, readyForMs } from './live.ts';

/** Numbers of a queue that a filter may compare, by the names that people write. */
export interface QueueNumbers {
  readonly ready: number;
  readonly scheduled: number;
  readonly reserved: number;
  readonly depth: number;
  /** Seconds. */
  readonly age: number;
  readonly in: number;
  readonly out: number;
}

export const QUALIFIERS = [
  'ns:N',
  'ready:>0',
  'depth:>1000',
  'scheduled:>0',
  'reserved:>0',
  'age:>60',
  'in:>1',
  'out:0',
  'paused',
  'running',
] as const;

const COMPARISON = /^(ready|scheduled|reserved|depth|age|in|out):(>=|<=|>|<|=)?(\d+(?:\.\d+)?)$/i;

type Test = (queue: QueuePicture, numbers: () => QueueNumbers) => boolean;

/** What a filter says: words of names, `ns:N`, `depth:>1000`, `paused`. All must hold. */
export function parseFilter(text: string): Test {
  const tests = text.trim().split(/\s+/).filter(Boolean).map(testOf);
  return (queue, numbers) => tests.every((test) => test(queue, numbers));
}

function testOf(word: string): Test {
  const lower = word.toLowerCase();
  if (lower === 'paused') return ({ paused }) => paused;
  if (lower === 'running') return ({ paused }) => !paused;
  if (lower.startsWith('ns:')) return ({ ns }) => ns.toLowerCase() === lower.slice(3);
  const compared = COMPARISON.exec(lower);
  if (compared !== null) {
    const [, name = '', sign = '=', bound = '0'] = compared;
    return (_, numbers) => compare(numbers()[name as keyof QueueNumbers], sign, Number(bound));
  }
  return ({ queue }) => queue.toLowerCase().includes(lower);
}

function compare(value: number, sign: string, bound: number): boolean {
  if (sign === '>') return value > bound;
  if (sign === '<') return value < bound;
  if (sign === '>=') return value >= bound;
  return sign === '<=' ? value <= bound : value === bound;
}

export function numbersOf(
  queue: QueuePicture,
  rates: { in: number; out: number },
  now: number,
): QueueNumbers {
  const { size, schedSize, resvSize, totalSize } = queue;
  const age = (readyForMs(queue, now) ?? 0) / 1000;
  return { ready: size, scheduled: schedSize, reserved: resvSize, depth: totalSize, age, ...rates };
}
