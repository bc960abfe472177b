// Drives npm's rhea-promise with the commands described in `driven.ts`. Its connections reconnect by themselves.

import {
  type AwaitableSender,
  Connection,
  ConnectionEvents,
  type Delivery,
  type EventContext,
  message as encode,
  type Receiver,
  ReceiverEvents,
  SendOperationFailedError,
} from 'rhea-promise';
import { Mailbox } from '../../stomp/foreign/client.ts';
import { drive, type ShownMessage } from './javascript.ts';

interface Received extends ShownMessage {
  readonly delivery: Delivery | undefined;
}

const RECONNECT_MS = 20;
const received = new Mailbox<Received | Error>();
let connection: Connection | null = null;
let senders = new Map<string, AwaitableSender>();
let lost = Promise.withResolvers<void>();
let connected = Promise.withResolvers<void>();

function onMessage({ message, delivery }: EventContext): void {
  const {
    body,
    content_type: contentType,
    delivery_count: deliveryCount,
    application_properties,
  } = message as {
    body: { typecode?: number; content?: Buffer };
    content_type?: string;
    delivery_count?: number;
    application_properties?: Record<string, unknown>;
  };
  const DATA = 0x75;
  received.put({
    body: body?.typecode === DATA ? body.content : body,
    contentType,
    deliveryCount,
    properties: application_properties,
    delivery,
  });
}

await drive<Received>({
  received,
  async open({ hostname: host, port }, username, password) {
    if (connection !== null) {
      await connected.promise;
      senders = new Map();
      return;
    }
    const reconnection = {
      reconnect: true,
      initial_reconnect_delay: RECONNECT_MS,
      max_reconnect_delay: RECONNECT_MS,
    };
    connection = new Connection({ host, port: Number(port), username, password, ...reconnection });
    connection.on(ConnectionEvents.disconnected, () => {
      lost.resolve();
      connected = Promise.withResolvers();
    });
    connection.on(ConnectionEvents.connectionOpen, () => connected.resolve());
    await connection.open();
  },
  close: async () => connection?.close(),
  async lost() {
    await lost.promise;
    lost = Promise.withResolvers();
  },
  async send(address, body, { contentType, properties }) {
    if (connection === null) throw new Error('there is no connection');
    let sender = senders.get(address);
    if (sender === undefined) {
      sender = await connection.createAwaitableSender({ target: { address } });
      senders.set(address, sender);
    }
    const sent = {
      body: Buffer.isBuffer(body) ? encode.data_section(body) : body,
      application_properties: properties,
      ...(contentType !== null && { content_type: contentType }),
    };
    try {
      await sender.send(sent);
      return 'accepted';
    } catch (error) {
      if (error instanceof SendOperationFailedError && !error.code.endsWith('_error')) return error.code;
      throw error;
    }
  },
  async receive(address, credit, isSettled, group) {
    if (connection === null) throw new Error('there is no connection');
    const receiver: Receiver = await connection.createReceiver({
      source: { address, ...(group !== null && { filter: { 'x-ks-group': group } }) },
      credit_window: 0,
      autoaccept: false,
      snd_settle_mode: isSettled ? 1 : 0,
      onMessage,
      onError: () => {},
    });
    receiver.on(ReceiverEvents.receiverError, () => {
      if (receiver.error !== undefined) received.put(receiver.error as Error);
    });
    receiver.addCredit(credit);
  },
  settle({ delivery }, outcome) {
    if (outcome === 'accepted') delivery?.accept();
    else if (outcome === 'rejected') delivery?.reject();
    else if (outcome === 'released') delivery?.release({ delivery_failed: false });
    else delivery?.modified({ delivery_failed: true, undeliverable_here: false });
  },
});
