/** The part of amqp10 that the tests use; the package has no types. */
declare module 'amqp10' {
  namespace AMQP {
    interface Message {
      readonly body: unknown;
      readonly header?: { readonly deliveryCount?: number };
      readonly properties?: { readonly contentType?: string };
      readonly applicationProperties?: Readonly<Record<string, unknown>>;
    }
    interface SenderLink {
      send(message: { readonly body: unknown }, options: object): Promise<unknown>;
    }
    interface ReceiverLink {
      on(event: 'message', listener: (message: Message) => void): void;
      on(event: 'errorReceived', listener: (error: Error) => void): void;
      addCredits(count: number): void;
      accept(message: Message): void;
      reject(message: Message): void;
      release(message: Message): void;
      modify(message: Message, options: { readonly deliveryFailed: boolean }): void;
    }
    class Client {
      constructor(policy: object);
      on(event: string, listener: (error?: unknown) => void): void;
      connect(url: string): Promise<void>;
      disconnect(): Promise<void>;
      createSender(address: string): Promise<SenderLink>;
      createReceiver(address: string, policy: object): Promise<ReceiverLink>;
    }
    const Policy: { readonly Default: object; merge(changes: object, policy: object): object };
  }
  export default AMQP;
}

/** The part of rhea-promise that the tests use. */
declare module 'rhea-promise' {
  import type { ConnectionOptions, Delivery, EventContext, Message } from 'rhea';

  export { message } from 'rhea';
  export type { Delivery, EventContext };

  export class SendOperationFailedError extends Error {
    readonly code: string;
  }
  export interface AwaitableSender {
    send(message: Message): Promise<Delivery>;
  }
  export interface Receiver {
    readonly error: Error | undefined;
    on(event: string, listener: () => void): void;
    addCredit(count: number): void;
  }
  export class Connection {
    constructor(options: ConnectionOptions);
    on(event: string, listener: () => void): void;
    open(): Promise<Connection>;
    close(): Promise<void>;
    createAwaitableSender(options: object): Promise<AwaitableSender>;
    createReceiver(options: object): Promise<Receiver>;
  }
  export const ConnectionEvents: { readonly disconnected: string; readonly connectionOpen: string };
  export const ReceiverEvents: { readonly receiverError: string };
}
