import assert from 'node:assert/strict';
import type { NewElement } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import type { ModelDelivery, ModelRef } from '../contract/model.ts';
import { type ServerFrame, show } from './client.ts';
import type { AckMode, HeldInModel, SubscriptionInModel } from './model-session.ts';

/** Tells elements apart before the server has returned their ids. */
export const NUMBER = 'n';

export interface Sent {
  readonly queue: QueueKey;
  readonly body: string;
  readonly contentType: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly tries: number;
  readonly delayMs: number;
  readonly groups: readonly string[];
}

export interface Wanted {
  readonly queue: QueueKey;
  readonly group: string;
  readonly mode: AckMode;
  readonly window: number;
  readonly leaseMs: number | null;
}

export interface Settlement {
  readonly subscription: SubscriptionInModel;
  readonly held: readonly HeldInModel[];
  /** Null: an ACK. */
  readonly delayMs: number | null;
}

export interface Transaction {
  readonly id: string;
  readonly sends: { readonly queue: QueueKey; readonly element: NewElement }[];
  readonly settlements: Settlement[];
}

/** What the wire says for a refusal of the model. */
export const CODES: Readonly<Record<string, string>> = {
  'not-found': 'element-not-found',
  'not-reserved': 'not-reserved',
  'lease-lost': 'lease-lost',
};

export function isRefusal(outcome: string): boolean {
  return outcome in CODES;
}

export function refOf({ id, delivery, token }: HeldInModel): ModelRef {
  return { id, group: delivery.group, token };
}

export function roomOf({ mode, window, held }: SubscriptionInModel): number {
  return mode === 'auto' ? Number.MAX_SAFE_INTEGER : window - held.length;
}

/** What an ACK or NACK of one is about. */
export function selected({ mode, held }: SubscriptionInModel, named: HeldInModel): HeldInModel[] {
  if (mode !== 'client') return [named];
  return held.slice(0, held.indexOf(named) + 1).filter(({ isClaimed }) => !isClaimed);
}

export function numberOf({ element }: ModelDelivery): string | undefined {
  const { headers } = element.content;
  return headers[headers.lastIndexOf(NUMBER) + 1];
}

export function destinationOf({ ns, name }: QueueKey): string {
  return `/q/${encodeURIComponent(ns)}/${encodeURIComponent(name)}`;
}

export function checkFrame({ element, tries, dueAt }: ModelDelivery, frame: ServerFrame): void {
  const { body, contentType, headers } = element.content;
  assert.ok(frame.body.equals(body), show(frame));
  assert.equal(frame.headers.get('content-type') ?? null, contentType);
  assert.equal(frame.headers.get('x-tries'), String(tries));
  assert.equal(Date.parse(frame.headers.get('x-mature') ?? ''), dueAt);
  for (let at = 0; at < headers.length; at += 2) {
    const value = frame.headers.get(`x-ks-hdr-${headers[at]}`);
    if (headers[at] === 'x-dl-at') continue;
    assert.equal(value, Buffer.from(headers[at + 1] ?? '', 'latin1').toString());
  }
}
