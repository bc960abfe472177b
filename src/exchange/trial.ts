import type { Broker } from '../broker/broker.ts';
import type { Clock } from '../model/clock.ts';
import type { Delivery } from '../model/element.ts';
import type { Asker } from './asker.ts';
import type { Declaration } from './declaration.ts';
import { changed, copyOf, hopsOf, keepable, NO_ROUTE, TOO_MANY_HOPS } from './forward.ts';
import type { SelectorSandbox, SelectorVerdict } from './sandbox/sandbox.ts';

/** An element to try an exchange with: what a selector may know of it. */
export type Sample = Pick<
  Delivery,
  'id' | 'tries' | 'matureAt' | 'headers' | 'body' | 'contentType' | 'contentEncoding'
>;

/** What would become of the sample. Nothing was stored. */
export interface Trial {
  /** Per destination; empty where the element would not be asked about at all. */
  readonly dst: readonly TriedDestination[];
  /** `__no_route__` or `__too_many_hops__` where it would go there, else null. */
  readonly strays_to: string | null;
  /** Why the selectors could not be asked: they use more time or memory than they may. Else null. */
  readonly overrun: string | null;
  readonly selector_ms: number;
}

export interface TriedDestination {
  readonly q: string;
  readonly ns: string;
  readonly accepted: boolean;
  readonly error: string | null;
  /** What the selector set on the copy; null where it set nothing. */
  readonly mature: string | null;
  readonly delay: number | null;
  readonly tries: number | null;
  /** What this destination would store; where it is not `accepted`, would have stored. */
  readonly hdrs: Readonly<Record<string, string>>;
  readonly payload: string;
  /** Whether `payload` is text or, for other bytes, base64. */
  readonly payload_encoding: 'text' | 'base64';
}

export interface TrialParts {
  readonly broker: Broker;
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  readonly maxHops: number;
}

/** Asks the selectors of a declaration for one element, as the loop would, and stores nothing. */
export async function tryOut(
  { dst }: Declaration,
  sample: Sample,
  { broker, sandbox, clock, maxHops }: TrialParts,
  { name }: Asker,
): Promise<Trial> {
  const untouched = { dst: [], strays_to: null, overrun: null, selector_ms: 0 };
  if (hopsOf(sample) >= maxHops) return { ...untouched, strays_to: TOO_MANY_HOPS };
  const program = sandbox.open(
    dst.map(({ selector }) => selector ?? null),
    { asker: name },
  );
  try {
    const startedAt = clock.monotonic();
    const [answer] = await program.select([sample]);
    const selector_ms = Math.round((clock.monotonic() - startedAt) * 100) / 100;
    if (answer?.outcome !== 'asked') {
      const overrun = answer?.outcome === 'overrun' ? answer.error : 'the selectors were not asked';
      return { ...untouched, overrun, selector_ms };
    }
    const tried = answer.verdicts.flatMap((verdict, i) => {
      const to = dst[i];
      if (to === undefined) return [];
      const kept = keepable(verdict, broker.namespace(to.ns), clock.now());
      return [{ q: to.queue, ns: to.ns, ...shown(sample, kept) }];
    });
    const strays_to = tried.some(({ accepted }) => accepted) ? null : NO_ROUTE;
    return { dst: tried, strays_to, overrun: null, selector_ms };
  } finally {
    program.close();
  }
}

function shown(sample: Sample, verdict: SelectorVerdict): Omit<TriedDestination, 'q' | 'ns'> {
  const { body, headers } = copyOf(changed(sample, verdict), hopsOf(sample), [], null);
  const hdrs: Record<string, string> = Object.create(null) as Record<string, string>;
  for (let i = 0; i < headers.length; i += 2) hdrs[headers[i] ?? ''] = headers[i + 1] ?? '';
  const text = decode(body);
  return {
    accepted: verdict.accepted,
    error: verdict.error,
    mature: verdict.matureAt === null ? null : new Date(verdict.matureAt).toISOString(),
    delay: verdict.delayMs === null ? null : verdict.delayMs / 1000,
    tries: verdict.tries,
    hdrs,
    payload: text ?? Buffer.from(body).toString('base64'),
    payload_encoding: text === null ? 'base64' : 'text',
  };
}

function decode(body: Uint8Array): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch {
    return null;
  }
}
