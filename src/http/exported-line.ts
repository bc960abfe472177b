import { LIMITS } from '../model/limits.ts';
import { membersOf, wrongMember } from '../model/members.ts';
import { checkGroup } from '../model/names.ts';
import type { ExportedElement, ScannedDelivery } from '../operations/transfer.ts';
import { elementOfMembers, objectIn } from './line-element.ts';
import { bodyMember, isoTime, jsonOfBytes, jsonOfHeaders } from './ndjson.ts';

/**
 * A delivery with its whole state as one line of an export, its line feed included: `{"id", "state", "group", "mature", "expiresAt",
 * "insertedAt", "tries", "reason", "contentType", "contentEncoding", "headers", "text" or "base64"}`. `mature` is in seconds as on an
 * insert, the other moments are ISO 8601. `group` is there on a stream only. What the element does not have is null.
 */
export function exportedLine(delivery: ScannedDelivery, isStream: boolean): string {
  const { id, state, group, matureAt, expiresAt, insertedAt, tries, reason } = delivery;
  const { contentType, contentEncoding, headers } = delivery;
  return (
    `{"id":"${id}","state":"${state}",${isStream ? `"group":${JSON.stringify(group)},` : ''}"mature":${matureAt / 1000},` +
    `"expiresAt":${expiresAt === null ? 'null' : `"${isoTime(expiresAt)}"`},"insertedAt":"${isoTime(insertedAt)}","tries":${tries},` +
    `"reason":${JSON.stringify(reason)},"contentType":${jsonOfBytes(contentType)},` +
    `"contentEncoding":${jsonOfBytes(contentEncoding)},"headers":${jsonOfHeaders(headers)},${bodyMember(delivery, false)}}\n`
  );
}

const MEMBERS = [
  'id',
  'state',
  'group',
  'mature',
  'expiresAt',
  'insertedAt',
  'tries',
  'reason',
  'contentType',
  'contentEncoding',
  'headers',
  'text',
  'base64',
];

/**
 * Reads a line that {@link exportedLine} wrote. `state` and `reason` are of the past, and not read.
 * @throws QuaysideError `invalid-body`, `invalid-parameter`, `invalid-header`; members are named within the line
 */
export function readExportedLine(line: string): ExportedElement {
  const members = membersOf(objectIn(line), '', MEMBERS);
  const { body, contentType, contentEncoding, headers, matureAt, tries } = elementOfMembers(line, members);
  const { id, group = null, expiresAt = null } = members;
  if (typeof id !== 'string' || !ID.test(id)) throw wrongMember('id', id, 'the id of an element');
  if (group !== null && typeof group !== 'string') throw wrongMember('group', group, 'a string');
  if (matureAt === null) throw wrongMember('mature', members.mature, 'unix time in seconds, a number');
  return {
    id,
    group: group === null ? null : checkGroup('group', group),
    body,
    contentType,
    contentEncoding,
    headers,
    matureAt,
    tries: tries ?? 0,
    insertedAt: momentOf('insertedAt', members.insertedAt),
    expiresAt: expiresAt === null ? null : momentOf('expiresAt', expiresAt),
  };
}

const ID = /^[\w-]{1,64}$/;

function momentOf(member: string, value: unknown): number {
  const at = typeof value === 'string' ? Date.parse(value) : Number.NaN;
  if (at >= 0 && at <= LIMITS.matureAt) return at;
  throw wrongMember(member, value, 'a moment such as "2026-01-31T12:00:00.000Z"');
}
