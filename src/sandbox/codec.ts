import type { ElementHeaders } from '../model/element.ts';
import { payloadKind } from './kinds.ts';
import type { SandboxLimits } from './limits.ts';
import {
  type Called,
  type Extra,
  type LogLine,
  type PackedBodies,
  type PackedElements,
  VERDICT_CODES,
} from './protocol.ts';
import type { SelectorAnswer, SelectorInput, SelectorVerdict } from './sandbox.ts';

// What the host sends to the worker, and how it reads the reply.

/** How many elements from `from` on go into one call. */
export function callSize(
  elements: readonly SelectorInput[],
  from: number,
  limits: Pick<SandboxLimits, 'batch' | 'batchBodyBytes'>,
  withBodies: boolean,
): number {
  const most = Math.min(elements.length - from, limits.batch);
  if (!withBodies) return most;
  let bytes = 0;
  for (let count = 0; count < most; count += 1) {
    bytes += (elements[from + count] as SelectorInput).body.length;
    if (bytes > limits.batchBodyBytes && count > 0) return count;
  }
  return most;
}

export function packElements(
  elements: readonly SelectorInput[],
  from: number,
  count: number,
  withBodies: boolean,
): PackedElements {
  let input = '[';
  for (let at = from; at < from + count; at += 1) {
    input += (at === from ? '' : ',') + packElement(elements[at] as SelectorInput);
  }
  const bodies = withBodies ? packBodies(elements.slice(from, from + count)) : null;
  return { count, input: `${input}]`, bodies };
}

/** JSON by hand: for objects this small half the cost of building them first. */
function packElement(element: SelectorInput): string {
  const { headers } = element;
  let pairs = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    pairs += `${at === 0 ? '' : ','}${JSON.stringify(headers[at])}:${JSON.stringify(headers[at + 1])}`;
  }
  const kind = payloadKind(element.contentType, element.contentEncoding);
  return `[${JSON.stringify(element.id)},${element.tries},${element.matureAt / 1000},${kind},{${pairs}}]`;
}

function packBodies(elements: readonly SelectorInput[]): PackedBodies {
  let total = 0;
  const ends = elements.map((element) => {
    total += element.body.length;
    return total;
  });
  const bytes = new Uint8Array(total);
  for (const [at, element] of elements.entries())
    bytes.set(element.body, (ends[at] as number) - element.body.length);
  return {
    bytes,
    ends,
    kinds: elements.map(({ contentType, contentEncoding }) => payloadKind(contentType, contentEncoding)),
  };
}

const PLAIN = {
  error: null,
  place: null,
  matureAt: null,
  delayMs: null,
  tries: null,
  headers: null,
  body: null,
};
const NO: SelectorVerdict = Object.freeze({ accepted: false, ...PLAIN });
const YES: SelectorVerdict = Object.freeze({ accepted: true, ...PLAIN });

/** The answer for an element whose destinations have no selectors. */
export function allAccept(destinations: number): SelectorAnswer {
  return { outcome: 'asked', verdicts: new Array<SelectorVerdict>(destinations).fill(YES), logs: NO_LOGS };
}

/** What the worker answered, as one answer per element. Most verdicts are one of two objects. */
export function readVerdicts(called: Called, destinations: number): SelectorAnswer[] {
  const answers: SelectorAnswer[] = [];
  const extras = called.extras.values();
  const changes = called.changes.values();
  let extra = extras.next().value;
  let change = changes.next().value;
  let bodyStart = 0;
  for (let element = 0; element < called.count; element += 1) {
    const verdicts: SelectorVerdict[] = [];
    let written: Written = { headers: null, body: null };
    for (let at = element * destinations; at < (element + 1) * destinations; at += 1) {
      if (change?.[0] === at) {
        const end: number | null = change[2];
        written = {
          headers: change[1] ?? written.headers,
          body: end === null ? written.body : called.bodies.subarray(bodyStart, end),
        };
        bodyStart = end ?? bodyStart;
        change = changes.next().value;
      }
      const own = extra?.[0] === at ? extra : null;
      if (own !== null) extra = extras.next().value;
      verdicts.push(readVerdict(called.codes[at], own, written));
    }
    answers.push({ outcome: 'asked', verdicts, logs: logsOf(called, element, destinations) });
  }
  return answers;
}

const NO_LOGS: readonly LogLine[] = [];

/** The lines of one element, by destination. */
function logsOf({ logs }: Called, element: number, destinations: number): readonly LogLine[] {
  if (logs.length === 0) return NO_LOGS;
  const first = element * destinations;
  return logs
    .filter(([at]) => at >= first && at < first + destinations)
    .map(([at, text]) => [at - first, text] as const);
}

interface Written {
  readonly headers: ElementHeaders | null;
  readonly body: Uint8Array | null;
}

function readVerdict(code: string | undefined, extra: Extra | null, written: Written): SelectorVerdict {
  const accepted = code === VERDICT_CODES.yes || code === VERDICT_CODES.override;
  if (extra === null && written.headers === null && written.body === null) return accepted ? YES : NO;
  const [, error, mature, delay, tries, place] = extra ?? NO_EXTRA;
  return {
    accepted,
    error: error === null || place === null ? error : `${error} (line ${place[0]}, column ${place[1]})`,
    place,
    matureAt: mature === null ? null : Math.round(mature * 1000),
    delayMs: delay === null || mature !== null ? null : Math.round(delay * 1000),
    tries,
    ...written,
  };
}

const NO_EXTRA: Extra = [0, null, null, null, null, null];
