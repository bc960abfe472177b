import { needs } from '../../broker/needs.ts';
import { invalidParameter, QuaysideError } from '../../model/errors.ts';
import { groupOf, milliseconds, whole } from '../../session/values.ts';
import { quoteBytes } from '../../util/quote.ts';
import { type Frame, headerOf } from '../codec/frame.ts';
import { HeaderSlips } from '../element-headers.ts';
import { STOMP_LIMITS } from '../options.ts';
import type { StompSession } from '../session.ts';
import { ACK_MODES, type AckMode, type SubscriptionOptions } from '../subscription.ts';
import { needed } from '../values.ts';

/** A misspelt `ack` would pop what the client means to reserve, and a misspelt `browser` what it means to look at. */
const SLIPS = new HeaderSlips(['x-wsize', 'x-parallel', 'x-ks-group', 'x-lease'], [], ['ack', 'browser']);
/** A client that means to browse must not consume: `browser:true` as ActiveMQ and Apollo read it, `activemq.browser:true` as ActiveMQ does too. */
const BROWSER = /^(?:.*[.-])?browser$/i;
const NO = /^\s*(?:0|false|no|off)\s*$/i;

/** SUBSCRIBE: a consumer that goes on until UNSUBSCRIBE or the end of the session. */
export function subscribe(session: StompSession, { headers }: Frame): void {
  const get = (name: string): string | null => headerOf(headers, name);
  const destination = needed('SUBSCRIBE', 'destination', get('destination'));
  // Before 1.1 a subscription was known by its destination, unless the client gave an id.
  const id = session.version === '1.0' ? get('id') : needed('SUBSCRIBE', 'id', get('id'));
  let browses = false;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    if (BROWSER.test(name)) browses ||= !NO.test(headers[at + 1] as string);
    else SLIPS.check(name);
  }
  const selector = get('selector');
  if (selector) {
    throw new QuaysideError(
      'not-supported',
      `Subscriptions have no selectors, such as ${quoteBytes(selector)}. Leave selector out, or use an exchange.`,
      { parameter: 'selector' },
    );
  }
  whole('x-parallel', get('x-parallel'), { from: 1, to: STOMP_LIMITS.window, unit: 'a count' }, 1);
  const { namespace, queue } = session.destinations.find(destination, browses ? 'browse' : 'read');
  const mode = readMode(get('ack'));
  const group = groupOf('x-ks-group', get('x-ks-group'));
  const window = readWindow(get);
  const leaseMs = readLease(mode, get('x-lease'));
  const common = { id, destination, namespace, queue, group };
  if (browses) {
    // Refused now if the namespace has no groups, not with the first page.
    if (group !== null) queue.groups([group]);
    session.subscriptions.browse(common);
  } else {
    if (mode !== 'auto') needs(namespace, 'reserve');
    const options: SubscriptionOptions = { ...common, mode, isPop: mode === 'auto', window, leaseMs };
    session.subscriptions.open(options);
  }
  session.confirm(get('receipt'));
}

/** UNSUBSCRIBE: what the client holds returns to the queue, and then comes its receipt. */
export function unsubscribe(session: StompSession, { headers }: Frame): void {
  const id = headerOf(headers, 'id');
  const key = session.version === '1.0' ? (id ?? headerOf(headers, 'destination')) : id;
  const name = session.version === '1.0' ? 'id or destination' : 'id';
  // What was acknowledged before stays so.
  session.endTurn();
  const closing = session.subscriptions.close(needed('UNSUBSCRIBE', name, key));
  void session.confirmAfter(closing, headerOf(headers, 'receipt'));
}

function readMode(value: string | null): AckMode {
  const mode = value === null ? 'auto' : ACK_MODES.find((one) => one === value);
  if (mode !== undefined) return mode;
  throw invalidParameter('ack', `Invalid ack ${quoteBytes(value ?? '')}. Allowed: ${ACK_MODES.join(', ')}.`);
}

function readWindow(get: (name: string) => string | null): number {
  const { window, defaultWindow } = STOMP_LIMITS;
  const name = get('x-wsize') === null ? 'prefetch-count' : 'x-wsize';
  return whole(name, get(name), { from: 1, to: window, unit: 'a count of elements' }, defaultWindow);
}

function readLease(mode: AckMode, value: string | null): number | null {
  if (value !== null && mode === 'auto') {
    throw invalidParameter(
      'x-lease',
      `x-lease is ${quoteBytes(value)}, but ack:auto has no lease. Allowed with client and client-individual.`,
    );
  }
  return milliseconds('x-lease', value, 1, null);
}
