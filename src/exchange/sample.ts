import { invalidParameter } from '../model/errors.ts';
import { checkHeaders } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { memberPath, membersOf, wrongMember } from '../model/members.ts';
import { SERVICE_HEADERS } from '../model/service-headers.ts';
import type { Sample } from './trial.ts';

const BODY_MEMBERS = ['msg', 'content_type', 'declaration'];
const MESSAGE_MEMBERS = ['id', 'payload', 'hdrs', 'tries', 'mature'];

/** What a trial is asked with: the sample, and a declaration to try instead of the exchange's own. */
export interface TrialRequest {
  readonly sample: Sample;
  /** As it came; undefined where none was given. */
  readonly declaration: unknown;
}

/**
 * Reads `{msg: {payload, hdrs, tries, mature, id}, content_type, declaration}`, all optional. `payload` is any
 * JSON: a string is the body's text, anything else is sent as JSON, and the content type follows unless given.
 * @throws QuaysideError `invalid-parameter` with the path of the field, `invalid-header`
 */
export function parseSample(request: unknown, now: number): TrialRequest {
  const { msg, content_type, declaration } = membersOf(request, '', BODY_MEMBERS);
  const {
    id = 'sample',
    payload = '',
    hdrs,
    tries = 0,
    mature,
  } = msg === undefined ? {} : membersOf(msg, 'msg', MESSAGE_MEMBERS);
  if (content_type !== undefined && typeof content_type !== 'string') {
    throw wrongMember('content_type', content_type, 'a string');
  }
  const isText = typeof payload === 'string';
  return {
    declaration,
    sample: {
      id: elementId(id),
      body: Buffer.from(isText ? payload : written(payload)),
      contentType: content_type ?? (isText ? 'text/plain; charset=utf-8' : 'application/json'),
      contentEncoding: null,
      headers: checkHeaders(pairs(hdrs), SERVICE_HEADERS),
      tries: count(tries, 'msg.tries', LIMITS.tries),
      matureAt: mature === undefined ? now : Math.round(seconds(mature) * 1000),
    },
  };
}

/** What was parsed can be written again, unless it is nested deeper than the stack: reading it needs none. */
function written(payload: unknown): string {
  try {
    return JSON.stringify(payload);
  } catch {
    throw invalidParameter('msg.payload', 'msg.payload is nested too deeply.');
  }
}

function elementId(value: unknown): string {
  if (typeof value === 'string' && value !== '' && value.length <= LIMITS.idLength) return value;
  throw wrongMember('msg.id', value, `a string of 1 to ${LIMITS.idLength} characters`);
}

function pairs(hdrs: unknown): string[] {
  if (hdrs === undefined) return [];
  return Object.entries(membersOf(hdrs, 'msg.hdrs', null)).flatMap(([name, value]) => {
    if (typeof value !== 'string') throw wrongMember(memberPath('msg.hdrs', name), value, 'a string');
    return [name.toLowerCase(), value];
  });
}

function seconds(value: unknown): number {
  if (typeof value === 'number' && value >= 0 && value * 1000 <= LIMITS.matureAt) return value;
  throw wrongMember('msg.mature', value, 'unix time in seconds, before the year 5000');
}

function count(value: unknown, path: string, most: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= most) return value;
  throw wrongMember(path, value, `a whole number from 0 to ${most}`);
}
