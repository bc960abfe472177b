import type { Delivery, NewElement } from '../../src/model/element.ts';
import { PLAIN_GROUP } from '../../src/model/element.ts';

/** Creates a new element; without fields it is plain and due immediately. A string body is stored as UTF-8 text. */
export function newElement(
  fields: Partial<Omit<NewElement, 'body'>> & { body?: string | Uint8Array } = {},
): NewElement {
  const { body = 'body', ...rest } = fields;
  return {
    body: typeof body === 'string' ? Buffer.from(body) : body,
    contentType: 'text/plain',
    contentEncoding: null,
    headers: [],
    matureAt: null,
    delayMs: 0,
    tries: 0,
    groups: [PLAIN_GROUP],
    dedupKey: null,
    ...rest,
  };
}

/** Creates elements with these bodies. */
export function newElements(...bodies: readonly string[]): NewElement[] {
  return bodies.map((body) => newElement({ body }));
}

export function bodyText(delivery: Delivery): string {
  return Buffer.from(delivery.body).toString();
}

export function bodyTexts(deliveries: readonly Delivery[]): string[] {
  return deliveries.map(bodyText);
}
