import rhea, {
  type Connection,
  type ConnectionOptions,
  type Delivery,
  type Receiver,
  type link as RheaLink,
  type Sender,
  type Session,
} from 'rhea';
import { AMQP_LIMITS } from './guard/limits.ts';
import type { RheaStream } from './guard/rhea-stream.ts';

// What this front end needs of rhea beyond its public face, in one place. rhea is pinned; test/amqp/rhea.test.ts
// shows that each of these is still as it is taken to be.

interface OpenDelivery extends Delivery {
  data: readonly Buffer[];
  settled: boolean;
  remote_settled: boolean;
  /** Called where it will never be sent, since its link is closed. */
  dropped?: () => void;
}

interface Deliveries {
  readonly head: number;
  readonly size: number;
  by_id(id: number): OpenDelivery | undefined;
  get_head(): OpenDelivery | undefined;
  pop_if(isOver: (delivery: OpenDelivery) => boolean): number;
}

interface Outgoing {
  readonly deliveries: Deliveries;
  readonly next_delivery_id: number;
  next_pending_delivery: number;
  available(): number;
  transfer_window(): number;
  process(): void;
}

interface FlowFrame {
  readonly performative: { readonly handle?: number | null; readonly echo?: boolean | null };
}

interface OpenSession extends Session {
  readonly local: { readonly channel: number; readonly begin: { handle_max: number } };
  readonly outgoing: Outgoing;
  readonly incoming: { readonly deliveries: Deliveries };
  on_flow(frame: FlowFrame): void;
  on_disposition(frame: unknown): void;
  _write_flow(link?: unknown): void;
}

interface OpenSender extends Sender {
  readonly session: OpenSession;
  credit: number;
  delivery_count: number;
  readonly _draining: boolean | null | undefined;
  readonly _drained: boolean;
  _get_drain(): boolean;
  readonly local: { readonly attach: { snd_settle_mode?: number; rcv_settle_mode?: number } };
}

interface OpenReceiver extends Receiver {
  delivery_count: number;
  readonly local: {
    readonly attach: {
      rcv_settle_mode?: number;
      max_message_size?: number;
      offered_capabilities?: readonly string[];
    };
  };
  readonly remote: { readonly attach?: { readonly initial_delivery_count?: number | null } };
}

interface RegisteringConnection extends Connection {
  _register(): void;
}

/** Deliveries of a session that may be unsettled, and what the `open` of this server says. */
export interface ConnectionFields {
  readonly containerId: string;
  readonly version: string;
  readonly frameBytes: number;
  readonly channelMax: number;
  readonly idleTimeoutMs: number;
  readonly unsettled: number;
}

/** Without it Qpid JMS refuses to send with a delay, and with it sends `x-opt-delivery-time`. */
const CAPABILITIES = ['DELAYED_DELIVERY'];

/** One for all connections: what is a connection's own stands in its options. */
const container = rhea.create_container({ id: 'quayside' });
// Unheard errors would be thrown; each that matters is heard on its own link, session or connection.
container.on('error', () => {});

/** rhea's end of a connection. Nothing is accepted, settled or granted unless this front end does it. */
export function acceptConnection(stream: RheaStream, fields: ConnectionFields): Connection {
  const options = {
    container_id: fields.containerId,
    disable_sasl: true,
    reconnect: false,
    max_frame_size: fields.frameBytes,
    channel_max: fields.channelMax,
    idle_time_out: fields.idleTimeoutMs,
    session_buffer_size: fields.unsettled,
    properties: { product: 'Quayside', version: fields.version },
    offered_capabilities: CAPABILITIES,
    autoaccept: false,
    autosettle: false,
    credit_window: 0,
    treat_modified_as_released: false,
  };
  // What its type asks for is where to connect to; this end was connected to.
  const connection = container.create_connection(options as unknown as ConnectionOptions);
  // Its type asks for a socket; `accept` uses what the stream has.
  (connection as unknown as { accept(stream: RheaStream): void }).accept(stream);
  // Otherwise an outcome that comes behind the end starts a timer that keeps all this for a minute.
  stream.on('end', () => {
    (connection as unknown as { socket_ready: boolean }).socket_ready = false;
  });
  return connection;
}

/**
 * Mends what rhea does not see to, on a session that the peer has begun and that is not answered yet:
 * - The `begin` says how many links there may be.
 * - A disposition of a delivery that is settled already must not touch another that took its place in the ring.
 * - Deliveries that still wait for the peer's window when their link is closed are left out, not sent behind
 *   the `detach`.
 * - Outcomes are told when they come: a `detach` right behind them must not be heard first.
 * - Window that comes without a link's credit lets links go on, and `echo` is answered.
 */
export function mendSession(session: Session, onFlow: () => void): void {
  const open = session as OpenSession;
  open.local.begin.handle_max = AMQP_LIMITS.handleMax;
  const { outgoing, incoming } = open;
  for (const deliveries of [outgoing.deliveries, incoming.deliveries]) {
    const byId = deliveries.by_id.bind(deliveries);
    deliveries.by_id = (id) => (id < (deliveries.get_head()?.id ?? 0) ? undefined : byId(id));
  }
  const process = outgoing.process.bind(outgoing);
  outgoing.process = () => {
    do {
      dropClosed(outgoing);
      process();
    } while (isClosed(outgoing));
  };
  const disposition = open.on_disposition.bind(open);
  open.on_disposition = (frame) => {
    disposition(frame);
    outgoing.process();
  };
  const flow = open.on_flow.bind(open);
  open.on_flow = (frame) => {
    flow(frame);
    const { handle, echo } = frame.performative;
    if (echo === true && (handle === undefined || handle === null)) open._write_flow();
    onFlow();
  };
}

function dropClosed(outgoing: Outgoing): void {
  while (isClosed(outgoing)) {
    const delivery = outgoing.deliveries.by_id(outgoing.next_pending_delivery);
    outgoing.next_pending_delivery += 1;
    if (delivery === undefined) continue;
    delivery.settled = true;
    delivery.remote_settled = true;
    delivery.dropped?.();
  }
}

/** Whether the next delivery to be sent is of a link that is closed. */
function isClosed({ deliveries, next_pending_delivery, next_delivery_id }: Outgoing): boolean {
  if (next_pending_delivery >= next_delivery_id) return false;
  return deliveries.by_id(next_pending_delivery)?.link.is_open() !== true;
}

/**
 * Says `drain` also where the credit was used up by messages: a flow tells the last that the receiver has said,
 * and some wait for it.
 */
export function mendSender(sender: Sender): void {
  const open = sender as OpenSender;
  open._get_drain = () => {
    if (open._draining !== true || !open._drained) return false;
    open.delivery_count += open.credit;
    open.credit = 0;
    return true;
  };
}

/** How many messages may be given to a link now, to leave at once. */
export function sendable(sender: Sender): number {
  const { session, credit } = sender as OpenSender;
  const { outgoing } = session;
  const pending = unsent(sender);
  const room = Math.min(credit - pending, outgoing.available(), outgoing.transfer_window() - pending);
  // Before the first flow the window is not a number.
  return room > 0 ? room : 0;
}

/** Whether the link's session has room for one more delivery: all its links share that, and rhea throws beyond. */
export function hasRoom(sender: Sender): boolean {
  return (sender as OpenSender).session.outgoing.available() > 0;
}

/** Deliveries of the link's session that wait for rhea to write them. */
export function unsent(sender: Sender): number {
  const { outgoing } = (sender as OpenSender).session;
  return outgoing.next_delivery_id - outgoing.next_pending_delivery;
}

export function creditOf(sender: Sender): number {
  return (sender as OpenSender).credit;
}

export function channelOf(sender: Sender): number {
  return (sender as OpenSender).session.local.channel;
}

/**
 * Says how this end of a link settles. Before the `attach` is written. `rcv-settle-mode` `second` is answered with
 * `first`, as the standard allows: uamqp asks for it and then never settles what it sent.
 */
export function setSettling(sender: Sender, isSettled: boolean): void {
  const { attach } = (sender as OpenSender).local;
  attach.snd_settle_mode = isSettled ? 1 : 0;
  attach.rcv_settle_mode = 0;
}

/** Gives a link that was attached by a sender its terms. Before the `attach` is written. */
export function setReceiving(receiver: Receiver, maxMessageBytes: number): void {
  const open = receiver as OpenReceiver;
  open.local.attach.max_message_size = maxMessageBytes;
  open.local.attach.rcv_settle_mode = 0;
  open.local.attach.offered_capabilities = CAPABILITIES;
  open.delivery_count = open.remote.attach?.initial_delivery_count ?? 0;
}

/** Gives an encoded message to a link. `dropped` is called where it will never leave, since the link is closed. */
export function sendBytes(sender: Sender, bytes: Buffer, tag: Buffer, dropped: () => void): Delivery {
  const delivery = sender.send(bytes, tag, 0) as OpenDelivery;
  delivery.dropped = dropped;
  return delivery;
}

/** The bytes of a delivery that has left are not needed any more; rhea would keep them until it is settled. */
export function forgetBytes(delivery: Delivery): void {
  (delivery as OpenDelivery).data = [];
}

/** The peer forgot this delivery: rhea may as well. */
export function settleSilently(delivery: Delivery): void {
  (delivery as OpenDelivery).settled = true;
}

/** Tells the peer that a delivery is settled, which it has not settled itself; then it is forgotten. */
export function settleAloud(delivery: Delivery): void {
  const outcome = delivery.remote_state as { described?(): unknown } | undefined;
  delivery.update(true, outcome?.described?.());
  (delivery as OpenDelivery).remote_settled = true;
}

/**
 * A link is over: nobody settles any more what it left unsettled. rhea frees its rings from their heads only, so
 * that one such delivery would hold up the whole session. What is not answered yet still can be.
 */
export function forgetLink(link: RheaLink): void {
  const { outgoing, incoming } = link.session as OpenSession;
  for (const delivery of eachIn(outgoing.deliveries)) {
    // Those behind wait for the peer's window, and are left out when it is their turn.
    if (delivery.id >= outgoing.next_pending_delivery) break;
    if (isOf(delivery, link)) Object.assign(delivery, { settled: true, remote_settled: true });
  }
  for (const delivery of eachIn(incoming.deliveries)) if (isOf(delivery, link)) delivery.settled = true;
  outgoing.deliveries.pop_if(({ settled, remote_settled }) => settled && remote_settled);
  incoming.deliveries.pop_if(({ settled }) => settled);
}

function* eachIn(deliveries: Deliveries): Iterable<OpenDelivery> {
  const first = deliveries.get_head()?.id ?? 0;
  for (let i = 0; i < deliveries.size; i++) {
    const delivery = deliveries.by_id(first + i);
    if (delivery !== undefined) yield delivery;
  }
}

function isOf(delivery: Delivery, link: RheaLink): boolean {
  return (delivery.link as RheaLink) === link;
}

/** Tells the peer that a link has no more to send: its credit is used up. */
export function writeDrained(sender: Sender): void {
  sender.set_drained(true);
  (sender.connection as RegisteringConnection)._register();
}
