import { createHash } from 'node:crypto';
import { Binary } from 'mongodb';
import type { Delivery, ElementContent, ElementId, GroupName, Lease } from '../../model/element.ts';
import { PLAIN_GROUP } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';

/**
 * One delivery of an element, in the collection `elements`. In a stream each group has a document of its own, with
 * the content in it: one document is what MongoDB changes atomically.
 */
export interface ElementDocument {
  /** The element's id; in a stream with the group after it. */
  readonly _id: string;
  /** The element's id. Ids sort by the order in which they were made. */
  readonly id: ElementId;
  readonly ns: string;
  readonly queue: string;
  readonly group: GroupName;
  /** `gone`: finished, and to be deleted. */
  readonly state: 'waiting' | 'reserved' | 'gone';
  /** The maturity; kept while it is reserved. */
  readonly at: Date;
  readonly tries: number;
  /** Of the last change: a change that was decided by what somebody read applies only while this is the same. */
  readonly op: string;
  /** Of the reservation. A waiting one that has it is one whose lease ran out, with nobody's after it. */
  readonly token: string | null;
  /** The end of the lease, while reserved. */
  readonly until?: Date;
  /** When it was inserted; in streams with a retention. */
  readonly born?: Date;
  /** Stands for the dedup key, in the document of the first group. No two documents have the same. */
  readonly key?: string;
  /** Until when the key is remembered, or since when it is gone, whichever is later. Only what is gone is deleted. */
  readonly deleteAfter?: Date;
  readonly bytes: number;
  readonly type: string | null;
  readonly encoding: string | null;
  readonly headers: readonly string[];
  readonly body: Binary;
}

/** What decides about a delivery, without its content. */
export type DeliveryHead = Pick<
  ElementDocument,
  | '_id'
  | 'id'
  | 'ns'
  | 'queue'
  | 'group'
  | 'state'
  | 'at'
  | 'tries'
  | 'op'
  | 'token'
  | 'until'
  | 'key'
  | 'bytes'
>;

/** The fields of {@link DeliveryHead}, for queries. */
export const HEAD_FIELDS = {
  id: 1,
  ns: 1,
  queue: 1,
  group: 1,
  state: 1,
  at: 1,
  tries: 1,
  op: 1,
  token: 1,
  until: 1,
  key: 1,
  bytes: 1,
} as const;

/** The largest body: a document of MongoDB has at most 16 MiB, headers and names included. */
export const MOST_BODY_BYTES = 15 * 1024 * 1024;

/** The `_id` of a group's delivery. No id has a slash. */
export function deliveryId(id: ElementId, group: GroupName): string {
  return group === PLAIN_GROUP ? id : `${id}/${group}`;
}

/** The fields of a document that hold what the producer gave. */
export function contentFields({ body, contentType, contentEncoding, headers }: ElementContent) {
  return {
    bytes: body.byteLength,
    type: contentType,
    encoding: contentEncoding,
    headers,
    body: new Binary(body),
  };
}

/** A handed-out delivery from its document. The body is a copy: the driver's is a part of a whole answer. */
export function delivery(document: ElementDocument, lease: Lease | null): Delivery {
  const { id, group, tries, at, type, encoding, headers } = document;
  return {
    id,
    group,
    tries,
    matureAt: at.getTime(),
    lease,
    contentType: type,
    contentEncoding: encoding,
    headers,
    body: Buffer.from(document.body.buffer.subarray(0, document.body.position)),
  };
}

/** A text that stands for a queue and for no other. */
export function queueText({ ns, name }: QueueKey): string {
  return JSON.stringify([ns, name]);
}

/** What stands for a dedup key: keys are as long as clients like. */
export function keyId({ ns, name }: QueueKey, key: string): string {
  return createHash('sha256')
    .update(JSON.stringify([ns, name, key]))
    .digest('base64url');
}

/**
 * Finishes deliveries that are deleted at once if they have no key; one that has a key stays, without its content, for
 * as long as the key is to be remembered.
 */
export function finishing(op: string, now: Date) {
  return {
    $set: { state: 'gone', op },
    $max: { deleteAfter: now },
    $unset: { until: '', born: '', ...CONTENT },
  } as const;
}

/** The fields that hold what the producer gave. */
export const CONTENT = { type: '', encoding: '', headers: '', body: '' } as const;

export interface QueueDocument {
  readonly _id: string;
  readonly ns: string;
  readonly name: string;
}

/** The fields of a waiting delivery that nobody has taken yet. */
export function blank(id: ElementId, { ns, name }: QueueKey, group: string, op: string) {
  return {
    _id: deliveryId(id, group),
    id,
    ns,
    queue: name,
    group,
    state: 'waiting',
    op,
    token: null,
  } as const;
}
