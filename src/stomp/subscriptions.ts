import { requireCapability } from '../broker/capabilities.ts';
import type { Delivery, ElementHeaders, ElementId } from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { neverExpires } from '../model/service-headers.ts';
import { type ConsumerOptions, MAX_TAKE } from '../session/consumer.ts';
import { Outstanding } from '../session/outstanding.ts';
import { PushConsumer, type PushConsumerOptions } from '../session/push-consumer.ts';
import { QueueBrowser } from '../session/queue-browser.ts';
import { UNOBSERVED } from '../session/socket-writer.ts';
import { NameSpelling } from '../session/spelling.ts';
import { encodeValue, parseGroup, parseInteger, parseMilliseconds } from '../session/values.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { ownString } from '../util/own-bytes.ts';
import { type HeadRules, headerLine, headerOf, malformed, type StompFrame } from './codec.ts';
import { SessionLimitError } from './errors.ts';
import { PROTOCOL_HEADERS, requireHeader, storedId, unknownIdMessage } from './headers.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSession } from './session.ts';

/** `auto` pops; `client` and `client-individual` reserve. In mode `client`, acknowledgements are cumulative. */
export const ACK_MODES = ['auto', 'client', 'client-individual'] as const;
type AckMode = (typeof ACK_MODES)[number];

/**
 * With a misspelt `ack`, the client would pop elements instead of reserving them; with `browser`, instead of browsing.
 */
const SPELLING = new NameSpelling({
  kind: 'header',
  known: ['x-wsize', 'x-parallel', 'x-ks-group', 'x-lease'],
  plain: ['ack', 'browser'],
});
/**
 * All spellings of the header `browser`, since a client that wants to browse must not consume: ActiveMQ and Apollo read
 * `browser:true`, and ActiveMQ also reads `activemq.browser:true`.
 */
const BROWSER_HEADER = /^(?:.*[.-])?browser$/i;
const FALSE_VALUE = /^\s*(?:0|false|no|off)\s*$/i;

/** The subscriptions of one session. */
export class Subscriptions {
  readonly #session: StompSession;
  /** By the client's id; in 1.0 without an id, by destination. */
  readonly #byId = new Map<string, StompSubscription | BrowsingSubscription>();
  /** Consuming subscriptions, by the number that `ack` headers start with. */
  readonly #byNumber = new Map<string, StompSubscription>();
  #lastNumber = 0;

  constructor(session: StompSession) {
    this.#session = session;
  }

  /** SUBSCRIBE: starts a consumer that runs until UNSUBSCRIBE or the end of the session. */
  subscribe({ headers }: StompFrame): void {
    const session = this.#session;
    const get = (name: string): string | null => headerOf(headers, name);
    const destination = ownString(requireHeader('SUBSCRIBE', 'destination', get('destination')));
    // In 1.0, a subscription without an id is identified by its destination.
    const name = session.version === '1.0' ? get('id') : requireHeader('SUBSCRIBE', 'id', get('id'));
    const id = name === null ? null : storedId('id', name);
    let browses = false;
    for (let at = 0; at + 1 < headers.length; at += 2) {
      const name = headers[at] as string;
      if (BROWSER_HEADER.test(name)) browses ||= !FALSE_VALUE.test(headers[at + 1] as string);
      else SPELLING.check(name);
    }
    const selector = get('selector');
    if (selector) {
      throw new QuaysideError(
        'not-supported',
        `Selectors such as ${quoteBytes(selector)} are not supported. Omit the header selector, or use an exchange.`,
        { parameter: 'selector' },
      );
    }
    parseInteger('x-parallel', get('x-parallel'), { from: 1, to: STOMP_LIMITS.window, unit: 'a count' }, 1);
    const queue = session.destinations.find(destination, browses ? 'browse' : 'read');
    const mode = readMode(get('ack'));
    const group = queue.groupOf(parseGroup('x-ks-group', get('x-ks-group')), 'x-ks-group');
    const window = readWindow(get);
    const leaseMs = readLease(mode, get('x-lease'));
    const common = { id, destination, queue, group };
    if (!browses && mode !== 'auto') requireCapability(queue.namespace, 'reserve', 'ack');
    const key = this.#newKey(common);
    if (browses) {
      const subscription = new BrowsingSubscription(session, common);
      this.#byId.set(key, subscription);
      subscription.fill();
    } else {
      if (mode !== 'auto') this.#checkWindows(window);
      const options = { ...common, mode, isPop: mode === 'auto', window, leaseMs };
      this.#lastNumber += 1;
      const subscription = new StompSubscription(session, this.#lastNumber.toString(36), options);
      this.#byId.set(key, subscription);
      this.#byNumber.set(subscription.number, subscription);
      subscription.start();
    }
    session.confirm(get('receipt'));
  }

  /** UNSUBSCRIBE: returns outstanding elements to the queue, and then sends the RECEIPT. */
  unsubscribe({ headers }: StompFrame): void {
    const session = this.#session;
    const id = headerOf(headers, 'id');
    const key = session.version === '1.0' ? (id ?? headerOf(headers, 'destination')) : id;
    const name = session.version === '1.0' ? 'id or destination' : 'id';
    const closing = this.#close(requireHeader('UNSUBSCRIBE', name, key));
    void session.confirmAfter(closing, headerOf(headers, 'receipt'));
  }

  /** A consuming subscription by id; undefined if there is none, or it browses. */
  find(key: string): StompSubscription | undefined {
    const found = this.#byId.get(key);
    return found instanceof StompSubscription ? found : undefined;
  }

  findByNumber(number: string): StompSubscription | undefined {
    return this.#byNumber.get(number);
  }

  /** All consuming subscriptions. */
  consuming(): Iterable<StompSubscription> {
    return this.#byNumber.values();
  }

  /** Ends a subscription. @returns as its `stop` @throws QuaysideError `malformed-request` if it does not exist */
  #close(key: string): Promise<unknown> {
    const subscription = this.#byId.get(key);
    if (subscription === undefined) {
      throw malformed(unknownIdMessage('subscription', key, this.#byId.keys()), 'id');
    }
    this.#byId.delete(key);
    if (subscription instanceof StompSubscription) this.#byNumber.delete(subscription.number);
    return subscription.stop(true);
  }

  /** @throws QuaysideError if the windows of all subscriptions that reserve would exceed the limit */
  #checkWindows(more: number): void {
    let sum = more;
    for (const { options } of this.consuming()) if (!options.isPop) sum += options.window;
    if (sum <= STOMP_LIMITS.windows) return;
    throw new SessionLimitError(
      `The subscriptions of this session could hold ${sum} unacknowledged messages. Allowed: ${STOMP_LIMITS.windows}; choose smaller windows (x-wsize).`,
    );
  }

  /** The key of a new subscription. @throws QuaysideError if the key is in use, or the session has too many */
  #newKey({ id, destination }: SubscriptionName): string {
    const key = id ?? destination;
    if (this.#byId.has(key)) {
      throw malformed(
        `Subscription ${quoteBytes(key)} exists already. Choose another id, or UNSUBSCRIBE first.`,
        'id',
      );
    }
    if (this.#byId.size >= STOMP_LIMITS.subscriptions) {
      throw new SessionLimitError(
        `This session has ${STOMP_LIMITS.subscriptions} subscriptions, the maximum.`,
      );
    }
    return key;
  }
}

function readMode(value: string | null): AckMode {
  const mode = value === null ? 'auto' : ACK_MODES.find((allowed) => allowed === value);
  if (mode !== undefined) return mode;
  throw invalidParameter('ack', `Invalid ack ${quoteBytes(value ?? '')}. Allowed: ${ACK_MODES.join(', ')}.`);
}

function readWindow(get: (name: string) => string | null): number {
  const { window, defaultWindow } = STOMP_LIMITS;
  const name = get('x-wsize') === null ? 'prefetch-count' : 'x-wsize';
  return parseInteger(name, get(name), { from: 1, to: window, unit: 'a count of elements' }, defaultWindow);
}

function readLease(mode: AckMode, value: string | null): number | null {
  if (value !== null && mode === 'auto') {
    throw invalidParameter(
      'x-lease',
      `x-lease is ${quoteBytes(value)}, but ack:auto has no lease. Allowed with client and client-individual.`,
    );
  }
  return parseMilliseconds('x-lease', value, 1, null);
}

/** How a client names its subscription: its own bytes, one character each. */
interface SubscriptionName {
  /** Null if a client of 1.0 sent none. */
  readonly id: string | null;
  readonly destination: string;
}

/** What SUBSCRIBE asks for, validated. */
interface SubscriptionOptions extends PushConsumerOptions, SubscriptionName {
  readonly mode: AckMode;
  readonly window: number;
}

/** What a SUBSCRIBE with `browser:true` asks for, validated. */
interface BrowsingOptions extends ConsumerOptions, SubscriptionName {}

/** A consuming subscription. */
export class StompSubscription extends PushConsumer<StompSession, string> {
  readonly options: SubscriptionOptions;
  /** Identifies the subscription in `ack` headers; unique in the session. */
  readonly number: string;
  readonly #heads: MessageHeads;
  readonly #byElement = new Map<ElementId, Outstanding<string>>();
  #sentCount = 0;

  constructor(session: StompSession, number: string, options: SubscriptionOptions) {
    super(session, options);
    this.options = options;
    this.number = number;
    this.#heads = new MessageHeads(session.input.rules, options, this.publicGroup);
    this.setWindow(options.window);
  }

  /**
   * The elements that an ACK or NACK of `key` settles, oldest first; none if that element is not outstanding, or an
   * open transaction has claimed it.
   */
  select(key: string): Outstanding<string>[] {
    const named = this.outstanding.get(key);
    if (named === undefined || named.isClaimed) return [];
    if (this.options.mode !== 'client') return [named];
    const selected: Outstanding<string>[] = [];
    for (const delivery of this.outstanding.values()) {
      if (!delivery.isClaimed) selected.push(delivery);
      if (delivery === named) break;
    }
    return selected;
  }

  override forget(settled: readonly Outstanding<string>[]): void {
    super.forget(settled);
    for (const delivery of settled)
      if (this.#byElement.get(delivery.id) === delivery) this.#byElement.delete(delivery.id);
  }

  protected override get free(): number {
    return this.window - this.outstanding.size - this.unwritten;
  }

  /** The window is refilled when half of it is free. */
  protected override get minTake(): number {
    return Math.min(MAX_TAKE, Math.max(1, Math.floor(this.window / 2)));
  }

  protected override send(delivery: Delivery): number {
    const { writer, acksByHeader } = this.session;
    this.#sentCount += 1;
    const key = acksByHeader ? this.#sentCount.toString(36) : delivery.id;
    // If the element's lease expired and it is sent again, only the new delivery can be settled.
    const older = this.#byElement.get(delivery.id);
    if (older !== undefined) this.forget([older]);
    const tracked = this.track(key, delivery);
    const isReserved = tracked instanceof Outstanding;
    if (isReserved) this.#byElement.set(delivery.id, tracked);
    const ack = isReserved && acksByHeader ? `${this.number}-${key}` : null;
    const head = this.#heads.of(delivery, ack);
    writer.addMessage(head, delivery.body, tracked);
    return head.length + delivery.body.byteLength;
  }

  override fail(reason: unknown): void {
    this.session.fail(reason, { subscription: this.options.id });
  }
}

const NO_BODY = Buffer.alloc(0);

/** A subscription that shows the ready elements once, and then sends a MESSAGE with `browser:end`, as ActiveMQ does. */
class BrowsingSubscription extends QueueBrowser<StompSession> {
  readonly options: BrowsingOptions;
  readonly #heads: MessageHeads;
  #hasEnded = false;

  constructor(session: StompSession, options: BrowsingOptions) {
    super(session, options);
    this.options = options;
    this.#heads = new MessageHeads(session.input.rules, options, this.publicGroup);
  }

  /** Browsing subscriptions have no window: only the writer's capacity limits them. */
  protected override get free(): number {
    return Number.MAX_SAFE_INTEGER;
  }

  protected override show(delivery: Delivery): number {
    const { writer, counts } = this.session;
    const head = this.#heads.of(delivery, null);
    counts.messages += 1;
    writer.addMessage(head, delivery.body, UNOBSERVED);
    return head.length + delivery.body.byteLength;
  }

  protected override onIdle(isAtEnd: boolean): void {
    if (!isAtEnd || this.#hasEnded) return;
    this.#hasEnded = true;
    this.session.writer.addMessage(this.#heads.browserEnd(), NO_BODY, UNOBSERVED);
  }

  override fail(error: unknown): void {
    this.session.fail(error, { subscription: this.options.id });
  }
}

/** Builds the heads of the MESSAGEs of one subscription. */
class MessageHeads {
  readonly #rules: HeadRules;
  /** The start of every head. */
  readonly #start: string;
  /** The line that names the group; empty on a plain queue. */
  readonly #groupLine: string;
  /** The last content type and its line, cached since the elements of a queue mostly have the same. */
  #contentType: string | null = null;
  #contentTypeLine = '';

  /** @param group with one character per byte; null if the queue is plain */
  constructor(rules: HeadRules, { id, destination }: SubscriptionName, group: string | null) {
    const subscription = id === null ? '' : headerLine(rules, 'subscription', id);
    this.#rules = rules;
    this.#start = `MESSAGE\n${subscription}${headerLine(rules, 'destination', destination)}`;
    this.#groupLine = group === null ? '' : headerLine(rules, 'x-ks-group', group);
  }

  /** A MESSAGE up to its body. @param ack the value of the `ack` header; null if there is none */
  of(
    { id, contentType, contentEncoding, body, tries, matureAt, headers }: Delivery,
    ack: string | null,
  ): string {
    const rules = this.#rules;
    let head = `${this.#start}message-id:${id}\ncontent-length:${body.byteLength}\nx-tries:${tries}\n`;
    head += `x-mature:${formatTime(rules, matureAt)}\n`;
    if (ack !== null) head += `ack:${ack}\n`;
    head += this.#groupLine;
    if (contentType !== this.#contentType) {
      this.#contentType = contentType;
      this.#contentTypeLine =
        contentType === null ? '' : headerLine(rules, 'content-type', encodeValue(contentType));
    }
    head += this.#contentTypeLine;
    if (contentEncoding !== null) head += headerLine(rules, 'content-encoding', encodeValue(contentEncoding));
    for (let at = 0; at + 1 < headers.length; at += 2) {
      const name = headers[at] as string;
      const value = encodeValue(headers[at + 1] as string);
      head += headerLine(rules, ELEMENT_HEADER_PREFIX + name, value);
      if (keepsPlainName(name, headers)) head += headerLine(rules, name, value);
    }
    return `${head}\n`;
  }

  /** The MESSAGE that follows the last element of a browsing subscription. */
  browserEnd(): string {
    return `${this.#start}message-id:\ncontent-length:0\nbrowser:end\n\n`;
  }
}

/**
 * Whether MESSAGE may have an element header under its plain name, because the name has no meaning there. A producer's
 * header `browser` must not end a browse. A client that sends a dead letter again, with all headers of its MESSAGE,
 * must not send the expiry of its original: the element would expire at once.
 */
function keepsPlainName(name: string, headers: ElementHeaders): boolean {
  if (name === 'expires' && neverExpires(headers)) return false;
  return !PROTOCOL_HEADERS.has(name) && name !== 'browser' && !name.startsWith(ELEMENT_HEADER_PREFIX);
}

let lastAt = Number.NaN;
let lastTime = '';
let lastEscaped = '';

/** Formats a maturity; caches the last one, since elements that were inserted together mature together. */
function formatTime(rules: HeadRules, at: number): string {
  if (at !== lastAt) {
    lastAt = at;
    lastTime = new Date(at).toISOString();
    lastEscaped = lastTime.replaceAll(':', '\\c');
  }
  return rules.escapes.size === 0 ? lastTime : lastEscaped;
}
