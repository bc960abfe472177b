// Drives npm's amqp10 with the commands described in `driven.ts`. Its connections reconnect by themselves.

import AMQP from 'amqp10';
import { Mailbox } from '../../stomp/foreign/client.ts';
import { drive, type ShownMessage } from './javascript.ts';

interface Received extends ShownMessage {
  readonly message: AMQP.Message;
  readonly receiver: AMQP.ReceiverLink;
}

/** By default, the library takes the part of an address after a slash as a subject. */
const POLICY = AMQP.Policy.merge({ parseLinkAddress: (name: string) => ({ name }) }, AMQP.Policy.Default);
/** The library's default is 10,000 bytes. */
const MAX_MESSAGE_BYTES = 1_048_576;
/** Without this mode, the library accepts every message automatically. */
const SETTLES_LATER = 1;
const received = new Mailbox<Received | Error>();
let client: AMQP.Client | null = null;
let senders = new Map<string, AMQP.SenderLink>();
let lost = Promise.withResolvers<void>();
let connected = Promise.withResolvers<void>();

await drive<Received>({
  received,
  async open({ host }, user, password) {
    if (client === null) {
      client = new AMQP.Client(POLICY);
      client.on('disconnected', () => {
        lost.resolve();
        connected = Promise.withResolvers();
      });
      client.on('connected', () => connected.resolve());
      const failed = Promise.withResolvers<never>();
      client.on('client:errorReceived', failed.reject);
      failed.promise.catch(() => {});
      // After a failed login, the library retries forever.
      await Promise.race([client.connect(`amqp://${user}:${password}@${host}`), failed.promise]);
    } else {
      await connected.promise;
      senders = new Map();
    }
  },
  close: async () => client?.disconnect(),
  async lost() {
    await lost.promise;
    lost = Promise.withResolvers();
  },
  async send(address, body, { contentType, properties }) {
    if (client === null) throw new Error('there is no connection');
    let sender = senders.get(address);
    if (sender === undefined) {
      sender = await client.createSender(address);
      senders.set(address, sender);
    }
    try {
      await sender.send(
        { body },
        {
          applicationProperties: properties,
          ...(contentType !== null && { properties: { contentType } }),
        },
      );
      return 'accepted';
    } catch (error) {
      if ((error as { condition?: unknown }).condition === 'amqp:invalid-field') return 'rejected';
      throw error;
    }
  },
  async receive(address, credit, isSettled, group) {
    if (client === null) throw new Error('there is no connection');
    const receiver = await client.createReceiver(address, {
      credit: () => {},
      attach: {
        maxMessageSize: MAX_MESSAGE_BYTES,
        rcvSettleMode: SETTLES_LATER,
        sndSettleMode: isSettled ? 1 : 0,
        source: { address, ...(group !== null && { filter: { 'x-ks-group': group } }) },
      },
    });
    receiver.on('message', (message) => {
      const { body, header, properties, applicationProperties } = message;
      const { contentType } = properties ?? {};
      const shown = { contentType, deliveryCount: header?.deliveryCount, properties: applicationProperties };
      received.put({ body, ...shown, message, receiver });
    });
    receiver.on('errorReceived', (error) => received.put(error));
    receiver.addCredits(credit);
  },
  settle({ receiver, message }, outcome) {
    if (outcome === 'accepted') receiver.accept(message);
    else if (outcome === 'rejected') receiver.reject(message);
    else if (outcome === 'released') receiver.release(message);
    else receiver.modify(message, { deliveryFailed: true });
  },
});
