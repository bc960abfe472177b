import type { ElementHeaders } from '../model/element.ts';
import { type Called, type Extra, type LogLine, VERDICT_CODES } from './protocol.ts';
import type { SelectorAnswer, SelectorVerdict } from './sandbox.ts';

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
