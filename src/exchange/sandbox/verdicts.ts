import type { ElementHeaders } from '../../model/element.ts';
import { type Called, type Extra, VERDICT_CODES } from './protocol.ts';
import type { SelectorAnswer, SelectorVerdict } from './sandbox.ts';

const PLAIN = { error: null, matureAt: null, delayMs: null, tries: null, headers: null, body: null };
const NO: SelectorVerdict = Object.freeze({ accepted: false, ...PLAIN });
const YES: SelectorVerdict = Object.freeze({ accepted: true, ...PLAIN });

/** The answer for an element whose destinations all take it unasked. */
export function allAccept(destinations: number): SelectorAnswer {
  return { outcome: 'asked', verdicts: new Array<SelectorVerdict>(destinations).fill(YES) };
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
    answers.push({ outcome: 'asked', verdicts });
  }
  return answers;
}

interface Written {
  readonly headers: ElementHeaders | null;
  readonly body: Uint8Array | null;
}

function readVerdict(code: string | undefined, extra: Extra | null, written: Written): SelectorVerdict {
  const accepted = code === VERDICT_CODES.yes || code === VERDICT_CODES.override;
  if (extra === null && written.headers === null && written.body === null) return accepted ? YES : NO;
  const [, error, mature, delay, tries] = extra ?? NO_EXTRA;
  return {
    accepted,
    error,
    matureAt: mature === null ? null : Math.round(mature * 1000),
    delayMs: delay === null || mature !== null ? null : Math.round(delay * 1000),
    tries,
    ...written,
  };
}

const NO_EXTRA: Extra = [0, null, null, null, null];
