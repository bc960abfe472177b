import type { BrowsedElement as BrowsedRecord, BrowsePage } from '../model/records.ts';
import type { DataCodec } from './codec.ts';
import { type Decoded, decodedBy, type Element, ReceivedBase } from './element.ts';
import { jsonIn, QuaysideError } from './errors.ts';
import type { CallOptions } from './options.ts';
import type { QueueWire } from './wire.ts';

export type ElementState = 'ready' | 'scheduled' | 'reserved';

export interface BrowseOptions extends CallOptions {
  /** Only elements in this state. */
  readonly state?: ElementState | undefined;
  /** A selector, such as `env.msg.tries > 3`: only elements that it accepts. */
  readonly where?: string | undefined;
  /** On a stream: the group whose deliveries are returned. Default: the first one of the namespace. */
  readonly group?: string | undefined;
  /** Called for each page that lacks elements because the selector threw. */
  readonly onSelectorError?: ((failure: SelectorFailure) => void) | undefined;
}

/** Elements of a page for which the selector threw. */
export interface SelectorFailure {
  readonly failed: number;
  /** The error for the first of them. */
  readonly error: { readonly id: string; readonly message: string };
}

/** An element returned by `browse`. */
export interface BrowsedElement<T> extends Element<T> {
  readonly state: ElementState;
  readonly insertedAt: Date;
  /** When the element expires; null: never. */
  readonly expiresAt: Date | null;
  /** Why the last try failed. */
  readonly reason: string | null;
  /** The holder of a reserved element; null if it is not reserved. */
  readonly holder: BrowsedHolder | null;
}

export interface BrowsedHolder {
  readonly consumer: string | null;
  /** Null: an exchange. */
  readonly user: string | null;
  readonly since: Date;
  readonly until: Date;
}

class ReceivedBrowsed<T> extends ReceivedBase<T> implements BrowsedElement<T> {
  declare readonly state: ElementState;
  declare readonly insertedAt: Date;
  declare readonly expiresAt: Date | null;
  declare readonly reason: string | null;
  declare readonly holder: BrowsedHolder | null;

  constructor(record: BrowsedRecord, decoded: Decoded) {
    super(record, decoded);
    const { holder, expiresAt } = record;
    this.state = record.state;
    this.insertedAt = new Date(record.insertedAt);
    this.expiresAt = expiresAt ? new Date(expiresAt) : null;
    this.reason = record.reason;
    this.holder = holder && {
      consumer: holder.tid,
      user: holder.user,
      since: new Date(holder.since),
      until: new Date(holder.until),
    };
  }
}

/** Browses page by page. Requests a page when the previous one has been consumed. */
export async function* browsePages<T>(
  wire: QueueWire,
  codec: DataCodec,
  { state, where, group, onSelectorError, ...options }: BrowseOptions,
): AsyncGenerator<BrowsedElement<T>, void, void> {
  const query = new URLSearchParams({ body: 'full' });
  for (const [name, value] of Object.entries({ state, where, group }))
    if (value !== undefined) query.set(name, value);
  for (;;) {
    const { text } = await wire.get(`/elements?${query}`, options);
    const page = jsonIn<BrowsePage>(text, 'elements');
    if (page.error) onSelectorError?.({ failed: page.failed, error: page.error });
    for (const record of page.elements)
      yield new ReceivedBrowsed<T>(record, await decodedRecord(codec, record));
    if (page.next === null) return;
    query.set('after', page.next);
  }
}

function decodedRecord(codec: DataCodec, record: BrowsedRecord): Decoded | Promise<Decoded> {
  if ((record.text ?? record.base64) !== undefined) return decodedBy(codec, record);
  return { error: new QuaysideError('body-hidden', 'The user may not see bodies.') };
}
