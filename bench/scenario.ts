/** A scenario of `npm run bench`, which measures Quayside and a reference in the same run. */
export interface Scenario {
  readonly name: string;
  run(context: BenchContext): Promise<Finding[]>;
}

export interface BenchContext {
  /** Runs one short round of everything, which shows that the scenario works but nothing about speed. */
  readonly quick: boolean;
  /** The folder for CPU profiles of the servers; null: none are written. */
  readonly profileDir: string | null;
  /** Prints figures of single rounds and other background as they are measured. */
  note(line: string): void;
}

/** A figure with its reference and the target for their ratio. */
export interface Finding {
  readonly what: string;
  readonly figure: string;
  readonly reference: string;
  readonly ratio: number;
  readonly target: Target;
}

export interface Target {
  readonly kind: 'at least' | 'at most';
  readonly ratio: number;
}

export function isReached({ ratio, target }: Finding): boolean {
  return target.kind === 'at least' ? ratio >= target.ratio : ratio <= target.ratio;
}

/** Formats `what: figure, reference, ratio, target, ok or short` on one line. A quick run judges nothing. */
export function lineOf(scenario: string, finding: Finding, quick: boolean): string {
  const { what, figure, reference, ratio, target } = finding;
  const sign = target.kind === 'at least' ? '>=' : '<=';
  const said = quick ? 'not judged' : isReached(finding) ? 'ok' : 'short';
  return `${scenario}: ${what}: ${figure}, reference ${reference}, ratio ${ratio.toFixed(2)}, target ${sign} ${target.ratio}: ${said}`;
}

/** @throws RangeError for an empty list */
export function median(numbers: readonly number[]): number {
  return percentile(numbers, 0.5);
}

/** The smallest number that is at least as large as this part of the numbers. @throws RangeError for an empty list */
export function percentile(numbers: readonly number[], part: number): number {
  const sorted = [...numbers].sort((a, b) => a - b);
  const found = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
  if (found === undefined) throw new RangeError('There is nothing to take a percentile of.');
  return found;
}

/** Runs two measurements in turn, A B A B …, so that noise of neighbors affects both. Returns all pairs in order. */
export async function interleave<A, B>(
  rounds: number,
  a: (round: number) => Promise<A>,
  b: (round: number) => Promise<B>,
): Promise<(readonly [A, B])[]> {
  const pairs: (readonly [A, B])[] = [];
  for (let round = 0; round < rounds; round++) {
    const first = await a(round);
    pairs.push([first, await b(round)]);
  }
  return pairs;
}

/** 12345.6 -> `12,346` */
export function grouped(value: number): string {
  return Math.round(value).toLocaleString('en-US');
}
