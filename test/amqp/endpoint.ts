import assert from 'node:assert/strict';
import { it } from 'node:test';
import { ConnectionEndpoint, type ConnectionHost } from '../../src/amqp/core/connection.ts';
import { TRANSFER_HEAD_BYTES } from '../../src/amqp/core/frames.ts';
import {
  type AmqpDeliveryState,
  type Endpoint,
  ReceiverEndpoint,
  type SenderEndpoint,
} from '../../src/amqp/core/link.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import { SentDelivery } from '../../src/amqp/core/session.ts';
import type { WriteObserver } from '../../src/session/socket-writer.ts';
import { type ServerFrame, splitFrame } from './raw-client.ts';
import { attachReceiver, begin, frame, type Performative, str, type Wire } from './wire.ts';

interface EndpointOptions {
  readonly messageBytes?: number;
  /** Credit granted to each link on which the client sends. */
  readonly credit?: number;
  readonly firstId?: number;
  /** Rejects links to this address. */
  readonly rejected?: string;
}

/** A connection endpoint without a socket: frames in, frames out. It accepts every link except those to `refused`. */
export class EndpointDriver implements ConnectionHost {
  readonly endpoint: ConnectionEndpoint;
  /** The frames sent to the client, and the observer of each. */
  readonly frames: Buffer[] = [];
  readonly observers: (WriteObserver | null)[] = [];
  /** Complete messages: delivery-id, payload, whether settled. */
  readonly messages: [number, Buffer, boolean][] = [];
  /** Dispositions of sent messages: delivery-id, descriptor code of the state, whether settled. */
  readonly dispositions: [number, number, boolean][] = [];
  /** Links in the order of their `attach`. */
  readonly links: Endpoint[] = [];
  readonly detached: Endpoint[] = [];
  /** Credit used up by deliveries that never became a message. */
  creditLost = 0;
  readonly writer = {
    add: (observer: WriteObserver | null, bytes: Buffer): void => {
      this.frames.push(bytes);
      this.observers.push(observer);
    },
  };
  canWrite = true;
  isFlushPlanned = false;
  readonly #credit: number;
  readonly #refused: string | null;

  constructor({ messageBytes = 65_536, credit = 10, firstId = 0, rejected: refused }: EndpointOptions = {}) {
    this.#credit = credit;
    this.#refused = refused ?? null;
    this.endpoint = new ConnectionEndpoint(this, {
      containerId: 'test',
      idleTimeoutMs: 0,
      version: '0.0.0',
      messageBytes,
      firstId,
    });
  }

  /** The kinds of the frames sent to the client. */
  get kinds(): ServerFrame['kind'][] {
    return this.frames.map((bytes) => splitFrame(bytes).kind);
  }

  /** Forgets the frames sent so far. */
  clearFrames(): this {
    this.frames.length = 0;
    this.observers.length = 0;
    return this;
  }

  /** The most recently attached link, on which the client receives. */
  get sender(): SenderEndpoint {
    const link = this.links.at(-1);
    assert.ok(link !== undefined && !(link instanceof ReceiverEndpoint));
    return link;
  }

  /** Processes frames from the client. @throws ProtocolError */
  receive(...all: readonly Buffer[]): this {
    for (const bytes of all) {
      // The frame neither starts nor ends its buffer, as in a chunk of the socket.
      const chunk = Buffer.concat([Buffer.alloc(3, 0xee), bytes, Buffer.alloc(5, 0xee)]);
      this.endpoint.receive(chunk, 3, 3 + bytes.length);
    }
    return this;
  }

  /** The condition of the protocol error that a frame causes, or `passed`. */
  rejection(bytes: Buffer): string {
    try {
      this.receive(bytes);
    } catch (error) {
      assert.ok(error instanceof ProtocolError, String(error));
      return error.condition;
    }
    return 'passed';
  }

  /** Opens the connection and begins a session on channel 0. */
  withSession(): this {
    return this.receive(frame('open', [str('client')]), begin());
  }

  /** Sends `count` messages on the most recently attached link. */
  sendMessages(count: number, bytes = 4, isSettled = false): this {
    for (let i = 0; i < count; i++) {
      const message = Buffer.alloc(TRANSFER_HEAD_BYTES + bytes, 'm');
      const observer = { written: () => {}, lost: () => this.lost.push(i) };
      const delivery = new SentDelivery(this.sender, message, isSettled);
      delivery.observer = observer;
      this.sent.push(delivery);
      this.sender.session.send(delivery);
    }
    return this;
  }

  readonly lost: number[] = [];
  readonly sent: SentDelivery[] = [];

  planFlush(): void {
    this.isFlushPlanned = true;
  }

  onOpen(): void {}

  onAttach(link: Endpoint): void {
    const { source, target } = link.request;
    const addresses = [source?.address, target?.address];
    if (this.#refused !== null && addresses.includes(this.#refused)) {
      link.refuse({ condition: 'amqp:not-found', description: 'no' });
      return;
    }
    this.links.push(link);
    const stop = (): void => {
      this.detached.push(link);
      link.release();
    };
    if (link instanceof ReceiverEndpoint) {
      link.accept(
        {
          onMessage: (id, payload, isSettled) => this.messages.push([id, payload, isSettled]),
          onCreditUsed: (count) => {
            this.creditLost += count;
          },
          stop,
        },
        1000,
      );
      link.grant(this.#credit);
      return;
    }
    link.accept(
      {
        onFlow: () => {},
        onDisposition: ({ id }: SentDelivery, { kind }: AmqpDeliveryState, isSettled: boolean) =>
          this.dispositions.push([id, kind, isSettled]),
        stop,
      },
      false,
      'move',
    );
  }

  onSessionCapacity(): void {}

  onClose(): void {
    this.endpoint.close(null);
  }
}

/**
 * Declares a test per case: sends the frame with these fields on a connection with a session, and expects the result.
 */
export function testAnswers(
  name: Performative,
  cases: Readonly<Record<string, [(Wire | undefined)[], string]>>,
): void {
  for (const [what, [fields, expected]] of Object.entries(cases)) {
    it(`answers ${what} with ${expected}`, () => {
      const driver = new EndpointDriver();
      if (name !== 'open') driver.withSession();
      if (!['open', 'begin', 'attach'].includes(name)) driver.receive(attachReceiver());
      assert.equal(driver.rejection(frame(name, fields)), expected);
    });
  }
}
