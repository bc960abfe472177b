import type { Delivery, NewElement } from '../model/element.ts';
import { invalidParameter } from '../model/errors.ts';
import { contentHeaderAt, headersAt } from '../model/json-headers.ts';
import { LIMITS } from '../model/limits.ts';
import { WellFormed } from '../model/members.ts';
import { ExchangeDeclaration, type ExchangeTrial, STRICT, type TriedDestination } from '../model/records.ts';
import { SERVICE_HEADERS } from '../model/service-headers.ts';
import type { DestinationLogLine, SelectorVerdict } from '../sandbox/sandbox.ts';
import { textOfByteString } from '../util/byte-string.ts';
import { toMs } from '../util/clock.ts';
import { allowing, namedObject, type Static, Type } from '../util/schema.ts';
import {
  copiesBack,
  copyOf,
  historyOf,
  NO_ROUTE,
  type Returning,
  selectorOf,
  TOO_MANY_HOPS,
} from './copies.ts';
import type { Caller, Declaration } from './declaration.ts';
import type { ExchangeContext } from './exchange.ts';
import { seenPayload } from './record.ts';

/** An element to try an exchange with: the properties that selectors can see. */
export type Sample = Pick<
  Delivery,
  'id' | 'tries' | 'matureAt' | 'headers' | 'body' | 'contentType' | 'contentEncoding'
>;

/** Bound on the payload bytes in a result, of all destinations together: each selector may write a mebibyte. */
const SHOWN_BYTES = 4 * 1_048_576;

/** Runs the selectors of a declaration for one element, as the loop would, and stores nothing. */
export async function dryRun(
  { dst }: Declaration,
  sample: Sample,
  { broker, sandbox, clock, maxHops, maxCopies }: ExchangeContext,
  { name }: Caller,
  returning: Returning,
): Promise<ExchangeTrial> {
  const untouched = {
    saw: seenPayload(sample),
    dst: [],
    strays_to: null,
    overrun: null,
    logs: [],
    selector_ms: 0,
  };
  const { hops, copies } = historyOf(sample);
  if (hops >= maxHops) return { ...untouched, strays_to: TOO_MANY_HOPS };
  const program = sandbox.open(
    dst.map((destination) => selectorOf(destination, broker)),
    { payer: name, logs: true },
  );
  try {
    const startedAt = clock.monotonic();
    const [answer] = await program.select([sample]);
    const selector_ms = Math.round((clock.monotonic() - startedAt) * 100) / 100;
    if (answer?.outcome !== 'evaluated') {
      if (answer?.outcome !== 'overrun') {
        return { ...untouched, overrun: 'the selectors did not run', selector_ms };
      }
      const logs = (answer.logs ?? []).map(([, text]) => text);
      return { ...untouched, overrun: answer.error, logs, selector_ms };
    }
    const { logs, verdicts } = answer;
    const shownBytes = Math.floor(SHOWN_BYTES / verdicts.length);
    const accepted = [...verdicts.keys()].filter((i) => verdicts[i]?.accepted);
    const back = copiesBack(copies, accepted, { returning, maxCopies });
    const tried = dst.map(({ queue, ns }, i) => {
      const history = { hops, copies: returning?.[i] ? back.count : copies };
      const copy = copyOf(sample, verdicts[i] as SelectorVerdict, history, []);
      const record = verdictRecord(verdicts[i] as SelectorVerdict, copy, shownBytes);
      return { q: queue, ns, ...record, logs: linesOf(logs, i) };
    });
    const strays_to = back.isTooMany ? TOO_MANY_HOPS : accepted.length > 0 ? null : NO_ROUTE;
    return { ...untouched, dst: tried, strays_to, selector_ms };
  } finally {
    program.close();
  }
}

function linesOf(logs: readonly DestinationLogLine[], destination: number): string[] {
  return logs.filter(([index]) => index === destination).map(([, text]) => text);
}

function verdictRecord(
  verdict: SelectorVerdict,
  { body, headers }: NewElement,
  shownBytes: number,
): Omit<TriedDestination, 'q' | 'ns' | 'logs'> {
  const hdrs: Record<string, string> = Object.create(null) as Record<string, string>;
  for (let i = 0; i < headers.length; i += 2) {
    hdrs[headers[i] ?? ''] = textOfByteString(headers[i + 1] ?? '');
  }
  const shown = body.subarray(0, shownBytes);
  const text = decode(shown, shown.length < body.length);
  return {
    accepted: verdict.accepted,
    error: verdict.error,
    line: verdict.place?.[0] ?? null,
    column: verdict.place?.[1] ?? null,
    mature: verdict.matureAt === null ? null : new Date(verdict.matureAt).toISOString(),
    delay: verdict.delayMs === null ? null : verdict.delayMs / 1000,
    tries: verdict.tries,
    hdrs,
    payload: text ?? Buffer.from(shown).toString('base64'),
    payload_encoding: text === null ? 'base64' : 'text',
    payload_bytes: body.length,
  };
}

/** Returns null if the bytes are not UTF-8. @param isCut whether to leave out an incomplete last character */
function decode(body: Uint8Array, isCut: boolean): string | null {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body, { stream: isCut });
  } catch {
    return null;
  }
}

const MAX_MATURE = LIMITS.matureAt / 1000;

const SampleMessage = Type.Object(
  {
    id: Type.Optional(Type.String({ minLength: 1, maxLength: LIMITS.idLength })),
    payload: Type.Optional(
      Type.Unknown({
        description: 'The body: a string as it is, any other value as JSON. It determines the content type.',
      }),
    ),
    hdrs: Type.Optional(Type.Record(WellFormed)),
    tries: Type.Optional(Type.Integer({ minimum: 0, maximum: LIMITS.tries })),
    mature: Type.Optional(
      allowing(
        'unix time in seconds, before the year 5000',
        Type.Number({ minimum: 0, maximum: MAX_MATURE, description: 'Unix time in seconds.' }),
      ),
    ),
  },
  STRICT,
);

/** The input of a dry run: the sample, and optionally a declaration to try instead of the exchange's own. */
export const ExchangeTrialRequest = namedObject(
  'ExchangeTrialRequest',
  {
    msg: Type.Optional(SampleMessage),
    content_type: Type.Optional(WellFormed),
    declaration: Type.Optional(ExchangeDeclaration),
  },
  STRICT,
);

/** @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-header` with that of the header */
export function toSample(
  { msg = {}, content_type }: Static<typeof ExchangeTrialRequest>,
  now: number,
): Sample {
  const { id = 'sample', payload = '', hdrs = {}, tries = 0, mature } = msg;
  const isText = typeof payload === 'string';
  const defaultType = isText ? 'text/plain; charset=utf-8' : 'application/json';
  return {
    id,
    body: Buffer.from(isText ? payload : serialize(payload)),
    contentType: contentHeaderAt('content_type', 'content-type', content_type ?? defaultType),
    contentEncoding: null,
    headers: headersAt('msg.hdrs', hdrs, SERVICE_HEADERS),
    tries,
    matureAt: mature === undefined ? now : toMs(mature),
  };
}

/** Serializing fails only for values nested deeper than the stack, which parsing accepts. */
function serialize(payload: unknown): string {
  try {
    return JSON.stringify(payload);
  } catch {
    throw invalidParameter('msg.payload', 'msg.payload is nested too deeply.');
  }
}
